"""What travels between the daemon and its children."""

from dataclasses import dataclass

from slurm_energy.domain.cluster import JobState, NodeState, PartitionState
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.wire.messages import Query

MAX_ITEMS = 250
"""Jobs, nodes or estimates in one frame, so that taking it in holds up no answer."""


@dataclass(frozen=True, slots=True)
class SnapshotBegins:
    """A child's first frame: what is known from an earlier child is not built upon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """Some of what changed since the last reading."""

    jobs: tuple[JobState, ...] = ()
    jobs_gone: tuple[int, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    nodes_gone: tuple[str, ...] = ()
    partitions: tuple[PartitionState, ...] | None = None
    """All partitions, or None when none changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserGroups:
    """Groups of some users by uid."""

    groups: tuple[tuple[int, frozenset[str]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotComplete:
    """All parts of one reading have been sent."""

    taken_at_seconds: float
    read_seconds: float
    skipped_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """A person's question on its way to the recorder."""

    number: int
    query: Query
    only_user_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReply:
    """The recorder's answer."""

    number: int
    reply: bytes
    """The whole message, encoded here: a large report must not hold up the answering process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePart:
    """Estimates by user and job name; `first` starts a new table, `last` makes it the one in use."""

    estimates: tuple[tuple[int, str, RuntimeEstimate], ...]
    first: bool
    last: bool
