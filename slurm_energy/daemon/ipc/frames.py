"""What travels between the daemon and its children."""

import copyreg
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from slurm_energy.daemon.doors.callers import Peer
from slurm_energy.domain.cluster import (
    ClusterSnapshot,
    ClusterState,
    JobState,
    NodeGpus,
    NodeState,
    PartitionState,
    SwitchState,
)
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import ClusterName, GpuTypeName, PartitionName
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.promotion import LivePolicy
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.estimation.run_time import RunTime
from slurm_energy.estimation.site_clocks import SiteClocks
from slurm_energy.policy.base import Case
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import Query

NO_SNAPSHOT = ClusterSnapshot(cluster=ClusterName(""), taken_at_seconds=0.0, partitions=(), nodes=(), jobs=())
"""Stands in a question for the snapshot, which does not travel with it."""
MAX_ITEMS = 250
"""Jobs, nodes or estimates in one frame, so that taking it in holds up no answer."""


@dataclass(frozen=True, slots=True)
class SnapshotBegins:
    """A child's first frame: what is known from an earlier child is not built upon."""


@dataclass(frozen=True, slots=True)
class ReaderInUse:
    """How Slurm is read from now on."""

    name: str
    """pyslurm, slurmrestd or commands."""
    note: str = ""
    """Why it is not another one; empty where there is nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """Some of what changed since the last reading."""

    jobs: tuple[JobState, ...] = ()
    jobs_gone: tuple[int, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    nodes_gone: tuple[str, ...] = ()
    partitions: tuple[PartitionState, ...] | None = None
    """All partitions, or None when none changed."""
    switches: tuple[SwitchState, ...] | None = None
    """All switches, the first `MAX_ITEMS` of them where there are more; None when none changed."""
    more_switches: tuple[SwitchState, ...] = ()
    """Further ones, behind those of the parts before."""
    clusters: tuple[ClusterState, ...] | None = None
    """All clusters, or None when none changed."""


@dataclass(frozen=True, slots=True)
class JobsEnded:
    """Jobs whose end was read, each at least once."""

    jobs: tuple[JobState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserGroups:
    """Groups of some users by uid."""

    groups: tuple[tuple[int, frozenset[str]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotComplete:
    """All parts of one reading have been sent."""

    taken_at_seconds: float
    read_seconds: float
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows that could not be read, by kind and reason."""
    waiting_gpus: Mapping[PartitionName, float] | None = None
    """`waiting_gpus` of all jobs, counted where no answer waits for it; None where it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """A user's query on its way to the recorder."""

    number: int
    query: Query
    only_user_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReply:
    """The recorder's answer."""

    number: int
    part: bytes
    """Of the message, encoded here and sent in parts: a large report must not hold up the answering process."""
    last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRequest:
    """A request that the door child has read and checked, for the answering process."""

    number: int
    message: Message
    peer: Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReply:
    """The answer to it, in parts, so that sending a large one holds up no decision."""

    number: int
    part: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class DoorCounts:
    """What the door child has counted since its last report."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePart:
    """Estimates by user and job name; `first` starts a new table, `last` makes it the one in use.

    One that is the last and not the first, outside of a table, corrects the one in use.
    """

    estimates: tuple[tuple[int | str, str, RunTime], ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPart:
    """The same of what is expected on each GPU type."""

    estimates: tuple[tuple[int | str, str, WorkEstimate], ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPart:
    """The same of what trials of clocks measured on each GPU type."""

    estimates: tuple[tuple[int | str, str, Mapping[GpuTypeName, LearnedClock]], ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteClocksKnown:
    """What all runs of the site say of clocks, in the place of what was sent before."""

    clocks: SiteClocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPart:
    """The same of how work scales with the number of GPUs."""

    estimates: tuple[tuple[int | str, str, GpuScaling], ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionPart:
    """The same of what a network expects at lower clocks."""

    estimates: tuple[tuple[int | str, str, PredictedWork], ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePolicies:
    """The row of the live policy, from the recorder: which candidates decide from now on."""

    live: LivePolicy


TablePart = TypeVar("TablePart", RuntimePart, WorkPart, ClockPart, ScalingPart, PredictionPart)

PART_BYTES = 128 * 1024
"""Of a reply, that the answering process passes on at once."""


def reply_parts(reply: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the parts of a reply, each with whether it is the last."""
    begins = range(0, max(1, len(reply)), PART_BYTES)
    for begin in begins:
        yield reply[begin : begin + PART_BYTES], begin == begins[-1]


def table_parts(
    kind: type[TablePart], estimates: Sequence[tuple[int | str, str, Any]], *, is_whole: bool = True
) -> Iterator[TablePart]:
    """Yield a table in frames of at most `MAX_ITEMS` estimates; an empty table is one frame.

    Args:
        kind: Of frames.
        estimates: The table.
        is_whole: Whether it takes the place of what was known; else it corrects that.
    """
    begins = range(0, max(1, len(estimates)), MAX_ITEMS)
    for begin in begins:
        part = tuple(estimates[begin : begin + MAX_ITEMS])
        yield kind(estimates=part, first=is_whole and begin == 0, last=begin == begins[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoaded:
    """The policy child has made its policy; it answers once it knows a snapshot."""

    name: str
    version: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRefused:
    """The policy child cannot make its policy, or not bring it to its first snapshot; it ends."""

    reason: str
    by_checkpoint: bool = False
    """Whether the checkpoint is what cannot be used: another start would end alike until its files are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAtSnapshot:
    """The policy child has dealt with a snapshot: what it answers now comes from there, unless there is trouble."""

    taken_at_seconds: float
    seconds: float
    """Work on it, answers in between left out."""
    trouble: str = ""
    """Why it still answers from the snapshot before."""
    detached: bytes | None = None
    """The policy at that snapshot, where it can answer without its process; packed by itself, since who knows whether a
    policy can be unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyQuestion:
    """What the guard asks a policy, but for the snapshot: the policy's process has its own."""

    case: Case

    @classmethod
    def of(cls, case: Case) -> "PolicyQuestion":
        """Return the question about a case."""
        return cls(case=replace(case, snapshot=NO_SNAPSHOT))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReply:
    """The policy child's answer."""

    answer: PolicyAnswer | None
    error: str = ""
    """Why there is no answer."""
    taken_at_seconds: float | None = None
    """Of the snapshot that it comes from."""


def _travels_fast(kind: type[Any]) -> None:
    """Pickle a frozen dataclass with slots by its fields in order.

    What `dataclass` itself does looks up the fields of every single value: with a job state for each submission, that
    was most of what the answering process did.
    """
    names = tuple(item.name for item in fields(kind))
    values_of: Callable[[Any], tuple[Any, ...]] = attrgetter(*names)
    copyreg.pickle(kind, lambda value: (_rebuilt, (kind, values_of(value))))
    _SETTERS[kind] = tuple(getattr(kind, name).__set__ for name in names)


def _rebuilt(kind: type[Any], values: tuple[Any, ...]) -> Any:
    made = object.__new__(kind)
    for put, value in zip(_SETTERS[kind], values, strict=True):
        put(made, value)
    return made


_SETTERS: dict[type, tuple[Callable[[Any, Any], None], ...]] = {}
for _kind in (JobState, NodeState, NodeGpus):
    _travels_fast(_kind)
