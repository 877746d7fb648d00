import asyncio

import pytest

from slurm_energy.daemon.doors.server import EmptyConnection, read_whole
from slurm_energy.errors import WireError
from slurm_energy.wire.codec import Message, encode

PING = encode(Message("ping"))


def read(data: bytes, limit_bytes: int = 1000, grown: list[int] | None = None) -> bytes:
    async def scenario() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_whole(reader, limit_bytes, ([] if grown is None else grown).append)

    return asyncio.run(scenario())


def test_a_whole_message_is_read_and_its_growth_is_told() -> None:
    grown: list[int] = []
    assert read(PING, grown=grown) == PING
    assert sum(grown) == len(PING)


def test_a_caller_without_a_word_is_told_apart_from_a_cut_off_message() -> None:
    with pytest.raises(EmptyConnection):
        read(b"")
    assert read(PING[:-1]) == PING[:-1]


def test_a_message_over_the_limit_is_refused() -> None:
    with pytest.raises(WireError, match="over 10 bytes"):
        read(PING, limit_bytes=10)


@pytest.mark.parametrize(
    "other", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01" + bytes(60_000), b"slurm-energy/2 ping\nend\n"]
)
def test_another_protocol_is_refused_at_its_first_bytes(other: bytes) -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(other)  # and no end: nothing more is waited for
        await read_whole(reader, 100_000)

    with pytest.raises(WireError, match="message speaks"):
        asyncio.run(scenario())
