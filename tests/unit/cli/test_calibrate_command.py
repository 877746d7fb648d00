"""`slurm-energy calibrate`: what it prints, writes, compares and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from measured_data import MEASURED

pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
from slurm_energy.cli.main import cli, main
from slurm_energy.device import loads
from slurm_energy.energy_model.calibration import parts  # needs scipy
from slurm_energy.energy_model.calibration.files import Tell, document
from slurm_energy.energy_model.coefficients import FitError
from slurm_energy.errors import DataFileError


def fit_of(error: float, bound: float | None = 0.2) -> Any:
    def fit(data: Path, tell: Tell) -> dict[str, Any]:
        tell("made", 1, 2)
        stated = FitError(quantity="made up", mean_relative_error=error, num_points=7, bound=bound)
        return document("nowhere", [stated], {"value": 1.25, "data": data.name})

    return fit


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One made-up part; the package's folder and the data's are both empty."""
    folder = tmp_path / "package"
    folder.mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(parts, "PACKAGED_PARTS", (parts.Part("made", fit_of(0.1), folder),))
    return folder


def run(tmp_path: Path, *options: str) -> Any:
    return CliRunner().invoke(cli, ["calibrate", "--data", str(tmp_path / "data"), *options], standalone_mode=False)


def test_table_shows_the_error_its_bound_and_what_differs(tmp_path: Path, package: Path) -> None:
    result = run(tmp_path)
    assert result.return_value == 0
    assert "made.json, differs from the package in 5" in result.stdout
    assert ["made", "up", "fit", "10.0%", "20%"] in [line.split() for line in result.stdout.splitlines()]
    assert list(package.iterdir()) == []


def test_check_is_content_after_the_coefficients_were_written_into_the_package(tmp_path: Path, package: Path) -> None:
    assert run(tmp_path, "--check").return_value == 1
    assert run(tmp_path, "--output", str(package)).return_value == 0
    result = run(tmp_path, "--check")
    assert (result.return_value, result.exception) == (0, None)
    assert "made.json, as in the package" in result.stdout


def test_check_fails_on_a_coefficient_that_moved_by_more_than_a_millionth(tmp_path: Path, package: Path) -> None:
    run(tmp_path, "--output", str(package))
    path = package / "made.json"
    path.write_text(path.read_text().replace("1.25", "1.250001"))
    assert run(tmp_path, "--check").return_value == 0
    path.write_text(path.read_text().replace("1.250001", "1.250002"))
    result = run(tmp_path, "--check")
    assert result.return_value == 1
    shown = json.loads(run(tmp_path, "--check", "--json").stdout)
    assert shown[0]["differences"] == [{"place": "/value", "packaged": 1.250002, "fresh": 1.25}]
    assert shown[0]["equal"] is False


def test_check_fails_on_an_error_beyond_its_bound(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PACKAGED_PARTS", (parts.Part("made", fit_of(0.21), package),))
    run(tmp_path, "--output", str(package))
    assert run(tmp_path, "--check").return_value == 1


def test_one_json_file_holds_every_part(tmp_path: Path, package: Path) -> None:
    output = tmp_path / "new" / "all.json"
    run(tmp_path, "--output", str(output))
    assert json.loads(output.read_text())["made"]["value"] == 1.25


def test_json_tells_source_and_errors(tmp_path: Path, package: Path) -> None:
    (shown,) = json.loads(run(tmp_path, "--json").stdout)
    assert (shown["part"], shown["source"]) == ("made", "nowhere")
    assert shown["fit_errors"] == [
        {"quantity": "made up", "mean_relative_error": 0.1, "num_points": 7, "method": "fit", "bound": 0.2}
    ]


def test_wrong_folder_part_and_file_are_refused_in_one_line(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(data: Path, tell: Tell) -> dict[str, Any]:
        raise DataFileError(f"{data}/sweep.csv, line 3, column watts: 'x' is wrong: not a number")

    assert main(["calibrate", "--data", str(tmp_path / "none")]) == 1
    assert main(["calibrate", "--data", str(tmp_path / "data"), "--part", "nothing"]) == 1
    monkeypatch.setattr(parts, "PACKAGED_PARTS", (parts.Part("made", refuse, package),))
    assert main(["calibrate", "--data", str(tmp_path / "data")]) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("slurm-energy: ")]
    assert lines == [
        f"slurm-energy: {tmp_path}/none is no folder: the data sets are needed, each in a folder of its own",
        "slurm-energy: part 'nothing' does not exist; parts: made",
        f"slurm-energy: {tmp_path}/data/sweep.csv, line 3, column watts: 'x' is wrong: not a number",
    ]


def test_folder_that_cannot_be_written_is_refused(tmp_path: Path, package: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["calibrate", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "file" / "x")]) == 1


def test_real_part_is_as_in_the_package() -> None:
    assert main(["calibrate", "--data", str(MEASURED), "--part", "saturation", "--part", "mig", "--check"]) == 0


def test_without_an_option_it_says_of_each_type_how_its_clock_curves_are_known() -> None:
    result = CliRunner().invoke(cli, ["calibrate"], standalone_mode=False)
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert result.return_value == 0
    assert "measured, by the package's data" in lines["a40"]
    assert "assumed, from a GPU of the same chip: what a clock saves is not known" in lines["v100-sxm2-16gb"]
    assert "none: the clock stays at its default" in lines["t4"]
    rows = json.loads(CliRunner().invoke(cli, ["calibrate", "--json"], standalone_mode=False).stdout)
    assert {row["clock_curves"] for row in rows} == {"measured", "assumed", "none"}


def test_boards_are_not_swept_without_something_to_load_them_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["calibrate", "--node"], standalone_mode=False)
    assert "no compute library is installed" in str(result.exception)
    assert "nothing was measured" in " ".join(str(result.exception).split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--node", "--data", "."], "--node, --from-history and --data exclude each other"),
        (["--node", "--load", "bert"], "not of the form NAME=COMMAND"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["calibrate", *options], standalone_mode=False)
    assert message in str(result.exception)
