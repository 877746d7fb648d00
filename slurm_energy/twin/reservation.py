"""EASY backfill: when the first job that waits will start, and what others may use until then and after."""

from math import ceil, inf

from slurm_energy.twin.job import Job
from slurm_energy.twin.job_run import Allocation
from slurm_energy.twin.pool_state import DOWN, PoolState


class Reservation:
    """What is kept for the first waiting job of a pool, from the ends that running jobs are expected to have."""

    __slots__ = ("_extra", "_nodes", "shadow_seconds")

    def __init__(self, shadow_seconds: float, extra: int, nodes: "_NodesThen | None") -> None:
        self.shadow_seconds = shadow_seconds
        """When the job can start; infinite when it cannot by what is known."""
        self._extra = extra
        self._nodes = nodes

    def may_pass(self, ends_seconds: float, gpus: int) -> bool:
        """Return False if no start with so many devices and such an end can be allowed, wherever it goes."""
        if ends_seconds <= self.shadow_seconds:
            return True
        return gpus <= (self._extra if self._nodes is None else self._nodes.spare)

    def allows(self, ends_seconds: float, gpus: int, allocation: Allocation) -> bool:
        """Return whether a job may start now on these devices without making the reserved one wait longer."""
        if ends_seconds <= self.shadow_seconds:
            return True
        return gpus <= self._extra if self._nodes is None else self._nodes.hold_job_without(allocation)

    def use(self, ends_seconds: float, gpus: int, allocation: Allocation) -> None:
        """Count the devices of a job that was started and runs past the shadow time."""
        if ends_seconds <= self.shadow_seconds:
            return
        if self._nodes is None:
            self._extra -= gpus
        else:
            self._nodes.add(allocation, -1)


def reservation(pool: PoolState, job: Job, ends: list[tuple[float, int]], now: float) -> Reservation:
    """Return the reservation of a job that cannot start in a pool now.

    Running jobs are taken to end when expected, in that order, until the job fits. CPUs and memory are not looked at: a
    job that waits for those alone has its shadow at the first end.

    Args:
        pool: The pool.
        job: The first job that waits for it, with its least device count.
        ends: (expected end, job id) of the pool's running jobs, ascending.
        now: Time in s; a job past its expected end counts as ending now.
    """
    if not pool.by_node:
        gpus, free = pool.held(job, job.gpu_counts[0]), pool.free_total
        for end, job_id in ends:
            run = pool.runs[job_id]
            free += pool.held(run.job, run.gpus)
            if free >= gpus:
                return Reservation(max(end, now), free - gpus, None)
        return Reservation(inf, 0, None)
    nodes = _NodesThen(pool, job)
    for end, job_id in ends:
        run = pool.runs[job_id]
        partner = run.partner
        if partner is not None and (end, job_id) < (partner.expected_end_seconds, partner.job_id):
            continue  # the GPU is free when both have left
        nodes.add(run.allocation or (partner.allocation if partner is not None else []), 1)
        if nodes.hold_job:
            return Reservation(max(end, now), 0, nodes)
    return Reservation(inf, 0, nodes)


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

    @property
    def spare(self) -> int:
        """Devices beyond those of the reserved job."""
        return self._total - self._gpus

    @property
    def hold_job(self) -> bool:
        """Whether the reserved job fits."""
        if self._may_spread:
            return self._total >= self._gpus
        if self._nodes_with[-1] < self._whole:
            return False
        return self._rest == 0 or sum(self._nodes_with[self._rest :]) > self._whole

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
