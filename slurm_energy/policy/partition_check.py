"""The partitions that an answer may really name: open to the job, with room now, fast enough and known."""

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy.config import GuardConfig
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import PartitionName
from slurm_energy.policy.base import Candidate, DecisionContext
from slurm_energy.policy.baselines import landing_types
from slurm_energy.policy.candidates import JobOnCluster
from slurm_energy.policy.routing import rivals_of, time_ratio, with_room
from slurm_energy.policy.time_room import slowdown_room


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """The partitions that were allowed, None to leave the job where it is, and why not those proposed."""

    partitions: tuple[PartitionName, ...] | None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


def allowed_partitions(
    proposed: tuple[PartitionName, ...] | None, case: JobOnCluster, context: DecisionContext, guard: GuardConfig
) -> PartitionVerdict:
    """Return the proposal if every partition in it may be named, else nothing with the first reason against it."""
    if proposed is None:
        return PartitionVerdict(partitions=None)
    open_to_job = {candidate.partition.name: candidate for candidate in context.candidates if candidate.may_be_named}
    if not context.may_route or not open_to_job.keys() >= set(proposed):
        note = "the policy named a partition that this job may not be sent to"
        return PartitionVerdict(partitions=None, reasons=(Reason.PARTITION_NOT_ALLOWED,), notes=(note,))
    chosen = [open_to_job[name] for name in proposed]
    if not all(candidate.has_idle_room for candidate in chosen):
        note = "the policy named a partition in which the job would wait"
        return PartitionVerdict(partitions=None, reasons=(Reason.NO_IDLE_PARTITION,), notes=(note,))
    if not all(candidate.gpu_types for candidate in chosen):
        note = "the policy named a partition whose GPU types are unknown"
        return PartitionVerdict(partitions=None, reasons=(Reason.UNKNOWN_GPU_TYPE,), notes=(note,))
    rivals = rivals_of(with_room(context.candidates), context.comparison)
    for gpu_type in landing_types(chosen):
        ratio = None if rivals is None else time_ratio(gpu_type, rivals, context.comparison)
        where = [candidate for candidate in chosen if gpu_type in candidate.gpu_types]
        broken = (
            (Reason.SLOWDOWN_BOUND,)
            if ratio is None
            else slowdown_room(gpu_type, case, context, where, guard, routed_ratio=ratio).broken_by(0.0)
        )
        if broken:
            note = f"the policy named a partition of {gpu_type}, which is too slow for this job or cannot be compared"
            return PartitionVerdict(partitions=None, reasons=broken, notes=(note,))
    return PartitionVerdict(partitions=proposed)


def landing_on(candidates: Iterable[Candidate], partitions: tuple[PartitionName, ...] | None) -> tuple[Candidate, ...]:
    """Return the candidates in which the job can start: those named, then those it was submitted to.

    Named partitions are only put first: where they have no room when Slurm looks, the job starts in one of its own.
    """
    every = tuple(candidates)
    tried = first_tried(every, partitions)
    return (
        (*tried, *(one for one in every if one.is_submitted_to and one.partition.name not in partitions))
        if partitions
        else tried
    )


def first_tried(candidates: Iterable[Candidate], partitions: tuple[PartitionName, ...] | None) -> tuple[Candidate, ...]:
    """Return the candidates that Slurm tries before all others: those named, else those it was submitted to."""
    if partitions is None:
        return tuple(candidate for candidate in candidates if candidate.is_submitted_to)
    return tuple(candidate for candidate in candidates if candidate.partition.name in partitions)
