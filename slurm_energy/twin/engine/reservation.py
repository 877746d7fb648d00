"""EASY backfill: when the first job that waits will start, and what others may use until then and after."""

from collections.abc import Iterable
from math import ceil, inf

from slurm_energy.twin.engine.job import Allocation, Job, JobRun
from slurm_energy.twin.engine.pool_state import DOWN, PoolState


class Reservation:
    """What is kept for the first waiting job of a pool, from the ends that running jobs are expected to have."""

    __slots__ = ("_closed", "_extra", "_nodes", "shadow_seconds")

    def __init__(
        self, shadow_seconds: float, extra: int, nodes: "_NodesThen | None", closed: frozenset[int] | None = None
    ) -> None:
        self.shadow_seconds = shadow_seconds
        """When the job can start; infinite when it cannot by what is known."""
        self._extra = extra
        self._nodes = nodes
        self._closed = closed
        """Nodes kept whole for the reserved job; None where only its devices are kept."""

    def may_pass(self, ends_seconds: float, gpus: int) -> bool:
        """Return False if no start with so many devices and such an end can be allowed, wherever it goes."""
        if ends_seconds <= self.shadow_seconds:
            return True
        return gpus <= (self._extra if self._nodes is None else self._nodes.spare)

    @property
    def kept_nodes(self) -> frozenset[int]:
        """The nodes that the reserved job will take; none in a pool that does not tell nodes apart."""
        if self._closed is not None:
            return self._closed
        return frozenset() if self._nodes is None or self.shadow_seconds == inf else self._nodes.best_nodes()

    def allows(self, ends_seconds: float, gpus: int, allocation: Allocation) -> bool:
        """Return whether a job may start now on these devices without making the reserved one wait longer."""
        if ends_seconds <= self.shadow_seconds:
            return True
        if self._closed is not None and (not allocation or any(node in self._closed for node, _, _ in allocation)):
            return False
        return gpus <= self._extra if self._nodes is None else self._nodes.hold_job_without(allocation)

    def use(self, ends_seconds: float, gpus: int, allocation: Allocation) -> None:
        """Count the devices of a job that was started and runs past the shadow time."""
        if ends_seconds <= self.shadow_seconds:
            return
        if self._nodes is None:
            self._extra -= gpus
        else:
            self._nodes.add(allocation, -1)


def reservation(
    pool: PoolState, job: Job, ends: Iterable[tuple[float, int]], now: float, *, whole_nodes: bool = False
) -> Reservation:
    """Return the reservation of a job that cannot start in a pool now.

    Running jobs are taken to end when expected, in that order, until the job fits. CPUs and memory are not looked at: a
    job that waits for those alone has its shadow at the first end.

    Args:
        pool: The pool.
        job: The first job that waits for it, with its least device count.
        ends: (expected end, job id) of the pool's running jobs, ascending.
        now: Time in s; a job past its expected end counts as ending now.
        whole_nodes: Whether the nodes that the job will take are kept, and not only its devices on them.
    """
    gpus, free = pool.held(job, job.gpu_counts[0]), pool.free_total
    nodes = _NodesThen(pool, job) if pool.by_node else None
    shadow = inf
    closed: frozenset[int] | None = None
    for end, job_id in ends:
        if end > shadow:
            break
        run = pool.runs[job_id]
        if nodes is None:
            free += pool.held(run.job, run.gpus)
        else:
            nodes.add(_freed_with(run), 1)
        if shadow == inf and (free >= gpus if nodes is None else nodes.hold_job):
            shadow = max(end, now)  # what else is free by then is left over
            if whole_nodes:
                closed = frozenset() if nodes is None else nodes.best_nodes()
    return Reservation(shadow, free - gpus if shadow < inf else 0, nodes, closed)


def _freed_with(run: JobRun) -> Allocation:
    """Return what is free when a job has left: a shared GPU only with the later of its two jobs."""
    partner = run.partner
    if partner is None:
        return run.allocation
    if (run.expected_end_seconds, run.job_id) < (partner.expected_end_seconds, partner.job_id):
        return []
    return run.allocation or partner.allocation


class _NodesThen:
    """Free devices of a pool's nodes at a later time, and whether the reserved job fits on them.

    It asks for room, not for certain nodes: whichever nodes another job takes, the reserved one may use the rest. Nodes
    are counted by their free devices, so that an answer costs no walk over nodes.
    """

    def __init__(self, pool: PoolState, job: Job) -> None:
        self._free = [0 if pool.power[node] == DOWN else free for node, free in enumerate(pool.free)]
        self._nodes_with = [0] * (pool.gpus_per_node + 1)
        for free in self._free:
            self._nodes_with[free] += 1
        self._total = sum(self._free)
        self._gpus = job.gpu_counts[0]
        self._may_spread = job.spread and not job.exclusive
        self._whole, self._rest = divmod(self._gpus, pool.gpus_per_node)
        if job.exclusive:
            self._whole, self._rest = ceil(self._gpus / pool.gpus_per_node), 0
        self._kept = self._whole * pool.gpus_per_node + self._rest

    @property
    def spare(self) -> int:
        """Devices beyond those of the reserved job."""
        return self._total - self._kept

    @property
    def hold_job(self) -> bool:
        """Whether the reserved job fits."""
        if self._may_spread:
            return self._total >= self._gpus
        if self._nodes_with[-1] < self._whole:
            return False
        return self._rest == 0 or sum(self._nodes_with[self._rest :]) > self._whole

    def best_nodes(self) -> frozenset[int]:
        """Return the nodes that the reserved job would take now: whole ones, and the fullest that holds the rest."""
        by_free = sorted(range(len(self._free)), key=lambda node: (self._free[node], node))
        if self._may_spread:
            left, taken = self._gpus, []
            for node in by_free:
                if self._free[node] and left > 0:
                    left -= self._free[node]
                    taken.append(node)
            return frozenset(taken)
        whole = len(self._nodes_with) - 1
        taken = [node for node in by_free if self._free[node] == whole][: self._whole]
        if self._rest:
            taken += [node for node in by_free if self._free[node] >= self._rest and node not in taken][:1]
        return frozenset(taken)

    def hold_job_without(self, allocation: Allocation) -> bool:
        """Return whether the reserved job still fits when these devices are taken."""
        self.add(allocation, -1)
        found = self.hold_job
        self.add(allocation, 1)
        return found

    def add(self, allocation: Allocation, sign: int) -> None:
        """Free or take the devices of an allocation."""
        for node, _, held in allocation:
            self._nodes_with[self._free[node]] -= 1
            self._free[node] += sign * held
            self._nodes_with[self._free[node]] += 1
            self._total += sign * held
