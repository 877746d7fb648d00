"""A learned policy in its process: whatever becomes of it, every submission is answered, and within the deadline."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_support import (
    FakeSlurm,
    RunningDaemon,
    alive,
    children_of,
    free_port,
    make_job,
    until_it_ends,
    wait_until,
    write_config,
)

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.ipc.frames import SnapshotBegins, SnapshotComplete, SnapshotPart
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.policy.slot import PolicyChild, Process
from slurm_energy.daemon.snapshot.feed import SnapshotCopy
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import ClusterName, NodeName, PartitionName
from slurm_energy.domain.job import GpuDemand, JobRequest
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import save_checkpoint
from slurm_energy.policy.gnn.configuration import NetworkConfig, Policy
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.policy.gnn.priced_answers import PricedAnswers
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.rules.slurm_order import SlurmDefaultRule

HERE = Path(__file__).parent
DEADLINE_SECONDS = 0.05
"""The plugin's own default."""
MISSED_OF_A_HUNDRED = 5
"""On a machine that other work keeps busy a few may be late for reasons of its own."""


@contextmanager
def daemon_with(directory: Path, behaviour: str, name: str = "gnn") -> Iterator[RunningDaemon]:
    """Yield a daemon whose learned policy behaves so; it must end cleanly, with its children."""
    slurm, port = FakeSlurm(directory / "slurm"), free_port()
    config = write_config(directory, slurm, port)
    set_policy(directory, name, behaviour)
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "daemon_with_fake_policy.py"), str(config)],
            stderr=log,
            stdout=log,
            env=environment,
        )
    daemon = RunningDaemon(directory, slurm, process, port)
    with until_it_ends(daemon):
        yield daemon


def set_policy(directory: Path, name: str, behaviour: str, **more: int) -> None:
    """Write the policy's settings in the place of those that are there."""
    path = directory / "energy.toml"
    rest = path.read_text().split("[policy]")[0]
    more = {"min_saving_per_slowdown": 0, **more}  # clocks of boards of 400 W save little for their time
    values = "".join(f"{key} = {value}\n" for key, value in more.items())
    path.write_text(f'{rest}[policy]\nname = "{name}"\ncheckpoint = "{behaviour}"\n{values}')


def condition(daemon: RunningDaemon) -> tuple[Any, Any, Any]:
    status = daemon.query("status")["daemon"]
    return status["policy"], status["policy_version"], status["policy_process"]


def counter(daemon: RunningDaemon, name: str) -> int:
    return int(daemon.query("status")["daemon"]["counters"].get(name, 0))


def decided(daemon: RunningDaemon, count: int = 100) -> int:
    """Submit jobs; every one must be answered with a clock. Return how many answers were within the deadline."""
    timely = 0
    for _ in range(count):
        began = time.monotonic()
        reply = daemon.decide()
        timely += time.monotonic() - began < DEADLINE_SECONDS
        assert "clocks=" in reply.fields["entry"], reply
    return timely


def last_decision(daemon: RunningDaemon) -> Any:
    """Return the record of a new decision."""
    decision_id = daemon.decide().fields["decision_id"]
    found: list[Any] = []

    def stored() -> bool:
        found[:] = [one for one in daemon.query("decisions")["record"] if one["decision_id"] == decision_id]
        return bool(found)

    wait_until(stored, "the decision in the database", daemon)
    return found[0]


def is_ready(daemon: RunningDaemon) -> bool:
    return bool(condition(daemon)[2] == "ready")


def reasons(record: Any) -> list[str]:
    return [str(reason["code"]) for reason in record["reasons"]]


def test_the_child_answers_and_its_words_reach_the_record(tmp_path: Path) -> None:
    with daemon_with(tmp_path, "good") as daemon:
        wait_until(lambda: is_ready(daemon), "a ready policy", daemon)
        record = last_decision(daemon)
        assert (record["policy"], record["policy_version"]) == ("gnn", "good")
        assert "POLICY" in reasons(record)
        (seen,) = [note for note in record["notes"] if note.startswith("seen by pid")]
        assert int(seen.split()[3]) in children_of(daemon.process.pid)
        decided(daemon)
        daemon.slurm.set_jobs([make_job(number) for number in range(1, 4)])
        wait_until(
            lambda: any(note.endswith("with 3 jobs") for note in last_decision(daemon)["notes"]), "new jobs", daemon
        )


