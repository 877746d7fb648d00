"""What nodes send: reports, on the disk before they are acknowledged, and the latest status of each node.

Both are authenticated and checked. Statuses, and who was turned away, are files that survive a restart: the door's
process writes them; the answering process and `slurm-energy doctor` read them.
"""

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from slurm_energy.daemon.recorder.entries import JournalQueue, ReportsEntryLine, encode_entry
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import JobId, parse_job_id
from slurm_energy.domain.node_status import SILENT_SECONDS, ReceivedStatus
from slurm_energy.errors import AuthenticationError, DaemonUnavailable, SlurmEnergyError, SpoolError, WireError
from slurm_energy.files import write_atomically
from slurm_energy.wire.authentication import ReplayGuard, Verified, prove_answer, verify
from slurm_energy.wire.codec import Message, decode
from slurm_energy.wire.messages import failure, refusal
from slurm_energy.wire.node_status import Delivery, decode_delivery, encode_received
from slurm_energy.wire.offers import OfferRequest, decode_offer_request
from slurm_energy.wire.running_power import RunningPower, decode_running_power

logger = logging.getLogger(__name__)

MAX_REPORT_BYTES = 2 * 1024 * 1024
"""Of a message: a node sends a quarter of a MiB at once, or one report of at most 1 MiB."""
MAX_LINES = 64
MAX_ESCAPES = 50_000
"""Of a message: each costs a call before the sender is authenticated."""
MAX_WAITING = 64
MUNGE_SECONDS = 0.01
"""What a credential costs munge and munged, beside this process."""
MAX_NODES = 20_000
"""A file each, of 65 KB at most and 2 KB as a rule; the one heard of longest ago makes room."""
MAX_TURNED_AWAY = 64
"""Addresses; an unauthenticated sender can fill them with its own only, and they are shown as what they are."""
TURNED_AWAY_SECONDS = 5.0
"""Between two writes of the file, however many are turned away."""
MAX_NAMES = 20
FOLDER = "nodes"
TURNED_AWAY = "turned-away.json"

Count = Callable[[str, int], None]


class NodeStatuses:
    """Takes what nodes report; used by the threads that authenticate messages."""

    def __init__(self, state_directory: Path) -> None:
        self._directory = state_directory
        self._folder = state_directory / FOLDER
        self._lock = threading.Lock()
        self._heard: dict[str, float] | None = None
        self._turned_away: dict[str, tuple[float, str]] = {}
        self._written_at = 0.0

    def take(self, received: ReceivedStatus) -> None:
        """Keep a node's status in place of its earlier one.

        Raises:
            SpoolError: it cannot be written.
        """
        with self._lock:
            node = received.status.node
            if self._heard is None:
                self._heard = dict(sorted(heard_at(self._folder).items(), key=lambda item: item[1]))
            _write(self._folder / f"{node}.json", encode_received(received))
            self._heard.pop(node, None)
            self._heard[node] = received.received_at_seconds
            while len(self._heard) > MAX_NODES:
                oldest = next(iter(self._heard))
                del self._heard[oldest]
                with contextlib.suppress(OSError):
                    (self._folder / f"{oldest}.json").unlink()

    def turn_away(self, host: str, reason: str, now_seconds: float) -> None:
        """Remember that what a host sent was not authenticated: it may be a node with another key or clock."""
        if not host:
            return
        with self._lock:
            self._turned_away.pop(host, None)
            self._turned_away[host] = (now_seconds, reason[:300])
            while len(self._turned_away) > MAX_TURNED_AWAY:
                del self._turned_away[next(iter(self._turned_away))]
            self._keep_turned_away(now_seconds)

    def let_in(self, host: str, now_seconds: float) -> None:
        """Forget that a host was turned away: now it is not."""
        with self._lock:
            if self._turned_away.pop(host, None) is not None:
                self._written_at = 0.0
                self._keep_turned_away(now_seconds)

    def _keep_turned_away(self, now_seconds: float) -> None:
        if 0.0 <= now_seconds - self._written_at < TURNED_AWAY_SECONDS:
            return
        self._written_at = now_seconds
        document = {host: {"at_seconds": at, "reason": reason} for host, (at, reason) in self._turned_away.items()}
        with contextlib.suppress(SpoolError):  # a full disk is reported by those who need it
            _write(self._directory / TURNED_AWAY, json.dumps(document).encode())


def nodes_summary(state_directory: Path, snapshot: ClusterSnapshot | None, now_seconds: float) -> dict[str, object]:
    """Return in numbers and some names which of Slurm's GPU nodes report their status."""
    heard = heard_at(state_directory / FOLDER)
    wanted = [] if snapshot is None else [node.name for node in snapshot.nodes if node.gpus]
    silent = [name for name in wanted if name in heard and now_seconds - heard[name] > SILENT_SECONDS]
    never = [name for name in wanted if name not in heard]
    return {
        "with_gpus": len(wanted),
        "reporting": len(wanted) - len(silent) - len(never),
        "stopped_reporting": _some(silent),
        "never_reported": _some(never),
    }


