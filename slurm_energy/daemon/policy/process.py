"""The policy child: a learned policy away from the answering process, which it can neither stall nor take down.

It keeps its own copy of the cluster from the same parts as the daemon's, brings the policy to each snapshot, and
answers the daemon's questions on a second socket, before anything else: a question waits for one part of a snapshot or
one step of that work at most.
"""

import gc
import logging
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from slurm_energy.config import Config
from slurm_energy.daemon.decide import Decider
from slurm_energy.daemon.ipc.channel import FrameBuffer, number_of, pack_numbered, receive, send, unpack_numbered
from slurm_energy.daemon.ipc.children import (
    ANSWERING_NICENESS,
    connect_to_parent,
    give_way,
    set_up_logging,
    until_stopped,
)
from slurm_energy.daemon.ipc.frames import (
    PolicyAtSnapshot,
    PolicyLoaded,
    PolicyQuestion,
    PolicyRefused,
    PolicyReply,
    SnapshotComplete,
)
from slurm_energy.daemon.policy.remote import MAX_REPLY_BYTES, short_error
from slurm_energy.daemon.snapshot.feed import SnapshotCopy
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import ClusterName
from slurm_energy.errors import CheckpointError, PolicyError
from slurm_energy.policy.base import DetachablePolicy, Policy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.registry import create_policy

logger = logging.getLogger(__name__)

PolicyFactory = Callable[[Config], Policy]

MAX_QUESTION_BYTES = 1024 * 1024
_ENDED = object()


class PolicyLoop:
    """Loads a policy, follows the cluster, answers.

    A policy that can be `detached` is sent to the daemon at every snapshot, which then asks that and not this process.
    A policy may have `warm_up_steps(snapshot)`, an iterator that brings it to a snapshot in short steps and leaves it
    answering from the one before until it ends, or `warm_up(snapshot)`, which does it at once.
    """

    def __init__(
        self, config: Config, frames: socket.socket, questions: socket.socket, policy_factory: PolicyFactory
    ) -> None:
        self._config = config
        self._connection = frames
        self._frames = FrameBuffer(frames)
        self._questions = questions
        self._policy_factory = policy_factory
        self._copy = SnapshotCopy()
        self._snapshot: ClusterSnapshot | None = None
        """The one that answers come from."""
        self._next: ClusterSnapshot | None = None
        """The newest whole one that the policy has not been brought to."""
        self._steps: Iterator[None] | None = None
        self._coming: ClusterSnapshot | None = None
        """The one that `_steps` lead to."""
        self._spent_seconds = 0.0
        self._poll = select.poll()
        for connection in (questions, frames):
            self._poll.register(connection, select.POLLIN)

    def load(self) -> None:
        """Make the policy.

        Raises:
            PolicyError: it cannot be made; the daemon has been notified.
        """
        began = time.perf_counter()
        try:
            self._policy = self._policy_factory(self._config)
            name, version = self._policy.name, self._policy.version
        except Exception as error:
            raise self._refusal(error) from error
        send(self._connection, PolicyLoaded(name=name, version=version, seconds=time.perf_counter() - began))

    def run(self) -> None:
        """Serve until the daemon is gone.

        Raises:
            EOFError: the daemon is gone.
            PolicyError: the policy cannot be brought to its first snapshot; the daemon has been notified.
        """
        while True:
            self.turn()

    def turn(self) -> None:
        """Do the one thing that is most urgent, waiting for something to do if there is nothing."""
        ready = {number for number, _ in self._poll.poll(0 if self._has_work else None)}
        if self._questions.fileno() in ready:
            self._answer()
        elif self._steps is not None:
            self._step()
        elif self._frames.has_frame():
            self._take()
        elif self._connection.fileno() in ready:
            self._frames.fill()
        elif self._next is not None:
            self._begin(self._next)

    @property
    def _has_work(self) -> bool:
        return self._steps is not None or self._next is not None or self._frames.has_frame()

    def _take(self) -> None:
        frame = self._frames.take()
        self._copy.take(frame)
        if isinstance(frame, SnapshotComplete):
            self._next = self._copy.snapshot(ClusterName(self._config.cluster.name), frame.taken_at_seconds)

    def _begin(self, snapshot: ClusterSnapshot) -> None:
        self._coming, self._next, self._spent_seconds = snapshot, None, 0.0
        self._steps = _steps(self._policy, snapshot)

    def _step(self) -> None:
        assert self._steps is not None
        assert self._coming is not None
        began = time.perf_counter()
        trouble, detached = "", None
        try:
            if next(self._steps, _ENDED) is not _ENDED:
                self._spent_seconds += time.perf_counter() - began
                return
            if self._snapshot is None:
                self._rehearse(self._coming)
            detached = _detached(self._policy)
            self._snapshot = self._coming
        except Exception as error:  # whatever a policy raises: it continues to answer from the snapshot before
            if self._snapshot is None:
                raise self._refusal(error) from error
            trouble = short_error(error)
            logger.error("policy not brought to the snapshot error=%s", trouble)
        self._spent_seconds += time.perf_counter() - began
        answer = PolicyAtSnapshot(
            taken_at_seconds=self._coming.taken_at_seconds,
            seconds=self._spent_seconds,
            trouble=trouble,
            detached=detached,
        )
        self._steps, self._coming = None, None
        send(self._connection, answer)
        if detached is not None:
            give_way()  # the daemon asks that from now on: no job waits for this process any more

    def _rehearse(self, snapshot: ClusterSnapshot) -> None:
        for _ in Decider(self._policy, Guard(self._config)).rehearse(snapshot):
            pass

    def _answer(self) -> None:
        """Answer the newest question; the daemon waits for no other."""
        message = _newest(self._questions)
        if message is None:
            return
        reply = _packed(number_of(message), self._decide(message))
        try:
            self._questions.send(reply, socket.MSG_DONTWAIT)
        except BlockingIOError:
            logger.warning("answer not taken by the daemon bytes=%d", len(reply))

    def _decide(self, message: bytes) -> PolicyReply:
        if self._snapshot is None:
            return PolicyReply(answer=None, error="it has no snapshot yet")
        try:
            question: PolicyQuestion = unpack_numbered(message)
            answer = self._policy.decide(replace(question.case, snapshot=self._snapshot))
        except Exception as error:  # noqa: BLE001  # the child's request loop: whatever a policy raises becomes a reply
            return PolicyReply(answer=None, error=short_error(error))
        return PolicyReply(answer=answer, taken_at_seconds=self._snapshot.taken_at_seconds)

    def _refusal(self, error: Exception) -> PolicyError:
        by_checkpoint = isinstance(error, CheckpointError)
        send(self._connection, PolicyRefused(reason=short_error(error), by_checkpoint=by_checkpoint))
        return PolicyError(short_error(error))


