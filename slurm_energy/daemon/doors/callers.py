"""Who is at the other end of a connection, how much each may hold and ask, and the reply to a request that failed."""

import contextlib
import logging
import os
import pwd
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from slurm_energy.errors import PermissionRefused, SlurmEnergyError, WireError
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import failure, refusal

_CREDENTIALS = struct.Struct("iII")
MAX_CALLERS = 10_000
_WARN_INTERVAL_SECONDS = 60.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A caller, as the kernel identifies it."""

    process_id: int
    user_id: int
    privileged: bool
    """root, SlurmUser or the daemon's own user: may ask for decisions and about all jobs."""


class HasSocketOptions(Protocol):
    """A socket, or asyncio's view of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Return the raw value of an option."""
        ...


def privileged_user_ids(slurm_user: str) -> frozenset[int]:
    """Return the uids that may ask for decisions; an unknown `slurm_user` adds none."""
    slurm_user_id = user_id_of(slurm_user)
    return frozenset({0, os.geteuid()} | (set() if slurm_user_id is None else {slurm_user_id}))


def user_id_of(user: str) -> int | None:
    """Return the uid of a login name or of a number, None for an unknown one."""
    with contextlib.suppress(KeyError):
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    return None


def peer_of(connection: HasSocketOptions, privileged: frozenset[int]) -> Peer:
    """Return the peer of a connected unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, user_id, _group_id = _CREDENTIALS.unpack(raw)
    return Peer(process_id=process_id, user_id=user_id, privileged=user_id in privileged)


class RateLimit:
    """A token bucket for each caller."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[Hashable, tuple[float, float]] = {}

    def allows(self, caller: Hashable, now_seconds: float) -> bool:
        """Return whether the caller may ask once more at `now_seconds` of a monotonic clock."""
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.clear()
        tokens, at = self._buckets.get(caller, (self._burst, now_seconds))
        tokens = min(self._burst, tokens + (now_seconds - at) * self._per_second)
        allowed = tokens >= 1.0
        self._buckets[caller] = (tokens - 1.0 if allowed else tokens, now_seconds)
        return allowed


class CostLimit:
    """A share of the time for each caller: what was done for him is charged afterwards, as long as it took."""

    def __init__(self, share: float, burst_seconds: float) -> None:
        self._share = share
        self._burst_seconds = burst_seconds
        self._left: dict[Hashable, tuple[float, float]] = {}

    def allows(self, callers: Iterable[Hashable], now_seconds: float) -> bool:
        """Return whether each of the callers has time left at `now_seconds` of a monotonic clock."""
        return all(self._left_of(caller, now_seconds) > 0.0 for caller in callers)

    def charge(self, callers: Iterable[Hashable], seconds: float, now_seconds: float) -> None:
        """Note what was done for the callers."""
        if len(self._left) > MAX_CALLERS:
            self._left.clear()
        for caller in callers:
            self._left[caller] = (self._left_of(caller, now_seconds) - seconds, now_seconds)

    def _left_of(self, caller: Hashable, now_seconds: float) -> float:
        left, at = self._left.get(caller, (self._burst_seconds, now_seconds))
        return min(self._burst_seconds, left + (now_seconds - at) * self._share)


@dataclass(slots=True, eq=False)
class ConnectionSlot:
    """The place of one connection."""

    owner: Hashable
    evict: Callable[[], None]
    held_bytes: int = field(default=0)


class Slots:
    """Bounds connections by owner and in all, and what they hold in memory together.

    No connection is refused for what others do: one that sends a whole message at once is through before its turn to be
    evicted comes, and those who only hold a place lose it.
    """

    def __init__(self, per_owner: int, total: int, total_bytes: int) -> None:
        self._per_owner = per_owner
        self._total = total
        self._total_bytes = total_bytes
        self._slots: dict[ConnectionSlot, None] = {}
        self._by_owner: Counter[Hashable] = Counter()
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._slots)

    def enter(self, owner: Hashable, evict: Callable[[], None]) -> ConnectionSlot:
        """Return a place; `evict` ends the connection when another one needs it, and must not raise."""
        if self._by_owner[owner] >= self._per_owner:
            self._evict(next(slot for slot in self._slots if slot.owner == owner))
        elif len(self._slots) >= self._total:
            (crowd, _count) = self._by_owner.most_common(1)[0]
            self._evict(next(slot for slot in self._slots if slot.owner == crowd))
        slot = ConnectionSlot(owner, evict)
        self._slots[slot] = None
        self._by_owner[owner] += 1
        return slot

    def grow(self, slot: ConnectionSlot, count: int) -> None:
        """Note that a connection has sent so much more; the one that holds most gives way when all hold too much."""
        if slot not in self._slots:
            return
        slot.held_bytes += count
        self._held_bytes += count
        while self._held_bytes > self._total_bytes:
            self._evict(max(self._slots, key=lambda held: held.held_bytes))

    def leave(self, slot: ConnectionSlot) -> None:
        """Give a place back; one that was evicted has none."""
        if slot not in self._slots:
            return
        del self._slots[slot]
        self._held_bytes -= slot.held_bytes
        self._by_owner[slot.owner] -= 1
        if not self._by_owner[slot.owner]:
            del self._by_owner[slot.owner]

    def _evict(self, slot: ConnectionSlot) -> None:
        self.leave(slot)
        slot.evict()


def error_reply(error: Exception, who: str) -> Message:
    """Return the reply to a request that failed; an error that is none of ours is logged with its traceback."""
    if isinstance(error, (PermissionRefused, WireError)):
        return refusal(str(error))
    if isinstance(error, SlurmEnergyError):
        return failure(str(error))
    if isinstance(error, TimeoutError):
        return failure("the request took too long")
    logger.error("request failed by=%s", who, exc_info=error)
    return failure(f"internal error {type(error).__name__}, see the daemon's log")


class NotServed:
    """Counts requests that were not served, and logs them at most once a minute for each kind."""

    def __init__(self, count: Callable[[str, int], None]) -> None:
        self._count = count
        self._warned: dict[str, float] = {}

    def reply(self, error: Exception, who: str) -> Message:
        """Return the reply to a request that failed."""
        reply = error_reply(error, who)
        self.note(reply, who)
        return reply

    def note(self, reply: Message, who: str) -> None:
        """Take note of a reply that is none."""
        self._count(f"reply {reply.verb}", 1)
        now, reason = time.monotonic(), reply.fields.get("reason", "")
        kind = f"{reply.verb} {reason[:24]}"
        if now - self._warned.get(kind, -_WARN_INTERVAL_SECONDS) < _WARN_INTERVAL_SECONDS:
            return
        if len(self._warned) > 1000:
            self._warned.clear()
        self._warned[kind] = now
        logger.warning("request not served by=%s reply=%s reason=%s", who, reply.verb, reason)
