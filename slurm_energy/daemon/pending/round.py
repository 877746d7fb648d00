"""One look at all waiting jobs: in the order in which Slurm will start them, those of ours are decided again.

Each job is decided as if it were submitted now, on what the jobs before it leave: what a snapshot shows as idle is
claimed by whoever stands before. A decision leaves no trace in the policy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from slurm_energy.config import RoutingConfig
from slurm_energy.daemon.decide import Decided, Decider, Known
from slurm_energy.daemon.pending.tracked import Attempt, JobShape, TrackedJob, TrackedJobs, listed, updatable
from slurm_energy.domain.cluster import ClusterSnapshot, JobState
from slurm_energy.domain.decision import ChangeOutcome, DecisionChange, EnergyDecision, Reason
from slurm_energy.domain.ids import DecisionId, PartitionName, decision_in_comment
from slurm_energy.domain.job import JobRequest, scaled_limit

NEAR_START_SECONDS = 30.0
"""A job that Slurm plans to start so soon keeps what it has."""
MAX_CHANGES = 20
"""Of one job: a decision that goes to and fro is no better one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUpdate:
    """A change of a waiting job that Slurm is to be asked for, in its owner's name."""

    job: TrackedJob
    user_id: int
    text: str
    """`JobId=7 Partition=a40,a100`, without blanks in it."""


@dataclass(slots=True, kw_only=True)
class RoundResult:
    """What one look found."""

    updates: list[JobUpdate] = field(default_factory=list)
    changes: list[DecisionChange] = field(default_factory=list)
    """To be recorded."""
    decided: int = 0


KnownFor = Callable[[ClusterSnapshot, JobRequest, Mapping[PartitionName, float]], Known]
"""From a snapshot, a job and what is claimed before it to what its decision is made on."""


def look_at_pending(  # noqa: PLR0913, PLR0917  # each is one thing that the daemon holds
    tracked: TrackedJobs,
    snapshot: ClusterSnapshot,
    decider: Decider,
    known_for: KnownFor,
    settings: RoutingConfig,
    max_updates: int,
    now_seconds: float,
    result: RoundResult,
) -> Iterator[None]:
    """Look at the waiting jobs of a snapshot, one a step, and note in `result` what is to be done.

    Args:
        tracked: Jobs with a decision of ours.
        snapshot: The latest.
        decider: Leaves no trace.
        known_for: What a decision is made on.
        settings: The site's.
        max_updates: Most updates now; 0: none can be made.
        now_seconds: Unix time.
        result: Where to.
    """
    free = replace(snapshot)
    yield from free.work_out({})  # what waits is counted in the order of the queue instead
    claimed: dict[PartitionName, float] = {}
    seen: set[DecisionId] = set()
    for job in snapshot.jobs:
        decision_id = decision_in_comment(job.admin_comment)
        if decision_id is not None:
            seen.add(decision_id)
            if job.state == "PENDING" and job.blocked_by_limit and decision_id in tracked.jobs:
                _put_back(tracked.jobs[decision_id], job, snapshot.taken_at_seconds, max_updates, now_seconds, result)
                yield
    for job in _in_order(snapshot):
        decision_id = decision_in_comment(job.admin_comment)
        own = None if decision_id is None else tracked.jobs.get(decision_id)
        first: PartitionName | None = None
        shape = JobShape.of(job)
        if own is not None:
            finding = own.see(job, snapshot.taken_at_seconds)
            if finding == "changed" or finding == "refused":  # noqa: PLR1714  # mypy follows this form
                result.changes.append(_change(own, finding, now_seconds))
            if finding != "closed" and _may_decide(own, settings, now_seconds):
                decided = decider.decide_request(
                    _request_again(own), known_for(free, own.request, claimed), now_seconds
                )
                result.decided += 1
                own.decided_at_seconds = now_seconds
                may_update = settings.redecide == "on" and len(result.updates) < max_updates
                first = _consider(own, job, decided, may_update, now_seconds, result)
                shape = own.attempt.shape if own.attempt is not None else own.shape
        _claim(claimed, shape, first, job)
        yield
    tracked.forget_missing(frozenset(seen))


def _put_back(
    own: TrackedJob,
    job: JobState,
    taken_at_seconds: float,
    max_updates: int,
    now_seconds: float,
    result: RoundResult,
) -> None:
    """Take back the last change of a job that Slurm would not start as it is; it is not changed again.

    A limit may have come since the job was submitted, and Slurm does not look at all limits when a job is changed.
    """
    finding = own.see(job, taken_at_seconds)
    if finding == "changed" or finding == "refused":  # noqa: PLR1714  # mypy follows this form
        result.changes.append(_change(own, finding, now_seconds))
    before = own.before
    if finding == "closed" or own.attempt is not None or before is None or len(result.updates) >= max_updates:
        return
    text = _update_text(own, job, before)
    limit = before.time_limit_minutes
    entry = replace(own.entry, time_limit_minutes=own.entry.time_limit_minutes if limit is None else round(limit))
    own.attempt = Attempt(shape=before, decision=own.decision, entry=entry, ended_at_seconds=float("inf"))
    own.before, own.is_put_back, own.partitions_open, own.count_field = None, True, False, None
    result.updates.append(JobUpdate(job=own, user_id=job.user_id, text=text))


