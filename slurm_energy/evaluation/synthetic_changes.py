"""A synthetic cluster that goes on: one node or one job is different at each step, all others are the same objects."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from slurm_energy.domain.cluster import ClusterSnapshot, JobState, NodeState
from slurm_energy.domain.ids import JobId, NodeName
from slurm_energy.evaluation.synthetic_cluster import FULL_TYPE, pending_job, running_job, with_held


class ChangingCluster:
    """Jobs end, start, come and leave; sums stay as they are, and the full partition stays full.

    A step is what one reading of Slurm may show: a job that has ended while its node does not tell yet is one.
    """

    def __init__(self, snapshot: ClusterSnapshot, seed: int) -> None:
        self.snapshot = snapshot
        """As of the last step."""
        self._random = Random(seed)  # noqa: S311  # a sample, guards nothing
        self._jobs: dict[JobId, JobState] = {job.job_id: job for job in snapshot.jobs}
        self._nodes: dict[NodeName, NodeState] = {node.name: node for node in snapshot.nodes}
        self._next = 1 + max(self._jobs, default=0)
        self._may_end = [job.job_id for job in snapshot.jobs if job.gpu_positions and FULL_TYPE not in job.gpu_types]
        self._pending = [job.job_id for job in snapshot.jobs if job.state == "PENDING"]
        self._steps = self._rounds()

    def step(self, seconds: float = 0.0) -> ClusterSnapshot:
        """Return the cluster after one more change and so many seconds."""
        self._now = self.snapshot.taken_at_seconds + seconds
        next(self._steps)
        self.snapshot = replace(
            self.snapshot,
            taken_at_seconds=self._now,
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._jobs.values()),
        )
        return self.snapshot

    def _rounds(self) -> Iterator[None]:
        while True:
            yield from self._one_job_follows_another()
            yield from self._queue_moves()

    def _one_job_follows_another(self) -> Iterator[None]:
        """A job ends and its node follows; another takes its devices and the node follows."""
        ended = self._jobs.pop(self._may_end.pop(self._random.randrange(len(self._may_end))))
        name, devices = ended.gpu_positions[0]
        yield
        held = self._nodes[name].gpus[0].allocated
        self._nodes[name] = with_held(self._nodes[name], held - len(devices))
        yield
        started = replace(
            running_job(self._number(), name, devices, self._random, self._now),
            submitted_at_seconds=float(int(self._now)),
            started_at_seconds=float(int(self._now)),
        )
        self._jobs[started.job_id] = started
        self._may_end.append(started.job_id)
        yield
        self._nodes[name] = with_held(self._nodes[name], held)
        yield

    def _queue_moves(self) -> Iterator[None]:
        """A job comes, one leaves, one gets another priority."""
        arrived = pending_job(self._number(), self._pending, self._random, float(int(self._now)))
        self._jobs[arrived.job_id] = arrived
        self._pending.append(arrived.job_id)
        yield
        del self._jobs[self._pending.pop(self._random.randrange(len(self._pending)))]
        yield
        if self._pending:
            job_id = self._random.choice(self._pending)
            self._jobs[job_id] = replace(self._jobs[job_id], priority=self._random.randrange(1, 100_000))
            yield

    def _number(self) -> JobId:
        self._next += 1
        return JobId(self._next - 1)
