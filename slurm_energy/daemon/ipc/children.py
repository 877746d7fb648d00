"""Child processes of the daemon, from both sides.

The answering process starts them, listens to them, and starts them again after a growing pause (`ChildProcess`). Each
child connects to it, logs, and ends together with it (`connect_to_parent`, `until_stopped`).
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import pack, read_frame
from slurm_energy.errors import WireError

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_AFTER_SECONDS = 60.0
STOP_SECONDS = 3.0
ENDING_SECONDS = 1.0
"""From a child's closed socket to its end."""
_PR_SET_PDEATHSIG = 1
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
NICENESS = 10
"""Children give way to the answering process, which has a job submission waiting for it."""
DOOR_NICENESS = 5
"""Of the child at which people and nodes wait: it gives way to the answers to slurmctld, not to whatever else runs."""
ANSWERING_NICENESS = 0
"""Of a child that the answering process itself waits for."""


class ChildProcess:
    """One child that runs a module; frames from it go to `receive` in order.

    `receive` may return an iterator, which is then brought to its end before the next frame is taken.

    With `line`, a child has a second socket, which keeps messages apart and is not asyncio's: `line` is given our end
    at every start, to keep and to close, and None at every end.

    `before_start` is waited for before every start.
    """

    def __init__(
        self,
        name: str,
        module: str,
        config: Callable[[], Config],
        receive: Callable[[Any], Iterable[None] | None],
        line: Callable[[socket.socket | None], None] | None = None,
        before_start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self._module = module
        self._config = config
        self._receive = receive
        self._line = line
        self._before_start = before_start
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self.crash = ""
        """The signal by which a library's fault ended it since it was last asked to start again, such as SIGSEGV."""
        self.inherited: tuple[int, ...] = ()
        """Further descriptors that every child gets; their numbers are its arguments behind those of the sockets."""

    def send(self, frame: object) -> bool:
        """Give the child a frame; return whether there was a child to take it."""
        if self._writer is None:
            return False
        self._writer.write(pack(frame))
        return True

    @property
    def backlog_bytes(self) -> int:
        """What the child has been sent and has not taken yet, beyond what the system keeps for it."""
        return 0 if self._writer is None else self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait while the child has much to take.

        Raises:
            ConnectionError: it is gone.
        """
        if self._writer is None:
            raise ConnectionResetError(f"child {self.name} is gone")
        await self._writer.drain()

    async def run(self) -> None:
        """Keep the child running until cancelled."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            if self._before_start is not None:
                await self._before_start()
            began = time.monotonic()
            try:
                await self._run_once()
            except (OSError, WireError) as error:
                logger.error("child not started name=%s error=%s", self.name, error)
            if time.monotonic() - began > HEALTHY_AFTER_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            logger.warning("child ended name=%s restart_in_seconds=%.1f", self.name, pause)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  # spreads restarts, guards nothing
            pause = min(pause * 2.0, LONGEST_PAUSE_SECONDS)

    def restart(self) -> None:
        """End the child, by force if it must be; `run` starts it again, with the configuration of that moment."""
        self.crash = ""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            # One that hangs outside of Python never sees the signal, and its end of the socket stays open.
            asyncio.get_running_loop().call_later(STOP_SECONDS, _kill, process)

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        pairs = [(ours, theirs)]
        if self._line is not None:
            pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            process = await self._start([end for _, end in pairs])
        except BaseException:
            for end, _ in pairs:
                end.close()
            raise
        finally:
            for _, end in pairs:
                end.close()
        self.starts += 1
        self._process = process
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._writer = writer
        logger.info("child started name=%s pid=%d", self.name, process.pid)
        try:
            self.send(self._config())
            if self._line is not None:
                self._line(pairs[1][0])
            while True:
                steps = self._receive(await read_frame(reader))
                await asyncio.sleep(0)  # between two frames the answers to Slurm come first
                for _ in steps or ():
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            # asyncio loses the signal that ended a process when it is asked to end in that moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDING_SECONDS):
                    await process.wait()
        finally:
            self._writer = None
            writer.close()
            if self._line is not None:
                self._line(None)
            await asyncio.shield(_ended(process))
            if -(process.returncode or 0) in _CRASHES:
                self.crash = signal.Signals(-(process.returncode or 0)).name

    async def _start(self, ends: list[socket.socket]) -> asyncio.subprocess.Process:
        numbers = [*(end.fileno() for end in ends), *self.inherited]
        start = f"import sys; from {self._module} import main; sys.exit(main(sys.argv[1:]))"
        command = (sys.executable, "-P", "-c", start, *map(str, numbers))
        return await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, pass_fds=numbers)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a child: first asked, then forced."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Stopped(BaseException):
    """SIGTERM came; a BaseException so that nothing on the way swallows it."""


def connect_to_parent(argv: list[str], niceness: int = NICENESS) -> socket.socket:
    """Return the socket to the daemon, whose number is the first argument; this process then ends with the daemon."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(niceness)
    parent = os.getppid()
    connection = socket.socket(fileno=int(argv[0]))
    if parent == 1:  # the daemon died before prctl took effect
        raise Stopped
    return connection


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let SIGTERM and the daemon's end be the end of what is done here; a SIGTERM that comes after it does nothing.

    The daemon also asks a child to end that is doing so already: raised while the interpreter shuts down, `Stopped`
    would be a traceback in the log and nothing else.
    """
    try:
        yield
    except (Stopped, EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def give_way() -> None:
    """Run behind the answering process from now on, as children do that it does not wait for."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


def set_up_logging(level: str, process_name: str) -> None:
    """Log to stderr, which the daemon's supervisor keeps; one line an event."""
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format=f"%(levelname)s {process_name} %(name)s %(message)s",
        force=True,
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    threading.current_thread().name = process_name


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped
