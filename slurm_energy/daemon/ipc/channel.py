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
_NUMBER = struct.Struct("!Q")
MAX_FRAME_BYTES = 64 * 1024 * 1024
_PART_BYTES = 1 << 20


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


def pack_numbered(number: int, frame: object) -> bytes:
    """Return the bytes of one frame with a number before it, for a socket that keeps messages apart."""
    return _NUMBER.pack(number) + pickle.dumps(frame, protocol=pickle.HIGHEST_PROTOCOL)


def number_of(message: bytes) -> int:
    """Return the number of a message, without looking into its frame.

    Raises:
        WireError: it is too short to have one.
    """
    if len(message) < _NUMBER.size:
        raise WireError(f"message of {len(message)} bytes has no number")
    (number,) = _NUMBER.unpack_from(message)
    return int(number)


def unpack_numbered(message: bytes) -> Any:
    """Return the frame of a numbered message.

    Raises:
        WireError: it is none.
    """
    try:
        return pickle.loads(message[_NUMBER.size :])  # noqa: S301  # private socket pair
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"message of {len(message)} bytes cannot be read: {error}") from error


class FrameBuffer:
    """Frames of a connection that must not be waited for: only whole ones are given out."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._bytes = bytearray()

    def fill(self) -> None:
        """Take what has arrived.

        Raises:
            EOFError: the other end is gone.
        """
        try:
            part = self._connection.recv(_PART_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not part:
            raise EOFError
        self._bytes += part

    def has_frame(self) -> bool:
        """Whether a whole frame is there."""
        return len(self._bytes) >= _HEADER.size and len(self._bytes) >= _HEADER.size + self._size()

    def take(self) -> Any:
        """Return the next frame, which must be there."""
        end = _HEADER.size + self._size()
        body = bytes(self._bytes[_HEADER.size : end])
        del self._bytes[:end]
        return pickle.loads(body)  # noqa: S301  # private socket pair

    def _size(self) -> int:
        (size,) = _HEADER.unpack_from(self._bytes)
        return _bounded(size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, _PART_BYTES))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _bounded(size: int) -> int:
    if size > MAX_FRAME_BYTES:
        raise WireError(f"frame of {size} bytes is over {MAX_FRAME_BYTES}")
    return size
