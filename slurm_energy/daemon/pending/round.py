"""One look at all waiting jobs: in the order in which Slurm will start them, those of ours are decided again.

Each job is decided as if it were submitted now, on what the jobs before it leave: what a snapshot shows as idle is
claimed by jobs that stand before it. A decision leaves no trace in the policy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge

from slurm_energy.config import RoutingConfig
from slurm_energy.daemon.decide import Decided, Decider, Known
from slurm_energy.daemon.pending.choice import JobChoice, choose
from slurm_energy.daemon.pending.tracked import JOBS_PER_STEP, Attempt, Finding, JobShape, TrackedJob, TrackedJobs
from slurm_energy.domain.cluster import ClusterSnapshot, JobState
from slurm_energy.domain.decision import ChangeOutcome, DecisionChange, EnergyDecision
from slurm_energy.domain.ids import DecisionId, JobId, PartitionName, decision_in_comment
from slurm_energy.domain.job import JobRequest

NEAR_START_SECONDS = 30.0
"""A job that Slurm plans to start so soon keeps what it has."""
MAX_CHANGES = 20
"""Of one job: a decision that goes to and fro is no better one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUpdate:
    """A change of a waiting job that Slurm is to be asked for, in its owner's name."""

    job: TrackedJob
    job_id: JobId
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
    for number, job in enumerate(snapshot.jobs, start=1):
        decision_id = decision_in_comment(job.admin_comment)
        if decision_id is not None:
            seen.add(decision_id)
            own = tracked.jobs.get(decision_id)
            if own is not None and job.state == "PENDING" and (job.blocked_by_limit or not job.waits_for_room):
                finding = _see(own, job, snapshot.taken_at_seconds, now_seconds, result)
                if finding != "closed" and job.blocked_by_limit and len(result.updates) < max_updates:
                    _put_back(own, job, result)
        if number % JOBS_PER_STEP == 0:
            yield
    waiting: list[list[JobState]] = []
    yield from _sorted_parts(snapshot, waiting)
    for job in merge(*waiting, key=_place_in_queue):
        decision_id = decision_in_comment(job.admin_comment)
        own = None if decision_id is None else tracked.jobs.get(decision_id)
        first: PartitionName | None = None
        shape = JobShape.of(job)
        if own is not None:
            finding = _see(own, job, snapshot.taken_at_seconds, now_seconds, result)
            if finding != "closed" and _may_decide(own, settings, now_seconds):
                may_update = settings.redecide == "on" and len(result.updates) < max_updates
                may_update = may_update and not _starts_soon(job, now_seconds)

                def decide(request: JobRequest) -> Decided:
                    return decider.decide_request(request, known_for(free, request, claimed), now_seconds)

                choice = choose(own, decide, free, may_update=may_update)
                result.decided += 1
                own.decided_at_seconds = now_seconds
                if choice is not None:
                    first = _consider(own, job, choice, may_update, now_seconds, result)
                shape = own.attempt.shape if own.attempt is not None else own.shape
        _claim(claimed, shape, first, job)
        yield
    yield from tracked.forget_missing(frozenset(seen))


def _see(own: TrackedJob, job: JobState, taken_at_seconds: float, now_seconds: float, result: RoundResult) -> Finding:
    """Take in what the snapshot shows of a job, and note what became of its last update."""
    finding = own.see(job, taken_at_seconds)
    if finding == "changed" or finding == "refused":  # noqa: PLR1714  # mypy follows this form
        result.changes.append(_change(own, finding, now_seconds))
    return finding


def _put_back(own: TrackedJob, job: JobState, result: RoundResult) -> None:
    """Give a job that Slurm would not start as it is what it had at first, in one update; it is not changed again.

    A limit may have come since the job was submitted, and Slurm does not look at all limits when a job is changed.
    """
    before = own.at_first
    if own.attempt is not None or own.is_put_back or before is None or before.shape == own.shape:
        return
    text = _update_text(own, job, before.shape)
    entry = replace(before.entry, may_change=True)
    own.attempt = Attempt(shape=before.shape, decision=before.decision, entry=entry, ended_at_seconds=float("inf"))
    own.is_put_back, own.partitions_open, own.count_open = True, False, False
    result.updates.append(JobUpdate(job=own, job_id=job.job_id, user_id=job.user_id, text=text))


def _sorted_parts(snapshot: ClusterSnapshot, parts: list[list[JobState]]) -> Iterator[None]:
    """Add the jobs that would start if there were room, in sorted lists, one a step."""
    for begin in range(0, len(snapshot.jobs), JOBS_PER_STEP):
        some = snapshot.jobs[begin : begin + JOBS_PER_STEP]
        parts.append(
            sorted((job for job in some if job.state == "PENDING" and job.waits_for_room), key=_place_in_queue)
        )
        yield


def _place_in_queue(job: JobState) -> tuple[int, float, int]:
    """Return what puts the job that starts first first."""
    return -(job.priority or 0), job.submitted_at_seconds, job.job_id


def _starts_soon(job: JobState, now_seconds: float) -> bool:
    planned = job.expected_start_seconds
    return planned is not None and 0.0 < planned - now_seconds < NEAR_START_SECONDS


def _may_decide(own: TrackedJob, settings: RoutingConfig, now_seconds: float) -> bool:
    if own.attempt is not None or own.is_put_back or own.changes >= MAX_CHANGES:
        return False
    return now_seconds - own.decided_at_seconds >= settings.redecide_seconds


def _consider(
    own: TrackedJob, job: JobState, choice: JobChoice, may_update: bool, now_seconds: float, result: RoundResult
) -> PartitionName | None:
    """Take over what is better now; return where the job would start, where it was sent there."""
    decision, entry, wanted = choice.decision, choice.entry, choice.shape
    first = None if decision.partitions is None else decision.partitions[0]
    if wanted != own.shape:
        text = _update_text(own, job, wanted)
        if not may_update or not text.isascii() or not text.isprintable():
            return None  # a name that Slurm would not have taken
        result.updates.append(JobUpdate(job=own, job_id=job.job_id, user_id=job.user_id, text=text))
        own.attempt = Attempt(shape=wanted, decision=decision, entry=entry, ended_at_seconds=float("inf"))
        return first if wanted.partitions[:1] == (first,) else None
    if entry.clocks_mhz != own.entry.clocks_mhz or entry.trial_bounds != own.entry.trial_bounds:
        own.entry, own.has_newer = entry, True
        own.decision = replace(
            own.decision,
            clocks=decision.clocks,
            trial_bounds=decision.trial_bounds,
            decided_at_seconds=now_seconds,
        )
        result.changes.append(_change(own, "clock", now_seconds))
    return first if own.shape.partitions[:1] == (first,) else None


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
    shape = own.refused.shape if outcome == "refused" and own.refused is not None else own.shape
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
