"""Which policy answers: the live one, and a learned one that is getting ready to take its place.

A learned policy runs in a child. A new one is started beside the old and takes over when it is ready; one that cannot
be loaded is refused, and the old one stays.
"""

import asyncio
import logging

from slurm_energy.config import Config
from slurm_energy.daemon.decide import Decider
from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.policy.child import PolicyChild, Process
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.snapshot.feed import SnapshotCopy, SnapshotFrame
from slurm_energy.daemon.state import DaemonState

logger = logging.getLogger(__name__)

POLICY_MODULE = "slurm_energy.daemon.policy.process"
LOOK_SECONDS = 1.0


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
