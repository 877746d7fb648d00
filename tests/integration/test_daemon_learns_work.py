"""From reports in the database to a decision that rests on them, through the recorder and the decider."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from store_samples import A100, CLUSTER, SUBMITTED, make_gpu, make_key, make_report, make_state

from slurm_energy.config import ClusterConfig, Config, DaemonConfig, RoutingConfig, StoreConfig
from slurm_energy.daemon.decide import Decided, Known, create_decider
from slurm_energy.daemon.ipc.frames import RuntimePart, WorkPart
from slurm_energy.daemon.recorder.history import HistoryLoop
from slurm_energy.daemon.recorder.link import RecorderLink
from slurm_energy.daemon.recorder.process import prepare_schema
from slurm_energy.daemon.recorder.recorder import ChangedJobs
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.ids import GpuTypeName, NodeName, PartitionName
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.session import Engine, open_engine, store_session
from slurm_energy.wire.messages import SubmittedFields

A40 = GpuTypeName("a40")
RUNS = 20


def site(directory: Path, *, learns: bool = True) -> Config:
    config = Config()
    return replace(
        config,
        cluster=ClusterConfig(name=CLUSTER),
        daemon=DaemonConfig(state_directory=str(directory)),
        store=StoreConfig(url=f"sqlite:///{directory}/energy.sqlite"),
        policy=replace(config.policy, name="oracle", learn_from_runs=learns),
        routing=RoutingConfig(open=True),
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_engine(site(tmp_path).store)
    prepare_schema(made)
    yield made
    made.dispose()


def store_runs(engine: Engine, gpu_type: GpuTypeName, *, seconds: float, watts: float, first_id: int) -> None:
    for number in range(RUNS):
        begins = SUBMITTED + number * 86_400.0  # a day each: runs of one day are hardly more than one
        state = make_state(
            first_id + number,
            started_at_seconds=begins,
            ended_at_seconds=begins + seconds,
            admin_comment="",
            name="light",
        )
        gpu = make_gpu(
            gpu_type=gpu_type,
            joules=watts * seconds,
            counter_joules=None,
            polled_joules=None,
            coverage_seconds=seconds,
            asked_clock_mhz=None,
            applied_clock_mhz=None,
        )
        report = make_report(gpu, job_id=first_id + number, decision_id=None)
        with store_session(engine) as session:
            upsert_jobs(session, CLUSTER, (state,))
            record_report(session, report, make_key(first_id + number), submit_time_known=True)


def history_of(config: Config, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> JobHistory:
    """Return what the recorder tells the answering process at its first look."""
    monkeypatch.setattr("slurm_energy.daemon.recorder.history.time.time", lambda: SUBMITTED + RUNS * 86_400.0)
    used: list[JobHistory] = []
    link = RecorderLink(used.append)
    told: list[object] = []
    HistoryLoop(config, told.append, ChangedJobs()).step(engine)
    assert {type(frame) for frame in told} >= {RuntimePart, WorkPart}
    for frame in told:
        link.receive(frame)
    return used[-1]


def decide(config: Config, history: JobHistory) -> Decided:
    partitions = tuple(
        PartitionState(name=PartitionName(name), is_default=name == "a100", up=True) for name in ("a100", "a40")
    )
    nodes = tuple(
        NodeState(
            name=NodeName(f"{name}-1"),
            partitions=(PartitionName(name),),
            states=("IDLE",),
            available=True,
            cpus=64,
            cpus_allocated=0,
            gpus=(NodeGpus(slurm_type=name, count=4, allocated=0),),
        )
        for name in ("a100", "a40")
    )
    snapshot = ClusterSnapshot(cluster=CLUSTER, taken_at_seconds=SUBMITTED, partitions=partitions, nodes=nodes)
    job = SubmittedFields(user_id=1000, name="light", tres_per_job="gres/gpu:1")
    return create_decider(config).decide(job, Known(snapshot=snapshot, history=history), SUBMITTED + 1.0)


def test_a_job_goes_where_runs_of_its_name_were_cheap_and_as_fast(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_runs(engine, A100, seconds=1000.0, watts=120.0, first_id=1)
    store_runs(engine, A40, seconds=1010.0, watts=70.0, first_id=101)
    config = site(tmp_path)
    history = history_of(config, engine, monkeypatch)
    assert history.work[1000, "light"].runs_by_type == {A100: RUNS, A40: RUNS}
    decided = decide(config, history)
    assert decided.decision.partitions == (PartitionName("a40"),)
    assert any("by runs of this name (20 on a100, 20 on a40)" in note for note in decided.decision.notes)
    # Without them the tables send it to the default partition, where it was going anyway.
    assert decide(config, JobHistory()).decision.partitions in {None, (PartitionName("a100"),)}


def test_a_site_that_does_not_want_it_is_decided_by_tables(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_runs(engine, A100, seconds=1000.0, watts=120.0, first_id=1)
    store_runs(engine, A40, seconds=1010.0, watts=70.0, first_id=101)
    assert history_of(site(tmp_path, learns=False), engine, monkeypatch).work == {}


def test_runs_that_cannot_be_compared_leave_the_picture_and_the_recording_as_they_were(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store_runs(engine, A100, seconds=1000.0, watts=120.0, first_id=1)

    def fail(*_: object) -> None:
        raise np.linalg.LinAlgError("singular matrix")

    monkeypatch.setattr("slurm_energy.daemon.recorder.history.named_work", fail)
    told: list[object] = []
    HistoryLoop(site(tmp_path), told.append, ChangedJobs()).step(engine)
    told_kinds = {type(frame) for frame in told}
    assert RuntimePart in told_kinds and WorkPart not in told_kinds
    assert "singular matrix" in caplog.text
    assert "what was known before stays" in caplog.text


def test_run_times_of_a_name_are_told_for_the_type_that_most_were_on(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_runs(engine, A100, seconds=1000.0, watts=120.0, first_id=1)
    store_runs(engine, A40, seconds=2000.0, watts=70.0, first_id=101)
    store_runs(engine, A40, seconds=2000.0, watts=70.0, first_id=201)
    history = history_of(site(tmp_path), engine, monkeypatch)
    runtime = history.runtimes[1000, "light"]
    assert runtime.gpu_type == A40
    assert runtime.estimate().seconds == pytest.approx(2000.0, rel=0.1)
