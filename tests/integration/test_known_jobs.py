"""What a night's gate knows of earlier jobs is what the daemon's decisions rest on, from the same database."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from site_database import CLUSTER, Site, fill, site_config
from store_samples import make_gpu, make_report, make_state

from slurm_energy.config import Config
from slurm_energy.daemon.recorder.history import HistoryLoop
from slurm_energy.daemon.recorder.link import RecorderLink
from slurm_energy.daemon.recorder.recorder import ChangedJobs, Every
from slurm_energy.domain.energy import JobKey
from slurm_energy.domain.ids import ClusterName, GpuTypeName, JobId
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.learning.nightly.history import read_history
from slurm_energy.learning.nightly.judgement import _history, known_jobs
from slurm_energy.learning.nightly.night import Night
from slurm_energy.policy.candidate import CandidatePolicy, configured_policy
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.session import Engine, open_engine, store_session

NOW = 1_800_000_000.0
WHERE = ClusterName(CLUSTER)
TRIAL = ClockTrial(
    gpu_type=GpuTypeName("a100-sxm4-80gb"),
    sm_clock_mhz=1200,
    default_clock_mhz=1410,
    at_seconds=900.0,
    watts=260.0,
    default_watts=330.0,
    slowdown=0.004,
    error=0.003,
    kept=False,
    source="power",
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Config, Engine]]:
    monkeypatch.setattr(time, "time", lambda: NOW)
    config = site_config(tmp_path)
    fill(config, Site(jobs=240, now_seconds=NOW))
    engine = open_engine(config.store)
    with store_session(engine) as session:
        start = NOW - 7200.0
        times = {"submitted_at_seconds": start, "started_at_seconds": start + 5.0, "ended_at_seconds": NOW - 3600.0}
        state = make_state(9001, user_id=1001, name="train1", admin_comment="", **times)
        upsert_jobs(session, WHERE, (state,))
        report = make_report(
            make_gpu(),
            job_id=9001,
            cluster=WHERE,
            user_id=1001,
            decision_id=None,
            started_at_seconds=start + 5.0,
            ended_at_seconds=NOW - 3600.0,
            trials=(TRIAL,),
        )
        key = JobKey(cluster=WHERE, job_id=JobId(9001), submitted_at_seconds=start, restart_count=0)
        record_report(session, report, key, submit_time_known=True)
    yield config, engine
    engine.dispose()


def by_daemon(config: Config, engine: Engine) -> JobHistory:
    """Return what the daemon's answering process knows after its first look."""
    used = [JobHistory()]
    link = RecorderLink(used.append)
    loop = HistoryLoop(config, link.receive, ChangedJobs())
    loop._history_due, loop._work_due = Every(0.0), Every(0.0)
    loop.step(engine)
    return used[-1]


def by_gate(config: Config, engine: Engine) -> JobHistory:
    with store_session(engine, read_only=True) as session:
        return known_jobs(session, WHERE, config, NOW)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"slowdown_bound": "mean", "clock_trials": "on"},
        {"clock_predictions": "network", "clock_trials": "on"},
        {"learn_from_runs": False, "slowdown_bound": "mean"},
    ],
)
def test_gate_knows_what_the_daemon_knows(site: tuple[Config, Engine], settings: dict[str, object]) -> None:
    config, engine = site
    config = replace(config, policy=replace(config.policy, **settings))  # type: ignore[arg-type]  # a test's own choice
    found, expected = by_gate(config, engine), by_daemon(config, engine)
    assert dict(found.runtimes) == dict(expected.runtimes) and found.runtimes
    assert dict(found.work) == dict(expected.work)
    assert dict(found.clocks) == dict(expected.clocks)
    assert bool(found.clocks) == (config.policy.clock_trials == "on")
    assert dict(found.scaling) == dict(expected.scaling)
    assert found.site_clocks == expected.site_clocks
    assert (found.site_clocks is None) == (config.policy.slowdown_bound != "mean")
    assert dict(found.predicted) == dict(expected.predicted)
    assert bool(found.predicted) == (config.policy.clock_predictions == "network")


def test_a_night_gives_it_to_the_gate(site: tuple[Config, Engine]) -> None:
    config, engine = site
    config = replace(config, policy=replace(config.policy, slowdown_bound="mean"))
    candidate = CandidatePolicy(candidate_id="c1", made_at_seconds=NOW)
    history = read_history(engine, WHERE, NOW, 200)
    night = Night(candidate=candidate, incumbent=configured_policy(), history=history, twin=None, notes=())
    assert _history(engine, WHERE, night, candidate, config).known.site_clocks == by_daemon(config, engine).site_clocks
