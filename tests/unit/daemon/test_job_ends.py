"""Ends of jobs reach a policy that corrects itself: each once, and never at a submission's cost."""

import logging
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from policy_parts import JOB, NOW, snapshot

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon import job_ends
from slurm_energy.daemon.ipc.channel import receive
from slurm_energy.daemon.ipc.frames import JobsEnded
from slurm_energy.daemon.job_ends import JobEnds
from slurm_energy.daemon.recorder.entries import JobsEntryLine, decode_entry
from slurm_energy.daemon.recorder.journal import JournalReader, JournalWriter
from slurm_energy.daemon.snapshot.feed import SnapshotFeed
from slurm_energy.daemon.snapshot.process import SnapshotLoop
from slurm_energy.domain.cluster import JobState, NodeSize, NodeState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import DecisionId, JobId, NodeName
from slurm_energy.domain.job import EnergyOptions
from slurm_energy.policy.base import CorrectingPolicy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.jobs import EndedJob
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.registry import create_policy
from slurm_energy.slurm.json_client import ClusterReading, SlurmReader
from slurm_energy.slurm.reader import ChosenReader


def ended(number: int, *, ran: float = 100.0, **changes: Any) -> JobState:
    values: dict[str, Any] = {
        "user_name": "ann",
        "user_id": 1000,
        "name": "train",
        "state": "COMPLETED",
        "partitions": (),
        "submitted_at_seconds": NOW,
        "started_at_seconds": NOW + 10.0,
        "ended_at_seconds": NOW + 10.0 + ran,
        "admin_comment": f"energy:{number:016x}",
        "gpu_count": 2,
    }
    return JobState(job_id=JobId(number), **{**values, **changes})


def alone(reader: SlurmReader) -> ChosenReader:
    """Return a reader for the snapshot child that never falls back."""
    return ChosenReader("commands", reader, reader)


class Listener(OraclePolicy):
    """A policy that observes ends."""

    def __init__(self, *, observes_ends: bool = True, fails: bool = False) -> None:
        self.observes_ends, self.fails = observes_ends, fails
        self.seen: list[EndedJob] = []

    def ended(self, job: EndedJob) -> None:
        self.seen.append(job)
        if self.fails:
            raise ValueError("no row")


def decision(number: int) -> EnergyDecision:
    made = Guard(Config()).decide(OraclePolicy(), JOB, snapshot(), NOW)
    return replace(made, decision_id=DecisionId(f"{number:016x}"))


def test_each_end_is_passed_on_once_with_what_is_known_of_the_run() -> None:
    ends, policy = JobEnds(NOW), Listener()
    job = ended(7, ran=100.0, suspended_seconds=40.0, account="lab")
    assert (ends.ended((job,), policy), ends.ended((replace(job, exit_code=1), job), policy)) == (1, 0)
    (end,) = policy.seen
    assert (end.job_id, end.account, end.name, end.gpus, end.state) == (7, "lab", "train", 2, "COMPLETED")
    assert (end.run_seconds, end.ended_seconds, end.units) == (60.0, NOW + 110.0, 0.0)


def test_only_jobs_that_were_decided_here_and_have_run_are_passed_on() -> None:
    ends, policy = JobEnds(NOW), Listener()
    others = (
        ended(1, admin_comment=""),
        ended(2, admin_comment="a site's own remark"),
        ended(3, ended_at_seconds=None),
        ended(4, started_at_seconds=None),
        ended(5, started_at_seconds=NOW - 900.0, ended_at_seconds=NOW - 1.0),
    )
    assert ends.ended(others, policy) == 0
    assert policy.seen == []


def test_a_policy_that_observes_no_ends_is_left_alone_and_one_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = Listener(observes_ends=False)
    assert JobEnds(NOW).ended((ended(1),), plain) == JobEnds(NOW).ended((ended(1),), OraclePolicy()) == 0
    assert plain.seen == []
    failing = Listener(fails=True)
    with caplog.at_level(logging.WARNING):
        assert JobEnds(NOW).ended((ended(1), ended(2)), failing) == 2
    assert len(failing.seen) == 2
    assert "policy not corrected name=oracle error=no row" in caplog.text


def test_a_deadline_of_the_decision_comes_back_with_the_end() -> None:
    ends, policy = JobEnds(NOW), Listener()
    ends.decided(decision(1), replace(JOB, options=EnergyOptions(deadline_seconds=NOW + 60.0)))
    ends.decided(decision(2), JOB)
    ends.ended((ended(1), ended(2)), policy)
    assert [end.deadline_seconds for end in policy.seen] == [NOW + 60.0, float("inf")]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_ends, "MAX_KEPT", 3)
    ends, policy = JobEnds(NOW), Listener()
    with_deadline = replace(JOB, options=EnergyOptions(deadline_seconds=NOW + 60.0))
    for number in range(1, 10):
        ends.decided(decision(number), with_deadline)
        ends.ended((ended(number + 100),), policy)
    assert len(ends._deadlines) == len(ends._passed_on) == 3


