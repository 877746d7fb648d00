"""Reading one whole message from a connection that may be slow, endless or hostile."""

import asyncio

from slurm_energy.errors import WireError
from slurm_energy.wire.codec import END_LINE, Message, decode

_CHUNK_BYTES = 65_536
_TAIL = b"\n" + END_LINE


class EmptyConnection(WireError):
    """The caller closed without a word, as port scanners and health checks do."""


async def read_message(reader: asyncio.StreamReader, limit_bytes: int) -> Message:
    """Return the one message of a connection; the caller's timeout bounds the whole wait.

    Raises:
        WireError: too long, cut off or malformed.
    """
    raw = bytearray()
    while not raw.endswith(_TAIL):
        chunk = await reader.read(_CHUNK_BYTES)
        if not chunk:
            if not raw:
                raise EmptyConnection("connection closed without a message")
            break
        raw += chunk
        if len(raw) > limit_bytes:
            raise WireError(f"message is over {limit_bytes} bytes")
    return decode(bytes(raw), limit_bytes)
