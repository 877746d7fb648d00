import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import WireError
from slurm_energy.wire.codec import MAX_DECIDE_BYTES, Message, decode, encode, escape, unescape

KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,20}\Z", fullmatch=True)


@given(st.dictionaries(KEYS, st.text(max_size=60), max_size=6))
def test_what_is_encoded_comes_back_whole(fields: dict[str, str]) -> None:
    assert decode(encode(Message("decide", fields))) == Message("decide", fields)


@given(st.binary(max_size=60))
def test_bytes_that_are_not_utf8_survive(raw: bytes) -> None:
    value = raw.decode("utf-8", "surrogateescape")
    assert decode(encode(Message("decide", {"name": value}))).fields["name"] == value


def test_a_job_name_with_line_breaks_cannot_add_a_field_or_end_the_message() -> None:
    name = "x\nuid=0\nend\n\r\x1b[31m\u2028%0A"
    raw = encode(Message("decide", {"name": name, "uid": "1000"}))
    assert raw.count(b"\n") == 4
    assert decode(raw).fields == {"name": name, "uid": "1000"}


def test_escapes_are_of_bytes_and_both_cases_are_read() -> None:
    assert escape("50% \x7f\x85") == "50%25 %7F%C2%85"
    assert unescape("50%25 %7f%C2%85") == "50% \x7f\x85"
    assert unescape("100%") == "100%"


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "cut off"),
        (b"slurm-energy/1 decide\nuid=1", "cut off"),
        (b"slurm-energy/1 decide\nuid=1\nen", "cut off"),
        (b"GET / HTTP/1.1\nend\n", "speaks 'GET'"),
        (b"slurm-energy/2 decide\nend\n", "speaks 'slurm-energy/2'"),
        (b"slurm-energy/1 DECIDE\nend\n", "verb"),
        (b"slurm-energy/1\nend\n", "verb"),
        (b"slurm-energy/1 decide\nuid=1\nuid=0\nend\n", "repeats"),
        (b"slurm-energy/1 decide\nuid\nend\n", "key=value"),
        (b"slurm-energy/1 decide\nUID=1\nend\n", "key=value"),
        (b"slurm-energy/1 decide\n\nend\n", "key=value"),
        (b"\x00\xff\nend\n", "speaks"),
    ],
)
def test_a_malformed_message_is_refused_with_the_reason(raw: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(raw)


def test_a_message_over_its_limit_is_refused() -> None:
    raw = encode(Message("decide", {"name": "x" * MAX_DECIDE_BYTES}))
    with pytest.raises(WireError, match="over 65536"):
        decode(raw, MAX_DECIDE_BYTES)


@pytest.mark.parametrize("message", [Message("No"), Message("decide", {"A": "1"}), Message("decide", {"a\n": "1"})])
def test_a_verb_or_key_outside_the_protocol_is_not_sent(message: Message) -> None:
    with pytest.raises(WireError, match="lower-case"):
        encode(message)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_our_own_error(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        assert decode(b"slurm-energy/1 decide\n" + raw).verb == "decide"