def corrected(text: str, *ends: EndedJob) -> Any:
    """Return a rule that has decided a job on a cluster and then learned of some ends."""
    config = replace(Config(), policy=PolicyConfig(name=text))
    policy: Any = create_policy(config)
    Guard(config).decide(policy, JOB, snapshot(), NOW)
    assert isinstance(policy, CorrectingPolicy) and policy.observes_ends
    for end in ends:
        policy.ended(end)
    return policy


def passed_on(*jobs: JobState, deadline: float | None = None) -> list[EndedJob]:
    ends, policy = JobEnds(NOW), Listener()
    for job in jobs:
        ends.decided(decision(job.job_id), replace(JOB, options=EnergyOptions(deadline_seconds=deadline)))
    ends.ended(jobs, policy)
    return policy.seen


def test_the_price_of_time_of_adaptive_price_follows_the_run_times_of_served_jobs() -> None:
    text = "adaptive-price:V=20,run=100,kv=0.1"
    longer = corrected(text, *passed_on(*(ended(number, ran=400.0) for number in range(5))))
    shorter = corrected(text, *passed_on(*(ended(number, ran=10.0) for number in range(5))))
    failed = corrected(text, *passed_on(*(ended(number, ran=400.0, state="FAILED") for number in range(5))))
    assert shorter._watts < corrected(text)._watts == failed._watts == 20.0 < longer._watts


def test_the_headroom_of_total_cost_follows_the_missed_deadlines_of_served_jobs() -> None:
    jobs = [ended(number, ran=300.0) for number in range(5)]
    missed = corrected("total-cost", *passed_on(*jobs, deadline=NOW + 60.0))
    met = corrected("total-cost", *passed_on(*jobs, deadline=NOW + 900.0))
    assert missed._scarcity.headroom > met._scarcity.headroom
    assert corrected("total-cost", *passed_on(*jobs))._scarcity.headroom == corrected("total-cost")._scarcity.headroom


class Queue:
    """Slurm's queue, reading by reading."""

    def __init__(self, *readings: tuple[JobState, ...]) -> None:
        self.readings = list(readings)

    def read_cluster(self) -> ClusterReading:
        return ClusterReading(partitions=(), nodes=(), jobs=self.readings.pop(0))

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        raise AssertionError("no job has vanished")


def test_the_snapshot_child_sends_the_ends_that_it_records_and_the_feed_passes_them_on(tmp_path: Path) -> None:
    running = replace(ended(1), state="RUNNING", ended_at_seconds=None)
    config = replace(Config(), daemon=replace(Config().daemon, state_directory=str(tmp_path)))
    here, there = socket.socketpair()
    with here, there:
        queue = Queue((running,), (ended(1),), (ended(1),), (replace(ended(1), exit_code=9),))
        loop = SnapshotLoop(config, alone(queue), JournalWriter(tmp_path, "jobs"), there)
        policy = Listener()
        daemon = SimpleNamespace(
            config=config,
            counters=Counter(),
            snapshot=None,
            claims=SimpleNamespace(appeared=lambda decision_id: None),
            decider=SimpleNamespace(policy=policy, rehearse=lambda snapshot: iter(())),
            policies=(policy,),
            job_ends=JobEnds(NOW),
        )
        feed = SnapshotFeed(daemon)  # type: ignore[arg-type]  # all that it needs of the daemon's state
        frames: list[object] = []
        while queue.readings:
            loop._refresh()
            here.settimeout(0.05)
            with suppress(TimeoutError):
                while True:
                    frames.append(receive(here))
        for frame in frames:
            for _ in feed.receive(frame):
                pass
    assert [len(frame.jobs) for frame in frames if isinstance(frame, JobsEnded)] == [1, 1]
    assert [end.job_id for end in policy.seen] == [1]
    assert daemon.counters["job ends passed on"] == 1


def test_the_snapshot_child_journals_the_size_of_a_node_once_and_when_it_changes(tmp_path: Path) -> None:
    config = replace(Config(), daemon=replace(Config().daemon, state_directory=str(tmp_path)))
    node = NodeState(name=NodeName("n1"), partitions=(), states=("IDLE",), available=True, cpus=64, cpus_allocated=0)
    readings = [(node,), (replace(node, cpus_allocated=8),), (replace(node, cpus=128),)]

    class Nodes(Queue):
        def read_cluster(self) -> ClusterReading:
            return ClusterReading(partitions=(), nodes=readings.pop(0), jobs=())

    here, there = socket.socketpair()
    with here, there:
        loop = SnapshotLoop(config, alone(Nodes()), JournalWriter(tmp_path, "jobs"), there)
        while readings:
            loop._refresh()
    entries = [decode_entry(line.text) for line in JournalReader(tmp_path, "jobs").read(10)]
    found = [size for entry in entries if isinstance(entry, JobsEntryLine) for size in entry.node_sizes]
    assert found == [NodeSize(name=NodeName("n1"), cpus=cpus, gpus=0) for cpus in (64, 128)]
