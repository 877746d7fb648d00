"""Records that people read: energy of jobs, users and partitions, decisions with their reasons, explanations.

These records are the JSON of the daemon's `query` replies: `encode_record` writes it, `decode_record` reads it.
Unknown energy is None and counted, never 0.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from slurm_energy.domain.decision import AnswerDetails, ClockChoice, DecisionChange, Reason, RuntimeEstimate
from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.errors import ValueRangeError

RECORD_FORMAT = 1
ReportKind = Literal["job", "user", "account", "partition", "qos", "name", "node", "cluster"]
REPORT_KINDS: tuple[ReportKind, ...] = get_args(ReportKind)
CalendarStep = Literal["day", "week", "month"]
Record = TypeVar("Record")
REASON_SENTENCES: Mapping[Reason, str] = {
    Reason.POLICY: "The policy chose this setting.",
    Reason.NOTHING_CHANGED: "The policy left the job as it was asked for.",
    Reason.NO_CLOCK_IN_BOUND: "No lower clock is inside the allowed slowdown: it stays at the default.",
    Reason.USER_OFF: "The user opted out with --energy=off.",
    Reason.OBSERVE_ONLY: "Only observed: recorded, nothing changed.",
    Reason.USER_PARTITION: "The user named the partition; it was kept.",
    Reason.USER_CLOCK: "The user set a GPU clock with --gpu-freq; it was kept.",
    Reason.UNKNOWN_PARTITION: "No partition that the job goes to is known here: nothing could be chosen.",
    Reason.NO_SUCH_GPU: "No node of the job's partitions has GPUs of the type asked for: there is no clock to choose.",
    Reason.ROUTING_CLOSED: "The site does not let the policy choose partitions.",
    Reason.PARTITION_NOT_ALLOWED: "A partition was left out: this user, account, QOS or request may not run there.",
    Reason.NO_IDLE_PARTITION: "No partition has room now; the job waits where Slurm puts it.",
    Reason.NO_GPU: "The job asks for no GPU: there is no clock to choose.",
    Reason.UNKNOWN_GPU_TYPE: "Energy at lower clocks is not known for a GPU type: its clock stays at the default.",
    Reason.STALE_SNAPSHOT: "The picture of the cluster was too old to decide on.",
    Reason.NO_SNAPSHOT: "There was no picture of the cluster yet.",
    Reason.POLICY_ERROR: "The policy failed; the baseline decided, or the job went through unchanged.",
    Reason.POLICY_LOADING: "The learned policy was not ready yet; the baseline decided.",
    Reason.POLICY_TIMEOUT: "The learned policy did not answer in time; the baseline decided.",
    Reason.SLOWDOWN_BOUND: "The clock was kept high enough for the allowed slowdown.",
    Reason.TIME_LIMIT: "The clock was kept high enough for the job's time limit.",
    Reason.DEADLINE: "The clock was kept high enough for the job's deadline.",
    Reason.CLOCK_TABLE: "The clock was moved to one that the GPU supports.",
    Reason.NO_SAVING: "No clock would save enough energy: it stays at the default.",
    Reason.POOR_EXCHANGE: "A lower clock would save too little energy for its time: a faster one is kept.",
    Reason.GPU_COUNT: "The number of GPUs was chosen among those of --energy-gpus.",
    Reason.GPU_COUNT_KEPT: "Of the numbers of --energy-gpus, the job's own is the best.",
    Reason.GPU_COUNT_REFUSED: "The job kept its own number of GPUs: this job's cannot be changed safely.",
    Reason.GPU_COUNT_OFF: "The site does not let numbers of GPUs be chosen (policy.gpu_count).",
}
_ASKED = "The policy was asked."


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySum:
    """Joules of several readings: what is known, and how much is not."""

    joules: float | None
    """Sum of the known readings; None when no reading is known."""
    readings: int = 0
    unknown_readings: int = 0
    coverage_share: float | None = None
    """Share of the readings' time that known joules cover, 0 to 1; None without readings."""
    error_share: float | None = None
    """Bound on the relative error of `joules`, timing and calibration together; None when a part of it has no bound."""
    timing_error_share: float | None = None
    """Of the counters' timing; readings are independent of each other."""
    calibration_error_share: float | None = None
    """Of the boards' sensors; the same for all readings of a board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUse:
    """What became of joules, and what they cost; None where it is not known."""

    saving_low_joules: float | None = None
    saving_high_joules: float | None = None
    """The interval of `saving_joules`, by the error of the prediction; below zero, energy was lost."""
    covered_gpu_seconds: float | None = None
    """Device time that known readings of GPUs cover."""
    idle_gpu_joules: float | None = None
    """Drawn by the job's GPUs in the time in which they did nothing; a part of the GPU energy."""
    utilisation: float | None = None
    """Of the GPUs, over the time in which it was watched, 0 to 1."""
    cost: float | None = None
    """Of GPU and host energy with the building's share, in the report's currency."""
    co2_grams: float | None = None
    unpriced_joules: float = 0.0
    """Measured at a time for which the tariff or intensity file says nothing: not in `cost` or `co2_grams`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnergyRecord:
    """One job with all its attempts. Times are Unix seconds, None when not known."""

    cluster: ClusterName
    job_id: JobId
    submitted_at_seconds: float
    submit_time_known: bool
    """False while the start seen by a node stands in for the submit time."""
    gpu: EnergySum
    host: EnergySum
    attempts: int
    name: str | None = None
    user_id: int | None = None
    user_name: str | None = None
    account: str | None = None
    partition: PartitionName | None = None
    array_job_id: JobId | None = None
    array_task: str | None = None
    state: str | None = None
    started_at_seconds: float | None = None
    """Start of the first attempt."""
    ended_at_seconds: float | None = None
    wait_seconds: float | None = None
    run_seconds: float | None = None
    """Sum over the attempts that ended, without suspension."""
    gpu_count: int | None = None
    exit_code: int | None = None
    decision_id: DecisionId | None = None
    saving_joules: float | None = None
    """Against the default clock, by the prediction; None when nothing was predicted or applied, or no GPU worked."""
    use: EnergyUse = EnergyUse()
    qos: str | None = None
    missing_nodes: int = 0
    """Nodes of the last attempt, which has ended, that have not reported although others have."""
    flags: tuple[QualityFlag, ...] = ()
    unknown_reasons: tuple[str, ...] = ()
    slurm_energy_joules: float | None = None
    """ConsumedEnergy of Slurm's own acct_gather_energy, where a site has it: of whole nodes, and in no sum here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnergyRecord:
    """Jobs of one user, account or the like, in one period; or the total of a report."""

    group: str
    """Labels of several dimensions are joined by ` / `."""
    jobs: int
    jobs_without_energy: int
    """Jobs with no known GPU reading at all; their energy is missing in the sums."""
    gpu: EnergySum
    host: EnergySum
    mean_wait_seconds: float | None = None
    mean_run_seconds: float | None = None
    saving_joules: float | None = None
    use: EnergyUse = EnergyUse()
    since_seconds: float | None = None
    until_seconds: float | None = None
    """The row's own period, where the report has several."""
    host_in_no_job_joules: float | None = None
    """Of cores that no measured job had, and of the time between jobs; None where it is not known, or not by node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FacilityRecord:
    """What a report's money, CO2 and building share rest on."""

    pue: float = 1.0
    currency: str | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReport:
    """A table of jobs or of groups, with its total.

    An attempt's energy is counted when it ended, by the node; a row for each job, or for each group and period.
    """

    kind: ReportKind
    cluster: ClusterName
    total: GroupEnergyRecord
    jobs: tuple[JobEnergyRecord, ...] = ()
    groups: tuple[GroupEnergyRecord, ...] = ()
    since_seconds: float | None = None
    until_seconds: float | None = None
    rows_left_out: int = 0
    """Rows over the limit; they are in the total."""
    facility: FacilityRecord = FacilityRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRecord:
    """A reason's code and its sentence."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What was asked, what was decided and why."""

    decision_id: DecisionId
    cluster: ClusterName
    policy: str
    policy_version: str
    mode: EnergyMode
    decided_at_seconds: float
    asked: JobRequest
    partitions: tuple[PartitionName, ...] | None
    clocks: tuple[ClockChoice, ...]
    reasons: tuple[ReasonRecord, ...]
    notes: tuple[str, ...]
    estimate: RuntimeEstimate | None
    snapshot_age_seconds: float | None
    message: str
    prefer: str | None = None
    """Node feature whose nodes were to be used first."""
    gpus: int | None = None
    """GPUs that were chosen over the whole job; None where there was no choice."""
    details: AnswerDetails = field(default_factory=AnswerDetails)
    """What the policy said of its answer."""
    changes: tuple[DecisionChange, ...] = ()
    """What was decided again while the job waited, in order; left out of lists of decisions."""
    job_ids: tuple[JobId, ...] = ()
    """Jobs that carry it: one, several components' or an array's own number; none where Slurm refused the submission,
    or the job has not been seen yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOutcomeRecord:
    """What one GPU was asked for, got and did."""

    node: NodeName
    restart_count: int
    gpu_uuid: GpuUuid
    gpu_name: str
    gpu_type: GpuTypeName | None
    asked_clock_mhz: int | None
    applied_clock_mhz: int | None
    observed_clock_mhz: float | None
    default_clock_mhz: int | None
    joules: float | None
    reason: str | None
    source: EnergySource
    scope: EnergyScope
    coverage_seconds: float
    error_share: float | None
    utilisation: float | None
    flags: tuple[QualityFlag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """One predicted quantity beside what came; None where one of the two is not known."""

    quantity: str
    unit: str
    predicted: float | None
    actual: float | None
    basis: str
    """Where the two figures come from, and why one is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRecord:
    """The whole story of one job: asked, decided and why, applied, observed, predicted against actual."""

    job: JobEnergyRecord
    decision: DecisionRecord | None
    gpus: tuple[GpuOutcomeRecord, ...] = ()
    comparisons: tuple[ComparisonRecord, ...] = ()
    events: tuple[str, ...] = ()
    """What the nodes wrote down, with the node's name in front."""
    trials: tuple[ClockTrial, ...] = ()
    """Clocks that were tried while it ran."""


