"""Child processes of the daemon: started, listened to, started again after a growing pause, ended with it."""

import asyncio
import contextlib
import logging
import random
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from slurm_energy.config import Config
from slurm_energy.daemon.channel import pack, read_frame
from slurm_energy.errors import WireError

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_AFTER_SECONDS = 60.0
STOP_SECONDS = 3.0


class ChildProcess:
    """One child that runs a module; frames from it go to `receive` in order.

    `receive` may return an iterator, which is then brought to its end before the next frame is taken.

    With `line`, a child has a second socket, which keeps messages apart and is not asyncio's: `line` is given our end
    at every start, to keep and to close, and None at every end.

    `worth_a_start` is waited for before every start.
    """

    def __init__(
        self,
        name: str,
        module: str,
        config: Callable[[], Config],
        receive: Callable[[Any], Iterable[None] | None],
        line: Callable[[socket.socket | None], None] | None = None,
        worth_a_start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self._module = module
        self._config = config
        self._receive = receive
        self._line = line
        self._worth_a_start = worth_a_start
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self.inherited: tuple[int, ...] = ()
        """Further descriptors that every child gets; their numbers are its arguments behind those of the sockets."""

    @property
    def connected(self) -> bool:
        """Whether the child runs and takes frames."""
        return self._writer is not None

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
            if self._worth_a_start is not None:
                await self._worth_a_start()
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
            pass
        finally:
            self._writer = None
            writer.close()
            if self._line is not None:
                self._line(None)
            await asyncio.shield(_ended(process))

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
