"""A clock that trials kept: how long it stays, and what the report has of it."""

from pathlib import Path
from typing import Any

import pytest
from node_bench import Bench
from trial_bench import TABLE, ZERO, Answers, Detector, begin, play, sensitive, trials, unknown

from slurm_energy.config import NodeConfig
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.domain.trials import OUTDATED
from slurm_energy.node.energy import GpuSamples
from slurm_energy.node.hooks import run_epilog
from slurm_energy.node.sampler import run_sampler


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


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
