"""Reading one whole message from a connection that may be slow, endless or hostile."""

import asyncio
from collections.abc import Callable

from slurm_energy.errors import WireError
from slurm_energy.wire.codec import END_LINE, PROTOCOL

_CHUNK_BYTES = 65_536
_TAIL = b"\n" + END_LINE
_HEAD = f"{PROTOCOL} ".encode()


class EmptyConnection(WireError):
    """The caller closed without a word, as port scanners and health checks do."""


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
