"""One request and one reply, one deadline for the whole exchange: over the daemon's unix socket, or TCP for nodes."""

import errno
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

from slurm_energy.errors import DaemonUnavailable, DeadlineExceeded, WireError
from slurm_energy.wire.codec import END_LINE, MAX_DECIDE_BYTES, MAX_MESSAGE_BYTES, Message, decode, encode

_CHUNK_BYTES = 65_536
_TIMEVAL = struct.Struct("@ll")
ROOT_PORTS = range(665, 749)
"""A range below 1024 in which no service of a cluster's node has its place."""
FIRST_UNRESERVED_PORT = 1024
ROOT_PORT_ATTEMPTS = 8


def exchange(socket_path: Path, request: Message, deadline_seconds: float) -> Message:
    """Send a request and return the reply.

    Args:
        socket_path: The daemon's unix socket.
        request: The message to send.
        deadline_seconds: Time for connecting, sending and receiving together.

    Raises:
        DaemonUnavailable: nothing listens at the socket.
        DeadlineExceeded: no whole reply in time.
        WireError: the reply is malformed or too long.
    """
    end = time.monotonic() + deadline_seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect_local(connection, socket_path, end)
            connection.settimeout(_left(end, socket_path))
            # A daemon that refuses may answer and close before it has read the request: its reply still counts.
            with suppress(BrokenPipeError):
                connection.sendall(encode(request))
            return decode(_receive(connection, end, socket_path))
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the daemon at {socket_path} gave no whole answer within {deadline_seconds:g} s: is it busy or hung? "
                "see journalctl -u slurm-energyd"
            ) from error
        except PermissionError as error:
            raise DaemonUnavailable(
                f"the daemon's socket {socket_path} is closed to this user: daemon.socket_mode and the folders "
                "above it must let him in"
            ) from error
        except OSError as error:
            raise DaemonUnavailable(
                f"no daemon answers at {socket_path} ({error.strerror or error}; it answers on the controller "
                "alone): is slurm-energyd running?"
            ) from error


def _connect_local(connection: socket.socket, socket_path: Path, end: float) -> None:
    """Connect to a unix socket; where others fill its queue, wait for a place in it.

    With a timeout of Python's the socket does not block, and a full queue is an error at once.
    """
    left = max(_left(end, socket_path), 0.001)  # none at all would be no limit
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(left), int(left % 1 * 1e6)))
    try:
        connection.connect(str(socket_path))
    except BlockingIOError as error:
        raise TimeoutError("no place in the queue") from error


def _left(end: float, where: object) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(f"the daemon at {where} gave no whole answer in time")
    return left


def _receive(connection: socket.socket, end: float, socket_path: Path) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        connection.settimeout(_left(end, socket_path))
        try:
            chunk = connection.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            if not chunks:
                raise
            chunk = b""
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_MESSAGE_BYTES:
            raise WireError(f"the daemon's reply is over {MAX_MESSAGE_BYTES} bytes")
        if b"".join(chunks[-2:]).endswith(b"\n" + END_LINE):
            return b"".join(chunks)


def exchange_tcp(
    address: tuple[str, int], request: Message, deadline_seconds: float, connect_seconds: float | None = None
) -> Message:
    """Send a request and return the short reply; `connect_seconds` bounds the connecting, if shorter than all.

    Raises:
        DaemonUnavailable: nothing listens there, or the connection broke.
        DeadlineExceeded: no whole reply in time.
        WireError: the reply is malformed or too long.
    """
    end = time.monotonic() + deadline_seconds
    where = f"{address[0]}:{address[1]}"
    try:
        with _connected(address, min(deadline_seconds, connect_seconds or deadline_seconds)) as connection:
            connection.settimeout(_left(end, where))
            connection.sendall(encode(request))
            connection.shutdown(socket.SHUT_WR)
            return decode(_receive_to_end(connection, end, where), MAX_DECIDE_BYTES)
    except TimeoutError as error:
        raise DeadlineExceeded(f"the daemon at {where} gave no whole answer within {deadline_seconds:g} s") from error
    except OSError as error:
        raise DaemonUnavailable(f"no daemon answers at {where}: {error.strerror or error}") from error


def _connected(address: tuple[str, int], limit_seconds: float) -> socket.socket:
    """Return a connection, from a port that only root can use where we are root: the daemon keeps places for those."""
    for _ in range(ROOT_PORT_ATTEMPTS if os.geteuid() == 0 else 0):
        port = ROOT_PORTS[int.from_bytes(os.urandom(2)) % len(ROOT_PORTS)]
        try:
            return socket.create_connection(address, limit_seconds, source_address=("", port))
        except OSError as error:
            if error.errno == errno.EACCES:  # root without the right to them, as in some containers
                break
            if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL}:
                raise
    return socket.create_connection(address, limit_seconds)


def _receive_to_end(connection: socket.socket, end: float, where: str) -> bytes:
    received = bytearray()
    while len(received) <= MAX_DECIDE_BYTES:
        connection.settimeout(_left(end, where))
        chunk = connection.recv(65_536)
        if not chunk:
            return bytes(received)
        received += chunk
    raise WireError(f"the daemon's reply is over {MAX_DECIDE_BYTES} bytes")
