"""Decisions that may be given again for a moment: by slurmctld's plugin to the very same request, here to its like.

A script that submits equal jobs in a loop would wait for the same decision each time, and to wake a Python process
costs more than the decision is worth. Only what cannot come out otherwise within that time is given so: the job may be
sent nowhere else, no moment matters to it, and what its clocks depend on stays as it is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from zlib import crc32

from slurm_energy.config import Config
from slurm_energy.daemon.decide import Decided, Known, KnownUser
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import DecisionId, GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.estimation.run_time import RunTime
from slurm_energy.estimation.site_clocks import SiteClocks
from slurm_energy.policy.base import Policy
from slurm_energy.policy.guard import new_decision_id
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.rules.slurm_order import FixedClockRule, SlurmDefaultRule
from slurm_energy.wire.messages import job_name

REUSE_MILLISECONDS = 1000
KEPT_SECONDS = 10.0
"""Longer than the plugin gives it, since a message may wait."""
MAX_KEPT = 2000
NAME_BITS = 1024
MAX_SET_BITS = NAME_BITS // 2
"""With more, most names would be asked about for nothing."""
AMPLE_JOBS = 256
"""Room for so many equal jobs is not used up within the time."""
_BY_TABLES = (OraclePolicy, SlurmDefaultRule, FixedClockRule)
"""Policies whose clocks depend on the job and on tables alone."""
_NEEDS_NO_POLICY = frozenset({Reason.USER_OFF, Reason.NO_GPU})
_STAYS = frozenset({*_NEEDS_NO_POLICY, Reason.USER_PARTITION, Reason.ROUTING_CLOSED})
"""Reasons with which a job is sent nowhere else, whatever is free."""
_PASSING = frozenset(
    {
        Reason.NO_SNAPSHOT,
        Reason.STALE_SNAPSHOT,
        Reason.UNKNOWN_PARTITION,
        Reason.POLICY_ERROR,
        Reason.POLICY_LOADING,
        Reason.POLICY_TIMEOUT,
        Reason.DEADLINE,
    }
)
"""Reasons that may be gone at the next moment."""
_MOMENTS = ("energy_deadline", "energy_start_before", "slurm_deadline", "begin_time")
"""Fields of a request whose meaning depends on the time."""


def is_reusable(decided: Decided, fields: Mapping[str, str], known: Known, policy: Policy, config: Config) -> bool:
    """Return whether the same request would be answered the same for `REUSE_MILLISECONDS`.

    Args:
        decided: The decision, just made.
        fields: The request.
        known: What the decision was made on.
        policy: What was asked.
        config: The daemon's.
    """
    decision = decided.decision
    reasons = frozenset(decision.reasons)
    if decision.partitions is not None or decision.prefer is not None or decided.complaints:
        return False
    if decided.job.options.gpu_counts:  # the nodes, and runs with other numbers of GPUs, may say otherwise soon
        return False
    if any(fields.get(key) for key in _MOMENTS) or reasons & _PASSING:
        return False
    if reasons & _NEEDS_NO_POLICY:
        return True
    snapshot = known.snapshot
    if snapshot is None or not (reasons & _STAYS or len(snapshot.partitions) == 1):
        return False
    age_seconds = (decision.snapshot_age_seconds or 0.0) + REUSE_MILLISECONDS / 1000.0
    if age_seconds > config.daemon.snapshot_max_age_seconds:
        return False
    if isinstance(policy, RemotePolicy):
        # At prices, whether a partition is full counts.
        return policy.is_detached and _room_stays(decided.job, known, snapshot)
    return isinstance(policy, _BY_TABLES)


def _room_stays(job: JobRequest, known: Known, snapshot: ClusterSnapshot) -> bool:
    """Return whether more such jobs leave each of the job's partitions full, or with room, as it is."""
    if job.starts_later:
        return True
    if job.array is not None:
        return False
    default = snapshot.default_partition
    for name in job.partitions or (() if default is None else (default.name,)):
        left = snapshot.idle_gpus_by_partition.get(name, 0) - known.claimed_gpus.get(name, 0.0)
        left -= snapshot.waiting_gpus_by_partition.get(name, 0.0)
        if job.gpu_count <= left < AMPLE_JOBS * job.gpu_count:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Basis:
    """What the answer to a request rests on beside the request: as long as each is the same thing, so is the answer."""

    policy: Policy
    snapshot: ClusterSnapshot | None
    user: KnownUser
    runtime: RunTime | None
    work: WorkEstimate | None
    clocks: Mapping[GpuTypeName, LearnedClock] | None = None
    site_clocks: SiteClocks | None = None
    predicted: PredictedWork | None = None

    def is_that_of(self, other: "Basis") -> bool:
        """Return whether the other one rests on the same things."""
        return (
            self.policy is other.policy
            and self.snapshot is other.snapshot
            and self.user == other.user
            and self.runtime is other.runtime
            and self.work is other.work
            and self.clocks is other.clocks
            and self.site_clocks is other.site_clocks
            and self.predicted is other.predicted
        )


