"""From measured runs to the table that the answering process decides with."""

import sys
from dataclasses import replace

import pytest

from slurm_energy.daemon.ipc.frames import MAX_ITEMS, RuntimePart, WorkPart, table_parts
from slurm_energy.daemon.recorder.link import RecorderLink
from slurm_energy.daemon.reuse import NamesWithRuns
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.estimation.job_history import JobHistory, NamedWork, corrected_work, named_work
from slurm_energy.estimation.run_time import EndedRun, RunTimeModel

A100, A40 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("a40")


def run(name: str, gpu_type: GpuTypeName = A100, ended: float = 0.0, user: int = 1000) -> MeasuredRun:
    return MeasuredRun(
        user=user, name=name, gpu_type=gpu_type, gpus=1, seconds=60.0, watts=300.0, ended_at_seconds=ended
    )


def table(names: int) -> list[NamedWork]:
    return named_work([run(f"job{number:04d}", gpu_type) for number in range(names) for gpu_type in (A100, A40)])[0]


def test_names_that_ran_last_come_first_and_those_of_one_run_are_not_told() -> None:
    runs = [
        *(run("old", gpu_type, 1.0) for gpu_type in (A100, A40)),
        *(run("new", A100, ended) for ended in (5.0, 9.0)),
        run("once", ended=10.0),
        *(run("new", A100, 2.0, user=1001) for _ in range(2)),
    ]
    found, _ = named_work(runs)
    assert [(user_id, name) for user_id, name, _ in found] == [(1000, "new"), (1001, "new"), (1000, "old")]
    assert found[0][2].runs_by_type == {A100: 2}


def test_no_runs_make_an_empty_table() -> None:
    assert named_work([]) == ([], None)


def test_an_installation_without_numpy_learns_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.startswith("slurm_energy.estimation.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with caplog.at_level("INFO"):
        assert named_work([run("a"), run("a", A40)]) == ([], None)
    assert "slurm-energy[daemon]" in caplog.text


def test_the_table_travels_in_small_parts_and_an_empty_one_too() -> None:
    first, last = table_parts(WorkPart, table(MAX_ITEMS + 1))
    assert (len(first.estimates), first.first, first.last) == (MAX_ITEMS, True, False)
    assert (len(last.estimates), last.first, last.last) == (1, False, True)
    (empty,) = table_parts(WorkPart, [])
    assert (empty.estimates, empty.first, empty.last) == ((), True, True)


def test_a_table_is_used_when_it_is_whole_and_leaves_the_other_alone() -> None:
    used: list[JobHistory] = []
    names = NamesWithRuns()
    link = RecorderLink(used.append, names=names)
    hour = RunTimeModel().of_runs([EndedRun(user=1000, name="a", seconds=3600.0)])
    link.receive(RuntimePart(estimates=((1000, "a", hour),), first=True, last=True))
    first, last = table_parts(WorkPart, table(MAX_ITEMS + 1))
    link.receive(first)
    assert len(used) == 1
    link.receive(last)
    assert used[-1].runtimes == {(1000, "a"): hour}
    assert len(used[-1].work) == MAX_ITEMS + 1
    link.receive(WorkPart(estimates=(), first=True, last=True))
    assert used[-1] == JobHistory(runtimes={(1000, "a"): hour})
    assert len(used[1].work) == MAX_ITEMS + 1
    assert names.for_reply(JobRequest(user_id=1000, name="a")) is None
    assert names.for_reply(JobRequest(user_id=1000, name="b")) is not None


def test_a_correction_changes_some_names_and_leaves_the_others() -> None:
    used: list[JobHistory] = []
    link = RecorderLink(used.append)
    runs = [run(f"job{number}", gpu_type) for number in range(8) for gpu_type in (A100, A40)]
    whole, fit = named_work(runs)
    assert fit is not None
    for part in table_parts(WorkPart, whole):
        link.receive(part)
    slow = [replace(one, seconds=600.0, ended_at_seconds=86_400.0 * day) for day in range(1, 9) for one in runs[1:2]]
    corrected = corrected_work(fit, [*runs[:2], *slow])
    for part in table_parts(WorkPart, corrected, is_whole=False):
        link.receive(part)
    assert len(used[-1].work) == len(whole)
    ratio = used[-1].work[1000, "job0"].time_ratio(A40, A100)
    assert ratio > 1.5
    assert used[-1].work[1000, "job1"].time_ratio(A40, A100) == pytest.approx(1.0)
