"""The answering process's end of the door: the requests that its process has read in, the answers out."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from slurm_energy.daemon.doors.callers import Peer
from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.ipc.frames import DoorCounts, PeerReply, PeerRequest, reply_parts
from slurm_energy.daemon.verbs import Answer, LocalVerbs
from slurm_energy.errors import PermissionRefused, SlurmEnergyError, WireError
from slurm_energy.wire.codec import MAX_DECIDE_BYTES, Message, decode, encode
from slurm_energy.wire.messages import failure, refusal

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
MAX_OPEN_REQUESTS = 256
_WARN_INTERVAL_SECONDS = 60.0


class DoorLink:
    """Answers requests; whatever goes wrong becomes a reply, and the daemon continues."""

    def __init__(self, verbs: LocalVerbs, counters: Counter[str]) -> None:
        self._verbs = verbs
        self._counters = counters
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned: dict[str, float] = {}
        self.child: ChildProcess | None = None
        """Set once, when the daemon has made the child that feeds `receive`."""

    def answer_now(self, request: bytes, peer: Peer) -> tuple[bytes, Callable[[], None] | None]:
        """Return the reply to a request of the plugin, and what to do once it is on its way."""
        try:
            message = decode(request, MAX_DECIDE_BYTES)
            answered = self._verbs.for_slurm(message, peer)
            assert isinstance(answered.reply, Message)
            reply = encode(answered.reply)
        except Exception as error:  # noqa: BLE001  # the request loop: one bad request never ends the daemon
            return encode(self._error_reply(error, f"uid {peer.user_id}")), None
        return reply, answered.afterwards

    def receive(self, frame: Any) -> None:
        """Take one frame of the door's process."""
        if isinstance(frame, DoorCounts):
            self._counters.update(frame.counts)
        elif isinstance(frame, PeerRequest):
            if len(self._tasks) >= MAX_OPEN_REQUESTS:
                reply = failure(f"{MAX_OPEN_REQUESTS} requests are waiting already: try again later")
                if self.child is not None:
                    self.child.send(PeerReply(number=frame.number, part=encode(reply), last=True))
                return
            task = asyncio.get_running_loop().create_task(self._answer(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def drain(self, limit_seconds: float) -> None:
        """Let what is being answered finish, for at most `limit_seconds`."""
        if self._tasks:
            _done, late = await asyncio.wait(self._tasks, timeout=limit_seconds)
            for task in late:
                task.cancel()

    async def _answer(self, frame: PeerRequest) -> None:
        answered = Answer(failure("the request took too long"))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answered = await self._verbs.answer(frame.message, frame.peer)
        except Exception as error:  # noqa: BLE001  # the request loop: one bad request never ends the daemon
            answered = Answer(self._error_reply(error, f"uid {frame.peer.user_id}"))
        reply = answered.reply
        if isinstance(reply, Message):
            parts = list(reply_parts(encode(reply)))
        else:
            parts = [(part, at == len(reply) - 1) for at, part in enumerate(reply)]
        for part, last in parts:
            if self.child is None or not self.child.send(PeerReply(number=frame.number, part=part, last=last)):
                return
            with contextlib.suppress(ConnectionError):
                await self.child.drain()
            await asyncio.sleep(0)
        if answered.afterwards is not None:
            answered.afterwards()

    def _error_reply(self, error: Exception, who: str) -> Message:
        """Return the reply to a request that failed, counted, and logged at most once a minute for each kind."""
        reply = error_reply(error, who)
        self._counters[f"reply {reply.verb}"] += 1
        if first_this_minute(self._warned, reply):
            logger.warning("request not served by=%s reply=%s reason=%s", who, reply.verb, reply.fields["reason"])
        return reply


def error_reply(error: Exception, who: str) -> Message:
    """Return the reply to a request that failed; an error that is none of ours is logged with its traceback."""
    if isinstance(error, (PermissionRefused, WireError)):
        return refusal(str(error))
    if isinstance(error, SlurmEnergyError):
        return failure(str(error))
    if isinstance(error, TimeoutError):
        return failure("the request took too long")
    logger.error("request failed by=%s", who, exc_info=error)
    return failure(f"internal error {type(error).__name__}, see the daemon's log")


def first_this_minute(warned: dict[str, float], reply: Message) -> bool:
    """Return whether a refusal of this kind was not logged for a minute, and note it as logged."""
    now = time.monotonic()
    kind = f"{reply.verb} {reply.fields.get('reason', '')[:24]}"
    if now - warned.get(kind, -_WARN_INTERVAL_SECONDS) < _WARN_INTERVAL_SECONDS:
        return False
    if len(warned) > 1000:
        warned.clear()
    warned[kind] = now
    return True
