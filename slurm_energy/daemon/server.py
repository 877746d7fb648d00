"""The two doors: a unix socket for Slurm's plugin and people, TCP for the nodes' reports."""

import asyncio
import contextlib
import logging
import socket
import stat
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from slurm_energy.daemon.doorway import LocalDoor
from slurm_energy.daemon.ingest import MAX_REPORT_BYTES, ReportDesk
from slurm_energy.daemon.peers import Peer, peer_of
from slurm_energy.daemon.reading import EmptyConnection, MemoryShare, read_message
from slurm_energy.daemon.state import DaemonState
from slurm_energy.daemon.verbs import Answer, LocalVerbs
from slurm_energy.errors import ConfigError, PermissionRefused, SlurmEnergyError, WireError
from slurm_energy.wire.codec import MAX_DECIDE_BYTES, Message, decode, encode
from slurm_energy.wire.messages import failure, refusal

logger = logging.getLogger(__name__)

LOCAL_TIMEOUT_SECONDS = 5.0
QUERY_TIMEOUT_SECONDS = 60.0
REPORT_TIMEOUT_SECONDS = 60.0
MAX_LOCAL_CONNECTIONS = 256
MAX_LOCAL_BYTES = 32 * 1024 * 1024
MAX_REPORTS_BYTES = 256 * 1024 * 1024
MAX_CONNECTIONS_PER_USER = 16
MAX_REPORT_CONNECTIONS = 128
MAX_REPORT_CONNECTIONS_PER_HOST = 16
_WARN_INTERVAL_SECONDS = 60.0
_BACKLOG = 1024