def encode_record(record: object) -> str:
    """Return one line of ASCII JSON for a record or a list of records of this module."""
    return json.dumps({"format": RECORD_FORMAT, "record": to_plain(record)}, ensure_ascii=True, separators=(",", ":"))


def decode_record(kind: type[Record], text: str) -> Record:
    """Return the record that `encode_record` wrote; `kind` may be `tuple[DecisionRecord, ...]`.

    Raises:
        ValueRangeError: not such a record, or one of another format.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueRangeError(f"record of {len(text)} characters is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != RECORD_FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise ValueRangeError(f"record has format {str(found)[:32]!r}, this code reads {RECORD_FORMAT}")
    return from_plain(kind, document.get("record"), "record")


def runtime_basis(estimate: RuntimeEstimate, script: ScriptFeatures | None) -> str:
    """Return what a job's expected run time is known from: ended runs, with what their scripts say; or assumed."""
    if estimate.runs and not estimate.is_known:
        whose = "this user's other jobs" if estimate.source == "user" else "jobs of this site"
        return f"assumed: {whose} took such a share of their time limits ({estimate.runs} names)"
    if not estimate.runs:
        return "assumed: a share of the time limit" if estimate.source == "time-limit" else f"from {estimate.source}"
    said = "" if script is None or not script.is_telling else script.sentence()
    return f"known from {estimate.runs} run{'' if estimate.runs == 1 else 's'}" + (
        f"; its script: {said}" if said else ""
    )


def report_kind(word: str) -> ReportKind:
    """Return a kind of report.

    Raises:
        ValueRangeError: there is no such kind.
    """
    for kind in REPORT_KINDS:
        if kind == word:
            return kind
    raise ValueRangeError(f"report {word[:40]!r} is not one of {', '.join(REPORT_KINDS)}")


def reason_sentence(reason: str, *, changed: bool = True) -> str:
    """Return the sentence for a reason; a code that this version does not know stands for itself.

    Args:
        reason: Its code.
        changed: Whether the decision changed anything: what was left as it was, was not chosen.
    """
    if reason == Reason.POLICY and not changed:
        return _ASKED
    try:
        return REASON_SENTENCES.get(Reason(reason), str(reason))
    except ValueError:
        return str(reason)
