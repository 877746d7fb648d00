"""How much longer a job may take before it breaks its time limit or its deadline."""

import math
from collections.abc import Sequence

from slurm_energy.config import GuardConfig
from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.policy.base import Candidate, DecisionContext
from slurm_energy.policy.candidates import JobOnCluster
from slurm_energy.policy.clock_check import SlowdownRoom
from slurm_energy.policy.routing import rivals_of, slowdown_left, time_ratio


def time_limit_seconds(job: JobRequest, partition: PartitionState) -> float:
    """Return the limit a job runs under in a partition: its own, else the default, else the longest allowed."""
    limits = (job.time_limit_minutes, partition.default_time_minutes, partition.max_time_minutes)
    minutes = next((minutes for minutes in limits if minutes is not None), math.inf)
    return 60.0 * minutes if minutes >= 0.0 else 0.0


def expected_runtime(case: JobOnCluster, context: DecisionContext, guard: GuardConfig) -> RuntimeEstimate | None:
    """Return history's estimate, else the site's share of the shortest time limit; None for no limit at all."""
    if context.runtime is not None:
        return context.runtime
    limit = _shortest_limit(case.job, [one for one in context.candidates if one.is_submitted_to])
    if math.isinf(limit):
        return None
    seconds = guard.unknown_runtime_share * limit
    return RuntimeEstimate(seconds=seconds, upper_seconds=seconds, source="time-limit")


def slowdown_room(
    gpu_type: GpuTypeName,
    case: JobOnCluster,
    context: DecisionContext,
    where: Sequence[Candidate],
    guard: GuardConfig,
    routed_ratio: float = 1.0,
) -> SlowdownRoom:
    """Return what each rule leaves on one GPU type.

    Args:
        gpu_type: The type in question.
        case: The job on its cluster.
        context: What the policy was told.
        where: The candidates with this type in which the job may land.
        guard: The site's margins.
        routed_ratio: How many times as long work takes here as where the job would otherwise have started.
    """
    limit = _shortest_limit(case.job, where)
    predicted = _predicted_seconds(gpu_type, context, limit, guard.unknown_runtime_share * routed_ratio)
    deadline = case.job.options.deadline_seconds
    return SlowdownRoom(
        bound=slowdown_left(max(1.0, routed_ratio), context.max_slowdown),
        time_limit=_room(limit * (1.0 - guard.time_limit_margin), predicted),
        deadline=math.inf if deadline is None else _deadline_room(deadline, predicted, context, where, guard),
    )


def _predicted_seconds(
    gpu_type: GpuTypeName, context: DecisionContext, limit_seconds: float, unknown_share: float
) -> float:
    """Return when the job has ended at the default clock in about nineteen of twenty cases.

    Where history does not say on which type the earlier jobs ran, on a slower type the job is taken to need longer by
    as much as that type is slower than the fastest one the job can land on. Tables never make it shorter.
    """
    if context.runtime is None:
        return math.inf if math.isinf(limit_seconds) else unknown_share * limit_seconds
    if context.runtime.gpu_type is not None:
        cost = context.comparison.cost(gpu_type, context.runtime.gpu_type)
        if cost is not None:
            least = 0.0 if cost.is_by_runs else 1.0
            return context.runtime.upper_seconds * max(least, cost.worst_time_ratio)
    rivals = rivals_of(context.candidates, context.comparison)
    ratio = None if rivals is None else time_ratio(gpu_type, rivals, context.comparison)
    return context.runtime.upper_seconds * (ratio or 1.0)


def _deadline_room(
    deadline_seconds: float,
    predicted_seconds: float,
    context: DecisionContext,
    where: Sequence[Candidate],
    guard: GuardConfig,
) -> float:
    """Return the room before the deadline; none for a job that waits, since nobody knows when it will start."""
    if not all(candidate.has_idle_room for candidate in where):
        return -1.0
    left = (deadline_seconds - context.now_seconds) * (1.0 - guard.time_limit_margin)
    return _room(left, predicted_seconds) if left > 0.0 else -1.0


def _room(seconds: float, predicted_seconds: float) -> float:
    """Return by what ratio the predicted time may grow; infinite where nothing limits it."""
    if math.isinf(seconds):
        return math.inf
    if predicted_seconds <= 0.0:
        return math.inf if seconds > 0.0 else -1.0
    return seconds / predicted_seconds - 1.0


def _shortest_limit(job: JobRequest, candidates: Sequence[Candidate]) -> float:
    return min((time_limit_seconds(job, candidate.partition) for candidate in candidates), default=math.inf)