class Server:
    """Accepts connections, keeps their limits, and turns every failure into a reply."""

    def __init__(self, state: DaemonState, verbs: LocalVerbs, reports: ReportDesk) -> None:
        self._state = state
        self._verbs = verbs
        self._reports = reports
        self._listeners: list[asyncio.Server] = []
        self._door = LocalDoor(lambda: state.privileged, self._answer_now, self._local)
        self._busy: set[asyncio.Task[None]] = set()
        self._by_user: Counter[int] = Counter()
        self._by_host: Counter[str] = Counter()
        self._local_share = MemoryShare(MAX_LOCAL_BYTES)
        self._report_share = MemoryShare(MAX_REPORTS_BYTES)
        self._warned: dict[str, float] = {}

    def listen_local(self, path: Path, mode: int) -> None:
        """Listen at a unix socket; a socket that nobody answers any more is replaced.

        Raises:
            ConfigError: another daemon answers there, or the path cannot be used.
        """
        remove_stale_socket(path)
        self._door.open(path, mode)

    async def listen_reports(self, host: str, port: int) -> None:
        """Listen for node reports.

        Raises:
            ConfigError: the address cannot be used.
        """
        try:
            self._listeners.append(
                await asyncio.start_server(self._report, host, port, backlog=_BACKLOG, reuse_address=True)
            )
        except OSError as error:
            raise ConfigError(
                f"daemon.report_host {host} with report_port {port} cannot be used: {error.strerror or error}"
            ) from error

    @property
    def listening(self) -> bool:
        """Whether a door has been opened."""
        return self._door.is_open or bool(self._listeners)

    async def drain(self, limit_seconds: float) -> None:
        """Accept nothing more and let what is being answered finish, for at most `limit_seconds`."""
        self._door.close()
        for listener in self._listeners:
            listener.close()
        if self._busy:
            _done, late = await asyncio.wait(self._busy, timeout=limit_seconds)
            for task in late:
                task.cancel()

    def _answer_now(self, request: bytes, peer: Peer) -> tuple[bytes, Callable[[], None] | None]:
        try:
            answered = self._verbs.decide(decode(request, MAX_DECIDE_BYTES), peer)
            reply = answered.reply if isinstance(answered.reply, bytes) else encode(answered.reply)
        except Exception as error:  # noqa: BLE001  # the request loop: one bad request never ends the daemon
            return encode(self._excuse(error, f"uid {peer.user_id}")), None
        return reply, answered.afterwards

    async def _local(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        try:
            peer = peer_of(connection, self._state.privileged)
        except OSError:
            writer.close()
            return
        crowded = not peer.privileged and (
            self._by_user[peer.user_id] >= MAX_CONNECTIONS_PER_USER or len(self._busy) >= MAX_LOCAL_CONNECTIONS
        )
        if crowded:
            await self._send(writer, refusal("too many connections: try again later"))
            return
        self._by_user[peer.user_id] += 1
        try:
            await self._tracked(writer, self._local_answer(reader, peer), f"uid {peer.user_id}")
        finally:
            self._by_user[peer.user_id] -= 1
            if not self._by_user[peer.user_id]:
                del self._by_user[peer.user_id]

    async def _local_answer(self, reader: asyncio.StreamReader, peer: Peer) -> Answer:
        async with asyncio.timeout(LOCAL_TIMEOUT_SECONDS):
            message = await read_message(reader, MAX_DECIDE_BYTES, self._local_share)
        async with asyncio.timeout(QUERY_TIMEOUT_SECONDS):
            return await self._verbs.answer(message, peer)

    async def _report(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str((writer.get_extra_info("peername") or ("unknown",))[0])
        busy = sum(self._by_host.values())
        if self._by_host[host] >= MAX_REPORT_CONNECTIONS_PER_HOST or busy >= MAX_REPORT_CONNECTIONS:
            await self._send(writer, failure("too many connections: try again later"))
            return
        self._by_host[host] += 1
        try:
            await self._tracked(writer, self._report_answer(reader, host), f"host {host}")
        finally:
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]

    async def _report_answer(self, reader: asyncio.StreamReader, host: str) -> Answer:
        async with asyncio.timeout(REPORT_TIMEOUT_SECONDS):
            message = await read_message(reader, MAX_REPORT_BYTES, self._report_share)
            return Answer(await self._reports.accept(message, host))

    async def _tracked(self, writer: asyncio.StreamWriter, answer: Awaitable[Answer], who: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            await self._exchange(writer, answer, who)
        finally:
            self._busy.discard(task)

    async def _exchange(self, writer: asyncio.StreamWriter, answer: Awaitable[Answer], who: str) -> None:
        """The request loop's body: whatever goes wrong becomes a reply, and the daemon goes on."""
        reply: Message | bytes
        afterwards: Callable[[], None] | None = None
        try:
            answered = await answer
            reply, afterwards = answered.reply, answered.afterwards
        except EmptyConnection:
            writer.close()
            return
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()
            return
        except Exception as error:  # noqa: BLE001  # the request loop: one bad request never ends the daemon
            reply = self._excuse(error, who)
        await self._send(writer, reply)
        if afterwards is not None:
            afterwards()

    def _excuse(self, error: Exception, who: str) -> Message:
        """Return the reply to a request that failed."""
        if isinstance(error, (PermissionRefused, WireError)):
            return self._complaint(refusal(str(error)), who)
        if isinstance(error, SlurmEnergyError):
            return self._complaint(failure(str(error)), who)
        if isinstance(error, TimeoutError):
            return self._complaint(failure("the request took too long"), who)
        logger.error("request failed by=%s", who, exc_info=error)
        return self._complaint(failure(f"internal error {type(error).__name__}, see the daemon's log"), who)

    async def _send(self, writer: asyncio.StreamWriter, reply: Message | bytes) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(reply if isinstance(reply, bytes) else encode(reply))
            async with asyncio.timeout(LOCAL_TIMEOUT_SECONDS):
                await writer.drain()
        writer.close()

    def _complaint(self, reply: Message, who: str) -> Message:
        """Count a failed request and log it, at most once a minute for each kind of failure."""
        self._state.counters[f"reply {reply.verb}"] += 1
        now, reason = time.monotonic(), reply.fields.get("reason", "")
        kind = f"{reply.verb} {reason[:24]}"
        if now - self._warned.get(kind, -_WARN_INTERVAL_SECONDS) >= _WARN_INTERVAL_SECONDS:
            if len(self._warned) > 1000:
                self._warned.clear()
            self._warned[kind] = now
            logger.warning("request not served by=%s reply=%s reason=%s", who, reply.verb, reason)
        return reply


def remove_stale_socket(path: Path) -> None:
    """Remove a socket that nobody answers any more.

    Raises:
        ConfigError: another daemon answers at the path, or something else than a socket lies there.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"daemon.socket_path {path} is not a socket: remove it or choose another path")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"daemon.socket_path {path} cannot be tried: {error.strerror or error}") from error
    raise ConfigError(f"another daemon answers at {path}: stop it first, or choose another daemon.socket_path")
