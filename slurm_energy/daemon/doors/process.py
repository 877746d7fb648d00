"""The door child: reads what users, nodes and unauthenticated senders send, so that the answering process never has to.

Its arguments are the numbers of its socket to the daemon, of the unix socket for people, and of the TCP socket at which
nodes report (where the site has one).
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.daemon.doors.callers import Peer, privileged_user_ids
from slurm_energy.daemon.doors.power import BudgetSeries, RunningClocks
from slurm_energy.daemon.doors.reports import NodeStatuses, ReportReceiver
from slurm_energy.daemon.doors.server import Server
from slurm_energy.daemon.ipc.channel import pack, read_frame, receive
from slurm_energy.daemon.ipc.children import DOOR_NICENESS, connect_to_parent, set_up_logging, until_stopped
from slurm_energy.daemon.ipc.frames import DoorCounts, PeerReply, PeerRequest
from slurm_energy.daemon.recorder.entries import REPORTS_STREAM, JournalQueue
from slurm_energy.daemon.recorder.journal import JournalWriter, journal_directory
from slurm_energy.errors import AuthenticationError, DaemonUnavailable, SlurmEnergyError
from slurm_energy.wire.authentication import load_key
from slurm_energy.wire.codec import Message

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 1.5
ANSWER_SECONDS = 65.0
COUNT_SECONDS = 0.2


class Parent:
    """Asks the answering process, and reports to it what was counted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._open: dict[int, asyncio.Queue[PeerReply]] = {}
        self._counts: Counter[str] = Counter()
        self._telling: asyncio.TimerHandle | None = None

    async def ask(self, message: Message, peer: Peer) -> AsyncIterator[bytes]:
        """Yield the parts of the encoded reply.

        Raises:
            DaemonUnavailable: there is none in time.
        """
        self._number += 1
        number = self._number
        parts: asyncio.Queue[PeerReply] = asyncio.Queue()
        self._open[number] = parts
        try:
            self._writer.write(pack(PeerRequest(number=number, message=message, peer=peer)))
            while True:
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        reply = await parts.get()
                except TimeoutError:
                    raise DaemonUnavailable(f"the daemon gave no answer within {ANSWER_SECONDS:g} s") from None
                yield reply.part
                if reply.last:
                    return
        finally:
            del self._open[number]

    def count(self, name: str, by: int) -> None:
        """Count something, and report it soon."""
        self._counts[name] += by
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(COUNT_SECONDS, self._tell)

    async def listen(self) -> None:
        """Take the answers until the daemon is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame: Any = await read_frame(self._reader)
                if isinstance(frame, PeerReply) and frame.number in self._open:
                    self._open[frame.number].put_nowait(frame)

    def _tell(self) -> None:
        self._telling = None
        self._writer.write(pack(DoorCounts(dict(self._counts))))
        self._counts.clear()


async def serve(config: Config, connection: socket.socket, listeners: Sequence[socket.socket]) -> None:
    """Serve both doors until SIGTERM, or until the daemon is gone."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    parent = Parent(*await asyncio.open_unix_connection(sock=connection))
    key = _report_key(config)
    privileged = privileged_user_ids(config.cluster.slurm_user)
    journal = JournalQueue(JournalWriter(journal_directory(config), REPORTS_STREAM))
    nodes = NodeStatuses(Path(config.daemon.state_directory))
    reports = ReportReceiver(journal, nodes, key, privileged, parent.count)
    budget = BudgetSeries(config.power)
    budget.follow()
    running = RunningClocks(config.power, budget, Path(config.daemon.state_directory), time.monotonic)
    server = Server(parent, reports, running, privileged, parent.count)
    writing = asyncio.create_task(journal.run())
    listening = asyncio.create_task(parent.listen())
    for task in (writing, listening):
        task.add_done_callback(lambda _task: stop.set())
    for listener in listeners:
        server.listen(listener)
    await stop.wait()
    # A daemon that is gone may be followed by another: nothing more is taken in its name.
    await server.drain(0.0 if os.getppid() == 1 or listening.done() else DRAIN_SECONDS)
    for task in (writing, listening):
        task.cancel()
    await asyncio.gather(writing, listening, return_exceptions=True)
    await journal.close()
    reports.close()


def _report_key(config: Config) -> bytes | None:
    """Return the key of reports, None for munge; a random one where it cannot be read: users are still served."""
    if config.node.authentication != "hmac":
        return None
    try:
        return load_key(Path(config.node.hmac_key_path))
    except AuthenticationError as error:
        logger.error("no report is taken until a reload error=%s", error)
        return os.urandom(32)


def hold_stream(directory: Path) -> None:
    """Wait until no other process writes the stream of reports: that of a daemon that was killed may be about to end.

    Where no lock can be had (the disk is full or gone), reports cannot be written either, and people are served.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / f"{REPORTS_STREAM}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.warning("journal cannot be used directory=%s error=%s", directory, error)
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # until this process ends


def _raise_descriptor_limit() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))


def main(argv: list[str] | None = None) -> int:
    """Run the child."""
    arguments = sys.argv[1:] if argv is None else argv
    with until_stopped():
        try:
            connection = connect_to_parent(arguments, DOOR_NICENESS)
            config: Config = receive(connection)
            set_up_logging(config.daemon.log_level, "door")
            _raise_descriptor_limit()
            listeners = [socket.socket(fileno=int(number)) for number in arguments[1:]]
            connection.setblocking(False)
            hold_stream(journal_directory(config))
            asyncio.run(serve(config, connection, listeners))
        except SlurmEnergyError as error:
            logger.error("door cannot serve error=%s", error)
            return 1
    return 0
