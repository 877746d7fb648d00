"""What ends a trial of a clock and what puts the clock back: hooks, kills, other jobs, faults of the device."""

from pathlib import Path
from typing import Any

import pytest
from node_bench import Bench
from trial_bench import TABLE, ZERO, Detector, begin, play, sensitive, trials, tried_clock, unknown

from slurm_energy.config import NodeConfig
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.repair import run_repair
from slurm_energy.node.sampler import run_sampler
from slurm_energy.node.trials.clock import MARK_SECONDS


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_sampler_killed_in_a_trial_leaves_a_clock_that_repair_puts_back_to_the_tables(bench: Bench) -> None:
    begin(bench)
    tried_clock(bench, trials(bench, sensitive(0.2)))
    bench.live = frozenset({JobId(7)})
    assert run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock not in {None, TABLE}  # the trial may still be going on

    bench.clock.advance(65.0 + MARK_SECONDS + 1.0)
    assert run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock == TABLE
    assert not bench.spool.trial_path(JobId(7)).exists()


def test_a_sampler_killed_at_the_default_clock_of_a_job_without_a_decided_one_leaves_the_default(bench: Bench) -> None:
    begin(bench, clocks={})
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: bench.gpus[0].lock is not None)
    bench.live = frozenset({JobId(7)})
    bench.clock.advance(65.0 + MARK_SECONDS + 1.0)
    assert run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock is None


def test_a_sampler_killed_in_a_trial_after_the_decided_clock_was_found_bad_leaves_the_default(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(1.0))  # 1275 MHz costs 10.6 %, the bound is 5 %
    play(bench, run, 8 * 3600.0, until=lambda: len(run.trials) == 1)
    play(bench, run, 8 * 3600.0, until=lambda: bench.gpus[0].lock is not None)
    assert bench.gpus[0].lock not in {None, TABLE}
    bench.live = frozenset({JobId(7)})
    bench.clock.advance(65.0 + MARK_SECONDS + 1.0)
    assert run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock is None


def test_a_trial_that_was_stopped_leaves_nothing_for_repair(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    tried_clock(bench, run)
    run.stop("no step of the job runs")
    assert not bench.spool.trial_path(JobId(7)).exists()


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"{}", b'{"boot_id": "boot-1", "until_seconds": -1}'])
def test_a_mark_that_cannot_be_read_counts_as_past(bench: Bench, content: bytes) -> None:
    begin(bench)
    tried_clock(bench, trials(bench, sensitive(0.2)))
    bench.spool.trial_path(JobId(7)).write_bytes(content)
    bench.live = frozenset({JobId(7)})
    run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock == TABLE


def test_the_epilog_restores_in_the_middle_of_a_trial_and_nothing_is_left(bench: Bench) -> None:
    begin(bench)
    tried_clock(bench, trials(bench, sensitive(0.2)))
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert (bench.gpus[0].lock, bench.recorded(), list(bench.spool.active.iterdir())) == (None, {}, [])


def test_the_next_prolog_restores_in_the_middle_of_a_trial(bench: Bench) -> None:
    begin(bench)
    tried_clock(bench, trials(bench, sensitive(0.2)))
    bench.live = frozenset()
    run_prolog(bench.context(), bench.hook(8, "0"))
    assert bench.gpus[0].lock is None


