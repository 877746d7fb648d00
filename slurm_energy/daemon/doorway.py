"""The unix socket's door: what slurmctld asks is answered at once, every other connection goes to the door's process.

slurmctld holds its locks while it waits. Its request is short and there as soon as the connection is, so it is read,
answered and closed without setting up a stream and a task, which would cost more than the decision itself. Of anybody
else nothing is read here: his connection is handed over as it is, for some microseconds.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from slurm_energy.daemon.peers import Peer, peer_of
from slurm_energy.daemon.rate import RateLimit
from slurm_energy.errors import ConfigError
from slurm_energy.wire.codec import END_LINE, MAX_DECIDE_BYTES, PROTOCOL

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPTS_AT_ONCE = 32
_CONNECTIONS_PER_SECOND = 100.0
_CONNECTIONS_BURST = 200.0
"""Of one unprivileged user; the others are closed unread."""
_FIRST_BYTES_SECONDS = 0.001
_PAUSE_SECONDS = 0.1
_BEGIN = f"{PROTOCOL} decide\n".encode()
_END = b"\n" + END_LINE

AnswerNow = Callable[[bytes, Peer], tuple[bytes, Callable[[], None] | None]]
"""From a whole request to the reply and what to do afterwards; never raises."""
HandOver = Callable[[socket.socket], None]
"""Gives a connection to the door's process; never raises and never waits."""


class LocalDoor:
    """Accepts connections at a unix socket."""

    def __init__(self, privileged: Callable[[], frozenset[int]], now: AnswerNow, hand_over: HandOver) -> None:
        self._privileged = privileged
        self._now = now
        self._hand_over = hand_over
        self._rate = RateLimit(per_second=_CONNECTIONS_PER_SECOND, burst=_CONNECTIONS_BURST)
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """Whether it accepts."""
        return self._socket is not None

    def open(self, path: Path, mode: int) -> None:
        """Listen at a path; a socket that nobody answers any more is replaced.

        Raises:
            ConfigError: another daemon answers there, or the path cannot be used.
        """
        remove_stale_socket(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.setblocking(False)
        mask = os.umask(0o177)  # nobody connects before the mode is the configured one
        try:
            listening.bind(str(path))
            listening.listen(_BACKLOG)
            path.chmod(mode)
        except OSError as error:
            listening.close()
            raise ConfigError(f"daemon.socket_path {path} cannot be used: {error.strerror or error}") from error
        finally:
            os.umask(mask)
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept nothing more."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if self._socket is None:
                return
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor left: others must end first
                logger.warning("connection not accepted error=%s", error)
                self._pause()
                return
            self._meet(connection)

    def _pause(self) -> None:
        loop, listening = asyncio.get_running_loop(), self._socket
        assert listening is not None
        loop.remove_reader(listening)

        def go_on() -> None:
            if self._socket is listening:
                loop.add_reader(listening, self._accept)

        loop.call_later(_PAUSE_SECONDS, go_on)

    def _meet(self, connection: socket.socket) -> None:
        first = b""
        try:
            peer = peer_of(connection, self._privileged())
            if peer.privileged:
                first = _first_bytes(connection)
        except OSError:
            connection.close()
            return
        if first.startswith(_BEGIN) and first.endswith(_END):
            self._answer_at_once(connection, first, peer)
            return
        if peer.privileged or self._rate.allows(peer.user_id, time.monotonic()):
            self._hand_over(connection)
        connection.close()

    def _answer_at_once(self, connection: socket.socket, request: bytes, peer: Peer) -> None:
        reply, afterwards = self._now(request, peer)
        with connection, contextlib.suppress(OSError):
            connection.recv(len(request))  # what is left unread would turn the close into a reset
            sent = connection.send(reply)
            if sent < len(reply):
                connection.settimeout(_FIRST_BYTES_SECONDS)
                connection.sendall(reply[sent:])
        if afterwards is not None:
            asyncio.get_running_loop().call_soon(afterwards)


def _first_bytes(connection: socket.socket) -> bytes:
    """Return what a privileged caller has sent by now, without taking it; waits for a millisecond at most."""
    connection.settimeout(_FIRST_BYTES_SECONDS)
    try:
        return connection.recv(MAX_DECIDE_BYTES + 1, socket.MSG_PEEK)
    except TimeoutError:
        return b""


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
