"""The mean profile from the database to a decision: what names tried decides their own clock and that of others."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from store_samples import A100, CLUSTER, SUBMITTED, make_gpu, make_key, make_report, make_state

from slurm_energy.config import ClusterConfig, Config, DaemonConfig, PolicyConfig
from slurm_energy.daemon.decide import Decided, Known, create_decider
from slurm_energy.daemon.ipc.frames import ClockPart, SiteClocksKnown
from slurm_energy.daemon.recorder.history import HistoryLoop
from slurm_energy.daemon.recorder.link import RecorderLink
from slurm_energy.daemon.recorder.recorder import ChangedJobs
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.session import store_session
from slurm_energy.wire.messages import SubmittedFields

pytest_plugins = ["database_fixtures"]


def tried(clock_mhz: int, slowdown: float, watts: float, *, default_watts: float = 330.0) -> ClockTrial:
    return ClockTrial(
        gpu_type=A100,
        sm_clock_mhz=clock_mhz,
        default_clock_mhz=1410,
        at_seconds=900.0,
        watts=watts,
        default_watts=default_watts,
        slowdown=slowdown,
        error=0.003,
        kept=False,
        source="power",
    )


STEADY = (tried(1200, 0.0, 260.0), tried(990, 0.005, 210.0))
STEEP = (tried(1290, 0.09, 300.0), tried(1200, 0.17, 280.0))


def store(engine: Engine, job_id: int, name: str, trials: Sequence[ClockTrial]) -> None:
    report = make_report(make_gpu(), job_id=job_id, decision_id=None, trials=tuple(trials))
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, (make_state(job_id, name=name, admin_comment=""),))
        record_report(session, report, make_key(job_id), submit_time_known=True)


def site(tmp_path: Path, bound: str = "mean") -> Config:
    return Config(
        policy=PolicyConfig(
            name="oracle",
            slowdown_bound=bound,  # type: ignore[arg-type]  # a test's own choice
            clock_trials="on",
            min_saving_per_slowdown=0.0,
            assumed_curves=True,
        ),
        cluster=ClusterConfig(name=CLUSTER),
        daemon=DaemonConfig(state_directory=str(tmp_path / "state")),
    )


def read(engine: Engine, config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[JobHistory, list[type]]:
    """Return what the answering process knows after one look, and the kinds of frames that said it."""
    monkeypatch.setattr("slurm_energy.daemon.recorder.history.time.time", lambda: SUBMITTED + 86_400.0)
    used: list[JobHistory] = [JobHistory()]
    link = RecorderLink(used.append)
    frames: list[object] = []
    with store_session(engine, read_only=True) as session:
        loop = HistoryLoop(config, frames.append, ChangedJobs())
        loop._memory.load(session, SUBMITTED + 86_400.0)
        loop._send_clocks(session)
    for frame in frames:
        link.receive(frame)
    return used[-1], [type(frame) for frame in frames]


def decide(config: Config, known: JobHistory, **fields: Any) -> Decided:
    node = NodeState(
        name="n1",  # type: ignore[arg-type]  # a plain name will do
        partitions=(PartitionName("a100"),),
        states=("IDLE",),
        available=True,
        cpus=64,
        cpus_allocated=0,
        gpus=(NodeGpus(slurm_type="a100", count=4, allocated=0),),
    )
    partition = PartitionState(name=PartitionName("a100"), is_default=True, up=True)
    snapshot = ClusterSnapshot(cluster=CLUSTER, taken_at_seconds=SUBMITTED, partitions=(partition,), nodes=(node,))
    job = SubmittedFields(**{"user_id": 1000, "name": "steady", "tres_per_job": "gres/gpu:1", **fields})
    return create_decider(config).decide(job, Known(snapshot=snapshot, history=known), SUBMITTED + 1.0)


def clock(decided: Decided) -> int:
    return next((one.sm_clock_mhz for one in decided.decision.clocks), 1410)


def test_names_that_hardly_slow_down_get_lower_clocks_and_explain_says_why(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, 77, "steady", STEADY)
    store(engine, 78, "steep", STEEP)
    config = site(tmp_path)
    known, kinds = read(engine, config, monkeypatch)
    assert kinds == [ClockPart, SiteClocksKnown]
    steady, steep = (decide(config, known, name=name) for name in ("steady", "steep"))
    assert clock(steady) <= 1110 < clock(steep)
    assert any("clocks tried in 1 of this name" in note for note in steady.decision.notes)
    # Trials go no further than a little beyond what is planned for the job.
    ((_, bound),) = steady.entry.trial_bounds.items()
    assert bound == pytest.approx(steady.decision.clocks[0].predicted_slowdown + 0.01, abs=0.003)


def test_the_same_database_gives_the_same_clocks_after_a_restart(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, 77, "steady", STEADY)
    config = site(tmp_path)
    first, _ = read(engine, config, monkeypatch)
    again, _ = read(engine, config, monkeypatch)
    assert first.site_clocks is not None and first.site_clocks == again.site_clocks


def test_where_each_job_keeps_the_bound_nothing_is_planned_for_the_site(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, 77, "steady", STEADY)
    known, kinds = read(engine, site(tmp_path, "each-job"), monkeypatch)
    assert kinds == [ClockPart] and known.site_clocks is None


def test_a_users_own_bound_and_a_deadline_are_kept_under_the_mean_profile(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, 77, "steady", STEADY)
    store(engine, 78, "steep", STEEP)
    config = site(tmp_path)
    known, _ = read(engine, config, monkeypatch)
    own = decide(config, known, name="steep", max_slowdown=0.01)
    assert all(one.predicted_slowdown <= 0.01 for one in own.decision.clocks)
    late = decide(config, known, name="steady", deadline="now+10minutes", time_limit_minutes=600)
    assert clock(late) == 1410 and Reason.DEADLINE in late.decision.reasons


def test_garbage_among_the_trials_harms_no_decision(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wild = (tried(1395, 5.0, 1e-6), tried(210, 0.0, 1e9), replace(tried(1400, 0.0, 1.0), error=0.0))
    store(engine, 79, "wild", wild)
    store(engine, 80, "other clocks", (replace(tried(1000, 0.0, 200.0), default_clock_mhz=1000),))
    config = site(tmp_path)
    known, _ = read(engine, config, monkeypatch)
    for name in ("wild", "other clocks", "new"):
        found = decide(config, known, name=name)
        assert Reason.POLICY_ERROR not in found.decision.reasons
        assert all(0.0 <= one.predicted_slowdown <= 0.1 for one in found.decision.clocks)


def test_an_error_in_the_plan_of_the_site_withholds_nothing_that_names_learned(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    store(engine, 77, "steady", STEADY)
    monkeypatch.setattr("slurm_energy.daemon.recorder.history.site_clocks", fail)
    known, kinds = read(engine, site(tmp_path), monkeypatch)
    assert kinds == [ClockPart] and known.site_clocks is None
    assert known.clocks[1000, "steady"][A100].runs == 1


def test_a_job_without_trials_of_its_name_is_told_that_its_clock_is_predicted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, 77, "steady", STEADY)
    config = site(tmp_path)
    known, _ = read(engine, config, monkeypatch)
    new, tried_before = (decide(config, known, name=name).decision for name in ("new", "steady"))
    assert any("predicted from other programs" in note for note in new.notes)
    assert not any("predicted from other programs" in note for note in tried_before.notes)
