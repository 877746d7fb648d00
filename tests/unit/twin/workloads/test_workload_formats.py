import json
from pathlib import Path

import pytest

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.workloads.csv_file import COLUMNS
from slurm_energy.twin.workloads.formats import Format, load_workload, recognised_format
from slurm_energy.twin.workloads.registry import workload_names, workload_settings

SACCT = "JobID|State|Submit|Start|Elapsed\n1|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:00:00|00:01:00\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("job_id,submitted_seconds,true_units\n", "csv"),
        ("\ufefftrue_units,submitted_seconds\r\n1,2\r\n", "csv"),
        ("submit_time,duration_s,num_gpus\n", "philly"),
        ("; UnixStartTime: 0\n1 " + "-1 " * 17 + "\n", "swf"),
        ("1 " + "-1 " * 17 + "\n", "swf"),
        (json.dumps({"jobs": [], "meta": {}}), "sacct-json"),
        ("\n {\n", "sacct-json"),
        (SACCT, "sacct-text"),
        ("jobid|x\n", "sacct-text"),
    ],
)
def test_format_is_told_by_the_first_lines(tmp_path: Path, text: str, expected: Format) -> None:
    path = tmp_path / "some file"
    path.write_text(text, encoding="utf-8")
    assert recognised_format(path) == expected


@pytest.mark.parametrize("text", [SACCT, '{"jobs": []}'])
def test_accounting_is_pointed_to_the_replay(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sacct"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=r"Slurm's accounting .*replay it"):
        load_workload(path)


def test_csv_that_lacks_a_column_is_told_which(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("job_id,submitted_seconds,name\n1,2,3\n")
    with pytest.raises(WorkloadError, match="column 'true_units' is missing"):
        load_workload(path)


@pytest.mark.parametrize("text", ["hello\n", "a,b,c\n1,2,3\n", "\x00\x01\x02", "PK\x03\x04", "[1, 2]"])
def test_unknown_format_is_refused_with_what_is_known(tmp_path: Path, text: str) -> None:
    path = tmp_path / "w"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=r"is of no known format; it begins .* Known are csv, philly, gavel"):
        load_workload(path)


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "w"
    path.write_text(text)
    with pytest.raises(WorkloadError, match="is empty"):
        load_workload(path)


def test_named_format_is_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_text("submitted_seconds,true_units\n1,2\n")
    assert len(load_workload(path, format="csv").jobs) == 1
    with pytest.raises(WorkloadError, match="column 1, 'submitted_seconds', is unknown"):
        load_workload(path, format="philly")
    with pytest.raises(WorkloadError, match="there is no workload format 'xls'; there are auto, csv"):
        load_workload(path, format="xls")  # type: ignore[arg-type]  # wrong on purpose


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read"):
        load_workload(tmp_path / "none")


def test_page_names_every_column_and_setting() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "workloads.md").read_text(encoding="utf-8")
    missing = [name for name in COLUMNS if f"`{name}`" not in page]
    for generator in workload_names():
        assert f"**`{generator}`**" in page
        section = page.split("## Generators")[1]
        missing += [name for name in workload_settings(generator) if f"`{name}`" not in section]
    assert missing == []
