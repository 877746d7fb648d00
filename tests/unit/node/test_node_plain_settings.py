"""The hooks' quick reading of plain settings files says what tomllib says, or nothing; how long slurmd gives a hook."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.node.settings import hook_limit_seconds, plain_document, slurmd_limit_seconds

PLAIN = """\
# what a site sets
[node]
spool_directory = "/var/spool/slurm-energy/%n"  # a comment
"log_path" = ""
time_limit_seconds = 4.5
sample_interval_seconds=1 # whole
set_clocks = true
 negative = -3
 [cluster]
name = "größe # 1"
"""


def test_plain_file_is_read_as_tomllib_reads_it() -> None:
    assert plain_document(PLAIN) == tomllib.loads(PLAIN)
    assert plain_document(PLAIN.replace("\n", "\r\n")) == plain_document(PLAIN)
    assert plain_document("") == {}


@pytest.mark.parametrize(
    "line",
    [
        "key",
        "= 1",
        "key =",
        'key = "a',
        'key = "a\\n"',
        'key = """a"""',
        'key = "a" "b"',
        'key = "a"b',
        "key = 'a'",
        "key = 01",
        "key = +1",
        "key = 1_000",
        "key = 1.",
        "key = .5",
        "key = 1e5",
        "key = 0x1f",
        "key = inf",
        "key = 2026-01-01",
        "key = [1]",
        "key = { a = 1 }",
        "a.b = 1",
        '"a.b" = 1',
        "known = 1",
        "key = True",
        "[node]",
        "[[node]]",
        "[a.b]",
        "[a",
        "[]",
        "[a] # comment",
        "key = 1\x00",
        "# \x07",
        "key = ٣",
        "key = 1234567890123456789012",
    ],
)
def test_line_that_is_not_plain_is_left_to_tomllib(line: str) -> None:
    assert plain_document(f"[node]\nknown = 2\n{line}\n") is None


def test_key_before_any_section_is_left_to_tomllib() -> None:
    assert plain_document("key = 1\n[node]\n") is None


PIECES = st.sampled_from(
    [
        *("[node]", "[a]", "[", "]", "key", "b-1", '"', '"text"', "=", " = ", "#", "1", "-", "0", ".", "true", "\\"),
        *("'", "é", " ", "\t", "\n", "\n", "\r", "\r\n", "{}", "[]", ",", "e5", "_", "\x0b", "\x85", "\u2028", '""'),
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_whatever_is_read_is_what_tomllib_reads(text: str) -> None:
    read = plain_document(text)
    if read is not None:
        expected = tomllib.loads(text)
        assert read == expected
        assert [type(value) for section in read.values() for value in section.values()] == [  # type: ignore[attr-defined]
            type(value) for section in expected.values() for value in section.values()
        ]


@given(
    st.dictionaries(
        st.text(alphabet="abz_-09", min_size=1),
        st.one_of(
            st.booleans(),
            st.integers(-(10**15), 10**15),
            st.floats(-1000, 1000).map(lambda number: round(number, 3)),
            st.text(alphabet="ab/%.# =[]é").map(lambda text: text),
        ),
    )
)
def test_plain_values_of_any_kind_are_read(section: dict[str, bool | int | float | str]) -> None:
    lines = [f"{key} = {_toml(value)}" for key, value in section.items()]
    text = "[node]\n" + "\n".join(lines)
    read = plain_document(text)
    assert read is None or read == tomllib.loads(text)
    if not any(isinstance(value, float) and "e" in repr(value) for value in section.values()):
        assert read == tomllib.loads(text)


def _toml(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


@pytest.mark.parametrize(
    ("text", "prolog", "epilog"),
    [
        ("", None, None),
        ("PrologEpilogTimeout=10", 10.0, 10.0),
        ('  prologepilogtimeout = "10" # s', 10.0, 10.0),
        ("PrologTimeout=3\nPrologEpilogTimeout=10", 3.0, 10.0),  # from Slurm 25.05 on
        ("EpilogTimeout=4", None, 4.0),
        ("PrologEpilogTimeout=65534", None, None),
        ("PrologEpilogTimeout=0", None, None),
        ("#PrologEpilogTimeout=10", None, None),
        ("KillOnPrologEpilogTimeout=10\nPrologEpilogTimeout=", None, None),
        ("\udcff\x00PrologEpilogTimeout=1\nPrologEpilogTimeout=6", 6.0, 6.0),
    ],
)
def test_what_slurmd_gives_a_hook_is_read_from_slurm_conf(
    tmp_path: Path, text: str, prolog: float | None, epilog: float | None
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert (slurmd_limit_seconds(conf, "prolog"), slurmd_limit_seconds(conf, "epilog")) == (prolog, epilog)


def test_no_slurm_conf_gives_no_limit(tmp_path: Path) -> None:
    assert slurmd_limit_seconds(None, "prolog") is None
    assert slurmd_limit_seconds(tmp_path, "prolog") is None


@pytest.mark.parametrize(("slurmd", "limit"), [(None, 5.0), (60.0, 5.0), (5.0, 3.0), (1.0, 0.6), (0.1, 0.5)])
def test_a_hook_gives_up_well_before_slurmd_would_kill_it(slurmd: float | None, limit: float) -> None:
    assert hook_limit_seconds(5.0, slurmd) == pytest.approx(limit)
