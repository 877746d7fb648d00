"""slurmctld's door: a unix socket of its own, whose requests are answered at once.

slurmctld holds its locks while it waits. Its request is short and there as soon as the connection is, so it is read,
answered and closed without setting up a stream and a task, which would cost more than the decision itself. The socket
is open to SlurmUser and root alone: a user can neither connect there nor fill the queue in which slurmctld waits.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from slurm_energy.daemon.doors.callers import Peer, peer_of
from slurm_energy.errors import ConfigError
from slurm_energy.wire.codec import END_LINE, MAX_DECIDE_BYTES

logger = logging.getLogger(__name__)

BACKLOG = 1024
REQUEST_SECONDS = 5.0
PREDECESSOR_SECONDS = 3.0
"""How long the processes of a daemon that was killed may take to end."""
_ACCEPTS_AT_ONCE = 16
_FIRST_BYTES_SECONDS = 0.001
_PAUSE_SECONDS = 0.1
_END = b"\n" + END_LINE

AnswerNow = Callable[[bytes, Peer], tuple[bytes, Callable[[], None] | None]]
"""From a whole request to the reply and what to do afterwards; never raises."""


class PluginDoor:
    """Accepts slurmctld's connections."""

    def __init__(self, privileged: Callable[[], frozenset[int]], now: AnswerNow) -> None:
        self._privileged = privileged
        self._now = now
        self._socket: socket.socket | None = None

    def open(self, listening: socket.socket) -> None:
        """Answer what comes at a listening socket."""
        listening.setblocking(False)
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def close(self) -> list[str]:
        """Accept nothing more than what has come already; return the path at which it did.

        Notifications of the plugin, whose reply is not waited for, lie in the queue and would go with it.
        """
        if self._socket is None:
            return []
        path: str = self._socket.getsockname()
        asyncio.get_running_loop().remove_reader(self._socket)
        for _ in range(BACKLOG):
            if not self._accept_one(self._socket):
                break
        self._socket.close()
        self._socket = None
        return [path]

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if self._socket is None or not self._accept_one(self._socket):
                return

    def _accept_one(self, listening: socket.socket) -> bool:
        """Accept the next connection; return whether there was one."""
        try:
            connection, _address = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:  # no descriptor left: others must end first
            logger.warning("connection not accepted error=%s", error)
            self._pause(listening)
            return False
        self._on_connect(connection)
        return True

    def _pause(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def go_on() -> None:
            if self._socket is listening:
                loop.add_reader(listening, self._accept)

        loop.call_later(_PAUSE_SECONDS, go_on)

    def _on_connect(self, connection: socket.socket) -> None:
        try:
            peer = peer_of(connection, self._privileged())
            first = _first_bytes(connection) if peer.privileged else b""
        except OSError:
            connection.close()
            return
        if not peer.privileged:
            connection.close()
        elif first.endswith(_END):
            self._answer(connection, first, peer)
        else:
            self._wait(connection, bytearray(first), peer)

    def _wait(self, connection: socket.socket, raw: bytearray, peer: Peer) -> None:
        """Read the rest of a request as it comes, for a while."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)

        def stop() -> None:
            timer.cancel()
            loop.remove_reader(connection)

        def give_up() -> None:
            stop()
            connection.close()

        def read() -> None:
            try:
                chunk = connection.recv(MAX_DECIDE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                give_up()
                return
            raw.extend(chunk)
            if not chunk and not raw:
                give_up()
            elif not chunk or raw.endswith(_END) or len(raw) > MAX_DECIDE_BYTES:
                stop()
                self._answer(connection, bytes(raw), peer)

        timer = loop.call_later(REQUEST_SECONDS, give_up)
        loop.add_reader(connection, read)

    def _answer(self, connection: socket.socket, request: bytes, peer: Peer) -> None:
        reply, afterwards = self._now(request, peer)
        with connection, contextlib.suppress(OSError):
            sent = 0
            with contextlib.suppress(BlockingIOError):
                sent = connection.send(reply, socket.MSG_DONTWAIT)
            if sent < len(reply):
                connection.settimeout(_FIRST_BYTES_SECONDS)
                connection.sendall(reply[sent:])
        if afterwards is not None:  # before the next request, whose answer may rest on it
            try:
                afterwards()
            except Exception:
                logger.exception("an answered request was not recorded")


def _first_bytes(connection: socket.socket) -> bytes:
    """Return what a caller has sent by now; waits for a millisecond at most."""
    try:
        return connection.recv(MAX_DECIDE_BYTES + 1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        connection.settimeout(_FIRST_BYTES_SECONDS)
    try:
        return connection.recv(MAX_DECIDE_BYTES + 1)
    except TimeoutError:
        return b""


def local_listener(path: Path, mode: int) -> socket.socket:
    """Return a unix socket that listens at a path; one at which no daemon answers any more is replaced.

    Raises:
        ConfigError: another daemon answers there, or the path cannot be used.
    """
    remove_stale_socket(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # no connection before the mode is the configured one
    try:
        listening.bind(str(path))
        listening.listen(BACKLOG)
        path.chmod(mode)
    except OSError as error:
        listening.close()
        raise ConfigError(f"daemon.socket_path {path} cannot be used: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    return listening


def plugin_listener(path: Path, slurm_user_id: int | None) -> socket.socket:
    """Return the socket for slurmctld, open to its user and to root.

    Raises:
        ConfigError: the path cannot be used.
    """
    listening = local_listener(path, 0o600)
    if slurm_user_id not in {None, os.geteuid()}:
        try:
            os.chown(path, slurm_user_id or 0, -1)
        except OSError:
            path.chmod(0o666)
            logger.warning("socket open to every user path=%s: run the daemon as SlurmUser, who alone asks there", path)
    return listening


def report_listener(host: str, port: int) -> socket.socket:
    """Return the TCP socket at which nodes report; it outlives the processes that accept at it.

    Raises:
        ConfigError: the address cannot be used.
    """
    end = time.monotonic() + PREDECESSOR_SECONDS
    while True:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            (found, *_rest) = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return socket.create_server(found[4][:2], family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise ConfigError(
                    f"daemon.report_host {host} with report_port {port} cannot be used: {error.strerror or error}"
                ) from error
        time.sleep(_PAUSE_SECONDS)


def remove_stale_socket(path: Path) -> None:
    """Remove a socket at which no daemon answers any more.

    Raises:
        ConfigError: another daemon answers at the path, or something else than a socket lies there.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"daemon.socket_path {path} is not a socket: remove it or choose another path")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    end = time.monotonic() + PREDECESSOR_SECONDS
    while _answers(path):
        if time.monotonic() > end:
            raise ConfigError(f"another daemon answers at {path}: stop it first, or choose another daemon.socket_path")
        time.sleep(_PAUSE_SECONDS)
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (BlockingIOError, TimeoutError):  # its queue is full: something listens
            return True
        except OSError as error:
            raise ConfigError(f"daemon.socket_path {path} cannot be tried: {error.strerror or error}") from error
    return True
