"""slurmctld's door: nothing that it was told is lost when it closes."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from slurm_energy.daemon.doors.callers import Peer
from slurm_energy.daemon.doors.listeners import plugin_listener
from slurm_energy.daemon.doors.plugin import PluginDoor
from slurm_energy.wire.codec import Message, encode


def test_what_was_told_before_the_end_is_taken_in(tmp_path: Path) -> None:
    path = tmp_path / "energyd.sock.ctl"
    heard: list[bytes] = []
    recorded: list[bytes] = []

    def now(request: bytes, peer: Peer) -> tuple[bytes, Callable[[], None] | None]:
        assert peer.privileged
        heard.append(request)
        return encode(Message("ok", {})), lambda: recorded.append(request)

    def tell(request: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
            connection.sendall(request)

    requests = [encode(Message("reused", {"decision_id": f"decision{number}"})) for number in range(40)]

    async def close_with_a_full_queue() -> None:
        door = PluginDoor(lambda: frozenset({os.geteuid()}), now)
        door.open(plugin_listener(path, os.geteuid()))
        for request in requests:
            tell(request)
        assert heard == []
        assert door.close() == [str(path)]
        await asyncio.sleep(0)

    asyncio.run(close_with_a_full_queue())
    assert heard == recorded == requests
