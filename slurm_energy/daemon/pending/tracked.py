"""What was set of a waiting job, and whether that is still what Slurm shows: a job that others changed is theirs.

A job is looked at in whole snapshots only. Its first one must show what the plugin was asked to set; from then on, each
must show what was set last, or what an update under way was to set. Anything else is a user's own wish, and the job
is never touched again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from slurm_energy.daemon.decide import Decided
from slurm_energy.domain.cluster import ClusterSnapshot, JobState
from slurm_energy.domain.decision import DecisionEntry, EnergyDecision
from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.ids import DecisionId, JobId, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest, scaled_limit

MAX_TRACKED = 20_000
"""Waiting jobs that are remembered; the oldest go first, and keep what they have."""
MAX_REFUSALS = 2
"""After so many refused updates a job's partitions and number of GPUs are left alone."""
LATE_SECONDS = 2.0
"""A snapshot so much younger than an update shows what became of it."""
JOBS_PER_STEP = 256
"""Jobs that are looked at without deciding before submissions may be answered."""
MISSING_SNAPSHOTS = 3
"""After so many without it, a job has ended or was never accepted."""

_FIELDS = {"tres_per_node": "TresPerNode", "tres_per_job": "TresPerJob"}
"""Of a request, and what `scontrol update` calls it."""
_MODES = frozenset({EnergyMode.BALANCED, EnergyMode.SAVER})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """What can be set of a waiting job, and what else of it only its user or an administrator changes."""

    partitions: tuple[PartitionName, ...]
    gpus: int | None
    time_limit_minutes: float | None

    @classmethod
    def of(cls, job: JobState) -> "JobShape":
        """Return what Slurm shows of a job."""
        return cls(partitions=job.partitions, gpus=job.gpu_count, time_limit_minutes=job.time_limit_minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountField:
    """How Slurm is given another number of GPUs: its own text with other digits."""

    name: str
    before: str
    """The number."""

    def text(self, gpus: int) -> str:
        """Return `TresPerNode=gres:gpu:2`."""
        return f"{self.name}={self.before}{gpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An update that was sent, and what is to become of it."""

    shape: JobShape
    decision: EnergyDecision
    entry: DecisionEntry
    ended_at_seconds: float
    """Infinite while it is under way."""
    is_recorded: bool = False
    """Whether it stands in the job's history: Slurm had no complaint, and the job may start at once."""
    may_come_late: bool = False
    """Whether scontrol gave no answer in time: slurmctld may still carry out what it was sent."""


Finding = Literal["open", "waits", "changed", "refused", "closed"]
"""What a snapshot says of a job: it may be decided again; not now; an update was made that is not recorded yet, or was
refused; never again."""


@dataclass(slots=True, kw_only=True)
class TrackedJob:
    """A waiting job with a decision of ours; mutable, by the daemon's own loop only."""

    request: JobRequest
    """As its user asked."""
    decision: EnergyDecision
    """In force."""
    entry: DecisionEntry
    """In force: what its node gets."""
    shape: JobShape
    own: tuple[PartitionName, ...]
    """Partitions to which the job goes without an answer: its user's, else the default one."""
    count_field: CountField | None = None
    """None where its number of GPUs cannot be changed by a single field."""
    count_open: bool = False
    """Whether its number of GPUs may be chosen again; it may still be put back where not."""
    limit_is_slurms: bool = False
    """Whether its user gave no time limit: slurmctld's side or its partition did."""
    job_id: JobId | None = None
    """None until a snapshot has shown it."""
    owner: tuple[str | None, str | None] = (None, None)
    """Account and QOS at first."""
    has_newer: bool = False
    """Whether `entry` is another than the one that travels in the job."""
    closed: str = ""
    """Why the job is never touched again; empty while it may be."""
    partitions_open: bool = True
    attempt: Attempt | None = None
    at_first: Attempt | None = None
    """What it was when first seen, with the decision and entry of then: what it is put back to."""
    is_put_back: bool = False
    """Whether its change was taken back, or is about to be: Slurm would not have started it so."""
    refused: Attempt | None = None
    """What Slurm refused last."""
    refusals: int = 0
    changes: int = 0
    decided_at_seconds: float = 0.0
    missing: int = 0

    def see(self, job: JobState, taken_at_seconds: float) -> Finding:
        """Take in what a snapshot shows of the job."""
        self.missing = 0
        shown = JobShape.of(job)
        finding: Finding = "closed" if self.closed else self._found(job, shown, taken_at_seconds)
        if finding == "closed":
            self.attempt = None
            if self.job_id in {None, job.job_id}:
                self._fit(shown)
        return finding

    def _found(self, job: JobState, shown: JobShape, taken_at_seconds: float) -> Finding:
        why = self._lost(job)
        if why:
            self.closed = why
            return "closed"
        if self.job_id is None and not self._first(job, shown):
            return "closed"
        attempt = self.attempt
        if attempt is not None and shown == attempt.shape:
            return self._made(attempt)
        if shown != self.shape:
            late = self.refused
            if late is not None and late.may_come_late and shown == late.shape:
                return self._made(late)
            self.closed = "its request was changed since"
            return "closed"
        if attempt is None:
            return "open"
        if taken_at_seconds < attempt.ended_at_seconds + LATE_SECONDS:
            return "waits"
        self.attempt, self.refused, self.refusals = None, attempt, self.refusals + 1
        if self.refusals >= MAX_REFUSALS:
            self.partitions_open = self.count_open = False
        return "refused"

    def _made(self, attempt: Attempt) -> Finding:
        """Take over what Slurm shows as made."""
        self.shape, self.decision, self.entry = attempt.shape, attempt.decision, attempt.entry
        self.attempt, self.refused, self.has_newer = None, None, True
        return "open" if attempt.is_recorded else "changed"

    def _fit(self, shown: JobShape) -> None:
        """Leave the clocks out where the job has another number of GPUs or less time than they were chosen for."""
        entry, limit = self.entry, shown.time_limit_minutes
        is_shorter = limit is not None and (entry.time_limit_minutes is None or limit < entry.time_limit_minutes)
        is_other_count = (entry.gpus or self.shape.gpus) != shown.gpus
        if is_shorter or is_other_count:
            known = entry.time_limit_minutes if limit is None else max(1, int(limit))
            self.entry = replace(entry.without_clocks(), time_limit_minutes=known, may_change=True)
            self.has_newer = True

    def _lost(self, job: JobState) -> str:
        if job.array_job_id is not None or job.het_job_id is not None:
            return "it is part of an array or a heterogeneous job"
        if self.job_id is not None and job.job_id != self.job_id:
            return "another job carries its decision too"
        if job.restart_count:
            return "it has run before"
        if self.job_id is not None and (job.account, job.qos) != self.owner:
            return "its account or QOS was changed since"
        return ""

    def _first(self, job: JobState, shown: JobShape) -> bool:
        """Take in the first sight of the job: slurmctld's side may have left partitions or number as they were."""
        if shown.partitions not in {self.shape.partitions, self.own}:
            self.closed = "slurmctld or its user gave it other partitions"
            return False
        asked = self.request.gpu_count
        if shown.gpus not in {self.shape.gpus, asked}:
            self.closed = "slurmctld or its user gave it another number of GPUs"
            return False
        limit, account, qos = self.request.time_limit_minutes, self.request.account, self.request.qos
        if limit is not None and shown.time_limit_minutes not in {self.shape.time_limit_minutes, limit}:
            self.closed = "its time limit was changed since"
        if (account is not None and account != job.account) or (qos is not None and qos != job.qos):
            self.closed = "its account or QOS was changed since"
        if self.closed:
            return False
        if shown.partitions != self.shape.partitions:
            self.partitions_open = False  # slurmctld knows of a reason against others
        if shown.gpus != self.shape.gpus:
            self.count_open = False
        if limit is None and shown.time_limit_minutes is not None:
            self.request = replace(self.request, time_limit_minutes=shown.time_limit_minutes)
            self.limit_is_slurms = True
        self._fit(shown)
        self.job_id, self.shape = job.job_id, shown
        self.owner = (job.account, job.qos)
        self.at_first = Attempt(shape=shown, decision=self.decision, entry=self.entry, ended_at_seconds=float("inf"))
        return True

    def entry_in_flight(self, wanted: DecisionEntry) -> DecisionEntry:
        """Return what a node gets while an update is under way: good before and after it."""
        limits = [one.time_limit_minutes for one in (self.entry, wanted) if one.time_limit_minutes is not None]
        return replace(wanted, time_limit_minutes=min(limits) if limits else None)


@dataclass(slots=True)
class TrackedJobs:
    """Waiting jobs with a decision of ours, by decision."""

    jobs: dict[DecisionId, TrackedJob] = field(default_factory=dict)

    def add(self, decided: Decided, fields: Mapping[str, str], snapshot: ClusterSnapshot | None) -> bool:
        """Remember a job that was just decided; return whether it may be decided again.

        Args:
            decided: The decision, its job and its entry.
            fields: The request as the plugin sent it.
            snapshot: On which it was decided.
        """
        job, decision = decided.job, decided.decision
        default = None if snapshot is None else snapshot.default_partition
        own = job.partitions or (() if default is None else (default.name,))
        if decision.mode not in _MODES or job.gpu_count == 0 or not own or not may_be_tracked(job, fields):
            return False
        gpus = decision.gpus or job.gpu_count
        field_of_count = count_field(job, gpus, fields)
        self.jobs[decision.decision_id] = TrackedJob(
            request=job,
            decision=decision,
            entry=decided.entry,
            shape=JobShape(
                partitions=listed(decision.partitions, own),
                gpus=gpus,
                time_limit_minutes=scaled_limit(job.time_limit_minutes, job.gpu_count, gpus),
            ),
            count_field=field_of_count,
            count_open=field_of_count is not None,
            own=own,
            decided_at_seconds=decision.decided_at_seconds,
        )
        while len(self.jobs) > MAX_TRACKED:
            del self.jobs[next(iter(self.jobs))]
        return True

    def newer_entry(self, decision_id: DecisionId) -> DecisionEntry | None:
        """Return what a node gets instead of what travels in the job; None where that is the newest."""
        job = self.jobs.get(decision_id)
        if job is None:
            return None
        if job.attempt is not None:
            return job.entry_in_flight(job.attempt.entry)
        return job.entry if job.has_newer else None

    def forget_missing(self, seen: frozenset[DecisionId]) -> Iterator[None]:
        """Forget the jobs that several snapshots have not shown, some a step."""
        for number, (decision_id, job) in enumerate(list(self.jobs.items()), start=1):
            if decision_id not in seen:
                job.missing += 1
                if job.missing >= MISSING_SNAPSHOTS:
                    self.jobs.pop(decision_id, None)
            if number % JOBS_PER_STEP == 0:
                yield


def may_be_tracked(job: JobRequest, fields: Mapping[str, str]) -> bool:
    """Return whether a job is of a kind that can be decided again: one batch job of its own, that ties nothing."""
    if job.array is not None or job.reservation is not None or job.tied or job.exclusive:
        return False
    return not (fields.get("het_offset") or fields.get("interactive") or fields.get("energy_redecide") == "off")


def listed(named: tuple[PartitionName, ...] | None, own: tuple[PartitionName, ...]) -> tuple[PartitionName, ...]:
    """Return the partitions of a job as Slurm shows them: those named, before its own."""
    return tuple(dict.fromkeys((*(named or ()), *own)))


def count_field(job: JobRequest, gpus: int, fields: Mapping[str, str]) -> CountField | None:
    """Return how the number of GPUs can be changed alone; None where other fields would have to follow it.

    Args:
        job: As its user asked.
        gpus: What it was given.
        fields: The request as the plugin sent it.
    """
    given = [key for key in (*_FIELDS, "tres_per_task", "tres_per_socket", "ntasks_per_tres") if fields.get(key)]
    if len(given) != 1 or given[0] not in _FIELDS or job.time_limit_minutes is None:
        return None
    options = updatable(job)
    if len(options) < 2 or all(one.gpus != gpus for one in options) or any(one.nodes != 1 for one in options):
        return None  # nodes of several cannot tell whether the job has the number that its clock was chosen for
    text = fields[given[0]]
    before, colon, digits = text.rpartition(":")
    if not colon or not digits.isdecimal() or "," in text or int(digits) != job.gpu_count:
        return None
    return CountField(name=_FIELDS[given[0]], before=f"{before}:")


def updatable(job: JobRequest) -> tuple[GpuCountOption, ...]:
    """Return the numbers of GPUs that differ from the job's own in nothing but the number and the time limit.

    No more than its user asked for: Slurm looks at limits of accounts when a job is submitted, and not when its number
    of GPUs is changed. A limit that came since would hold a larger job.
    """
    own = next((one for one in job.count_options if one.gpus == job.gpu_count), None)
    if own is None:
        return ()
    needs = (own.nodes, own.cpus_per_node, own.memory_per_node_mib)
    return tuple(
        one
        for one in job.count_options
        if one.gpus <= job.gpu_count and (one.nodes, one.cpus_per_node, one.memory_per_node_mib) == needs
    )
