"""Speed of a policy's decisions in a process of its own, while the cluster changes.

Run as a program it reads one task from stdin and prints its figures as JSON, so that threads and memory are its own:

    echo '{"task": "measure", ...}' | python -m slurm_energy.evaluation.decision_speed.in_process
"""

import gc
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from slurm_energy.config import Config, PolicyConfig, RoutingConfig
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import AnswerDetails, PolicyAnswer
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.errors import PolicyError, SlurmEnergyError
from slurm_energy.evaluation.decision_speed.figures import InProcess, spread_of
from slurm_energy.evaluation.decision_speed.synthetic_cluster import (
    CATALOGUE_NAMES,
    ChangingCluster,
    ClusterSize,
    synthetic_cluster,
)
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.registry import LEARNED, create_policy
from slurm_energy.resources import install_command

SEED = 1
NOW_SECONDS = 1_800_000_000.0
"""A whole minute: the clock of running jobs moves on only where it is meant to."""
REBUILDS = 3
READINGS = 5
PEER_RUNS, PEER_LIMIT_SECONDS = 30, 6.0
UNTIMED_DECISIONS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """A job without a partition of its own, only observed.

    A job that is observed stays in the default partition: thousands of jobs that never reach the queue then do not
    promise away the room that the policy chooses among.
    """

    user_id: int
    name: str
    gpus: int
    minutes: int
    max_slowdown: float

    def request(self) -> JobRequest:
        """Return what a policy is asked."""
        return JobRequest(
            user_id=self.user_id,
            name=self.name,
            time_limit_minutes=float(self.minutes),
            gpus=(GpuDemand(count=self.gpus),),
            options=EnergyOptions(mode=EnergyMode.OBSERVE, max_slowdown=self.max_slowdown),
        )

    def fields(self) -> dict[str, str]:
        """Return the fields of a `decide` message."""
        return {
            "client": "bench",
            "uid": str(self.user_id),
            "name": self.name,
            "time_limit": str(self.minutes),
            "min_nodes": "1",
            "tres_per_node": f"gres:gpu:{self.gpus}",
            "energy_mode": "observe",
            "energy_max_slowdown": f"{100.0 * self.max_slowdown:g}%",
        }


