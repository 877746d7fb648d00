"""Which policy answers: the live one, and a learned one that is getting ready to take its place.

A learned policy runs in a child, which is fed with the cluster's snapshots, listened to, and started again when it
hangs. A new one is started beside the old and takes over when it is ready; one that cannot be loaded is refused, and
the old one stays.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from slurm_energy.config import Config
from slurm_energy.daemon.decide import Decider
from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.ipc.frames import PolicyAtSnapshot, PolicyLoaded, PolicyRefused, SnapshotComplete
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.snapshot.feed import SnapshotCopy, SnapshotFrame
from slurm_energy.daemon.state import DaemonState
from slurm_energy.errors import CheckpointError
from slurm_energy.policy.automatic import checkpoint_folder
from slurm_energy.policy.checkpoint_files import FilesMark, files_mark, open_folder, read_metadata

logger = logging.getLogger(__name__)

POLICY_MODULE = "slurm_energy.daemon.policy.process"
LOOK_SECONDS = 1.0
SILENT_SECONDS = 30.0
"""A process that leaves questions or snapshots unanswered for so long hangs, and is started again."""
LOADING_SECONDS = 120.0
"""The same until it is ready: the first snapshot is the most work."""
MAX_STARTS = 3
"""A process that ended so often, and was never ready, will never be."""
FILES_LOOK_SECONDS = 5.0
"""How often the files of a refused checkpoint are looked at."""
MAX_BACKLOG_BYTES = 64 * 1024 * 1024
MAX_WAITING_FRAMES = 10_000
HELD_BACK = "tried again with other files or at a reload"


class Process(Protocol):
    """What is needed of a child process."""

    @property
    def starts(self) -> int:
        """How often it has been started."""
        ...

    @property
    def backlog_bytes(self) -> int:
        """What it has been sent and has not taken."""
        ...

    def send(self, frame: object) -> bool:
        """Give it a frame; return whether it could."""
        ...

    async def drain(self) -> None:
        """Wait while it has much to take; raises ConnectionError when it is gone."""
        ...

    async def run(self) -> None:
        """Keep it running until cancelled."""
        ...

    def restart(self) -> None:
        """End it, to be started again."""
        ...


class PolicyChild:
    """Ties a policy's process to its end in this process; `on_change` is called after every event of it."""

    def __init__(
        self,
        config: Config,
        policy: RemotePolicy,
        copy: SnapshotCopy,
        on_change: Callable[["PolicyChild"], None],
        make_process: Callable[["PolicyChild"], Process],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.policy = policy
        self.mark = policy_mark(config)
        self.process = make_process(self)
        self.task: asyncio.Task[None] | None = None
        """Of `process.run`, once it is started."""
        self.refusal = ""
        """Why there is no hope that it will be ready."""
        self._copy = copy
        self._on_change = on_change
        self._clock = clock
        self._catching_up: asyncio.Task[None] | None = None
        self._waiting: deque[SnapshotFrame] | None = None
        """What comes while the process is given the whole copy; None when it has it."""
        self._loading_since: float | None = None
        self._unheard_since: float | None = None
        """When it was first given a snapshot that it has said nothing about."""
        self._was_ready = False
        self._files: FilesMark | None = None
        """The checkpoint's files when the process was last started."""
        self._held_back = False
        """Whether those files were refused."""

    async def before_start(self) -> None:
        """Wait where the checkpoint was refused until its files are others, or `try_again`."""
        folder = checkpoint_folder(self.config)
        files = await asyncio.to_thread(files_mark, folder)  # not here: a file system of the network may hang
        if self._held_back:
            logger.warning("policy not started again before other files or a reload checkpoint=%s", folder)
        while self._held_back and files == self._files:
            await asyncio.sleep(FILES_LOOK_SECONDS)
            files = await asyncio.to_thread(files_mark, folder)
        self._files, self._held_back = files, False

    def try_again(self) -> None:
        """Start a process again that was held back, whatever its checkpoint's files."""
        self._held_back = False

    def connect(self, line: socket.socket | None) -> None:
        """Take the line to a process that has started, or None when it has ended."""
        self._let_go()
        if line is not None:
            self._loading_since = self._clock()
            self.policy.connect(line)
            self._waiting = deque()
            self._catching_up = asyncio.get_running_loop().create_task(self._send_all(self._copy.frames()))
            return
        if self.process.starts >= MAX_STARTS and not self._was_ready and not self.refusal:
            self.refusal = f"its process ended {self.process.starts} times before it was ready"
        self._on_change(self)

    def receive(self, frame: Any) -> None:
        """Take one frame of the process."""
        if isinstance(frame, PolicyLoaded):
            self._loading_since = None
            self.policy.loaded(frame.version)
            logger.info("policy loaded name=%s version=%s seconds=%.2f", frame.name, frame.version, frame.seconds)
        elif isinstance(frame, PolicyAtSnapshot):
            self._unheard_since = None
            self._note_snapshot(frame)
        elif isinstance(frame, PolicyRefused):
            self.refusal = frame.reason
            self._held_back = frame.by_checkpoint
            self.policy.refused(frame.reason, HELD_BACK if frame.by_checkpoint else "")
            logger.error("policy not loaded name=%s reason=%s", self.policy.name, frame.reason)
        self._on_change(self)

    def forward(self, frame: SnapshotFrame) -> None:
        """Pass a part of a snapshot on."""
        if self._waiting is not None:
            self._waiting.append(frame)
        else:
            self._send(frame)

    def look_after(self) -> None:
        """Start the process again if it hangs."""
        reason = self._trouble()
        if reason:
            logger.error("policy process hangs, it is started again name=%s reason=%s", self.policy.name, reason)
            self._let_go()
            self.process.restart()

    def stop(self) -> None:
        """End the process for good."""
        self._let_go()
        if self.task is not None:
            self.task.cancel()

    def _trouble(self) -> str:
        now = self._clock()
        limit = SILENT_SECONDS if self.policy.ready else LOADING_SECONDS
        silent = max(self.policy.silent_seconds(), _since(self._unheard_since, now))
        waiting = 0 if self._waiting is None else len(self._waiting)
        if _since(self._loading_since, now) >= LOADING_SECONDS:
            return f"not loaded within {LOADING_SECONDS:.0f} s"
        if silent >= limit:
            return f"no answer for {silent:.0f} s"
        if waiting > MAX_WAITING_FRAMES or self.process.backlog_bytes > MAX_BACKLOG_BYTES:
            return f"snapshots not taken, {waiting} parts and {self.process.backlog_bytes} bytes wait"
        return ""

    def _let_go(self) -> None:
        """Use the process no more, whether it has ended or is about to."""
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._waiting, self._catching_up = None, None
        self._loading_since, self._unheard_since = None, None
        self.policy.disconnect()

    def _note_snapshot(self, frame: PolicyAtSnapshot) -> None:
        log = logger.debug if self.policy.ready else logger.info
        log("policy at snapshot taken_at=%.1f seconds=%.3f", frame.taken_at_seconds, frame.seconds)
        self._was_ready, self.refusal = True, ""
        if frame.trouble:
            self.policy.troubled(frame.trouble)
            self.policy.counters["policy snapshots failed"] += 1
        else:
            self.policy.at_snapshot(frame.detached, frame.taken_at_seconds)

    def _send(self, frame: SnapshotFrame) -> None:
        if self.process.send(frame) and isinstance(frame, SnapshotComplete) and self._unheard_since is None:
            self._unheard_since = self._clock()

    async def _send_all(self, frames: Iterator[SnapshotFrame]) -> None:
        """Give the process the whole copy and what has come since, a part at a time: answers to Slurm come first."""
        waiting = self._waiting
        assert waiting is not None
        try:
            for frame in frames:
                self._send(frame)
                await self.process.drain()
                await asyncio.sleep(0)
            while waiting:
                self._send(waiting.popleft())
                await self.process.drain()
        except ConnectionError:
            return
        self._waiting = None


class PolicySlot:
    """Holds the policies' processes and puts the right policy into the daemon's state."""

    def __init__(self, state: DaemonState, copy: SnapshotCopy, module: str = POLICY_MODULE) -> None:
        """Make the parts.

        Args:
            state: Of the daemon; its decider is the live one.
            copy: The cluster as the daemon knows it.
            module: What a policy's child runs.
        """
        self._state = state
        self._copy = copy
        self._module = module
        self._live: PolicyChild | None = None
        self._candidate: PolicyChild | None = None
        self._group: asyncio.TaskGroup | None = None
        if isinstance(state.decider.policy, RemotePolicy):
            self._live = self._child(state.config, state.decider.policy)

    async def run(self) -> None:
        """Keep the children running and look after them until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for child in self._children():
                    self._start(child)
                while True:
                    await asyncio.sleep(LOOK_SECONDS)
                    for child in self._children():
                        child.look_after()
        finally:
            self._group = None

    def forward(self, frame: SnapshotFrame) -> None:
        """Pass a part of a snapshot on to every child."""
        for child in self._children():
            child.forward(frame)

    def use(self, config: Config, decider: Decider) -> None:
        """Let the policy of a new configuration answer: at once, or when its process is ready."""
        policy = decider.policy
        if not isinstance(policy, RemotePolicy):
            self._retire(self._candidate)
            self._retire(self._live)
            self._state.decider = decider
            return
        self._state.decider = decider.with_policy(self._state.decider.policy)
        child = self._child(config, policy)
        if self._candidate is not None and self._candidate.mark == child.mark:
            return
        self._retire(self._candidate)
        if self._live is not None and self._live.mark == child.mark:
            self._live.try_again()
            return
        self._candidate = child
        self._start(child)

    def look_at(self, child: PolicyChild) -> None:
        """Look at what has become of a child."""
        if child is not self._candidate:
            return
        if child.policy.ready:
            self._retire(self._live)
            self._live, self._candidate = child, None
            self._state.decider = self._state.decider.with_policy(child.policy)
            logger.info("policy in use name=%s version=%s", child.policy.name, child.policy.version)
        elif child.refusal:
            old = self._state.decider.policy
            logger.error(
                "new policy refused, the old one stays name=%s checkpoint=%s reason=%s old=%s old_version=%s",
                child.policy.name,
                child.config.policy.checkpoint,
                child.refusal,
                old.name,
                old.version,
            )
            self._retire(child)

    def _children(self) -> list[PolicyChild]:
        return [child for child in (self._live, self._candidate) if child is not None]

    def _child(self, config: Config, policy: RemotePolicy) -> PolicyChild:
        policy.counters = self._state.counters
        return PolicyChild(config, policy, self._copy, self.look_at, self._process)

    def _process(self, child: PolicyChild) -> Process:
        return ChildProcess(
            "policy", self._module, lambda: child.config, child.receive, child.connect, child.before_start
        )

    def _start(self, child: PolicyChild) -> None:
        if self._group is not None:
            child.task = self._group.create_task(child.process.run(), name="policy")

    def _retire(self, child: PolicyChild | None) -> None:
        if child is None:
            return
        child.stop()
        if child is self._live:
            self._live = None
        if child is self._candidate:
            self._candidate = None


def policy_mark(config: Config) -> tuple[object, ...]:
    """Return what a learned policy is made of: with another mark it is another policy.

    The checkpoint's own hash is in it, so that a folder whose content was exchanged is loaded again.
    """
    try:
        with open_folder(checkpoint_folder(config)) as folder:
            weights = read_metadata(folder).weights_sha256
    except CheckpointError:
        weights = ""
    return (
        weights,
        config.policy,
        config.gpu_types,
        config.gpu_power_limits_watts,
        config.cluster.name,
        config.daemon.snapshot_max_age_seconds,
    )


def _since(moment: float | None, now: float) -> float:
    return 0.0 if moment is None else now - moment