def serve(argv: list[str], policy_factory: PolicyFactory) -> int:
    """Run the child; the arguments are the numbers of its two sockets."""
    with until_stopped():
        try:
            connection = connect_to_parent(argv, ANSWERING_NICENESS)
            questions = socket.socket(fileno=int(argv[1]))
            config: Config = receive(connection)
            set_up_logging(config.daemon.log_level, "policy")
            for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is imported
                os.environ[variable] = str(config.policy.threads)
            loop = PolicyLoop(config, connection, questions, policy_factory)
            loop.load()
            # What is there now stays for ever: a full collection of it would be a pause without answers.
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 50, 1000)
            loop.run()
        except PolicyError:
            return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the child with the policy that the configuration names."""
    return serve(sys.argv[1:] if argv is None else argv, create_policy)


def _detached(policy: Policy) -> bytes | None:
    """Return what answers for a policy without this process, packed; None where nothing does."""
    found = policy.detached() if isinstance(policy, DetachablePolicy) else None
    return None if found is None else pack_numbered(0, found)


def _steps(policy: Policy, snapshot: ClusterSnapshot) -> Iterator[None]:
    steps = getattr(policy, "warm_up_steps", None)
    if steps is not None:
        yield from steps(snapshot)
        return
    at_once = getattr(policy, "warm_up", None)
    if at_once is not None:
        at_once(snapshot)


def _packed(number: int, reply: PolicyReply) -> bytes:
    try:
        message = pack_numbered(number, reply)
        error = f"its answer has {len(message)} bytes, at most {MAX_REPLY_BYTES} are taken"
    except Exception as failure:  # noqa: BLE001  # whatever a policy's answer holds
        message, error = b"", short_error(failure)
    fits = 0 < len(message) <= MAX_REPLY_BYTES
    return message if fits else pack_numbered(number, PolicyReply(answer=None, error=error))


def _newest(questions: socket.socket) -> bytes | None:
    """Return the last question that waits, None when there is none."""
    newest: bytes | None = None
    while True:
        try:
            message = questions.recv(MAX_QUESTION_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return newest
        if not message:
            raise EOFError
        newest = message


if __name__ == "__main__":
    sys.exit(main())