_REUSE_KEY = b"\nreuse_milliseconds="
_Request = tuple[tuple[str, str], ...]
"""The fields of a request but for the job's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    decided: Decided
    basis: Basis
    request: _Request
    reply: bytes
    """What the plugin was answered."""
    until: float
    """Until when it can be given again, by the monotonic clock."""
    known_until: float
    """Until when it is looked for as what the plugin has given again."""


class LikeDecision:
    """A remembered decision as that on a job that differs in its name alone.

    The reply is that of the other job with this one's number, so that slurmctld waits for no more than that.
    """

    __slots__ = ("_kept", "basis", "decision_id", "milliseconds", "name")

    def __init__(self, kept: _Kept, decision_id: DecisionId, name: str, basis: Basis, milliseconds: int) -> None:
        self._kept = kept
        self.decision_id = decision_id
        self.name = name
        self.basis = basis
        self.milliseconds = milliseconds
        """For how long it holds."""

    def reply(self) -> bytes:
        """Return the encoded reply."""
        old, new = str(self._kept.decided.decision.decision_id).encode(), str(self.decision_id).encode()
        before, _, after = self._kept.reply.replace(old, new).partition(_REUSE_KEY)
        return b"%b%b%d%b" % (before, _REUSE_KEY, self.milliseconds, after[after.index(b"\n") :])

    def decided(self, now_seconds: float) -> Decided:
        """Return the decision itself."""
        return _given_again(self._kept.decided, self.decision_id, now_seconds, self.name)


class ReusableDecisions:
    """The last decisions that may be given again; bounded, the oldest go first.

    The plugin gives them to the very same request, and to one that differs in a name without earlier runs; the daemon
    to all requests that differ in the job's name alone, where what is known of both names is the same: all that a name
    decides is whose earlier runs are looked at.
    """

    def __init__(self) -> None:
        self._kept: dict[DecisionId, _Kept] = {}
        self._last: dict[_Request, DecisionId] = {}

    def keep(
        self,
        decided: Decided,
        fields: Mapping[str, str],
        basis: Basis,
        reply: bytes,
        now_monotonic_seconds: float,
        milliseconds: int = REUSE_MILLISECONDS,
    ) -> None:
        """Remember the decision on a request and its encoded reply, and forget those whose time is over."""
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) < MAX_KEPT and self._kept[oldest].known_until > now_monotonic_seconds:
                break
            request = self._kept.pop(oldest).request
            if self._last.get(request) == oldest:
                del self._last[request]
        decision_id, request = decided.decision.decision_id, _without_name(fields)
        self._kept[decision_id] = _Kept(
            decided=decided,
            basis=basis,
            request=request,
            reply=reply,
            until=now_monotonic_seconds + milliseconds / 1000.0,
            known_until=now_monotonic_seconds + KEPT_SECONDS,
        )
        self._last[request] = decision_id

    def like(
        self,
        fields: Mapping[str, str],
        basis_of: Callable[[int, str, ScriptFeatures | None], Basis],
        now_monotonic_seconds: float,
    ) -> "LikeDecision | None":
        """Return a remembered decision that is that on another request too; None: it has to be worked out.

        `basis_of` returns what the answer to a job of a user, name and script rests on.
        """
        last = self._last.get(_without_name(fields))
        kept = None if last is None else self._kept.get(last)
        milliseconds = 0 if kept is None else int(1000.0 * (kept.until - now_monotonic_seconds))
        if kept is None or milliseconds <= 0:
            return None
        name = job_name(fields)
        basis = basis_of(kept.decided.job.user_id, name, kept.decided.job.script)
        if not kept.basis.is_that_of(basis):
            return None
        return LikeDecision(kept, new_decision_id(), name, basis, milliseconds)

    def again(
        self, base_id: DecisionId, new_id: DecisionId, name: str, now_seconds: float, now_monotonic_seconds: float
    ) -> Decided | None:
        """Return a remembered decision as that of a job of a name submitted now; None for one that is not known."""
        kept = self._kept.get(base_id)
        if kept is None or kept.known_until <= now_monotonic_seconds:
            return None
        return _given_again(kept.decided, new_id, now_seconds, name)


class NamesWithRuns:
    """Which job names of each user have earlier runs, a bit each: the plugin answers for all others without asking.

    Bits are set for more names than there are, never for fewer.
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[int | str, int]] = {}
        self._coming: dict[str, dict[int | str, int]] = {}
        """Of tables that are replaced in parts: the one before it is in use until the last part is there."""

    def add(self, table: str, names: Iterable[tuple[int | str, str]], *, first: bool, last: bool) -> None:
        """Take names of one table of the history; `first` begins it again, with `last` it is whole."""
        if first:
            self._coming[table] = {}
        bits = self._coming[table] if table in self._coming else self._tables.setdefault(table, {})
        for user_id, name in names:
            bits[user_id] = bits.get(user_id, 0) | _bit_of(name)
        if last and table in self._coming:
            self._tables[table] = self._coming.pop(table)

    def for_reply(self, job: JobRequest) -> str | None:
        """Return the bits of a job's user for its reply; None where the answer rests on the job's own name or script.

        A script speaks for names that say nothing, and a name with a bit may have runs of its own.
        """
        bits = 0
        for table in (*self._tables.values(), *self._coming.values()):
            bits |= table.get(job.user_id, 0)
        if job.script is not None or not job.name or bits & _bit_of(job.name):
            return None
        if bits.bit_count() > MAX_SET_BITS:
            return None
        return bits.to_bytes(NAME_BITS // 8, "little").hex()


def _bit_of(name: str) -> int:
    return 1 << crc32(name.encode("utf-8", "surrogateescape")) % NAME_BITS


def _without_name(fields: Mapping[str, str]) -> _Request:
    return tuple(item for item in fields.items() if item[0] != "name")


def _given_again(base: Decided, new_id: DecisionId, now_seconds: float, name: str) -> Decided:
    before = base.decision
    age = before.snapshot_age_seconds
    decision = replace(
        before,
        decision_id=new_id,
        decided_at_seconds=now_seconds,
        snapshot_age_seconds=None if age is None else age + now_seconds - before.decided_at_seconds,
    )
    return replace(
        base,
        decision=decision,
        job=replace(base.job, submitted_at_seconds=now_seconds, name=name),
        entry=replace(base.entry, decision_id=new_id),
    )