def heard_at(folder: Path) -> dict[str, float]:
    """Return when each node was heard of last, Unix seconds."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(OSError):
                    found[entry.name.removesuffix(".json")] = entry.stat().st_mtime
    return found


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise SpoolError(f"{path} cannot be written: {error.strerror}") from error
    write_atomically(path, content, mode=0o640, durable=False)


def _some(names: Iterable[str]) -> list[str] | None:
    listed = sorted(names)
    more = len(listed) - MAX_NAMES
    return [*listed[:MAX_NAMES], *([f"and {more} more"] if more > 0 else [])] or None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The reply to a message, and what it cost to find out that its sender is unknown."""

    reply: Message
    wasted_seconds: float = 0.0


Sent = TypeVar("Sent")
Found = TypeVar("Found")


class ReportReceiver:
    """Takes reports. A malformed one is refused for good; any other trouble is an error, and the node tries again."""

    def __init__(
        self,
        journal: JournalQueue,
        nodes: NodeStatuses,
        key: bytes | None,
        allowed: Collection[int],
        count: Count,
    ) -> None:
        """Make the receiver.

        Args:
            journal: Where reports are kept until the database has them.
            nodes: Where the statuses of nodes are kept.
            key: The shared key, None where munge authenticates.
            allowed: Who may report by munge.
            count: Called with what became of the reports.
        """
        self._journal = journal
        self._nodes = nodes
        self._key = key
        self._allowed = allowed
        self._count = count
        self._replay = ReplayGuard()
        # One thread for callers that are root on their host and one for all others, so that neither waits for the
        # other; munge's tools and JSON of hostile size hold up neither the loop nor the nonces.
        self._threads = {
            at_root: ThreadPoolExecutor(max_workers=1, thread_name_prefix="reports") for at_root in (True, False)
        }
        self._waiting = dict.fromkeys(self._threads, 0)

    async def proven(self, reply: Message, nonce: str, *, at_root: bool) -> Message:
        """Return the answer to a node that asks for the newest entry of a decision, with a proof that it is ours.

        Raises:
            AuthenticationError: munge makes no credential.
        """
        entry = reply.fields.get("entry", "")
        if reply.verb != "ok" or not entry:
            return reply  # there is nothing that a node would act on
        work = partial(prove_answer, "newest", nonce[:64], entry, self._key)
        proof = await asyncio.get_running_loop().run_in_executor(self._threads[at_root], work)
        return Message(reply.verb, {**reply.fields, **proof})

    async def asker(self, message: Message, *, at_root: bool, host: str) -> tuple[OfferRequest | WireError, float]:
        """Return what an authenticated user asks this cluster about his job, or why nothing; and what that cost.

        Raises:
            DaemonUnavailable: too many are being looked at already.
        """
        verified, wasted = await self._looked_at(at_root, self._user, message, host)
        if isinstance(verified, WireError):
            return verified, wasted
        try:
            return decode_offer_request(verified), 0.0
        except WireError as error:
            return error, 0.0

    async def offered(self, reply: Message, asked: OfferRequest, *, at_root: bool) -> Message:
        """Return an offer with the proof that it is ours; under munge encrypted, for the user who asked alone.

        Raises:
            AuthenticationError: munge makes no credential.
        """
        text = reply.fields.get("json", "")
        if reply.verb != "ok":
            return reply
        work = partial(prove_answer, "offer", asked.nonce, text, self._key, for_user_id=asked.user_id)
        proof = await asyncio.get_running_loop().run_in_executor(self._threads[at_root], work)
        return Message("ok", {"offer": text, **proof} if self._key else proof)

    async def job_asked_for(self, message: Message, *, at_root: bool, host: str) -> tuple[JobId | WireError, float]:
        """Return the job whose node asks for the decision on it, or why it has no answer; and what an unknown one cost.

        Raises:
            DaemonUnavailable: too many are being looked at already.
        """
        verified, wasted = await self._looked_at(at_root, self._proven, message, host)
        if isinstance(verified, WireError):
            return verified, wasted
        verb, _, number = verified.body.decode("ascii", "replace").partition(" ")
        try:
            return (parse_job_id(number), 0.0) if verb == "newest" else (WireError("a report asks for no job"), 0.0)
        except SlurmEnergyError as error:
            return WireError(str(error)), 0.0

    async def running_power(
        self, message: Message, *, at_root: bool, host: str
    ) -> tuple[RunningPower | WireError, float]:
        """Return what a node states of a running job, or why it is not taken; and what an unknown sender cost.

        Raises:
            DaemonUnavailable: too many are being looked at already.
        """
        verified, wasted = await self._looked_at(at_root, self._proven, message, host)
        if isinstance(verified, WireError):
            return verified, wasted
        try:
            return decode_running_power(verified.body), 0.0
        except WireError as error:
            return error, 0.0

    async def accept(self, raw: bytes, *, at_root: bool, host: str = "") -> Accepted:
        """Return the reply to one message.

        Args:
            raw: The message as it came.
            at_root: Whether it came from a port that only root can use.
            host: Address that it came from.

        Raises:
            DaemonUnavailable: too many are being looked at already.
        """
        delivery, wasted = await self._looked_at(at_root, self._authenticated, raw, host)
        if isinstance(delivery, (AuthenticationError, SpoolError)):
            return Accepted(self._not_taken(delivery), wasted)
        if isinstance(delivery, WireError):
            return Accepted(self._refused(delivery), wasted)
        batch = delivery.batch
        if delivery.status is not None:
            self._count("node statuses", 1)
        if delivery.status is not None and not batch.reports:
            return Accepted(Message("ok", {"accepted": "0"}))
        now = time.time()
        entry = ReportsEntryLine(
            received_at_seconds=now, reports=batch.reports, clock_offsets_seconds=batch.clock_offsets_seconds(now)
        )
        try:
            await self._journal.append_durably(lambda: encode_entry(entry))
        except SpoolError as error:
            return Accepted(self._not_taken(error))
        self._count("reports accepted", len(batch.reports))
        return Accepted(Message("ok", {"accepted": str(len(batch.reports))}))

    async def _looked_at(
        self, at_root: bool, look: Callable[[Sent, str], tuple[Found, float]], sent: Sent, host: str
    ) -> tuple[Found, float]:
        if self._waiting[at_root] >= MAX_WAITING:
            raise DaemonUnavailable("too many messages at once: try again later")
        self._waiting[at_root] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads[at_root], look, sent, host)
        finally:
            self._waiting[at_root] -= 1

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)

    def _authenticated(self, raw: bytes, host: str) -> tuple[Delivery | WireError | SpoolError, float]:
        """Return what was sent, or what is wrong with it; and the seconds that an unknown sender has cost.

        A node's status is on the disk on return.
        """
        began = time.thread_time()
        try:
            message = _bounded(raw)
        except WireError as error:
            return error, time.thread_time() - began + (0.0 if self._key else MUNGE_SECONDS)
        verified, wasted = self._proven(message, host)
        if isinstance(verified, WireError):
            return verified, wasted + time.thread_time() - began
        try:
            delivery = decode_delivery(verified.body)
            if delivery.status is not None:
                self._nodes.take(ReceivedStatus(received_at_seconds=time.time(), status=delivery.status))
        except (WireError, SpoolError) as error:
            return error, 0.0
        return delivery, 0.0

    def _proven(self, message: Message, host: str) -> tuple[Verified | WireError, float]:
        """Return what was sent by a proven sender, or what is wrong; and the seconds that an unknown one has cost."""
        return self._verified(message, host, self._allowed)

    def _user(self, message: Message, host: str) -> tuple[Verified | WireError, float]:
        """Return the same where every user may send."""
        return self._verified(message, host, None)

    def _verified(
        self, message: Message, host: str, allowed: Collection[int] | None
    ) -> tuple[Verified | WireError, float]:
        began = time.thread_time()
        try:
            verified = verify(
                message, key=self._key, replay=self._replay, allowed_user_ids=allowed, now_seconds=time.time()
            )
        except WireError as error:
            if isinstance(error, AuthenticationError) and allowed is not None:  # of nodes; a login host is none
                self._nodes.turn_away(host, str(error), time.time())
            return error, time.thread_time() - began + (0.0 if self._key else MUNGE_SECONDS)
        if allowed is not None:
            self._nodes.let_in(host, time.time())
        return verified, 0.0

    def _not_taken(self, error: Exception) -> Message:
        self._count("reports not taken", 1)
        return failure(str(error))

    def _refused(self, error: Exception) -> Message:
        self._count("reports refused", 1)
        return refusal(str(error))


def _bounded(raw: bytes) -> Message:
    """Return the message, if reading it costs no more than its length says.

    Raises:
        WireError: it has more lines or escapes than a report has, or is none.
    """
    if raw.count(b"\n") > MAX_LINES or raw.count(b"%") > MAX_ESCAPES:
        raise WireError(f"message has over {MAX_LINES} lines or {MAX_ESCAPES} escapes")
    message = decode(raw, MAX_REPORT_BYTES)
    if message.verb != "report":
        raise WireError(f"verb {message.verb!r} is not served here: only report is")
    return message