def asked_jobs() -> tuple[AskedJob, ...]:
    """Return jobs of one or two GPUs with small and large bounds on their slowdown."""
    return tuple(
        AskedJob(
            user_id=2000 + number,
            name=f"train-{number:02d}",
            gpus=1 + number % 2,
            minutes=(30, 240, 1440)[number % 3],
            max_slowdown=(0.05, 0.2, 2.0)[number // 2 % 3],
        )
        for number in range(24)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcessTask:
    """What is to be measured."""

    size: ClusterSize
    policy: str
    checkpoint: str
    threads: int
    decisions: int
    changes_per_second: float
    changes_per_reading: int
    """Between two snapshots of the daemon."""
    peer: bool

    def config(self) -> Config:
        """Return the settings of a site with such a cluster."""
        return Config(
            policy=PolicyConfig(name=self.policy, checkpoint=self.checkpoint, threads=self.threads),
            routing=RoutingConfig(open=True),
            gpu_types=dict(CATALOGUE_NAMES),
        )


class Stopwatch:
    """Times a policy's answers; the guard around it is not counted."""

    def __init__(self, policy: Policy) -> None:
        self.name, self.version = policy.name, policy.version
        self.seconds: list[float] = []
        self.by_network = 0
        self._policy = policy

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the policy's answer."""
        before = time.perf_counter()
        answer = self._policy.decide(case)
        self.seconds.append(time.perf_counter() - before)
        self.by_network += answer.details != AnswerDetails()
        return answer


@dataclass(slots=True, kw_only=True)
class _Run:
    """What the loop has seen."""

    changes: list[float]
    together: list[float]
    network_share: float | None = None
    changes_per_second: float = 0.0


def measure(task: InProcessTask) -> InProcess:
    """Return the figures of one size and number of threads."""
    cluster = ChangingCluster(synthetic_cluster(task.size, SEED, NOW_SECONDS), SEED)
    policy, rebuilds = _rebuilt(task.config(), cluster.snapshot)
    guard = Guard(task.config())
    for job in asked_jobs()[:UNTIMED_DECISIONS]:
        guard.decide(policy, job.request(), cluster.snapshot, NOW_SECONDS)
    # As in the daemon's policy process: what is there now stays for ever, and is not looked through again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    watch = Stopwatch(policy)
    run = _run(task, cluster, policy, guard, watch)
    readings = [_seconds_of_reading(task, cluster, policy) for _ in range(READINGS)]
    minute = _seconds_to_follow(policy, cluster.step(60.0))
    peer = _peer(task, cluster.snapshot) if task.peer else {}
    return InProcess(
        nodes=task.size.nodes,
        gpus=task.size.gpus,
        jobs=len(cluster.snapshot.jobs),
        threads=task.threads,
        decision=spread_of(watch.seconds),
        change=spread_of(run.changes),
        together=spread_of(run.together),
        changes_per_second=run.changes_per_second,
        reading_seconds=median(readings),
        rebuild_seconds=median(rebuilds),
        minute_seconds=minute,
        network_share=run.network_share,
        **{"peer": None, **peer},
    )


def _rebuilt(config: Config, snapshot: ClusterSnapshot) -> tuple[Policy, list[float]]:
    """Return a policy brought to a snapshot, and how long that took each of several new ones."""
    seconds: list[float] = []
    for _ in range(REBUILDS):
        policy = create_policy(config)
        seconds.append(_seconds_to_follow(policy, snapshot))
    return policy, seconds


def _run(task: InProcessTask, cluster: ChangingCluster, policy: Policy, guard: Guard, watch: Stopwatch) -> _Run:
    """Ask for decisions one after another; a change that is due comes first, one at most before each decision."""
    run = _Run(changes=[], together=[])
    jobs: Iterator[JobRequest] = cycle([job.request() for job in asked_jobs()])
    begun = time.perf_counter()
    while len(watch.seconds) < task.decisions:
        due = (time.perf_counter() - begun) * task.changes_per_second > len(run.changes)
        if due:
            # The clock of running jobs stays: moving it on is measured by itself.
            run.changes.append(_seconds_to_follow(policy, cluster.step()))
        asked = len(watch.seconds)
        guard.decide(watch, next(jobs), cluster.snapshot, cluster.snapshot.taken_at_seconds)
        if due and len(watch.seconds) > asked:
            run.together.append(run.changes[-1] + watch.seconds[-1])
    run.network_share = watch.by_network / len(watch.seconds) if task.policy in LEARNED else None
    run.changes_per_second = len(run.changes) / (time.perf_counter() - begun)
    return run


def _seconds_of_reading(task: InProcessTask, cluster: ChangingCluster, policy: Policy) -> float:
    """Return the time to take in all changes between two readings at once."""
    for _ in range(task.changes_per_reading):
        cluster.step()
    return _seconds_to_follow(policy, cluster.snapshot)


def _seconds_to_follow(policy: Policy, snapshot: ClusterSnapshot) -> float:
    """Return the time to bring a policy to a snapshot; nothing for one that keeps no state."""
    follow = getattr(policy, "warm_up", None)
    before = time.perf_counter()
    if follow is not None:
        follow(snapshot)
    return time.perf_counter() - before


def _peer(task: InProcessTask, snapshot: ClusterSnapshot) -> dict[str, Any]:
    from slurm_energy.graph.cluster_graph import ClusterGraph  # noqa: PLC0415  # numpy, for a learned policy only
    from slurm_energy.policy.gnn.ablation.heterogeneous import time_peer  # noqa: PLC0415  # torch likewise

    graph = ClusterGraph(task.config().gpu_types)
    graph.update(snapshot)
    times = time_peer(graph, runs=PEER_RUNS, limit_seconds=PEER_LIMIT_SECONDS)
    return {"peer": spread_of(times.seconds), "peer_vertices": times.vertices, "peer_edges": times.edges}


def write_random_checkpoint(folder: Path) -> None:
    """Write a checkpoint with random weights: speed and memory do not depend on what was learned.

    Raises:
        PolicyError: what networks need is not installed.
    """
    try:
        _write_random_checkpoint(folder)
    except ImportError as error:
        raise PolicyError(f"policy gnn cannot be measured, {error}: {install_command('daemon')}") from error


def _write_random_checkpoint(folder: Path) -> None:
    from slurm_energy.policy.checkpoint_files import CheckpointMetadata  # noqa: PLC0415  # torch, as above
    from slurm_energy.policy.gnn.checkpoint import save_checkpoint  # noqa: PLC0415  # likewise
    from slurm_energy.policy.gnn.configuration import NetworkConfig  # noqa: PLC0415  # likewise
    from slurm_energy.policy.gnn.network import create_network  # noqa: PLC0415  # likewise

    config = NetworkConfig()
    metadata = CheckpointMetadata(
        name="random-weights",
        version=f"seed-{SEED}",
        architecture=config,
        training_data_sha256="0" * 64,
        created_at_seconds=NOW_SECONDS,
    )
    save_checkpoint(folder, create_network(config, SEED).state_dict(), metadata)


def main() -> int:
    """Do the task on stdin and print what came of it."""
    task = json.load(sys.stdin)
    kind = task.pop("task")
    result: dict[str, Any] = {}
    try:
        if kind == "checkpoint":
            write_random_checkpoint(Path(task["folder"]))
        else:
            result = asdict(measure(_task(task)))
    except SlurmEnergyError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(result))
    return 0


def _task(document: Mapping[str, Any]) -> InProcessTask:
    return InProcessTask(**{**document, "size": ClusterSize(**document["size"])})


if __name__ == "__main__":
    sys.exit(main())
