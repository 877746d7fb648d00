"""The demo's arithmetic and its workload file."""

from pathlib import Path

import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab.demo import DemoOutcome, compare, read_workload

HEADER = "submit_offset_seconds,duration_seconds,gpus,partition,profile\n"


def outcome(partition: str, joules: float | None, run: float, wait: float = 0.0) -> DemoOutcome:
    return DemoOutcome(partition=partition, joules=joules, wait_seconds=wait, run_seconds=run)


def test_the_shipped_workload_has_at_least_thirty_jobs_in_order_of_submission() -> None:
    jobs = read_workload()
    assert len(jobs) >= 30
    assert [job.offset_seconds for job in jobs] == sorted(job.offset_seconds for job in jobs)
    assert {job.partition for job in jobs} == {"a100", "a40", "v100"}


def test_partitions_and_total_are_compared_job_by_job() -> None:
    default = [outcome("a", 4000.0, 100.0, 10.0), outcome("a", 2000.0, 50.0, 20.0), outcome("b", 1000.0, 10.0, 0.0)]
    policy = [outcome("a", 3000.0, 110.0, 30.0), outcome("a", 1500.0, 55.0, 0.0), outcome("b", 1000.0, 10.0, 0.0)]
    first, second, total = compare(default, policy)
    assert (first.partition, first.jobs, first.kilojoules) == ("a", 2, (6.0, 4.5))
    assert first.saving == pytest.approx(0.25)
    assert first.slowdown == pytest.approx(0.10)
    assert first.wait_seconds == (15.0, 15.0)
    assert (second.partition, second.saving) == ("b", 0.0)
    assert (total.partition, total.jobs) == ("total", 3)
    assert total.saving == pytest.approx(1.5 / 7.0)


def test_unknown_energy_makes_no_comparison() -> None:
    with pytest.raises(LabError, match="the energy of 1 jobs is unknown"):
        compare([outcome("a", 1.0, 1.0)], [outcome("a", None, 1.0)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "lacks the columns submit_offset_seconds"),
        (HEADER + "0,soon,1,a100,training\n", "line 2, duration_seconds: 'soon' is no number"),
        (HEADER + "0,10,1,a100,training\n0,-5,1,a100,training\n", "line 3, duration_seconds: -5 is not between 0"),
        (HEADER + "0,nan,1,a100,training\n", "duration_seconds: nan is not between"),
    ],
)
def test_a_bad_row_is_named_by_file_line_column_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "w.csv"
    path.write_text(text)
    with pytest.raises(LabError, match=message):
        read_workload(path)
