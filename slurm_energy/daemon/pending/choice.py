"""What is best for a waiting job now: the one change that comes next, with clocks that its count and limit allow.

A clock is chosen for a number of GPUs and a time limit. It goes with the job only where the job has both; in doubt the
job's node keeps the default clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from slurm_energy.daemon.decide import Decided
from slurm_energy.daemon.pending.tracked import JobShape, TrackedJob, listed, updatable
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import DecisionEntry, EnergyDecision, Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest, scaled_limit
from slurm_energy.energy_model.catalog import gpu_type_from_slurm_type

_NO_ANSWER = frozenset(
    {
        Reason.NO_SNAPSHOT,
        Reason.STALE_SNAPSHOT,
        Reason.UNKNOWN_PARTITION,
        Reason.POLICY_ERROR,
        Reason.POLICY_LOADING,
        Reason.POLICY_TIMEOUT,
        Reason.USER_OFF,
        Reason.OBSERVE_ONLY,
        Reason.NO_GPU,
    }
)
"""Reasons of a decision that says nothing about the job: what it has stays."""

Decide = Callable[[JobRequest], Decided]
_Value = TypeVar("_Value", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChoice:
    """What a job is to have, and what its node gets of it."""

    shape: JobShape
    decision: EnergyDecision
    entry: DecisionEntry


def choose(own: TrackedJob, decide: Decide, snapshot: ClusterSnapshot, *, may_update: bool) -> JobChoice | None:
    """Return what is best for a job now, None where nothing can be said of it.

    Args:
        own: The job.
        decide: Decides a request on what the jobs before it leave.
        snapshot: What is decided on.
        may_update: Whether Slurm may be asked for a change; else only the clock can follow.
    """
    first = _answer(decide, request_again(own))
    if first is None:
        return None
    wanted = _wanted(own, first.decision)
    if wanted != own.shape and not may_update:
        as_it_is = _answer(decide, replace(_as_it_is(own), partitions=own.own))
        return None if as_it_is is None else _with_clocks(own, as_it_is, own.shape, snapshot)
    if wanted.gpus == _count(first):
        return _with_clocks(own, first, wanted, snapshot)
    present = _answer(decide, _as_it_is(own))
    if present is None:
        return None
    moved = _wanted(own, present.decision)
    resized = _resized(own, first.decision)
    if moved.partitions == own.shape.partitions and resized != own.shape:
        # Its clocks were chosen for other partitions too: the next look chooses those of the new number.
        return _without_clocks(own, first, resized)
    return _with_clocks(own, present, moved, snapshot)


def request_again(own: TrackedJob) -> JobRequest:
    """Return the job as it may be decided now: with the numbers of GPUs that can still be set."""
    if own.count_open:
        return replace(own.request, count_options=updatable(own.request))
    return _as_it_is(own)


def _as_it_is(own: TrackedJob) -> JobRequest:
    """Return the job with the number of GPUs and the time limit that it has in Slurm."""
    job = own.request
    current = next((one for one in job.count_options if one.gpus == own.shape.gpus), None)
    if current is not None and current.gpus != job.gpu_count:
        job = job.with_count(current)
    limit = own.shape.time_limit_minutes
    return replace(
        job,
        count_options=(),
        options=replace(job.options, gpu_counts=()),
        time_limit_minutes=job.time_limit_minutes if limit is None else limit,
    )


def _answer(decide: Decide, request: JobRequest) -> Decided | None:
    decided = decide(request)
    return decided if _NO_ANSWER.isdisjoint(decided.decision.reasons) else None


def _count(decided: Decided) -> int:
    return decided.decision.gpus or decided.job.gpu_count


def _wanted(own: TrackedJob, decision: EnergyDecision) -> JobShape:
    """Return the one change that comes next: the partitions, else the number of GPUs with its time limit."""
    shape = own.shape
    may_route = {Reason.USER_PARTITION, Reason.ROUTING_CLOSED}.isdisjoint(decision.reasons)
    if own.partitions_open and may_route and Reason.NO_IDLE_PARTITION not in decision.reasons:
        named = decision.partitions
        # Left to Slurm, it is tried in its own first; what was added before stays behind them.
        partitions = listed(own.own, shape.partitions) if named is None else listed(named, own.own)
        if partitions != shape.partitions:
            return replace(shape, partitions=partitions)
    return _resized(own, decision)


def _resized(own: TrackedJob, decision: EnergyDecision) -> JobShape:
    shape = own.shape
    if not own.count_open or decision.gpus is None or decision.gpus == shape.gpus:
        return shape
    job = own.request
    limit = scaled_limit(job.time_limit_minutes, job.gpu_count, decision.gpus)
    return replace(shape, gpus=decision.gpus, time_limit_minutes=limit)


def _with_clocks(own: TrackedJob, decided: Decided, shape: JobShape, snapshot: ClusterSnapshot) -> JobChoice:
    """Return a choice with the clocks of a decision, and those that the job keeps where the decision does not look."""
    limit, decided_limit = shape.time_limit_minutes, decided.entry.time_limit_minutes
    if shape.gpus != _count(decided) or (limit is not None and (decided_limit is None or decided_limit > limit)):
        return _without_clocks(own, decided, shape)
    if own.limit_is_slurms and _has_shorter_limit(shape, snapshot):
        return _without_clocks(own, decided, shape)
    plain = _without_clocks(own, decided, shape)
    kept = _kept_types(own, decided.decision, shape, snapshot)
    old, new = own.entry, decided.entry
    return JobChoice(
        shape=shape,
        decision=replace(
            plain.decision,
            clocks=(*decided.decision.clocks, *(one for one in own.decision.clocks if one.gpu_type in kept)),
            trial_bounds={**_of_types(own.decision.trial_bounds, kept), **decided.decision.trial_bounds},
        ),
        entry=replace(
            plain.entry,
            clocks_mhz={**_of_types(old.clocks_mhz, kept), **new.clocks_mhz},
            assumed_watts={**_of_types(old.assumed_watts, kept), **new.assumed_watts},
            trial_bounds={**_of_types(old.trial_bounds, kept), **new.trial_bounds},
        ),
    )


def _without_clocks(own: TrackedJob, decided: Decided, shape: JobShape) -> JobChoice:
    limits = [limit for limit in (shape.time_limit_minutes, decided.entry.time_limit_minutes) if limit is not None]
    decision_id = own.decision.decision_id
    entry = replace(
        decided.entry,
        decision_id=decision_id,
        may_change=True,
        gpus=shape.gpus if own.request.count_options else None,
        time_limit_minutes=max(1, int(min(limits))) if limits else None,
        min_limit_minutes=None,
    )
    return JobChoice(
        shape=shape,
        decision=replace(decided.decision, decision_id=decision_id, clocks=(), trial_bounds={}),
        entry=entry.without_clocks(),
    )


def _of_types(table: Mapping[GpuTypeName, _Value], kept: frozenset[GpuTypeName]) -> dict[GpuTypeName, _Value]:
    return {name: value for name, value in table.items() if name in kept}


def _has_shorter_limit(shape: JobShape, snapshot: ClusterSnapshot) -> bool:
    """Return whether a partition may give a job without a limit of its own less time than it has now."""
    now = shape.time_limit_minutes
    known = [snapshot.partition_by_name[name] for name in shape.partitions if name in snapshot.partition_by_name]
    limits = [one.default_time_minutes or one.max_time_minutes for one in known]
    return any(limit is not None and (now is None or limit < now) for limit in limits)


def _kept_types(
    own: TrackedJob, decision: EnergyDecision, shape: JobShape, snapshot: ClusterSnapshot
) -> frozenset[GpuTypeName]:
    """Return the GPU types whose clocks the job keeps: of partitions that it stays in and the decision leaves out."""
    entry, limit = own.entry, shape.time_limit_minutes
    if shape.gpus != own.shape.gpus or entry.gpus not in {None, shape.gpus}:
        return frozenset()
    if limit is not None and (entry.time_limit_minutes is None or entry.time_limit_minutes > limit):
        return frozenset()
    looked_at = listed(decision.partitions, own.own)
    stays = _types(tuple(name for name in shape.partitions if name not in looked_at), snapshot)
    decided = _types(looked_at, snapshot)
    return frozenset() if stays is None or decided is None else stays - decided


def _types(partitions: tuple[PartitionName, ...], snapshot: ClusterSnapshot) -> frozenset[GpuTypeName] | None:
    """Return the GPU types of partitions, None where one of them is not known."""
    found = {
        None if slurm_type is None else gpu_type_from_slurm_type(slurm_type)
        for name in partitions
        for slurm_type in snapshot.slurm_gpu_types_by_partition.get(name, ())
    }
    return None if None in found else frozenset(one for one in found if one is not None)
