import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_energy.slurm.command import JsonRows

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
KEYS = st.sampled_from(["jobs", "meta", "errors", "jobs "]) | st.text(max_size=3)


def read(data: bytes, size: int, key: str = "jobs") -> tuple[object, list[object]]:
    """Return the document and the rows of some bytes that come in pieces of a size."""
    rows: list[object] = []
    reader = JsonRows(key, lambda row, _text: rows.append(row))
    for begin in range(0, len(data), size):
        reader.feed(data[begin : begin + size])
    reader.close()
    return reader.document, rows


@given(
    document=st.dictionaries(KEYS, VALUES, max_size=4),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    size=st.integers(1, 40),
)
def test_any_object_is_read_as_json_does_in_pieces_of_any_size(
    document: dict[str, Any], indent: int | None, ascii_only: bool, size: int
) -> None:
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    expected: dict[str, Any] = json.loads(data.decode("utf-8", "replace"))
    rows = expected["jobs"] if isinstance(expected.get("jobs"), list) else []
    found, seen = read(data, size)
    assert seen == rows
    assert found == (expected | {"jobs": []} if isinstance(expected.get("jobs"), list) else expected)


@pytest.mark.parametrize("text", ["[1, 2]", "17", '"jobs"', "null", " {} ", '{"jobs": 5}', '{"jobs": {"a": [1]}}'])
def test_an_answer_without_the_list_is_there_as_it_is(text: str) -> None:
    for size in (1, 100):
        assert read(text.encode(), size) == (json.loads(text), [])


@given(
    st.sampled_from(
        ['{"jobs": [{"a": 1}, 2.5e3, "x"], "errors": [], "n": 12}', '{"meta": {"v": "a\\"b"}, "jobs": []}']
    ),
    st.integers(0, 60),
    st.sampled_from(["cut", "drop", "put"]),
    st.sampled_from(list('{}[],:"x')),
    st.integers(1, 9),
)
@example('{"jobs": [2.5e3]}', 0, "cut", "x", 1)
@example('{"jobs": [{"a": 1}, 2.5e3, "x"]}', 12, "put", "{", 5)
def test_text_that_json_refuses_is_refused_whatever_its_pieces(
    text: str, place: int, how: str, character: str, size: int
) -> None:
    place %= len(text)
    broken = {
        "cut": text[:place],
        "drop": text[:place] + text[place + 1 :],
        "put": text[:place] + character + text[place:],
    }[how]
    try:
        expected = json.loads(broken)
    except ValueError:
        with pytest.raises(ValueError, match=r".") as error:
            read(broken.encode(), size)
        assert "Traceback" not in str(error.value)
        return
    found, rows = read(broken.encode(), size)
    assert isinstance(found, dict)
    assert found | ({"jobs": rows} if "jobs" in found and isinstance(expected["jobs"], list) else {}) == expected


@given(rows=st.lists(VALUES, max_size=5), size=st.integers(1, 30), indent=st.sampled_from([None, 2]))
def test_each_row_comes_with_the_text_that_it_was_read_from(rows: list[object], size: int, indent: int | None) -> None:
    data = json.dumps({"meta": [1], "jobs": rows}, indent=indent).encode()
    seen: list[tuple[object, str]] = []
    reader = JsonRows("jobs", lambda row, text: seen.append((row, text)))
    for begin in range(0, len(data), size):
        reader.feed(data[begin : begin + size])
    reader.close()
    assert [row for row, _ in seen] == rows
    assert [json.loads(text) for _, text in seen] == rows
    assert all(text == text.strip() for _, text in seen)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bytes_that_are_no_utf8_and_control_characters_cost_no_row(size: int) -> None:
    data = b'{"jobs": [{"name": "caf\xe9"}, {"name": "a\x01\tb"}, {"name": "\xc3\xa9"}]}'
    _, rows = read(data, size)
    assert rows == [{"name": "caf\ufffd"}, {"name": "a\x01\tb"}, {"name": "é"}]
    assert read(b"\xef\xbb\xbf" + data, size)[1] == rows, "a byte order mark is no part of the text"


def test_nothing_is_read_after_an_error() -> None:
    rows: list[object] = []
    reader = JsonRows("jobs", lambda row, _text: rows.append(row))
    with pytest.raises(ValueError, match="missing"):
        reader.feed(b'{"jobs": [{"a": 1} {"a": 2}]}')
    reader.feed(b'{"jobs": [3]}')
    assert rows == [{"a": 1}]


def test_values_nested_too_deeply_are_an_error_and_not_a_crash() -> None:
    with pytest.raises((RecursionError, ValueError)):
        read(b'{"jobs": [' + b"[" * 100_000, 65_536)


def test_memory_grows_with_the_longest_row_and_not_with_the_answer() -> None:
    row = b'{"name": "' + b"x" * 1000 + b'", "list": [1, 2, 3]}'
    count = 0

    def take(_row: object, _text: str) -> None:
        nonlocal count
        count += 1

    tracemalloc.start()
    try:
        reader = JsonRows("jobs", take)
        reader.feed(b'{"jobs": [')
        for number in range(20_000):  # 20 MB
            reader.feed((b", " if number else b"") + row)
        reader.feed(b"]}")
        reader.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak < 500_000


def test_a_long_row_in_small_pieces_is_looked_at_a_logarithmic_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    reader = JsonRows("jobs", lambda row, text: None)
    scan = reader._scan

    def counted(text: str, at: int) -> Any:
        nonlocal looks
        looks += 1
        return scan(text, at)

    monkeypatch.setattr(reader, "_scan", counted)
    reader.feed(b'{"jobs": ["')
    for _ in range(10_000):
        reader.feed(b"x" * 100)
    reader.feed(b'"]}')
    reader.close()
    assert looks < 40
