"""Trials of clocks beside a job: what is set when, what puts it back, and what ends them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from node_bench import A100_CLOCKS, Bench, entry

from slurm_energy.config import NodeConfig
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.domain.trials import OUTDATED
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied
from slurm_energy.estimation.clock_trials import ClockTrials
from slurm_energy.node.energy import GpuSamples
from slurm_energy.node.epilog import run_epilog
from slurm_energy.node.prolog import run_prolog
from slurm_energy.node.repair import run_repair
from slurm_energy.node.sampler import run_sampler
from slurm_energy.node.trials.clock import MARK_SECONDS
from slurm_energy.node.trials.run import TrialRun, make_trials

ZERO = GpuUuid("GPU-0000")
TABLE = (210, 1275)
TYPE = "a100-sxm4-80gb"
Answers = Callable[[int], dict[str, Any]]


@dataclass
class Detector:
    """Answers at once by the clock at which the second window was read."""

    bench: Bench
    answers: Answers
    pairs: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False

    def __call__(self, pairs: list[dict[str, Any]], _now: float) -> "Detector":
        self.pairs = pairs
        return self

    def answer(self, _now: float) -> dict[str, Any] | None:
        return self.answers(int(self.pairs[0]["after"]["sm_clock_mhz"]))

    def close(self) -> None:
        self.closed = True


def sensitive(share: float) -> Answers:
    """Answers of a program whose slowdown is this share of the clock's."""
    return lambda clock: {"slowdown": share * (1410.0 / clock - 1.0), "error": 0.003}


