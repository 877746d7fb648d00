"""Reading one whole message from a connection that may be slow, endless or hostile."""

import asyncio

from slurm_energy.errors import DaemonUnavailable, WireError
from slurm_energy.wire.codec import END_LINE, Message, decode

_CHUNK_BYTES = 65_536
_TAIL = b"\n" + END_LINE


class EmptyConnection(WireError):
    """The caller closed without a word, as port scanners and health checks do."""


class MemoryShare:
    """How much all connections of one door may hold in memory together."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes

    def take(self, count: int) -> None:
        """Take some of it.

        Raises:
            DaemonUnavailable: so much is not left.
        """
        if count > self._left:
            raise DaemonUnavailable("too many large messages at once: try again later")
        self._left -= count

    def give_back(self, count: int) -> None:
        """Return what was taken."""
        self._left += count


async def read_message(reader: asyncio.StreamReader, limit_bytes: int, share: MemoryShare) -> Message:
    """Return the one message of a connection; the caller's timeout bounds the whole wait.

    Raises:
        WireError: too long, cut off or malformed.
        DaemonUnavailable: all connections together hold too much.
    """
    taken = 0
    raw = bytearray()
    try:
        while not raw.endswith(_TAIL):
            chunk = await reader.read(_CHUNK_BYTES)
            if not chunk:
                if not raw:
                    raise EmptyConnection("connection closed without a message")
                break
            share.take(len(chunk))
            taken += len(chunk)
            raw += chunk
            if len(raw) > limit_bytes:
                raise WireError(f"message is over {limit_bytes} bytes")
        return decode(bytes(raw), limit_bytes)
    finally:
        share.give_back(taken)