@pytest.mark.parametrize(
    ("behaviour", "reason"), [("slow", "POLICY_TIMEOUT"), ("hang", "POLICY_TIMEOUT"), ("raise", "POLICY_ERROR")]
)
def test_for_a_policy_that_is_late_or_fails_the_baseline_answers(tmp_path: Path, behaviour: str, reason: str) -> None:
    with daemon_with(tmp_path, behaviour) as daemon:
        wait_until(lambda: is_ready(daemon), "a ready policy", daemon)
        decided(daemon)
        assert counter(daemon, "policy baseline answers") == 100
        if reason == "POLICY_TIMEOUT":
            assert 3 <= counter(daemon, "policy timeouts") <= 5
            assert condition(daemon)[2] == "not answering"
        record = last_decision(daemon)
        assert reason in reasons(record)
        assert any("oracle decided" in note for note in record["notes"])


@pytest.mark.alone
@pytest.mark.parametrize("behaviour", ["good", "hang"])
def test_neither_a_good_policy_nor_one_that_hangs_makes_a_submission_late(tmp_path: Path, behaviour: str) -> None:
    with daemon_with(tmp_path, behaviour) as daemon:
        wait_until(lambda: is_ready(daemon), "a ready policy", daemon)
        assert decided(daemon) >= 100 - MISSED_OF_A_HUNDRED


def test_a_policy_that_crashes_at_every_question_takes_nothing_with_it(tmp_path: Path) -> None:
    with daemon_with(tmp_path, "crash") as daemon:
        wait_until(lambda: is_ready(daemon), "a ready policy", daemon)
        decided(daemon)
        wait_until(lambda: "child ended name=policy" in daemon.log, "the end of the child", daemon)
        wait_until(lambda: is_ready(daemon), "the policy back again", daemon)
        decided(daemon, 10)


def test_a_policy_that_never_takes_a_snapshot_is_loading_and_the_baseline_answers(tmp_path: Path) -> None:
    with daemon_with(tmp_path, "stuck") as daemon:
        decided(daemon)
        assert condition(daemon)[2] == "loading"
        assert "POLICY_LOADING" in reasons(last_decision(daemon))


def test_a_refused_policy_at_the_start_says_why(tmp_path: Path) -> None:
    with daemon_with(tmp_path, "refuse") as daemon:
        refused = (
            "refused: CheckpointError: checkpoint refuse has no weights; tried again with other files or at a reload"
        )
        wait_until(lambda: condition(daemon)[2] == refused, "the refusal", daemon)
        decided(daemon, 20)
        assert "POLICY_ERROR" in reasons(last_decision(daemon))
        wait_until(lambda: "policy not started again before other files" in daemon.log, "the pause", daemon)
        reload(daemon, "gnn", "refuse")
        wait_until(lambda: daemon.log.count("policy not loaded name=gnn") == 2, "another try at the reload", daemon)
        # One more where a busy machine gave up on the first before it had loaded anything.
        assert daemon.log.count("child started name=policy") in (2, 3)


def who_answers(daemon: RunningDaemon) -> tuple[str, int]:
    """Return version and process of the policy that was asked about a new job."""
    daemon.decide()
    asked = [line for line in daemon.log.splitlines() if line.startswith("asked version=")]
    version, process_id = asked[-1].removeprefix("asked version=").split(" pid=")
    return version, int(process_id)


def reload(daemon: RunningDaemon, name: str, behaviour: str) -> None:
    set_policy(daemon.directory, name, behaviour)
    daemon.process.send_signal(signal.SIGHUP)


def test_a_reload_swaps_only_to_a_policy_that_is_ready(tmp_path: Path) -> None:
    with daemon_with(tmp_path, "first") as daemon:
        wait_until(lambda: is_ready(daemon), "a ready policy", daemon)
        first = who_answers(daemon)
        reload(daemon, "gnn", "refuse")
        wait_until(lambda: "new policy refused, the old one stays" in daemon.log, "refusal", daemon)
        assert "reason=CheckpointError: checkpoint refuse has no weights" in daemon.log
        assert who_answers(daemon) == first == ("first", first[1])
        reload(daemon, "gnn", "stuck")
        wait_until(lambda: "policy loaded name=gnn version=stuck" in daemon.log, "a candidate", daemon)
        assert who_answers(daemon) == first
        reload(daemon, "gnn", "second")
        wait_until(lambda: who_answers(daemon)[0] == "second", "the new policy", daemon)
        wait_until(lambda: not alive(first[1]), "end of the old policy's process", daemon)
        second = who_answers(daemon)
        reload(daemon, "oracle", "")
        wait_until(lambda: daemon.ask("ping").fields["policy"] == "oracle", "the oracle", daemon)
        wait_until(lambda: not alive(second[1]), "end of the learned policy's process", daemon)
        reload(daemon, "gnn", "third")
        wait_until(lambda: who_answers(daemon)[0] == "third", "the policy after the oracle", daemon)
        assert "POLICY_LOADING" not in daemon.log


def test_a_killed_child_is_started_again_and_fed_with_the_whole_cluster(tmp_path: Path) -> None:
    with daemon_with(tmp_path, "good") as daemon:
        daemon.slurm.set_jobs([make_job(number) for number in range(1, 301)])
        wait_until(lambda: daemon.query("status")["daemon"]["snapshot_jobs"] == 300, "the queue", daemon)
        wait_until(lambda: is_ready(daemon), "a ready policy", daemon)
        (seen,) = [note for note in last_decision(daemon)["notes"] if note.startswith("seen by pid")]
        os.kill(int(seen.split()[3]), signal.SIGKILL)
        decided(daemon, 20)
        wait_until(lambda: is_ready(daemon), "the policy back again", daemon)
        (again,) = [note for note in last_decision(daemon)["notes"] if note.startswith("seen by pid")]
        assert again != seen
        assert again.endswith("with 300 jobs")


@pytest.mark.parametrize(("policy_name", "kind"), [("oracle", "options"), ("gnn", "options"), ("gnn", "prices")])
def test_the_real_child_serves_a_policy_of_the_registry(tmp_path: Path, policy_name: str, kind: Policy) -> None:
    """No fake: the child's own module makes the policy that the configuration names."""
    architecture = NetworkConfig(hidden=12, heads=3, policy=kind)
    metadata = CheckpointMetadata(
        name="gnn", version="1", architecture=architecture, training_data_sha256="0" * 64, created_at_seconds=1.0
    )
    save_checkpoint(tmp_path / "checkpoint", create_network(architecture, seed=1).state_dict(), metadata)
    checkpoint = str(tmp_path / "checkpoint")
    settings = PolicyConfig(name=policy_name, checkpoint=checkpoint, min_saving_per_slowdown=0.0)
    config = replace(Config(), policy=settings)
    name = PartitionName("a100")
    partition = PartitionState(name=name, is_default=True, up=True)
    gpus = (NodeGpus(slurm_type="a100", count=4),)
    node = NodeState(
        name=NodeName("n1"), partitions=(name,), states=("IDLE",), available=True, cpus=8, cpus_allocated=0, gpus=gpus
    )
    now = time.time()
    copy = SnapshotCopy()
    complete = SnapshotComplete(taken_at_seconds=now, read_seconds=0.1)
    for frame in (SnapshotBegins(), SnapshotPart(partitions=(partition,), nodes=(node,)), complete):
        copy.take(frame)
    snapshot = ClusterSnapshot(
        cluster=ClusterName("cluster"), taken_at_seconds=now, partitions=(partition,), nodes=(node,)
    )
    policy = RemotePolicy(policy_name, SlurmDefaultRule(), timeout_seconds=5.0, max_age_seconds=60.0)

    def process(child: PolicyChild) -> Process:
        module = "slurm_energy.daemon.policy.process"
        return ChildProcess("policy", module, lambda: config, child.receive, child.connect)

    async def play() -> None:
        ready = asyncio.Event()
        child = PolicyChild(config, policy, copy, lambda one: ready.set() if one.policy.ready else None, process)
        task = asyncio.create_task(child.process.run())
        async with asyncio.timeout(60.0):
            await ready.wait()
        job = JobRequest(user_id=1000, gpus=(GpuDemand(count=1),))
        decision = Guard(config).decide(policy, job, snapshot, now)
        assert (decision.policy, decision.policy_version) == (policy_name, "1")
        assert Reason.POLICY in decision.reasons
        assert [clock.gpu_type for clock in decision.clocks] == ["a100-sxm4-80gb"]
        assert policy.counters == {"policy answers": 1}
        assert isinstance(policy.answering_here, PricedAnswers if kind == "prices" else SlurmDefaultRule)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not policy.ready

    asyncio.run(play())
