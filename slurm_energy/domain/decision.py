"""What a policy decides for one job, why, and the entry that carries it to the nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from slurm_energy.domain.ids import DecisionId, GpuTypeName, PartitionName, is_gpu_type_name, parse_decision_id
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import ValueRangeError
from slurm_energy.forms import is_feature_name, is_plain

ENTRY_NAME = "ENERGY_DECISION"
"""Name in Slurm's spank_job_env; hooks see it as SPANK_ENERGY_DECISION."""
MAX_ENTRY_BYTES = 1024
MAX_ENTRY_GPUS = 1_000_000
MAX_CLOCK_MHZ = 10_000
MAX_POWER_LIMIT_WATTS = 10_000
MAX_TRIAL_BOUND = 0.999
"""Largest slowdown bound that trials work towards, as a ratio."""
_PER_RATIO = 10_000
"""A bound travels in hundredths of a per cent."""


class Reason(StrEnum):
    """Why a decision is what it is; a decision lists every one that applied."""

    POLICY = "POLICY"
    USER_OFF = "USER_OFF"
    OBSERVE_ONLY = "OBSERVE_ONLY"
    USER_PARTITION = "USER_PARTITION"
    USER_CLOCK = "USER_CLOCK"
    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    NO_SUCH_GPU = "NO_SUCH_GPU"
    NO_CLOCK_IN_BOUND = "NO_CLOCK_IN_BOUND"
    NOTHING_CHANGED = "NOTHING_CHANGED"
    ROUTING_CLOSED = "ROUTING_CLOSED"
    PARTITION_NOT_ALLOWED = "PARTITION_NOT_ALLOWED"
    NO_IDLE_PARTITION = "NO_IDLE_PARTITION"
    NO_GPU = "NO_GPU"
    UNKNOWN_GPU_TYPE = "UNKNOWN_GPU_TYPE"
    STALE_SNAPSHOT = "STALE_SNAPSHOT"
    NO_SNAPSHOT = "NO_SNAPSHOT"
    POLICY_ERROR = "POLICY_ERROR"
    POLICY_LOADING = "POLICY_LOADING"
    POLICY_TIMEOUT = "POLICY_TIMEOUT"
    SLOWDOWN_BOUND = "SLOWDOWN_BOUND"
    TIME_LIMIT = "TIME_LIMIT"
    DEADLINE = "DEADLINE"
    CLOCK_TABLE = "CLOCK_TABLE"
    NO_SAVING = "NO_SAVING"
    POOR_EXCHANGE = "POOR_EXCHANGE"
    GPU_COUNT = "GPU_COUNT"
    GPU_COUNT_KEPT = "GPU_COUNT_KEPT"
    GPU_COUNT_REFUSED = "GPU_COUNT_REFUSED"
    GPU_COUNT_OFF = "GPU_COUNT_OFF"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeEstimate:
    """How long the job is expected to run at the default clock."""

    seconds: float
    upper_seconds: float
    """The job ends by then in about nineteen of twenty cases."""
    source: str
    """`history`: ended runs of the job's name; `user`, `site`: those of other jobs; `time-limit`: a share of it."""
    gpu_type: GpuTypeName | None = None
    """Type on which it takes so long; None where it is unknown, or runs of several types went into it."""
    gpus: int | None = None
    """Number of GPUs with which it takes so long; None where it is not known."""
    runs: int = 0
    """Ended runs behind it."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.seconds <= self.upper_seconds:
            raise ValueRangeError(
                f"runtime estimate {self.seconds} s is not between 0 and its bound {self.upper_seconds} s"
            )

    @property
    def is_known(self) -> bool:
        """Whether runs of the job's own name are behind it, and not habits of other jobs."""
        return self.source == "history"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChoice:
    """The clock for one GPU type the job can land on, with what the model expects of it."""

    gpu_type: GpuTypeName
    sm_clock_mhz: int
    default_clock_mhz: int
    predicted_slowdown: float
    """Ratio: 0.05 is 5 % longer than at the default clock."""
    predicted_energy_change: float
    """Ratio: -0.13 is 13 % fewer joules for the same work than at the default clock."""
    worst_slowdown: float | None = None
    """Of the slowest program that was measured; None where runs of the job's name measured its own."""
    mean_slowdown: float | None = None
    """Over the programs that were measured, as the energy is; None as above."""
    power_limit_watts: float | None = None
    """The boards' power limit that both predictions assume, W; None when it is unknown."""
    is_assumed: bool = False
    """Whether the predictions come from another GPU, of the same chip or by data sheets: this type was not measured."""
    known_runs: int = 0
    """Runs of the job's name that measured both; 0: they are the worst and the mean of other programs."""

    def __post_init__(self) -> None:
        if not is_gpu_type_name(self.gpu_type):
            raise ValueRangeError(f"GPU type {self.gpu_type[:64]!r} is not lower-case letters, digits, '.', '_' or '-'")
        for clock_mhz in (self.sm_clock_mhz, self.default_clock_mhz):
            if not 0 < clock_mhz <= MAX_CLOCK_MHZ:
                raise ValueRangeError(f"clock {clock_mhz} MHz of {self.gpu_type} is not between 1 and {MAX_CLOCK_MHZ}")
        limit = self.power_limit_watts
        if limit is not None and not 1.0 <= limit <= MAX_POWER_LIMIT_WATTS:
            raise ValueRangeError(
                f"power limit {limit} W of {self.gpu_type} is not between 1 and {MAX_POWER_LIMIT_WATTS}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """What one way of running a job costs, by part, at its least; J each."""

    partition: PartitionName
    parts: Mapping[str, float]
    clock_mhz: int | None = None
    """None where no clock is known."""
    gpu_type: GpuTypeName | None = None
    """The type that the partition is judged by, where it has several."""
    full_parts: Mapping[str, float] = field(default_factory=dict)
    """The same at the type's highest clock."""

    @property
    def joules(self) -> float:
        """What is compared."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOffer:
    """What a job that is tied to the partition that its user named could have had in another one that he may use."""

    partition: PartitionName
    energy_change: float
    """Ratio: -0.2 is 20 % fewer joules for the same work than in the named one."""
    source: str
    """Who says so, such as `runs of this name`."""
    joules: float | None = None
    """That in J for the whole job; None where its power or its length is not known."""
    named_has_room: bool = True
    """Whether it could start now in the named one, as far as the picture of the cluster tells; in the other it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownBasis:
    """What the slowdown of a job is held against: where Slurm would have started it, at the default clock."""

    bound: float
    """The job's own one, as a ratio: of the clock."""
    type_bound: float | None = None
    """Of the GPU type; None: `bound` is of type and clock together."""
    type_slowdowns: Mapping[GpuTypeName, float] = field(default_factory=dict)
    """How much longer it was expected to take, in the mean, on each GPU type on which it could land, at default clocks;
    a type that cannot be compared is left out."""
    by_runs: bool = False
    """Whether runs of the job's name say so, and not tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDetails:
    """What a policy tells of an answer, for people and for programs; empty for one that weighs nothing."""

    options: tuple[OptionCost, ...] = ()
    """The cheapest first."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """By what a network multiplied the prices that count for the job."""
    attention: Mapping[str, float] = field(default_factory=dict)
    """Shares of what a network looked at, by group."""
    preference: Mapping[str, float] = field(default_factory=dict)
    """Probability of each partition under a network of options."""


class DeferredDetails(AnswerDetails):
    """Details that are worked out when they are first read: what a submission is answered does not need them.

    Equal to, written and pickled as the details that they stand for.
    """

    __slots__ = ("_found", "_make")

    _make: Callable[[], AnswerDetails] | None
    _found: AnswerDetails

    def __init__(self, make: Callable[[], AnswerDetails]) -> None:
        """Take what works them out; it is called once, and must not raise."""
        object.__setattr__(self, "_make", make)

    @property
    def found(self) -> AnswerDetails:
        """The details themselves."""
        make = self._make
        if make is not None:
            object.__setattr__(self, "_found", make())
            object.__setattr__(self, "_make", None)  # what it was worked out from is let go
        return self._found

    @property
    def options(self) -> tuple[OptionCost, ...]:
        """See `AnswerDetails`."""
        return self.found.options

    @property
    def factors(self) -> Mapping[str, float]:
        """See `AnswerDetails`."""
        return self.found.factors

    @property
    def attention(self) -> Mapping[str, float]:
        """See `AnswerDetails`."""
        return self.found.attention

    @property
    def preference(self) -> Mapping[str, float]:
        """See `AnswerDetails`."""
        return self.found.preference

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DeferredDetails):
            return self.found == other.found
        return self.found == other

    def __hash__(self) -> int:
        return hash(self.found)

    def __reduce__(self) -> tuple[Callable[[AnswerDetails], AnswerDetails], tuple[AnswerDetails]]:
        return _same, (self.found,)


def _same(details: AnswerDetails) -> AnswerDetails:
    return details


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswer:
    """What a policy proposes: everything else is the guard's.

    `partitions` is None to leave the job where it is, else the partitions to be tried before its own.
    """

    partitions: tuple[PartitionName, ...] | None = None
    clocks: tuple[ClockChoice, ...] = ()
    prefer: str | None = None
    """Node feature whose nodes should be used first, as `sbatch --prefer` does; never a condition."""
    reasons: tuple[Reason, ...] = (Reason.POLICY,)
    notes: tuple[str, ...] = ()
    """Sentences for `explain`."""
    details: AnswerDetails = AnswerDetails()

    def __post_init__(self) -> None:
        _check_feature(self.prefer)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyDecision:
    """A decision that passed the guard; always safe to apply."""

    decision_id: DecisionId
    policy: str
    policy_version: str
    mode: EnergyMode
    decided_at_seconds: float
    partitions: tuple[PartitionName, ...] | None = None
    clocks: tuple[ClockChoice, ...] = ()
    trial_bounds: Mapping[GpuTypeName, float] = field(default_factory=dict)
    """Slowdown that trials of clocks in the running job may come up to, by GPU type; empty: no trials."""
    prefer: str | None = None
    """Node feature whose nodes are used first."""
    gpus: int | None = None
    """GPUs over the whole job, where its user named several numbers; None where its own stays without a choice."""
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    details: AnswerDetails = AnswerDetails()
    """What the policy said of its answer, bounded and checked."""
    estimate: RuntimeEstimate | None = None
    snapshot_age_seconds: float | None = None
    begins_at_seconds: int | None = None
    """Unix time before which the job is not to begin; None: as soon as it can."""
    opens: bool = False
    """Whether the partition that the user named is a preference and there are others that the answer may name."""
    offer: OpenOffer | None = None
    """What it costs that it is none."""
    slowdown: SlowdownBasis | None = None
    """What this job's slowdown is to be held against; None where no policy was asked."""
    message: str = ""
    """One line for the person who submitted, with figures: said once the job is accepted."""
    message_in_place: str = ""
    """The same where Slurm's side leaves the job's partitions as they are; empty where none are named."""
    announcement: str = ""
    """What sbatch may say before Slurm has accepted the job: true if it is refused, and without digits."""
    announcement_in_place: str = ""
    """The same where Slurm's side leaves the job's partitions as they are; empty where none are named."""

    def __post_init__(self) -> None:
        _check_feature(self.prefer)


ChangeOutcome = Literal["clock", "changed", "refused"]
"""Of a decision that was made again: only clocks differ; Slurm shows the change; Slurm refused it, all is as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionChange:
    """What was decided again for a job that waits."""

    decision_id: DecisionId
    number: int
    """1 for the first change of a decision."""
    decided_at_seconds: float
    outcome: ChangeOutcome
    partitions: tuple[PartitionName, ...] = ()
    """In the order in which Slurm tries them; of a refused change, those that were wanted."""
    gpus: int | None = None
    """Of the whole job; of a refused change, what was wanted."""
    clocks: tuple[ClockChoice, ...] = ()
    """In force from then on."""
    note: str = ""
    """What changed, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionEntry:
    """The part of a decision that travels inside the job to its nodes."""

    decision_id: DecisionId
    mode: EnergyMode
    clocks_mhz: dict[GpuTypeName, int] = field(default_factory=dict)
    assumed_watts: dict[GpuTypeName, int] = field(default_factory=dict)
    """Power limit of each type's boards for which its clock was chosen, W; the node compares it with the real one."""
    time_limit_minutes: int | None = None
    trial_bounds: dict[GpuTypeName, float] = field(default_factory=dict)
    """Slowdown that trials of clocks may come up to, by GPU type; without an entry none are made."""
    may_change: bool = False
    """Whether the daemon may know a newer one when the job starts: its nodes then ask for it."""
    gpus: int | None = None
    """Of the whole job, for which clocks and trials were chosen; None: the number cannot have changed since."""
    min_limit_minutes: int | None = None
    """Of all numbers of GPUs that the job may have when it starts: what travels in place of its limit where the
    entry may change."""

    def without_clocks(self) -> "DecisionEntry":
        """Return the entry with which a node keeps the default clock, and makes no trials."""
        return replace(self, clocks_mhz={}, assumed_watts={}, trial_bounds={})

    def encode(self) -> str:
        """Return the entry, ASCII, no spaces or quotes.

        `v=1;id=…;mode=…[;clocks=TYPE:MHZ,…][;watts=TYPE:W,…][;trials=TYPE:HUNDREDTHS OF A PER CENT,…][;limit=MINUTES]
        [;newer=1][;gpus=NUMBER]`
        """
        parts = ["v=1", f"id={self.decision_id}", f"mode={self.mode}"]
        bounds = {name: int(bound * _PER_RATIO + 1e-6) for name, bound in self.trial_bounds.items()}
        for key, table in (("clocks", self.clocks_mhz), ("watts", self.assumed_watts), ("trials", bounds)):
            if table:
                parts.append(f"{key}=" + ",".join(f"{name}:{number}" for name, number in sorted(table.items())))
        limits = (self.time_limit_minutes, self.min_limit_minutes if self.may_change else None)
        known = [limit for limit in limits if limit is not None]
        if known:
            parts.append(f"limit={min(known)}")
        if self.may_change:
            parts.append("newer=1")
        if self.gpus is not None:
            parts.append(f"gpus={self.gpus}")
        text = ";".join(parts)
        if len(text) > MAX_ENTRY_BYTES:
            raise ValueRangeError(f"decision entry of {len(text)} bytes is over {MAX_ENTRY_BYTES}")
        return text

    @classmethod
    def decode(cls, text: str) -> "DecisionEntry":
        """Return the entry, or raise ValueRangeError; the text may come from a forger."""
        if not is_plain(text, "_.:=,;+-", MAX_ENTRY_BYTES):
            raise ValueRangeError(f"decision entry {text[:80]!r} has bad characters or is over {MAX_ENTRY_BYTES} bytes")
        fields: dict[str, str] = {}
        for part in text.split(";"):
            key, separator, value = part.partition("=")
            if not separator or key in fields:
                raise ValueRangeError(f"decision entry has a bad or repeated field {part[:64]!r}")
            fields[key] = value
        if fields.get("v") != "1":
            raise ValueRangeError(f"decision entry has version {fields.get('v', 'none')[:16]!r}, this code reads 1")
        try:
            mode = EnergyMode(fields.get("mode", ""))
        except ValueError:
            raise ValueRangeError(f"decision entry has mode {fields.get('mode', '')[:32]!r}") from None
        limit, gpus = fields.get("limit"), fields.get("gpus")
        bounds = _decode_table(fields.get("trials"), "bound of trials", _PER_RATIO)
        return cls(
            decision_id=parse_decision_id(fields.get("id", "")),
            mode=mode,
            clocks_mhz=_decode_table(fields.get("clocks"), "clock in MHz", MAX_CLOCK_MHZ),
            assumed_watts=_decode_table(fields.get("watts"), "power limit in W", MAX_POWER_LIMIT_WATTS),
            time_limit_minutes=None if limit is None else _bounded_int("time limit in minutes", limit, 0xFFFFFFFD),
            trial_bounds={name: min(bound / _PER_RATIO, MAX_TRIAL_BOUND) for name, bound in bounds.items()},
            may_change=fields.get("newer") == "1",
            gpus=None if gpus is None else _bounded_int("number of GPUs", gpus, MAX_ENTRY_GPUS),
        )


def _check_feature(name: str | None) -> None:
    if name is not None and not is_feature_name(name):
        raise ValueRangeError(
            f"preferred node feature {name[:80]!r} is not 1 to 64 letters, digits, '.', '_', '-' or ':'"
        )


def _decode_table(text: str | None, thing: str, upper: int) -> dict[GpuTypeName, int]:
    """Return the numbers by GPU type of one field, nothing when the entry lacks it."""
    table: dict[GpuTypeName, int] = {}
    for item in () if text is None else text.split(","):
        name, _, number = item.partition(":")
        if not is_gpu_type_name(name) or GpuTypeName(name) in table:
            raise ValueRangeError(f"decision entry has a bad or repeated GPU type {name[:64]!r}")
        table[GpuTypeName(name)] = _bounded_int(f"{thing} of {name}", number, upper)
    return table


def _bounded_int(thing: str, text: str, upper: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10 or not 0 < int(text) <= upper:
        raise ValueRangeError(f"{thing} {text[:32]!r} is not between 1 and {upper}")
    return int(text)
