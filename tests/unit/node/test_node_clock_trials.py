"""Trials of clocks beside a job: who has them, what is set when, what they cost, what the report tells."""

from pathlib import Path

import pytest
from node_bench import Bench, entry
from trial_bench import TABLE, ZERO, Detector, begin, play, sensitive, trials, unknown

from slurm_energy.config import NodeConfig
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.sampler import run_sampler
from slurm_energy.node.trials.run import make_trials


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


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
