import asyncio

import pytest

from slurm_energy.daemon.reading import EmptyConnection, MemoryShare, read_message
from slurm_energy.errors import DaemonUnavailable, WireError
from slurm_energy.wire.codec import Message, encode

PING = encode(Message("ping"))


def read(data: bytes, limit_bytes: int = 1000, share: MemoryShare | None = None) -> Message:
    async def scenario() -> Message:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_message(reader, limit_bytes, share or MemoryShare(10_000))

    return asyncio.run(scenario())


def test_a_whole_message_is_read() -> None:
    assert read(PING) == Message("ping")


def test_a_caller_without_a_word_is_told_apart_from_a_cut_off_message() -> None:
    with pytest.raises(EmptyConnection):
        read(b"")
    with pytest.raises(WireError, match="cut off"):
        read(PING[:-1])


def test_a_message_over_the_limit_is_refused() -> None:
    with pytest.raises(WireError, match="over 10 bytes"):
        read(PING, limit_bytes=10)


def test_all_connections_together_hold_no_more_than_their_share_and_give_it_back() -> None:
    share = MemoryShare(len(PING) + 5)
    for _ in range(3):
        assert read(PING, share=share) == Message("ping")
    with pytest.raises(WireError):
        read(b"x" * 20, limit_bytes=10, share=share)
    assert read(PING, share=share) == Message("ping")
    share.take(10)
    with pytest.raises(DaemonUnavailable, match="try again later"):
        read(PING, share=share)