def unknown(_clock: int) -> dict[str, Any]:
    return {"unknown": "power does not repeat"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def begin(bench: Bench, gpus: str = "0", **more: Any) -> None:
    for gpu in bench.gpus:
        gpu.on_change = lambda gpu=gpu: setattr(gpu, "watts", 100.0 + 300.0 * (gpu.sm_clock_mhz() / 1410.0) ** 2)
    text = entry(more.pop("clocks", None), time_limit_minutes=600, trials={TYPE: 0.05})
    run_prolog(bench.context(), bench.hook(7, gpus, text, **{"SLURM_JOB_NODELIST": "n1", **more}))


def trials(bench: Bench, answers: Answers, cpu: Callable[[], float] = lambda: 0.0) -> TrialRun:
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    made = make_trials(bench.context(), job, {gpu.identity.uuid: gpu for gpu in bench.gpus}, None)
    assert made is not None
    gpus = {gpu.uuid: bench.gpus[int(gpu.uuid[-4:])] for gpu in job.gpus}
    ladder = ClockTrials(
        clocks_mhz=A100_CLOCKS, table_clock_mhz=job.gpus[0].target_clock_mhz or 1410, max_slowdown=0.05
    )
    return TrialRun(bench.context(), job, gpus, ladder, None, cpu=cpu, ask=Detector(bench, answers))  # type: ignore[arg-type]


def play(bench: Bench, run: TrialRun, seconds: float, until: Callable[[], bool] = lambda: False) -> list[Any]:
    """Let time pass as the sampler does; return the locks that were seen, each once in a row."""
    end, seen = bench.clock.monotonic + seconds, [bench.gpus[0].lock]
    while bench.clock.monotonic < end and not until():
        wanted = run.step()
        if bench.gpus[0].lock != seen[-1]:
            seen.append(bench.gpus[0].lock)
        bench.clock.advance(min(max(wanted, 0.05), 60.0))
    return seen


def test_default_and_table_clock_are_measured_then_lower_ones_and_the_best_is_kept(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    seen = play(bench, run, 4 * 3600.0)

    # The default clock, then what is tried, then where the job runs: each for a window.
    assert seen[:4] == [TABLE, None, TABLE, None]
    assert run.kept_clock_mhz is not None and run.kept_clock_mhz < 1200
    assert bench.gpus[0].lock == (210, run.kept_clock_mhz)
    assert [trial.kept for trial in run.trials].count(True) >= 2
    assert all(trial.source == "power" and trial.energy_change is not None for trial in run.trials)
    assert not bench.spool.trial_path(JobId(7)).exists()


def test_without_an_answer_the_tables_clock_stays(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, unknown)
    play(bench, run, 4 * 3600.0)

    assert (bench.gpus[0].lock, run.kept_clock_mhz, run.ended) == (TABLE, None, True)
    assert {trial.reason for trial in run.trials} == {"power does not repeat"}


def test_a_job_without_a_decided_clock_begins_at_the_default_and_gets_its_clock_back(bench: Bench) -> None:
    begin(bench, clocks={})
    assert bench.locks()[0] is None
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0)
    assert bench.locks()[0] is not None
    assert bench.recorded() == {"GPU-0000": 7}

    run_epilog(bench.context(), bench.hook(7, "0"))
    assert (bench.gpus[0].lock, bench.recorded()) == (None, {})


def test_trials_cost_at_most_their_share_of_the_job(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(1.0))
    started = bench.clock.monotonic
    lost, tried = 0.0, bench.gpus[0].lock
    while bench.clock.monotonic - started < 4 * 3600.0:
        wanted = min(max(run.step(), 0.05), 60.0)
        tried = bench.gpus[0].lock
        if tried is not None and tried[1] < 1275:
            lost += wanted * (1410.0 / tried[1] - 1410.0 / 1275.0)
        bench.clock.advance(wanted)
    assert lost <= 0.01 * 4 * 3600.0


def test_no_clock_changes_while_a_hook_holds_the_gpu(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    with bench.spool.gpu_locks([ZERO]):
        seen = play(bench, run, 3600.0)
    assert (seen, run.ended) == ([TABLE], True)


def test_no_clock_changes_once_the_epilog_has_begun(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    bench.spool.mark_ending(JobId(7), bench.moment())
    assert play(bench, run, 3600.0) == [TABLE]


def tried_clock(bench: Bench, run: TrialRun) -> None:
    """Stop in the middle of a trial below the table's clock."""
    play(bench, run, 4 * 3600.0, until=lambda: bench.gpus[0].lock not in {None, TABLE})
    assert bench.gpus[0].lock not in {None, TABLE}


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


def test_a_window_that_was_held_up_is_not_used(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: bench.gpus[0].lock is None)
    bench.clock.advance(300.0)  # a call that hung in the driver, or a process that was stopped
    run.step()
    run.step()
    assert bench.gpus[0].lock == TABLE
    assert run.events == ["clock trial given up: a window was held up"]


def test_a_trial_that_was_held_up_counts_and_costs_and_the_next_begins_with_the_default_clock(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    tried_clock(bench, run)
    clock = bench.gpus[0].lock
    assert clock is not None
    cost, number = run._ladder.cost_seconds, len(run.trials)
    bench.clock.advance(300.0)
    run.step()
    run.step()
    assert run._ladder.cost_seconds >= cost + 300.0 * (1410.0 / clock[1] - 1410.0 / TABLE[1])
    assert len(run.trials) == number + 1
    assert run.trials[-1].reason == "a window was held up"

    between = bench.gpus[0].lock
    assert play(bench, run, 4 * 3600.0)[:2] == [between, None]


def test_time_in_which_the_job_was_suspended_earns_no_trial(bench: Bench) -> None:
    begin(bench, clocks={})
    run = trials(bench, sensitive(1.0))
    sums = GpuSamples()
    end = bench.clock.monotonic + 4 * 3600.0
    while bench.clock.monotonic < end:
        run.step()
        bench.clock.advance(10.0)
        sums.utilisation_samples += 1
        run.follow_load({ZERO: sums})
    assert run.trials == []
    assert bench.gpus[0].lock is None


def test_an_idle_gpu_answers_nothing(bench: Bench) -> None:
    begin(bench)
    bench.gpus[0].busy = 0.05
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0)
    assert (run.kept_clock_mhz, bench.gpus[0].lock, run.ended) == (None, TABLE, True)


def test_where_there_is_no_instant_power_the_counter_is_read_and_else_only_at_both_ends(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    reads = bench.gpus[0].calls.count("energy_joules")
    assert reads < 20

    other = Bench(bench.root / "other")
    other.gpus[0].faults["instant_power_watts"] = DeviceNotSupported("field 186")
    begin(other)
    run = trials(other, sensitive(0.2))
    play(other, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    assert other.gpus[0].calls.count("energy_joules") > 1000
    assert other.gpus[0].calls.count("instant_power_watts") == 1
    assert run.trials[0].watts > 100.0


def test_a_reading_that_fails_now_and_then_is_a_gap_and_one_unsupported_is_not_asked_for_again(bench: Bench) -> None:
    begin(bench)
    bench.gpus[0].faults["memory_utilisation"] = [DeviceError("lost")] * 50
    bench.gpus[0].faults["pcie_received_bytes_per_second"] = DeviceNotSupported("no")
    detector = Detector(bench, sensitive(0.2))
    run = trials(bench, sensitive(0.2))
    run._ask = detector  # type: ignore[assignment]
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    before = detector.pairs[0]["before"]
    assert before["work_rates"]["memory_utilisation"][:50] == [None] * 50
    assert set(before["work_rates"]["pcie_bytes"]) == {None}
    assert bench.gpus[0].calls.count("pcie_received_bytes_per_second") == 1
    assert json.loads(json.dumps(detector.pairs)) == detector.pairs


def test_readings_that_take_long_give_up_pcie_first_and_then_trials(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    bench.gpus[0].on_call = lambda name: bench.clock.advance(0.06) if name == "pcie_received_bytes_per_second" else None
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) > 0)
    assert run.trials and bench.gpus[0].calls.count("pcie_received_bytes_per_second") < 5

    bench.gpus[0].on_call = lambda _name: bench.clock.advance(0.05)
    play(bench, run, 8 * 3600.0, until=lambda: run.ended)
    assert run.ended and "a reading takes" in run.events[-1]
    assert bench.gpus[0].lock == (TABLE if run.kept_clock_mhz is None else (210, run.kept_clock_mhz))


def test_no_window_begins_that_would_cost_more_than_the_samplers_share_of_a_core(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2), cpu=lambda: 200.0)
    assert play(bench, run, 4 * 3600.0) == [TABLE]


@pytest.mark.parametrize(
    "more", [{"SLURM_JOB_NODELIST": "n[1-2]"}, {"SLURM_JOB_NODELIST": ""}], ids=["two nodes", "nodes not known"]
)
def test_a_job_on_several_nodes_has_no_trials(bench: Bench, more: dict[str, str]) -> None:
    begin(bench, **more)
    job = bench.spool.read_state(JobId(7))
    assert job is not None and [gpu.trial_bound for gpu in job.gpus] == [None]
    assert bench.gpus[0].lock == TABLE


def test_a_slice_or_a_shared_gpu_has_no_trials_and_other_jobs_neither(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(6, "0"))
    bench.live = frozenset({JobId(6)})
    bench.order = type(bench.order)(gpus=bench.order.gpus, ways=bench.order.ways, shares_gpus=True)
    begin(bench)
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    assert make_trials(bench.context(), job, {gpu.identity.uuid: gpu for gpu in bench.gpus}, None) is None

    run_prolog(bench.context(), bench.hook(8, "1", entry(), SLURM_JOB_NODELIST="n1"))
    other = bench.spool.read_state(JobId(8))
    assert other is not None and other.gpus[0].trial_bound is None


def test_all_gpus_of_a_job_change_together_and_the_slowest_answers(bench: Bench) -> None:
    begin(bench, gpus="0,1")
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0)
    assert bench.gpus[0].lock == bench.gpus[1].lock == (210, run.kept_clock_mhz)


def test_the_report_tells_of_each_trial_and_of_the_clock_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "spool")
    bench = Bench(
        tmp_path,
        node=NodeConfig(spool_directory=folder, log_path="", trial_window_seconds=5.0, sample_interval_seconds=20.0),
    )
    begin(bench)
    end = bench.clock.monotonic + 1200.0

    def sleep(pause: float) -> bool:
        bench.clock.advance(max(pause, 0.01))
        return bench.clock.monotonic > end

    monkeypatch.setattr("slurm_energy.node.trials.run.cpu_seconds", lambda: 0.0)
    monkeypatch.setattr("slurm_energy.node.trials.run.DetectorProcess", Detector(bench, sensitive(0.2)))
    run_sampler(bench.context(), JobId(7), sleep, proc=tmp_path / "proc")
    kept = bench.gpus[0].lock
    bench.spool.sampler_path(JobId(7)).unlink()  # it names this process, which the epilog would end
    run_epilog(bench.context(), bench.hook(7, "0"))
    report = bench.reports()[0]

    assert report.trials and any(trial.kept for trial in report.trials)
    assert kept is not None and report.gpus[0].applied_clock_mhz == kept[1] != 1275
    assert not {QualityFlag.CLOCK_IGNORED, QualityFlag.CLOCK_UNVERIFIED, QualityFlag.RESCUED} & set(
        report.gpus[0].flags
    )
    assert bench.gpus[0].lock is None


def test_a_kept_clock_is_left_within_two_minutes_when_the_job_goes_over_to_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeConfig(
        spool_directory=str(tmp_path / "spool"), log_path="", trial_window_seconds=5.0, sample_interval_seconds=20.0
    )
    bench = Bench(tmp_path, node=node)
    begin(bench)
    gpu, begun = bench.gpus[0], bench.clock.monotonic
    changed, left, again = [0.0], [0.0], [0.0]

    def compute_phase() -> None:
        gpu.watts = 250.0 + 150.0 * (gpu.sm_clock_mhz() / 1410.0) ** 2

    def sleep(pause: float) -> bool:
        bench.clock.advance(max(pause, 0.01))
        now = bench.clock.monotonic
        if not changed[0] and now > begun + 4 * 3600.0:
            # Trials have ended long ago, at a clock below the table's.
            assert gpu.lock is not None and gpu.lock[1] < 1200
            changed[0], gpu.on_change = now, compute_phase
            compute_phase()
        if changed[0] and not left[0] and gpu.lock == TABLE:
            left[0] = now
        if left[0] and not again[0] and gpu.lock is None:
            again[0] = now
        return now > begun + 6 * 3600.0

    monkeypatch.setattr("slurm_energy.node.trials.run.cpu_seconds", lambda: 0.0)
    monkeypatch.setattr("slurm_energy.node.trials.run.DetectorProcess", Detector(bench, unknown_after(changed)))
    run_sampler(bench.context(), JobId(7), sleep, proc=tmp_path / "proc")

    assert 0.0 < left[0] - changed[0] <= 120.0
    assert again[0] > left[0]  # it is measured again
    heartbeat = bench.spool.read_heartbeat(bench.spool.read_state(JobId(7)))  # type: ignore[arg-type]
    assert heartbeat is not None and heartbeat.kept_clock_mhz is None
    assert any("power or utilisation changed" in event for event in heartbeat.events)
    # What was measured before is on record as that, so that the next run of the name does not learn from it.
    assert not any(trial.kept for trial in heartbeat.trials)
    assert {trial.reason for trial in heartbeat.trials if trial.slowdown is not None} == {OUTDATED}
    assert gpu.lock == TABLE


def test_a_kept_clock_is_left_after_trials_were_stopped_too_and_not_while_a_hook_holds_the_gpu(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0)
    run.stop("no step of the job runs")
    kept = bench.gpus[0].lock
    assert kept == (210, run.kept_clock_mhz)

    sums = GpuSamples()

    def idle(seconds: float) -> None:
        for _ in range(int(seconds / 10.0)):
            bench.clock.advance(10.0)
            sums.polled_joules += 60.0 * 10.0
            sums.sampled_seconds += 10.0
            sums.utilisation_samples += 1
            run.follow_load({ZERO: sums})

    with bench.spool.gpu_locks([ZERO]):
        idle(90.0)
        assert bench.gpus[0].lock == kept
    idle(10.0)
    assert (bench.gpus[0].lock, run.step()) == (TABLE, float("inf"))


def test_answers_before_the_default_clock_drew_other_power_are_recorded_as_outdated(bench: Bench) -> None:
    begin(bench)
    run = trials(bench, sensitive(0.2))
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) == 1)
    assert run.trials[0].kept
    bench.gpus[0].on_change = lambda: setattr(bench.gpus[0], "watts", 150.0)
    play(bench, run, 4 * 3600.0, until=lambda: len(run.trials) == 2)
    assert (run.trials[0].kept, run.trials[0].reason) == (False, OUTDATED)