def _in_order(snapshot: ClusterSnapshot) -> list[JobState]:
    """Return the jobs that would start if there were room, the first to start first."""
    waiting = [job for job in snapshot.jobs if job.state == "PENDING" and job.waits_for_room]
    return sorted(waiting, key=lambda job: (-(job.priority or 0), job.submitted_at_seconds, job.job_id))


def _may_decide(own: TrackedJob, settings: RoutingConfig, now_seconds: float) -> bool:
    if own.attempt is not None or own.changes >= MAX_CHANGES:
        return False
    return now_seconds - own.decided_at_seconds >= settings.redecide_seconds


def _request_again(own: TrackedJob) -> JobRequest:
    """Return the job as it may be decided now: with the numbers of GPUs that can still be set."""
    job = own.request
    if own.count_field is not None:
        return replace(job, count_options=updatable(job))
    current = next((one for one in job.count_options if one.gpus == own.shape.gpus), None)
    if current is not None and current.gpus != job.gpu_count:
        job = job.with_count(current)
    return replace(job, count_options=(), options=replace(job.options, gpu_counts=()))


def _consider(  # as above
    own: TrackedJob, job: JobState, decided: Decided, may_update: bool, now_seconds: float, result: RoundResult
) -> PartitionName | None:
    """Take over what is better now; return where the job would start, where it was sent there."""
    decision = replace(decided.decision, decision_id=own.decision.decision_id)
    if not _NO_ANSWER.isdisjoint(decision.reasons):
        return None
    first = None if decision.partitions is None else decision.partitions[0]
    entry = replace(decided.entry, decision_id=own.decision.decision_id, may_change=True)
    wanted = _wanted(own, decision)
    if wanted != own.shape:
        planned = job.expected_start_seconds
        if not may_update or (planned is not None and 0.0 < planned - now_seconds < NEAR_START_SECONDS):
            return None
        text = _update_text(own, job, wanted)
        if not text.isascii() or not text.isprintable():
            return None  # a name that Slurm would not have taken
        result.updates.append(JobUpdate(job=own, user_id=job.user_id, text=text))
        own.attempt = Attempt(shape=wanted, decision=decision, entry=entry, ended_at_seconds=float("inf"))
        return first if wanted.partitions[:1] == (first,) else None
    if entry.clocks_mhz != own.entry.clocks_mhz or entry.trial_bounds != own.entry.trial_bounds:
        own.entry, own.has_newer = entry, True
        own.decision = replace(own.decision, clocks=decision.clocks, decided_at_seconds=now_seconds)
        result.changes.append(_change(own, "clock", now_seconds))
    return first if own.shape.partitions[:1] == (first,) else None


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
    if own.count_field is not None and decision.gpus is not None and decision.gpus != shape.gpus:
        job = own.request
        limit = scaled_limit(job.time_limit_minutes, job.gpu_count, decision.gpus)
        return replace(shape, gpus=decision.gpus, time_limit_minutes=limit)
    return shape


def _update_text(own: TrackedJob, job: JobState, wanted: JobShape) -> str:
    words = [f"JobId={job.job_id}"]
    if wanted.partitions != own.shape.partitions:
        words.append(f"Partition={','.join(wanted.partitions)}")
    if wanted.gpus != own.shape.gpus and wanted.gpus is not None and own.count_field is not None:
        words.append(own.count_field.text(wanted.gpus))
        if wanted.time_limit_minutes is not None:
            words.append(f"TimeLimit={round(wanted.time_limit_minutes)}")
    return " ".join(words)


_NOTES: Mapping[ChangeOutcome, str] = {
    "clock": "the clocks alone: its node fetches them at the start",
    "changed": "changed in Slurm while the job waited",
    "refused": "Slurm did not make the change: the job is as it was",
}


_PUT_BACK = "put back: Slurm would not have started it as it was changed"


def sent_change(own: TrackedJob, now_seconds: float) -> DecisionChange | None:
    """Return the entry of the job's history for an update that Slurm took without a complaint; None without one."""
    attempt = own.attempt
    if attempt is None:
        return None
    own.attempt = replace(attempt, is_recorded=True)
    return _entry(own, "changed", attempt.shape, attempt.decision, now_seconds)


def _change(own: TrackedJob, outcome: ChangeOutcome, now_seconds: float) -> DecisionChange:
    """Return the next entry of the job's history, by what is in force."""
    shape = own.refused if outcome == "refused" and own.refused is not None else own.shape
    return _entry(own, outcome, shape, own.decision, now_seconds)


def _entry(
    own: TrackedJob, outcome: ChangeOutcome, shape: JobShape, decision: EnergyDecision, now_seconds: float
) -> DecisionChange:
    own.changes += 1
    return DecisionChange(
        decision_id=own.decision.decision_id,
        number=own.changes,
        decided_at_seconds=decision.decided_at_seconds if outcome == "changed" else now_seconds,
        outcome=outcome,
        partitions=shape.partitions,
        gpus=shape.gpus,
        clocks=decision.clocks,
        note=_PUT_BACK if own.is_put_back and outcome == "changed" else _NOTES[outcome],
    )


def _claim(claimed: dict[PartitionName, float], shape: JobShape, first: PartitionName | None, job: JobState) -> None:
    """Note what a job takes from those behind it: where it starts, else wherever it may."""
    gpus = float("inf") if shape.gpus is None or job.array_task is not None else float(shape.gpus)
    for name in shape.partitions if first is None else (first,):
        claimed[name] = claimed.get(name, 0.0) + gpus
