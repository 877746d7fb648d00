"""One request, one reply, one deadline for the whole exchange, over the daemon's unix socket."""

import socket
import time
from contextlib import suppress
from pathlib import Path

from slurm_energy.errors import DaemonUnavailable, DeadlineExceeded, WireError
from slurm_energy.wire.codec import END_LINE, MAX_MESSAGE_BYTES, Message, decode, encode

_CHUNK_BYTES = 65_536


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
            connection.settimeout(_left(end, socket_path))
            connection.connect(str(socket_path))
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


def _left(end: float, socket_path: Path) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(f"the daemon at {socket_path} gave no whole answer in time")
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