def unknown_after(changed: list[float]) -> Answers:
    return lambda clock: unknown(clock) if changed[0] else sensitive(0.2)(clock)


def test_a_kept_clock_stays_while_the_job_goes_on_as_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeConfig(
        spool_directory=str(tmp_path / "spool"), log_path="", trial_window_seconds=5.0, sample_interval_seconds=20.0
    )
    bench = Bench(tmp_path, node=node)
    begin(bench)
    end = bench.clock.monotonic + 4 * 3600.0

    def sleep(pause: float) -> bool:
        bench.clock.advance(max(pause, 0.01))
        return bench.clock.monotonic > end

    monkeypatch.setattr("slurm_energy.node.trials.run.cpu_seconds", lambda: 0.0)
    monkeypatch.setattr("slurm_energy.node.trials.run.DetectorProcess", Detector(bench, sensitive(0.2)))
    run_sampler(bench.context(), JobId(7), sleep, proc=tmp_path / "proc")
    assert bench.gpus[0].lock is not None and bench.gpus[0].lock[1] < 1200


def test_the_report_of_a_job_whose_decided_clock_was_found_bad_has_none_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "spool")
    bench = Bench(
        tmp_path,
        node=NodeConfig(spool_directory=folder, log_path="", trial_window_seconds=5.0, sample_interval_seconds=20.0),
    )
    begin(bench)
    end = bench.clock.monotonic + 4 * 3600.0

    def sleep(pause: float) -> bool:
        bench.clock.advance(max(pause, 0.01))
        return bench.clock.monotonic > end

    def bad(clock: int) -> dict[str, Any]:
        return sensitive(1.0)(clock) if clock == 1275 else unknown(clock)

    monkeypatch.setattr("slurm_energy.node.trials.run.cpu_seconds", lambda: 0.0)
    monkeypatch.setattr("slurm_energy.node.trials.run.DetectorProcess", Detector(bench, bad))
    run_sampler(bench.context(), JobId(7), sleep, proc=tmp_path / "proc")
    assert bench.gpus[0].lock is None
    bench.spool.sampler_path(JobId(7)).unlink()
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]

    # A saving is claimed only for a decided clock that was applied.
    assert (gpu.asked_clock_mhz, gpu.applied_clock_mhz) == (1275, None)
    assert not {QualityFlag.CLOCK_IGNORED, QualityFlag.CLOCK_UNVERIFIED, QualityFlag.CLOCK_REFUSED} & set(gpu.flags)
