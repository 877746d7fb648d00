"""Jobs, snapshots and fakes for the tests of a policy in a process of its own."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

from slurm_energy.daemon.ipc.frames import SnapshotComplete
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.decision import ClockChoice, PolicyAnswer, Reason
from slurm_energy.domain.ids import ClusterName, GpuTypeName, NodeName, PartitionName
from slurm_energy.domain.job import GpuDemand, JobRequest
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import Candidate

NOW = 1_800_000_000.0
A40 = GpuTypeName("a40")
PARTITION = PartitionState(name=PartitionName("a40"), is_default=True, up=True)
NODE = NodeState(
    name=NodeName("n1"),
    partitions=(PartitionName("a40"),),
    states=("IDLE",),
    available=True,
    cpus=8,
    cpus_allocated=0,
    gpus=(NodeGpus(slurm_type="a40", count=4),),
)
JOB = JobRequest(user_id=1000, name="train", gpus=(GpuDemand(count=1),))
CASE = Case(
    job=JOB,
    snapshot=ClusterSnapshot(
        cluster=ClusterName("cluster"), taken_at_seconds=NOW - 1.0, partitions=(PARTITION,), nodes=(NODE,)
    ),
    now_seconds=NOW,
    candidates=(Candidate(partition=PARTITION, gpu_types=(A40,), has_idle_room=True),),
    may_route=False,
    max_slowdown=0.05,
    gpu_type_by_slurm_type={"a40": A40},
)


def snapshot(taken_at_seconds: float = NOW - 1.0) -> ClusterSnapshot:
    return ClusterSnapshot(
        cluster=ClusterName("cluster"), taken_at_seconds=taken_at_seconds, partitions=(PARTITION,), nodes=(NODE,)
    )


def complete(taken_at_seconds: float = NOW - 1.0) -> SnapshotComplete:
    return SnapshotComplete(taken_at_seconds=taken_at_seconds, read_seconds=0.1)


def answer(note: str = "from afar") -> PolicyAnswer:
    clock = ClockChoice(
        gpu_type=A40,
        sm_clock_mhz=1500,
        default_clock_mhz=1740,
        predicted_slowdown=0.01,
        predicted_energy_change=-0.1,
    )
    return PolicyAnswer(clocks=(clock,), reasons=(Reason.POLICY,), notes=(note,))


def question_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Baseline:
    """Says that it was the baseline."""

    name = "plain"
    version = "1"

    def decide(self, case: Case) -> PolicyAnswer:
        return PolicyAnswer(reasons=(Reason.POLICY, Reason.NO_IDLE_PARTITION), notes=("by rule",))


class SteppedPolicy:
    """Answers with the time of the snapshot that it is at; needs two steps to get to one."""

    name = "stepped"
    version = "7"

    def __init__(self) -> None:
        self.at: float | None = None
        self.begun: list[float] = []
        self.decide_how: Callable[[], Any] | None = None
        self.fail_at: float | None = None
        self.decided: list[tuple[int, float]] = []
        """User and snapshot of each job."""

    def warm_up_steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        self.begun.append(snapshot.taken_at_seconds)
        yield
        if snapshot.taken_at_seconds == self.fail_at:
            raise ValueError("a row is missing")
        yield
        self.at = snapshot.taken_at_seconds

    def decide(self, case: Case) -> PolicyAnswer:
        self.decided.append((case.job.user_id, case.snapshot.taken_at_seconds))
        if self.decide_how is not None:
            made: PolicyAnswer = self.decide_how()
            return made
        return PolicyAnswer(notes=(f"at {self.at}, given {case.snapshot.taken_at_seconds}, job {case.job.name}",))


class LeftBehind:
    """A policy at one moment: says which, or does what it was made to do."""

    name = "left"
    version = "7"

    def __init__(self, at: float, how: str = "") -> None:
        self.at = at
        self.how = how
        self.asked: list[int] = []

    def decide(self, case: Case) -> PolicyAnswer:
        self.asked.append(case.job.user_id)
        if self.how == "fails":
            raise ValueError("a row is missing")
        return PolicyAnswer(notes=(f"left at {self.at}",))

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["how"] == "cannot be unpacked":
            raise RuntimeError("no such thing here")
        self.__dict__.update(state)


class DetachablePolicy(SteppedPolicy):
    """One that can be left behind."""

    how = ""

    def detached(self) -> LeftBehind | None:
        if self.how == "cannot be detached":
            raise ValueError("not now")
        return None if self.at is None else LeftBehind(self.at, self.how)