def test_stopping_in_a_trial_goes_back_to_the_running_clock(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    tried_clock(bench, run)
    kept = run.kept_clock_mhz
    run.stop("another job holds one of its GPUs too")
    assert bench.gpus[0].lock == (TABLE if kept is None else (210, kept))
    assert run.events == ["clock trials ended: another job holds one of its GPUs too"]


def test_a_job_that_came_to_share_the_gpu_has_its_clock_left_alone(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    tried_clock(bench, run)
    bench.spool.mark_shared(JobId(7), {ZERO})  # as the other job's prolog does, which also gives the clock back
    bench.gpus[0].unlock_sm_clock()
    run.stop("another job holds one of its GPUs too")
    assert bench.gpus[0].lock is None


def test_a_clock_that_was_given_back_in_a_trial_is_not_locked_again(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    tried_clock(bench, run)
    bench.gpus[0].unlock_sm_clock()
    run.stop("the default clock was given back", given_back=True)
    assert (bench.gpus[0].lock, run.locked_mhz, run.step()) == (None, None, float("inf"))


def test_a_clock_that_the_rescue_gave_back_is_not_locked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeConfig(
        spool_directory=str(tmp_path / "spool"), log_path="", sample_interval_seconds=5.0, rescue_share=0.5
    )
    bench = Bench(tmp_path, node=node)
    begin(bench)
    in_trial: list[bool] = []

    def sleep(pause: float) -> bool:
        if not in_trial and bench.gpus[0].lock not in {None, TABLE}:
            in_trial.append(True)
            bench.clock.advance(310.0 * 60.0 - (bench.clock.monotonic - 5000.0))  # half of the limit and more
        bench.clock.advance(max(pause, 0.01))
        return bench.clock.monotonic > 5000.0 + 330.0 * 60.0

    monkeypatch.setattr("slurm_energy.node.trials.run.cpu_seconds", lambda: 0.0)
    monkeypatch.setattr("slurm_energy.node.trials.run.DetectorProcess", Detector(bench, sensitive(0.2)))
    run_sampler(bench.context(), JobId(7), sleep, proc=tmp_path / "proc")
    assert in_trial and bench.gpus[0].lock is None

    bench.live = frozenset({JobId(7)})
    assert run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock is None  # not the decided clock, which would lead to a timeout
    bench.spool.sampler_path(JobId(7)).unlink()
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert QualityFlag.RESCUED in bench.reports()[0].gpus[0].flags


def test_a_refused_lock_ends_trials(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    bench.gpus[0].faults["lock_sm_clock"] = DevicePermissionDenied("no")
    play(bench, run, 3600.0)
    assert run.ended and run.trials == []


def test_a_gpu_that_does_not_take_a_clock_leaves_none_of_the_others_at_it(bench: Bench) -> None:
    begin(bench, gpus="0,1")
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) == 1)
    assert bench.gpus[0].lock == bench.gpus[1].lock == TABLE
    bench.gpus[1].on_change = lambda: bench.gpus[1].faults.update(lock_sm_clock=[DeviceError("lost")] * 2)

    play(bench, run, 3600.0, until=lambda: run.ended)
    assert run.events == ["clock trials ended: the clock could not be set"]
    assert bench.gpus[0].lock == bench.gpus[1].lock == TABLE
    assert not bench.spool.trial_path(JobId(7)).exists()


def test_a_hook_that_holds_a_gpu_for_a_moment_does_not_end_trials(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: bench.gpus[0].lock is None)
    with bench.spool.gpu_locks([ZERO]):
        play(bench, run, 75.0)
    assert bench.gpus[0].lock is None
    play(bench, run, 4 * 3600.0)
    assert run.kept_clock_mhz is not None
    assert bench.gpus[0].lock == (210, run.kept_clock_mhz)


def test_no_further_gpu_gets_the_clock_once_the_epilog_has_begun(bench: Bench) -> None:
    begin(bench, gpus="0,1")
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) == 1)

    def begin_epilog(name: str) -> None:
        if name == "unlock_sm_clock":
            bench.spool.mark_ending(JobId(7), bench.moment())

    bench.gpus[0].on_call = begin_epilog
    play(bench, run, 3600.0)
    assert (bench.gpus[0].lock, bench.gpus[1].lock) == (None, TABLE)


def test_a_clock_that_no_trial_has_touched_is_left_alone_at_the_jobs_end(bench: Bench) -> None:
    begin(bench, clocks={})
    run = trials(bench, unknown)
    bench.gpus[0].lock = (900, 1200)  # an administrator's own
    play(bench, run, 1200.0, until=lambda: bool(run._window))
    assert bench.spool.trial_path(JobId(7)).exists() is False

    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.gpus[0].lock == (900, 1200)
    assert "unlock_sm_clock" not in bench.gpus[0].calls


def test_a_gpu_that_locks_no_clock_ends_trials_and_leaves_nothing_to_restore(bench: Bench) -> None:
    begin(bench, clocks={})
    bench.gpus[0].faults.update(lock_sm_clock=DeviceNotSupported("no"), unlock_sm_clock=DeviceNotSupported("no"))
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0)
    assert (run.ended, run.trials, bench.recorded()) == (True, [], {})

    run_epilog(bench.context(), bench.hook(7, "0"))
    assert QualityFlag.RESTORE_FAILED not in bench.reports()[0].gpus[0].flags
    assert bench.spool.pending_jobs([]) == ()


def test_a_trial_is_noted_durably_before_its_clock_is_locked(bench: Bench) -> None:
    begin(bench, clocks={})
    noted: list[bool] = []

    def look(name: str) -> None:
        job = bench.spool.read_state(JobId(7))
        if name == "lock_sm_clock" and job is not None:
            noted.append(job.gpus[0].clock_changed)

    bench.gpus[0].on_call = look
    play(bench, trials(bench, sensitive(0.2)), 4 * 3600.0, until=lambda: bool(noted))
    assert noted == [True]


def test_the_epilog_restores_a_trial_that_began_after_it_had_read_the_state(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(bench, clocks={})
    run = trials(bench, sensitive(0.2))
    marked = bench.spool.mark_ending

    def mark_late(*arguments: Any) -> None:
        play(bench, run, 4 * 3600.0, until=lambda: bench.gpus[0].lock is not None)
        marked(*arguments)

    monkeypatch.setattr(bench.spool, "mark_ending", mark_late)
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert "lock_sm_clock" in bench.gpus[0].calls
    assert (bench.gpus[0].lock, bench.recorded()) == (None, {})
    assert len(bench.reports()) == 1
