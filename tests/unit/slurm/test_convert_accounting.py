import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.slurm.convert_accounting import convert_accounting

DATA = Path(__file__).parents[2] / "data" / "slurm"


def job_row(**fields: Any) -> dict[str, Any]:
    row = {
        "job_id": 77,
        "user": "alice",
        "name": "train",
        "partition": "a100",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {"submission": 1000, "start": 1100, "end": 1700, "suspended": 60, "limit": {"set": True, "number": 30}},
        "exit_code": {"return_code": 0},
        "array": {"job_id": 0, "task_id": {"set": False, "number": 0}},
        "comment": {"administrator": "energy:0123456789abcdef"},
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "count": 8},
                {"type": "gres", "name": "gpu", "count": 2},
                {"type": "gres", "name": "gpu:a100", "count": 2},
                {"type": "energy", "name": "", "count": -2},
            ]
        },
    }
    return {**row, **fields}


def test_an_ended_job_is_read() -> None:
    (job,) = convert_accounting({"jobs": [job_row()]}).items
    assert (job.job_id, job.state, job.started_at_seconds, job.ended_at_seconds) == (77, "COMPLETED", 1100.0, 1700.0)
    assert (job.suspended_seconds, job.time_limit_minutes, job.cpus, job.exit_code) == (60.0, 30.0, 8, 0)
    assert (job.admin_comment, job.user_name, job.user_id) == ("energy:0123456789abcdef", "alice", -1)


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ([("gpu", 2), ("gpu:a100", 2)], 2),
        ([("gpu:a100", 2)], 2),
        ([("gpu:a100", 1), ("gpu:h100", 2)], 3),
        ([("nvme", 1)], None),
        ([], None),
    ],
)
def test_typed_gpus_are_not_added_to_the_total(gres: list[tuple[str, int]], count: int | None) -> None:
    tres = {"allocated": [{"type": "gres", "name": name, "count": number} for name, number in gres]}
    (job,) = convert_accounting({"jobs": [job_row(tres=tres)]}).items
    assert job.gpu_count == count


@pytest.mark.parametrize("count", [-2, 4294967294, 18446744073709551614, 0])
def test_a_mark_of_unknown_energy_is_never_joules(count: int) -> None:
    tres = {"allocated": [{"type": "energy", "name": "", "count": count}]}
    (job,) = convert_accounting({"jobs": [job_row(tres=tres)]}).items
    assert job.energy_joules is None


def test_steps_are_not_jobs_and_not_added() -> None:
    step = {"step": {"id": "77.batch"}, "time": {"elapsed": 600}, "statistics": {"energy": {"consumed": 5}}}
    (job,) = convert_accounting({"jobs": [job_row(steps=[step, step])]}).items
    assert job.energy_joules is None


def test_both_attempts_of_a_requeued_job_are_told() -> None:
    first = job_row(state={"current": ["NODE_FAIL"]})
    second = job_row(time={"submission": 1800, "start": 1900, "end": 2000})
    result = convert_accounting({"jobs": [first, second]})
    assert [(job.state, job.submitted_at_seconds) for job in result.items] == [
        ("NODE_FAIL", 1000.0),
        ("COMPLETED", 1800.0),
    ]


def test_a_requeued_attempt_of_a_real_answer_has_ended_and_the_next_one_waits() -> None:
    result = convert_accounting(json.loads((DATA / "sacct-22.05.json").read_text()))
    assert result.skipped == {}
    assert [(job.job_id, job.state, job.ended_at_seconds) for job in result.items] == [
        (2, "REQUEUED", 1795819470.0),
        (1, "COMPLETED", 1795819468.0),
        (2, "PENDING", None),
    ]
    assert [job.gpu_count for job in result.items] == [2, 1, 2]


@pytest.mark.parametrize("release", ["24.11", "25.11"])
def test_real_answers_are_read_without_a_lost_row(release: str) -> None:
    document = json.loads((DATA / f"sacct-{release}.json").read_text())
    result = convert_accounting(document)
    assert result.skipped == {}
    assert [job.state for job in result.items] == ["COMPLETED", "RUNNING", "FAILED", "TIMEOUT"]
    assert [job.ended_at_seconds is None for job in result.items] == [False, True, False, False]


@given(st.dictionaries(st.sampled_from(list(job_row())), st.none() | st.integers() | st.text() | st.lists(st.text())))
def test_no_value_of_any_field_is_more_than_a_skipped_row(fields: dict[str, Any]) -> None:
    result = convert_accounting({"jobs": [job_row(**fields)]})
    assert len(result.items) + result.skipped_rows == 1
