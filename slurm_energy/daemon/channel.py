"""Frames over a private socket pair between the daemon and its own children.

Pickle is safe here and only here: both ends are this program, started by itself, over an unnamed socket pair.
"""

import asyncio
import pickle  # see above
import socket
import struct
from typing import Any

from slurm_energy.errors import WireError

_HEADER = struct.Struct("!I")
MAX_FRAME_BYTES = 64 * 1024 * 1024


def pack(frame: object) -> bytes:
    """Return the bytes of one frame."""
    body = pickle.dumps(frame, protocol=pickle.HIGHEST_PROTOCOL)
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"frame of {len(body)} bytes is over {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """Return the next frame; raises asyncio.IncompleteReadError at the end of the stream."""
    (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    return pickle.loads(await reader.readexactly(_bounded(size)))  # noqa: S301  # private socket pair


def receive(connection: socket.socket) -> Any:
    """Return the next frame, waiting for it; raises EOFError when the other end is gone."""
    (size,) = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return pickle.loads(_exactly(connection, _bounded(size)))  # noqa: S301  # private socket pair


def send(connection: socket.socket, frame: object) -> None:
    """Send one frame, waiting while the other end is busy."""
    connection.sendall(pack(frame))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _bounded(size: int) -> int:
    if size > MAX_FRAME_BYTES:
        raise WireError(f"frame of {size} bytes is over {MAX_FRAME_BYTES}")
    return size
