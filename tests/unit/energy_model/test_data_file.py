"""Bad files of measurements: the error names file, line, column and value."""

from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="numpy is not installed: the twin extra has it")
from slurm_energy.energy_model.calibration.files import read_json, read_rows  # needs numpy
from slurm_energy.errors import DataFileError


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.csv"
    path.write_text(text)
    return path


def test_good_rows_are_read_with_their_lines(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, "name,watts,extra\n a ,1.5,\nb,2,x\n"), ("name", "watts"))
    assert [(row.line, row.text("name"), row.number("watts")) for row in rows] == [(2, "a", 1.5), (3, "b", 2.0)]
    assert rows[0].optional("extra") is None
    assert rows[1].count("watts") == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("12x", "not a number"),
        ("nan", "not a finite number from 0 to 100"),
        ("inf", "not a finite number from 0 to 100"),
        ("-1", "not a finite number from 0 to 100"),
        ("101", "not a finite number from 0 to 100"),
        ("", "not a number"),
    ],
)
def test_bad_number_is_named_with_file_line_column_and_value(tmp_path: Path, value: str, reason: str) -> None:
    row = read_rows(write(tmp_path, f"name,watts\na,{value}\n"), ("name", "watts"))[0]
    with pytest.raises(DataFileError) as caught:
        row.number("watts", 0.0, 100.0)
    assert str(caught.value) == f"{tmp_path}/sweep.csv, line 2, column watts: {value!r} is wrong: {reason}"


def test_part_of_a_number_is_no_count(tmp_path: Path) -> None:
    row = read_rows(write(tmp_path, "gpus\n1.5\n"), ("gpus",))[0]
    with pytest.raises(DataFileError, match=r"column gpus: '1\.5' is wrong: not a whole number"):
        row.count("gpus")


def test_empty_name_is_refused(tmp_path: Path) -> None:
    row = read_rows(write(tmp_path, "name,watts\n ,1\n"), ("name",))[0]
    with pytest.raises(DataFileError, match="line 2, column name: ' ' is wrong: a value is needed"):
        row.text("name")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\na\n", "line 1: column watts is missing"),
        ("", "line 1: column name, watts is missing"),
        ("name,watts\n", "no rows below its header"),
        ("name,watts\na,1\nb\n", "line 3: column watts has no value"),
        ("name,watts\na,1,7\n", r"line 2: value \"\['7'\]\" is beyond the last column"),
        ('name,watts\n"a,1\n', "cannot be read: unexpected end of data"),
    ],
)
def test_file_of_another_shape_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        read_rows(write(tmp_path, text), ("name", "watts"))


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"none\.csv cannot be read"):
        read_rows(tmp_path / "none.csv", ("name",))
    (tmp_path / "binary.csv").write_bytes(b"name\n\xff\xfe\n")
    with pytest.raises(DataFileError, match=r"binary\.csv cannot be read"):
        read_rows(tmp_path / "binary.csv", ("name",))


@pytest.mark.parametrize(("text", "message"), [("[1]", "holds list, an object is needed"), ("{", "cannot be read")])
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(DataFileError, match=message):
        read_json(path)
