"""Scripts made to hurt: nothing raises, and what is read and walked through stays bounded."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts import found, written
from slurm_energy.domain.script import MAX_FEATURES_BYTES
from slurm_energy.estimation.script.features import script_features
from slurm_energy.estimation.script.python_source import python_facts
from slurm_energy.estimation.script.reading import MAX_FILE_BYTES, MAX_FILES, SourceReader

PIECES = st.sampled_from(
    [
        "python ",
        "train.py",
        "srun ",
        "$(",
        "`",
        ")",
        "${",
        "}",
        '"',
        "'",
        "<<EOF\n",
        "EOF\n",
        "\n",
        "\\",
        "\x00",
        "\r\n",
        "bash -c ",
        "eval ",
        "for i in ",
        "; do ",
        "done",
        "if ",
        "(",
        "A=",
        "$A",
        "é",
        "�",
        "source ",
        "x.sh",
        "--",
        "|",
        "--model ",
        "--batch-size=",
        "9" * 30,
        "((",
        "[[ ",
        "case x in ",
        "{ ",
        "function f() ",
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=400), st.lists(st.text(max_size=20), max_size=3))
def test_any_text_is_borne(tmp_path: Path, text: str, arguments: list[str]) -> None:
    (tmp_path / "x.sh").write_text("source x.sh\nbash x.sh\n")
    assert len(found(text, tmp_path, *arguments).encode()) <= MAX_FEATURES_BYTES


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300))
def test_any_program_is_borne(source: bytes | str) -> None:
    python_facts(source)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 60_000,
        "$(" * 30_000,
        "if true; then " * 5_000,
        "A=$A$A\n" * 2_000 + "python $A",
        'A="$A$A x"\n' * 60 + "python $A",
        "bash -c '" * 200,
        "python train.py\n" * 20_000,
        "cat <<EOF\n" + "x" * 5_000_000 + "\nEOF\n",
        "python " + "a" * 1_000_000,
        "eval " * 10_000 + "python x.py",
        "cd ..\n" * 10_000,
        "\x7fELF\x02" + "\x01\x02" * 30_000,
    ],
    ids=lambda text: text[:12],
)
def test_large_and_deep_scripts_are_cut(tmp_path: Path, text: str) -> None:
    assert len(found(text[:999_999], tmp_path).programs) <= 4


def test_a_script_beyond_the_budget_says_nothing(tmp_path: Path) -> None:
    assert list(script_features("python a.py\n" * 100_000, (), {}, SourceReader(tmp_path))) == []


@pytest.mark.parametrize(
    "source",
    [
        "(" * 100_000,
        "x = " + "[" * 150 + "]" * 150,
        "x = " + "-" * 20_000 + "1",
        "x = " + "a." * 20_000 + "b",
        "x = " + "1 + " * 10_000 + "1",
        "x = " + "9" * 100_000,
        "if x:\n" + "".join(" " * depth + "if x:\n" for depth in range(1, 90)),
        b"# coding: no-such-codec\nx = 1",
        b"\xff\xfe\x00x",
        "x = '\ud800'",
    ],
    ids=lambda source: str(source)[:12],
)
def test_programs_made_to_hurt_are_borne(source: str | bytes) -> None:
    python_facts(source)


def test_only_regular_files_of_moderate_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    written(tmp_path, {"large": "x" * (MAX_FILE_BYTES + 1), "empty": "", "good": "text"})
    (tmp_path / "link").symlink_to("good")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/zero")
    reader = SourceReader(tmp_path)
    unread = [
        "fifo",
        "large",
        "empty",
        "loop",
        "device",
        ".",
        "missing",
        "/proc/self/environ",
        "a\x00b",
        "x" * 5_000,
        "",
    ]
    assert [reader.read(name) for name in unread] == [None] * len(unread)
    assert reader.read("link") == "text"
    assert reader.read("good") is None  # the same file, read before


def test_files_and_bytes_have_a_budget(tmp_path: Path) -> None:
    written(tmp_path, {f"f{number}": "x" * 100 + str(number) for number in range(MAX_FILES + 5)})
    reader = SourceReader(tmp_path)
    assert sum(reader.read(f"f{number}") is not None for number in range(MAX_FILES + 5)) == MAX_FILES
    spent = SourceReader(tmp_path)
    assert spent.spend(999_950)
    assert spent.read("f0") is None


def test_a_binary_file_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(b"#!/bin/sh\n\x00\x00")
    assert SourceReader(tmp_path).read("a.sh") is None


def test_a_file_that_may_not_be_read_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    assert found("python missing.py --epochs 5", tmp_path).epochs == 5
