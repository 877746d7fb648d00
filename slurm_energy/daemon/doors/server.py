"""The door process's side of both doors: people at the unix socket, nodes' reports at a TCP port.

Connections may be slow, hostile or many. All that they can cost is this process's time, for which no submission
waits.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from typing import Any, Protocol

from slurm_energy.daemon.doors.callers import (
    ConnectionSlot,
    CostLimit,
    NotServed,
    Peer,
    RateLimit,
    Slots,
    peer_of,
)
from slurm_energy.daemon.doors.power import RunningClocks
from slurm_energy.daemon.doors.reports import MAX_REPORT_BYTES, ReportReceiver
from slurm_energy.errors import DaemonUnavailable, PermissionRefused, WireError
from slurm_energy.wire.client import FIRST_UNRESERVED_PORT
from slurm_energy.wire.codec import END_LINE, MAX_DECIDE_BYTES, PROTOCOL, Message, decode, encode
from slurm_energy.wire.running_power import VERB as POWER_VERB
from slurm_energy.wire.running_power import encode_order

logger = logging.getLogger(__name__)

LOCAL_SECONDS = 5.0
REPORT_SECONDS = 10.0
"""From the connection to its whole message: a node gives up by then too."""
USER_SLOTS = {"per_owner": 16, "total": 256, "total_bytes": 8 * 1024 * 1024}
NODE_SLOTS = {"per_owner": 32, "total": 512, "total_bytes": 128 * 1024 * 1024}
OTHER_SLOTS = {"per_owner": 16, "total": 256, "total_bytes": 64 * 1024 * 1024}
UNPRIVILEGED_PER_SECOND = 20.0
UNPRIVILEGED_BURST = 60.0
CONNECTIONS_PER_SECOND = 40.0
CONNECTIONS_BURST = 120.0
"""Of one user; further ones are closed unread."""
ALL_UNPRIVILEGED_PER_SECOND = 100.0
ALL_UNPRIVILEGED_BURST = 200.0
MAX_OPEN_PER_USER = 4
MAX_OPEN_UNPRIVILEGED = 32
UNKNOWN_SHARE = 0.1
"""Of the time, that messages of unknown senders at one address may take; then nothing is taken there for a while."""
UNKNOWN_BURST_SECONDS = 1.0
NEWEST_SECONDS = 0.001
"""What it counts for that a node asks for the newest entry of a decision, which needs no proof of who asks."""
_ACCEPTS_AT_ONCE = 512
_PAUSE_SECONDS = 0.1
_ALL_USERS = -1
_CHUNK_BYTES = 65_536
_TAIL = b"\n" + END_LINE
_HEAD = f"{PROTOCOL} ".encode()
_NEWEST = f"{PROTOCOL} newest\n".encode()
_OFFER = f"{PROTOCOL} offer\n".encode()
_POWER = f"{PROTOCOL} {POWER_VERB}\n".encode()
_NODE = -2
"""Stands for a node that asks for the newest entry of a decision."""


class AsksParent(Protocol):
    """The answering process, as the door sees it."""

    def ask(self, message: Message, peer: Peer) -> AsyncIterator[bytes]:
        """Yield the parts of the encoded reply."""
        ...


class Server:
    """Accepts connections, keeps their limits, and turns every failure into a reply."""

    def __init__(
        self,
        parent: AsksParent,
        reports: ReportReceiver,
        running: RunningClocks,
        privileged: frozenset[int],
        count: Callable[[str, int], None],
    ) -> None:
        self._parent = parent
        self._reports = reports
        self._running = running
        self._privileged = privileged
        self._count = count
        self._listeners: list[socket.socket] = []
        self._busy: set[asyncio.Task[None]] = set()
        self._users = Slots(**USER_SLOTS)
        self._nodes = Slots(**NODE_SLOTS)
        self._others = Slots(**OTHER_SLOTS)
        self._rate = RateLimit(per_second=UNPRIVILEGED_PER_SECOND, burst=UNPRIVILEGED_BURST)
        self._rate_of_all = RateLimit(per_second=ALL_UNPRIVILEGED_PER_SECOND, burst=ALL_UNPRIVILEGED_BURST)
        self._open: Counter[int] = Counter()
        self._connections = RateLimit(per_second=CONNECTIONS_PER_SECOND, burst=CONNECTIONS_BURST)
        self._unknown = CostLimit(share=UNKNOWN_SHARE, burst_seconds=UNKNOWN_BURST_SECONDS)
        self._not_served = NotServed(count)

    def listen(self, listener: socket.socket) -> None:
        """Accept people at a unix socket, or nodes' reports at a TCP one."""
        listener.setblocking(False)
        self._listeners.append(listener)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def drain(self, limit_seconds: float) -> None:
        """Accept nothing more and let what is being answered finish, for at most `limit_seconds`."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()
        if self._busy:
            _done, late = await asyncio.wait(self._busy, timeout=limit_seconds)
            for task in late:
                task.cancel()

    def _spawn(self, visit: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(visit)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor left: others must end first
                logger.warning("connection not accepted error=%s", error)
                self._pause(listener)
                return
            if listener.family == socket.AF_UNIX:
                self._on_user(connection)
            else:
                self._on_host(connection, str(address[0]), at_root=int(address[1]) < FIRST_UNRESERVED_PORT)

    def _pause(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def go_on() -> None:
            if listener in self._listeners:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(_PAUSE_SECONDS, go_on)

    def _on_user(self, connection: socket.socket) -> None:
        try:
            peer = peer_of(connection, self._privileged)
        except OSError:
            connection.close()
            return
        if peer.privileged or self._connections.allows(peer.user_id, time.monotonic()):
            self._spawn(self._local(connection, peer))
        else:
            self._refuse(connection)

    def _on_host(self, connection: socket.socket, host: str, *, at_root: bool) -> None:
        if self._unknown.allows([(host, at_root)], time.monotonic()):
            self._spawn(self._report(connection, host, at_root))
        else:
            self._refuse(connection)

    def _refuse(self, connection: socket.socket) -> None:
        self._count("connections refused", 1)
        connection.close()

    async def _local(self, connection: socket.socket, peer: Peer) -> None:
        who = f"uid {peer.user_id}"
        async with _streams(connection) as (reader, writer):
            try:
                with self._slot(None if peer.privileged else self._users, peer.user_id, writer) as slot:
                    async with asyncio.timeout(LOCAL_SECONDS):
                        raw = await read_whole(reader, MAX_DECIDE_BYTES, slot)
                message = decode(raw, MAX_DECIDE_BYTES)
                if peer.privileged:
                    await self._pass_on(message, peer, writer)
                else:
                    await self._pass_on_within_limits(message, peer, writer)
            except (EmptyConnection, ConnectionError):
                return
            except Exception as error:  # noqa: BLE001  # the request loop: one bad request never ends the daemon
                await self._send(writer, self._not_served.reply(error, who))

    async def _pass_on_within_limits(self, message: Message, peer: Peer, writer: asyncio.StreamWriter) -> None:
        with self._within_limits(peer.user_id):
            await self._pass_on(message, peer, writer)

    @contextlib.contextmanager
    def _within_limits(self, user: int) -> Iterator[None]:
        """Count what is answered for a user meanwhile.

        Raises:
            SlurmEnergyError: he asks too often, or too much is being answered.
        """
        now = time.monotonic()
        if not self._rate.allows(user, now):
            raise PermissionRefused(f"more than {UNPRIVILEGED_PER_SECOND:g} requests a second from uid {user}")
        if not self._rate_of_all.allows(_ALL_USERS, now):
            raise DaemonUnavailable("too many requests at once: try again later")
        if self._open[user] >= MAX_OPEN_PER_USER or self._open.total() >= MAX_OPEN_UNPRIVILEGED:
            raise DaemonUnavailable("too many requests are being answered: try again later")
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]

    async def _pass_on(self, message: Message, peer: Peer, writer: asyncio.StreamWriter) -> None:
        async for part in self._parent.ask(message, peer):
            writer.write(part)
            async with asyncio.timeout(LOCAL_SECONDS):
                await writer.drain()

    async def _report(self, connection: socket.socket, host: str, at_root: bool) -> None:
        who = f"host {host}"
        async with _streams(connection) as (reader, writer):
            try:
                with self._slot(self._nodes if at_root else self._others, host, writer) as slot:
                    async with asyncio.timeout(REPORT_SECONDS):
                        raw = await read_whole(reader, MAX_REPORT_BYTES, slot)
                if raw.startswith(_NEWEST):
                    self._unknown.charge([(host, at_root)], NEWEST_SECONDS, time.monotonic())
                    await self._send(writer, await self._newest(raw, host, at_root))
                    return
                if raw.startswith(_OFFER):
                    await self._send(writer, await self._offer(raw, host, at_root))
                    return
                if raw.startswith(_POWER):
                    await self._send(writer, await self._power(raw, host, at_root))
                    return
                accepted = await self._reports.accept(raw, at_root=at_root, host=host)
                if accepted.wasted_seconds:
                    self._unknown.charge([(host, at_root)], accepted.wasted_seconds, time.monotonic())
                reply = accepted.reply
                if reply.verb != "ok":
                    self._not_served.note(reply, who)
            except (EmptyConnection, ConnectionError):
                return
            except Exception as error:  # noqa: BLE001  # the request loop: one bad request never ends the daemon
                reply = self._not_served.reply(error, who)
            await self._send(writer, reply)

    async def _newest(self, raw: bytes, host: str, at_root: bool) -> Message:
        """Return the newest entry of a decision, with a proof that it is ours; its id is what a node must know.

        It tells clocks alone, and costs less than to find out who asks. Who asks by a job's number
        must be shown to be a node.
        """
        message = decode(raw, MAX_DECIDE_BYTES)
        asked = Message("newest", {"decision_id": message.fields.get("decision_id", "")})
        is_proven = "auth" in message.fields
        if is_proven:
            job_id, wasted = await self._reports.job_asked_for(message, at_root=at_root, host=host)
            if isinstance(job_id, WireError):
                self._unknown.charge([(host, at_root)], wasted, time.monotonic())
                raise job_id
            asked = Message("newest", {"job_id": str(job_id)})
        peer = Peer(process_id=0, user_id=_NODE, privileged=is_proven)
        parts = [part async for part in self._parent.ask(asked, peer)]
        reply = decode(b"".join(parts), MAX_DECIDE_BYTES)
        return await self._reports.proven(reply, message.fields.get("nonce", ""), at_root=at_root)

    async def _offer(self, raw: bytes, host: str, at_root: bool) -> Message:
        """Return what this cluster offers to a user of another host, proven; he is authenticated before we are asked.

        Whose word is not authenticated costs this process alone, and not for long (`UNKNOWN_SHARE`).
        """
        asked, wasted = await self._reports.asker(decode(raw, MAX_DECIDE_BYTES), at_root=at_root, host=host)
        if isinstance(asked, WireError):
            self._unknown.charge([(host, at_root)], wasted, time.monotonic())
            raise asked
        peer = Peer(process_id=0, user_id=asked.user_id, privileged=False)
        message = Message("offer", {**asked.fields, "for_cluster": asked.cluster})
        with self._within_limits(asked.user_id):
            parts = [part async for part in self._parent.ask(message, peer)]
        return await self._reports.offered(decode(b"".join(parts), MAX_DECIDE_BYTES), asked, at_root=at_root)

    async def _power(self, raw: bytes, host: str, at_root: bool) -> Message:
        """Return the clock that a running job may have, with a proof that the answer is ours."""
        message = decode(raw, MAX_DECIDE_BYTES)
        found, wasted = await self._reports.running_power(message, at_root=at_root, host=host)
        if isinstance(found, WireError):
            self._unknown.charge([(host, at_root)], wasted, time.monotonic())
            raise found
        order = self._running.answer(found)
        self._count("clocks under a budget" if order.clock_mhz is not None else "clocks without a bound", 1)
        reply = Message("ok", {"entry": encode_order(order)})
        return await self._reports.proven(reply, message.fields.get("nonce", ""), at_root=at_root)

    @contextlib.contextmanager
    def _slot(
        self, slots: Slots | None, owner: Hashable, writer: asyncio.StreamWriter
    ) -> Iterator[Callable[[int], None]]:
        """Hold a place while a message is awaited; yields what is called with its growth."""
        if slots is None:
            yield lambda _count: None
            return
        slot: ConnectionSlot = slots.enter(owner, writer.transport.abort)
        try:
            yield lambda count: slots.grow(slot, count)
        finally:
            slots.leave(slot)

    async def _send(self, writer: asyncio.StreamWriter, reply: Message) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(encode(reply))
            async with asyncio.timeout(LOCAL_SECONDS):
                await writer.drain()


@contextlib.asynccontextmanager
async def _streams(
    connection: socket.socket,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _protocol = await loop.connect_accepted_socket(lambda: protocol, connection)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
    finally:
        writer.close()


class EmptyConnection(WireError):
    """The caller closed without a message, as port scanners and health checks do."""


async def read_whole(
    reader: asyncio.StreamReader, limit_bytes: int, grow: Callable[[int], None] = lambda _count: None
) -> bytes:
    """Return the bytes of the one message of a connection, unread; the caller's timeout bounds the whole wait.

    Raises:
        WireError: too long, or no message of this protocol.
    """
    raw = bytearray()
    while not raw.endswith(_TAIL):
        chunk = await reader.read(_CHUNK_BYTES)
        if not chunk:
            if not raw:
                raise EmptyConnection("connection closed without a message")
            break
        grow(len(chunk))
        raw += chunk
        if not raw.startswith(_HEAD[: len(raw)]):
            begin = bytes(raw[:64]).decode("utf-8", "replace").partition("\n")[0]
            raise WireError(f"message speaks {begin!r}, this code speaks {PROTOCOL}")
        if len(raw) > limit_bytes:
            raise WireError(f"message is over {limit_bytes} bytes")
    return bytes(raw)
