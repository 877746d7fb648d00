"""Whether a lock is in force shows under load only: an idle GPU is slow anyway. The row says what was seen."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from node_bench import Bench, FakeGpu, entry, order_of

from slurm_energy.domain.energy import GpuEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.node.energy import Heartbeat
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.repair import run_repair
from slurm_energy.node.sampler import take_sample
from slurm_energy.node.samples import GpuHolders, SamplerState

IGNORED, UNVERIFIED = QualityFlag.CLOCK_IGNORED, QualityFlag.CLOCK_UNVERIFIED


@dataclass
class Board(FakeGpu):
    """A GPU that idles at 210 MHz, and takes a lock and does nothing of it when it `ignores`."""

    ignores: bool = False

    def sm_clock_mhz(self) -> int:
        clock = super().sm_clock_mhz()
        if self.busy < 0.05:
            return 210
        return self.free_clock_mhz if self.ignores else clock


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.gpus[0] = Board(clock=bench.clock, busy=0.0)
    return bench


def board(bench: Bench) -> Board:
    gpu = bench.gpus[0]
    assert isinstance(gpu, Board)
    return gpu


def sample(bench: Bench, busy: list[float], *, job_id: int = 7) -> None:
    """Sample once a second with this use of the GPU, and leave the heartbeat."""
    job = bench.spool.read_state(JobId(job_id))
    assert job is not None
    state = SamplerState(job=job, heartbeat=Heartbeat(job_id=job_id, started_at_seconds=job.started_at_seconds))
    for use in busy:
        bench.gpus[0].busy = use
        take_sample(bench.context(), state, {bench.gpus[0].identity.uuid: bench.gpus[0]}, GpuHolders(bench.spool))
        bench.clock.advance(1.0)
    bench.spool.write_heartbeat(state.heartbeat, durable=False)


def closed(bench: Bench, job_id: int = 7) -> tuple[NodeReport, GpuEnergy]:
    run_epilog(bench.context(), bench.hook(job_id, "0"))
    report = next(report for report in bench.reports() if report.job_id == job_id)
    return report, report.gpus[0]


def test_lock_that_the_driver_ignores_is_told_with_what_ran_instead(bench: Bench) -> None:
    board(bench).ignores = True
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    sample(bench, [0.0, 0.0, 0.9, 0.9, 0.9])
    report, row = closed(bench)
    assert (row.asked_clock_mhz, row.applied_clock_mhz, row.observed_clock_mhz) == (1275, None, 1410.0)
    assert row.flags == (IGNORED,)
    assert "lock at 1275 MHz had no effect: the clock was above it in 3 of 3 samples under load" in report.events[0]
    assert bench.locks()[0] is None  # given back all the same


def test_lock_that_holds_under_load_is_applied_without_a_flag(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    sample(bench, [0.0, 0.9, 0.9])
    report, row = closed(bench)
    assert (row.asked_clock_mhz, row.applied_clock_mhz, row.observed_clock_mhz) == (1275, 1275, 1275.0)
    assert (row.flags, report.events) == ((), ())


def test_lock_on_a_gpu_that_never_worked_is_unverified(bench: Bench) -> None:
    board(bench).ignores = True
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    sample(bench, [0.0, 0.04, 0.0])
    _, row = closed(bench)
    assert (row.applied_clock_mhz, row.flags) == (1275, (UNVERIFIED,))


def test_lock_that_no_sampler_watched_is_unverified(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.clock.advance(10)
    _, row = closed(bench)
    assert (row.applied_clock_mhz, row.flags) == (1275, (UNVERIFIED,))


def test_lock_that_somebody_else_ended_for_a_while_is_unverified(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    bench.gpus[0].on_call = lambda name: setattr(board(bench), "ignores", bench.clock.monotonic > 5_007)
    sample(bench, [0.9] * 10)
    _, row = closed(bench)
    assert (row.applied_clock_mhz, row.flags) == (1275, (UNVERIFIED,))


def test_busy_gpu_whose_clock_fell_after_the_prolog_had_looked_is_verified(bench: Bench) -> None:
    board(bench).ignores, board(bench).busy = True, 0.9
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    job = bench.spool.read_state(JobId(7))
    assert job is not None and job.gpus[0].flags == (UNVERIFIED,)
    board(bench).ignores = False
    sample(bench, [0.9, 0.9])
    _, row = closed(bench)
    assert (row.applied_clock_mhz, row.flags) == (1275, ())


def test_clock_one_step_above_the_lock_is_at_the_lock(bench: Bench) -> None:
    board(bench).ignores, board(bench).free_clock_mhz = True, 1290
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    sample(bench, [0.9, 0.9])
    assert closed(bench)[1].flags == ()


def test_job_without_a_clock_has_no_flag_of_one(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    sample(bench, [0.9, 0.9])
    assert closed(bench)[1].flags == ()


def test_clock_that_was_given_back_to_a_second_job_is_not_called_ignored(bench: Bench) -> None:
    bench.order = order_of(0, 1, 2, 3, shares=True)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_prolog(bench.context(), bench.hook(8, "0"))
    sample(bench, [0.9, 0.9, 0.9])
    _, row = closed(bench)
    assert IGNORED not in row.flags and UNVERIFIED not in row.flags
    assert QualityFlag.SHARED_GPU in row.flags


def test_rescued_job_is_judged_by_the_time_before(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry(time_limit_minutes=1)))
    sample(bench, [0.9] * 70)
    _, row = closed(bench)
    assert QualityFlag.RESCUED in row.flags
    assert IGNORED not in row.flags and UNVERIFIED not in row.flags


def test_ignored_lock_is_told_for_a_job_without_an_epilog_too(bench: Bench) -> None:
    board(bench).ignores = True
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    sample(bench, [0.9, 0.9, 0.9])
    bench.boot_id = "boot-2"
    run_repair(bench.context(), everything=False)
    report = bench.reports()[0]
    assert (report.gpus[0].applied_clock_mhz, IGNORED in report.gpus[0].flags) == (None, True)
    assert any("had no effect" in event for event in report.events)
