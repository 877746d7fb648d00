"""Why a job is left as it was asked for, where a policy's own reasons would say that something was chosen."""

from dataclasses import dataclass

from slurm_energy.domain.decision import Reason
from slurm_energy.policy.base import Candidate, DecisionContext
from slurm_energy.policy.baselines import landing_types
from slurm_energy.policy.candidates import JobOnCluster

_TOLD = frozenset(
    {
        Reason.USER_CLOCK,
        Reason.NO_SAVING,
        Reason.POLICY_ERROR,
        Reason.SLOWDOWN_BOUND,
        Reason.TIME_LIMIT,
        Reason.DEADLINE,
    }
)
"""Reasons that say by themselves why the clock stayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The reasons that stand for the policy's word that it chose, and a sentence for each thing that is not there."""

    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()


def missing_partitions(case: JobOnCluster) -> tuple[str, ...]:
    """Return a sentence for each partition of the job that the picture of the cluster lacks."""
    known = case.snapshot.partition_by_name
    if not case.job.partitions and case.snapshot.default_partition is None:
        return ("the job names no partition, and the cluster has no default one",)
    return tuple(
        f"partition {name} is not in the picture of the cluster" for name in case.job.partitions if name not in known
    )


def why_unchanged(landing: tuple[Candidate, ...], context: DecisionContext, given: tuple[Reason, ...]) -> Unchanged:
    """Return why no clock, partition or node was chosen.

    Args:
        landing: The partitions in which the job can start.
        context: What the policy was told.
        given: Reasons that are known already.
    """
    types = landing_types(landing)
    if not types:
        return Unchanged(reasons=() if Reason.UNKNOWN_GPU_TYPE in given else (Reason.NO_SUCH_GPU,))
    if not _TOLD.isdisjoint(given):
        return Unchanged(reasons=())
    tables = [table for table in map(context.comparison.clock_table, types) if table is not None]
    if not tables:
        return Unchanged(reasons=())
    points = [table.best(context.max_slowdown) for table in tables]
    if any(point is not None and point.sm_clock_mhz != point.default_clock_mhz for point in points):
        return Unchanged(reasons=(Reason.NOTHING_CHANGED,))
    slower = [table.best(float("inf")) for table in tables]
    if any(point is not None and point.sm_clock_mhz != point.default_clock_mhz for point in slower):
        note = f"no lower clock is inside the allowed slowdown of {100.0 * context.max_slowdown:.3g} %"
        return Unchanged(reasons=(Reason.NO_CLOCK_IN_BOUND,), notes=(note,))
    return Unchanged(reasons=(Reason.NO_SAVING,))
