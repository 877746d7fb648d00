"""Repair runs every few minutes: it puts back what was left, and never sets anything on a live job's GPU."""

from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SpoolError
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.recovery import LOST_EPILOG_SECONDS
from slurm_energy.node.repair import run_repair
from slurm_energy.node.spool import Spool

SETTERS = {"lock_sm_clock", "unlock_sm_clock", "set_power_limit"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def repair(bench: Bench) -> bool:
    return run_repair(bench.context(), everything=False)


def begin_ending(bench: Bench, job_id: int, seconds_ago: float) -> None:
    """Leave the mark of an epilog that was cut off right after it began."""
    bench.spool.mark_ending(JobId(job_id), bench.moment(seconds_ago))


def forget_calls(bench: Bench) -> None:
    for gpu in bench.gpus:
        gpu.calls.clear()


def set_calls(bench: Bench, index: int) -> set[str]:
    return SETTERS & set(bench.gpus[index].calls)


def full_disk(*_arguments: object) -> None:
    raise SpoolError("No space left on device")


def test_live_job_of_any_age_is_left_alone_and_no_driver_is_opened(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,1", entry()))
    opened = bench.driver.opened
    bench.clock.advance(30 * 86_400)
    assert repair(bench)
    assert (bench.driver.opened, bench.locks()[:2]) == (opened, [(210, 1275)] * 2)
    assert bench.spool.read_state(JobId(7)) is not None


def test_epilog_that_is_under_way_is_left_alone(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    begin_ending(bench, 7, LOST_EPILOG_SECONDS - 1)
    assert repair(bench)
    assert bench.locks()[0] == (210, 1275)


def test_cut_off_epilog_is_finished_and_the_live_job_beside_it_stays(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_prolog(bench.context(), bench.hook(8, "1", entry()))
    begin_ending(bench, 7, LOST_EPILOG_SECONDS + 1)
    forget_calls(bench)
    assert repair(bench)
    assert bench.locks()[:2] == [None, (210, 1275)]
    assert set_calls(bench, 1) == set()
    assert [report.job_id for report in bench.reports()] == [7]
    assert bench.spool.read_state(JobId(8)) is not None


@pytest.mark.parametrize("rebooted", [False, True])
def test_ended_job_that_could_not_be_closed_waits_while_another_holds_its_gpu(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, rebooted: bool
) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,2", entry()))
    begin_ending(bench, 7, LOST_EPILOG_SECONDS + 1)
    if rebooted:
        bench.boot_id = "boot-2"
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "write_report", full_disk)
        run_prolog(bench.context(), bench.hook(8, "0", entry({"a100-sxm4-80gb": 1200})))
    assert bench.spool.read_state(JobId(7)) is not None
    forget_calls(bench)
    opened = bench.driver.opened
    assert not repair(bench)
    run_prolog(bench.context(), bench.hook(9, "2"))
    assert (set_calls(bench, 0), bench.locks()[0]) == (set(), (210, 1200))
    assert bench.driver.opened == opened + 1  # the prolog's
    for job_id, gpus in ((8, "0"), (9, "2")):
        run_epilog(bench.context(), bench.hook(job_id, gpus))
    assert repair(bench)
    assert bench.locks() == [None] * 4
    assert sorted(report.job_id for report in bench.reports()) == [7, 8, 9]


def test_job_that_begins_while_repair_waits_for_the_lock_keeps_its_clock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    begin_ending(bench, 7, LOST_EPILOG_SECONDS + 1)
    enter = bench.driver.__enter__

    def begin_another_job() -> object:
        monkeypatch.setattr(type(bench.driver), "__enter__", lambda driver: enter())
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "write_report", full_disk)
            run_prolog(bench.context(), bench.hook(8, "0", entry({"a100-sxm4-80gb": 1200})))
        return enter()

    monkeypatch.setattr(type(bench.driver), "__enter__", lambda driver: begin_another_job())
    assert not repair(bench)
    assert bench.locks()[0] == (210, 1200)


def test_new_attempt_is_not_over_because_the_last_one_was_ending(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    begin_ending(bench, 7, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "write_report", full_disk)
        run_prolog(bench.context(), bench.hook(7, "0", entry(), SLURM_JOB_RESTART_COUNT="1"))
    bench.clock.advance(3600)
    assert repair(bench)
    assert bench.locks()[0] == (210, 1275)


def test_restore_that_is_pending_on_a_live_jobs_gpu_does_not_even_lock_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    ended = bench.spool.read_state(JobId(7))
    assert ended is not None
    run_epilog(bench.context(), bench.hook(7, "0"))
    run_prolog(bench.context(), bench.hook(8, "0", entry({"a100-sxm4-80gb": 1200})))
    bench.spool.keep_pending(ended)
    asked: list[str] = []
    monkeypatch.setattr(Spool, "gpu_locks", lambda spool, uuids: asked.extend(uuids))
    assert not repair(bench)
    assert (asked, bench.locks()[0]) == ([], (210, 1200))


def test_gpu_that_the_driver_lost_for_a_while_is_put_back_when_it_returns(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    lost = bench.gpus.pop(0)
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert not repair(bench)
    bench.gpus.insert(0, lost)
    assert repair(bench)
    assert bench.locks()[0] is None
    report = bench.reports()[0].gpus[0]
    assert report.joules is None and QualityFlag.RESTORE_FAILED in report.flags


def test_gpu_that_is_gone_since_a_boot_is_forgotten(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.gpus.pop(0)
    run_epilog(bench.context(), bench.hook(7, "0"))
    bench.boot_id = "boot-2"
    assert repair(bench)
