"""What people and commands ask at the daemon's own socket, and who answers the requests that its door reads in."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from slurm_energy.daemon.doors.callers import CostLimit, NotServed, Peer
from slurm_energy.daemon.doors.plugin import FOR_SLURM, Answer, SlurmVerbs
from slurm_energy.daemon.inquiries import Inquiries
from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.ipc.frames import DoorCounts, PeerReply, PeerRequest, reply_parts
from slurm_energy.daemon.offers import Offers
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.plain import to_plain
from slurm_energy.errors import DaemonUnavailable, WireError
from slurm_energy.wire.codec import Message, encode
from slurm_energy.wire.messages import failure, json_reply, one_line, parse_submitted_job

ANSWER_SECONDS = 60.0
MAX_OPEN_REQUESTS = 256

PREVIEW_SHARE = 0.05
"""Of the answering thread's time, that previews of unprivileged users may take, each of them and all together."""
PREVIEW_BURST_SECONDS = 0.5
_VERBS = (*FOR_SLURM, "preview", "offer", "query", "newest", "ping")
_ALL_USERS = -1


class LocalVerbs:
    """Serves what comes over the unix socket."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self.slurm = SlurmVerbs(state)
        """What slurmctld's plugin asks for; administrators may ask for it here too."""
        self._inquiries = Inquiries(state)
        self._offers = Offers(state, self.slurm)
        self._previews = CostLimit(share=PREVIEW_SHARE, burst_seconds=PREVIEW_BURST_SECONDS)

    async def answer(self, message: Message, peer: Peer) -> Answer:
        """Return the answer to one request.

        Raises:
            SlurmEnergyError: the request is malformed, not allowed, or cannot be served.
        """
        if message.verb in FOR_SLURM:
            return self.slurm.for_slurm(message, peer)
        self._state.counters[f"request {message.verb}" if message.verb in _VERBS else "request unknown"] += 1
        if message.verb == "preview":
            return Answer(self._limited(lambda: self._preview(message, peer), peer))
        if message.verb == "offer":
            facility = await self._offers.facility()
            return Answer(self._limited(lambda: self._offers.reply(message, peer, facility), peer))
        if message.verb == "query":
            return Answer(await self._inquiries.query(message, peer))
        if message.verb == "newest":
            return Answer(await self._inquiries.newest(message, peer))
        if message.verb == "ping":
            return Answer(self._inquiries.ping())
        raise WireError(f"verb {message.verb!r} is not one of {', '.join(_VERBS)}")

    def _limited(self, answer: Callable[[], Message], peer: Peer) -> Message:
        """Return the answer to a preview or a question for an offer; what a user's cost, decisions wait for."""
        if peer.privileged:
            return answer()
        began = time.monotonic()
        if not self._previews.allows((peer.user_id, _ALL_USERS), began):
            raise DaemonUnavailable("too many previews at once: try again later")
        try:
            return answer()
        finally:
            now = time.monotonic()
            self._previews.charge((peer.user_id, _ALL_USERS), now - began, now)

    def _preview(self, message: Message, peer: Peer) -> Message:
        fields: Mapping[str, str] = message.fields
        if not peer.privileged or "uid" not in fields:
            fields = {**fields, "uid": str(peer.user_id)}
        decided, _ = self.slurm.decided(parse_submitted_job(fields), is_preview=True)
        explanation = {
            "decision": to_plain(decided.decision),
            "job": to_plain(decided.job),
            "gpu_count": decided.job.gpu_count,
            "time_limit_minutes": decided.entry.time_limit_minutes,
        }
        return json_reply(explanation, {"message": one_line(decided.decision.message)})


class DoorLink:
    """Answers requests; whatever goes wrong becomes a reply, and the daemon continues."""

    def __init__(self, verbs: LocalVerbs, state: DaemonState) -> None:
        self._verbs = verbs
        self._counters = state.counters
        self._not_served = NotServed(state.count)
        self._tasks: set[asyncio.Task[None]] = set()
        self.child: ChildProcess | None = None
        """Set once, when the daemon has made the child that feeds `receive`."""

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
            answered = Answer(self._not_served.reply(error, f"uid {frame.peer.user_id}"))
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
