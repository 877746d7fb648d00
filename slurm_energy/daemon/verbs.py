"""What each verb does: a message and its sender in, a reply out; and who answers the requests that doors read in."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slurm_energy.daemon.decide import Decided, Decider, Known, KnownUser
from slurm_energy.daemon.doors.callers import CostLimit, Peer, error_reply, first_this_minute
from slurm_energy.daemon.inquiries import Inquiries
from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.ipc.frames import DoorCounts, PeerReply, PeerRequest, reply_parts
from slurm_energy.daemon.policy.candidates import Serving, with_clocks
from slurm_energy.daemon.recorder.entries import decision_line
from slurm_energy.daemon.reuse import REUSE_MILLISECONDS, Basis, LikeDecision, is_reusable
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.ids import DecisionId, parse_decision_id
from slurm_energy.domain.plain import to_plain
from slurm_energy.domain.promotion import Assignment, Stage
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import DaemonUnavailable, PermissionRefused, WireError
from slurm_energy.wire.codec import MAX_DECIDE_BYTES, Message, decode, encode
from slurm_energy.wire.messages import (
    SubmittedFields,
    decision_reply,
    failure,
    is_explained,
    job_name,
    json_reply,
    one_line,
    parse_submitted_job,
)

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
MAX_OPEN_REQUESTS = 256

PREVIEW_SHARE = 0.05
"""Of the answering thread's time, that previews of unprivileged users may take, each of them and all together."""
PREVIEW_BURST_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and what is done once it is on its way."""

    reply: Message | list[bytes]
    """A message, or the parts of an encoded one."""
    afterwards: Callable[[], None] | None = None


class Received:
    """When a request came, by the wall and by this thread's own work: a busy host makes no policy slow."""

    __slots__ = ("_cpu", "at")

    def __init__(self) -> None:
        self.at, self._cpu = time.perf_counter(), time.thread_time()

    def cpu_milliseconds(self) -> float:
        """Return what was worked on it so far."""
        return 1000.0 * (time.thread_time() - self._cpu)


class LocalVerbs:
    """Serves what comes over the unix socket."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._inquiries = Inquiries(state)
        self._previews = CostLimit(share=PREVIEW_SHARE, burst_seconds=PREVIEW_BURST_SECONDS)

    async def answer(self, message: Message, peer: Peer) -> Answer:
        """Return the answer to one request.

        Raises:
            SlurmEnergyError: the request is malformed, not allowed, or cannot be served.
        """
        if message.verb in _FOR_SLURM:
            return self.for_slurm(message, peer)
        self._state.counters[f"request {message.verb}" if message.verb in _VERBS else "request unknown"] += 1
        if message.verb == "preview":
            return Answer(self._limited_preview(message, peer))
        if message.verb == "query":
            return Answer(await self._inquiries.query(message, peer))
        if message.verb == "newest":
            return Answer(await self._inquiries.newest(message, peer))
        if message.verb == "ping":
            return Answer(self._inquiries.ping())
        raise WireError(f"verb {message.verb!r} is not one of {', '.join(_VERBS)}")

    def for_slurm(self, message: Message, peer: Peer) -> Answer:
        """Return the answer to what slurmctld's plugin asks for or reports.

        Raises:
            SlurmEnergyError: the request is malformed or of another verb, or the caller may not ask.
        """
        if message.verb not in _FOR_SLURM:
            raise WireError(f"verb {message.verb!r} is not served here: only {' and '.join(_FOR_SLURM)} are")
        self._state.counters[f"request {message.verb}"] += 1
        if not peer.privileged:
            raise PermissionRefused(f"uid {peer.user_id} may not ask for decisions: only SlurmUser and root may")
        return self._decide(message) if message.verb == "decide" else self._reused(message)

    def _decide(self, message: Message) -> Answer:
        """Return the decision on a job that is being submitted."""
        state, received, fields = self._state, Received(), message.fields
        is_followed = state.config.routing.redecide != "off" or fields.get("client") == LUA_CLIENT
        like = None if is_followed else state.reusable.like(fields, self._basis, time.monotonic())
        if like is not None:
            return self._as_like(like, received, fields)
        decided, known = self._decided(parse_submitted_job(fields))
        serving = self._serving(decided.job.user_id)
        state.candidates.note_time(serving, received.cpu_milliseconds(), state.config.nightly.late_milliseconds)
        policy = self._decider_of(serving).policy
        milliseconds = REUSE_MILLISECONDS if is_reusable(decided, fields, known, policy, state.config) else 0
        decided = self._tracked(decided, fields)
        if fields.get("client") == LUA_CLIENT:
            state.uncarried.keep(decided.decision.decision_id, decided.entry)
        # A candidate may have learned clocks of names of its own.
        has_candidate = self._serving(decided.job.user_id).candidate is not None
        reply = encode(
            decision_reply(
                decided.decision,
                decided.entry,
                explained=is_explained(fields),
                reuse_milliseconds=milliseconds,
                reuse_names=None if has_candidate else state.names_with_runs.for_reply(decided.job),
            )
        )
        worked = received.cpu_milliseconds()

        def afterwards() -> None:
            if milliseconds:
                basis = self._basis(decided.job.user_id, decided.job.name, decided.job.script)
                state.reusable.keep(decided, fields, basis, reply, time.monotonic(), milliseconds)
            self._given(decided, received, fields, milliseconds=worked)()

        return Answer([reply], afterwards)

    def _as_like(self, like: LikeDecision, received: Received, fields: Mapping[str, str]) -> Answer:
        """Return the decision on a like job as that of this one, which is recorded once it is on its way."""
        now, reply, milliseconds = time.time(), like.reply(), received.cpu_milliseconds()

        def afterwards() -> None:
            self._state.counters["decisions as on a like job"] += 1
            decided = like.decided(now)
            self._state.reusable.keep(decided, fields, like.basis, reply, time.monotonic(), like.milliseconds)
            self._given(decided, received, fields, milliseconds=milliseconds)()

        return Answer([reply], afterwards)

    def _reused(self, message: Message) -> Answer:
        """Record a decision that the plugin has given again; the job has it already, and no reply is waited for."""
        state, received = self._state, Received()
        fields = message.fields
        new_id, base_id = (parse_decision_id(fields.get(key, "")) for key in ("decision_id", "base_decision_id"))
        decided = state.reusable.again(base_id, new_id, job_name(fields), time.time(), time.monotonic())
        if decided is None:
            decided, _ = self._decided(parse_submitted_job(fields))
            note = f"given again from {base_id}, which this daemon does not know: worked out again for the record"
            decision = replace(decided.decision, decision_id=new_id, notes=(*decided.decision.notes, note))
            decided = replace(decided, decision=decision)
        state.counters["decisions reused"] += 1
        self._tracked(decided, fields)
        afterwards = self._given(decided, received, fields, reused_from=base_id)
        return Answer(Message("ok", {"decision_id": str(new_id)}), afterwards)

    def _tracked(self, decided: Decided, fields: Mapping[str, str]) -> Decided:
        """Remember a job that may be decided again while it waits; its entry then says that nodes are to ask.

        What a challenger decided stays as it is: the champion's word in its place would spoil their comparison.
        """
        state = self._state
        if state.config.routing.redecide == "off":
            return decided
        serving = self._serving(decided.job.user_id)
        if serving.candidate is not None and serving.candidate is state.candidates.challenger:
            return decided
        if not state.tracked.add(decided, fields, state.snapshot):
            return decided
        return replace(decided, entry=replace(decided.entry, may_change=True))

    def _given(
        self,
        decided: Decided,
        received: Received,
        fields: Mapping[str, str],
        reused_from: DecisionId | None = None,
        milliseconds: float | None = None,
    ) -> Callable[[], None]:
        """Claim what a job will ask for; return what records its decision."""
        self._state.claims.add(decided.decision, decided.job, self._state.snapshot)
        self._state.job_ends.decided(decided.decision, decided.job)

        serving = self._serving(decided.job.user_id)
        worked = received.cpu_milliseconds() if milliseconds is None else milliseconds

        def afterwards() -> None:
            took = time.perf_counter() - received.at
            self._state.counters["decisions"] += 1
            assignment = self._assignment(serving, decided, worked, fields, is_new=reused_from is None)
            self._state.decision_counts.decided(decided.decision.mode, decided.decision.reasons, took)
            decided.decision.details.options  # noqa: B018  # worked out here, and not by the journal's thread
            self._state.journal.append(lambda: decision_line(decided.decision, decided.job, assignment))
            logger.info(
                "decision %s decision_id=%s uid=%d policy=%s mode=%s partitions=%s clocks=%d reasons=%s seconds=%.4f",
                "made" if reused_from is None else f"given again reused_from={reused_from}",
                decided.decision.decision_id,
                decided.job.user_id,
                decided.decision.policy,
                decided.decision.mode,
                ",".join(decided.decision.partitions or ("unchanged",)),
                len(decided.decision.clocks),
                ",".join(decided.decision.reasons),
                took,
            )

        return afterwards

    def _serving(self, user_id: int) -> Serving:
        """Return which policy decides a user's jobs now."""
        return self._state.candidates.serving(user_id, time.time(), self._state.config.nightly.canary_period_hours)

    def _decider_of(self, serving: Serving) -> Decider:
        own = None if serving.candidate is None else serving.candidate.decider
        return self._state.decider if own is None else own

    def _assignment(
        self, serving: Serving, decided: Decided, milliseconds: float, fields: Mapping[str, str], *, is_new: bool
    ) -> Assignment | None:
        """Return which policy decided, with what a challenger in shadow says to it; None without any candidate."""
        state, found = self._state, serving.assignment
        if found is None:
            return None
        limit = state.config.nightly.late_milliseconds
        found = replace(found, milliseconds=milliseconds)
        if not is_new or found.stage is not Stage.SHADOW:
            return found
        answer = state.candidates.shadow(
            self._read_script(parse_submitted_job(fields)),
            self._known(decided.job.user_id),
            state.decider,
            decided,
            now_seconds=decided.decision.decided_at_seconds,
            limit_milliseconds=limit,
        )
        return found if answer is None else replace(found, differs=answer[0], shadow=answer[1])

    def _limited_preview(self, message: Message, peer: Peer) -> Message:
        """Return the preview; what a user's previews cost, decisions wait for."""
        if peer.privileged:
            return self._preview(message, peer)
        began = time.monotonic()
        if not self._previews.allows((peer.user_id, _ALL_USERS), began):
            raise DaemonUnavailable("too many previews at once: try again later")
        try:
            return self._preview(message, peer)
        finally:
            now = time.monotonic()
            self._previews.charge((peer.user_id, _ALL_USERS), now - began, now)

    def _preview(self, message: Message, peer: Peer) -> Message:
        fields: Mapping[str, str] = message.fields
        if not peer.privileged or "uid" not in fields:
            fields = {**fields, "uid": str(peer.user_id)}
        decided, _ = self._decided(parse_submitted_job(fields), is_preview=True)
        explanation = {
            "decision": to_plain(decided.decision),
            "job": to_plain(decided.job),
            "gpu_count": decided.job.gpu_count,
            "time_limit_minutes": decided.entry.time_limit_minutes,
        }
        return json_reply(explanation, {"message": one_line(decided.decision.message)})

    def _decided(self, submitted: SubmittedFields, *, is_preview: bool = False) -> tuple[Decided, Known]:
        """Return the decision on a job, and what it was made on; a preview leaves no trace in the policy."""
        state, now = self._state, time.time()
        serving = self._serving(submitted.user_id)
        known = self._known(submitted.user_id)
        decider = self._decider_of(serving)
        if is_preview:
            decider = decider.without_trace(state.snapshot)
        if serving.candidate is None:
            return decider.decide(self._read_script(submitted), known, now), known
        known = serving.candidate.known(known)
        decided = decider.decide(self._read_script(submitted), known, now)
        version = f"{decided.decision.policy_version}+{serving.candidate_id}"[-128:]
        return replace(decided, decision=replace(decided.decision, policy_version=version)), known

    def _known(self, user_id: int) -> Known:
        state = self._state
        return Known(
            snapshot=state.snapshot,
            claimed_gpus=state.claims.unseen_by(state.snapshot),
            history=state.history,
            user=self._user(user_id),
        )

    def _read_script(self, submitted: SubmittedFields) -> SubmittedFields:
        return replace(submitted, script=None) if self._state.config.script.read == "off" else submitted

    def _basis(self, user_id: int, name: str, script: ScriptFeatures | None) -> Basis:
        """Return what the answer to a job of a user, name and script rests on now, beside the request."""
        state, serving = self._state, self._serving(user_id)
        runtime, work = state.history.about(user_id, name, script)
        history = state.history
        if serving.candidate is not None and serving.candidate.clocks:
            history = with_clocks(history, serving.candidate.clocks)
        return Basis(
            policy=self._decider_of(serving).policy,
            snapshot=state.snapshot,
            user=self._user(user_id),
            runtime=runtime,
            work=work,
            clocks=history.clocks_of(user_id, name, script),
            site_clocks=history.site_clocks,
            predicted=history.predicted_of(user_id, name, script),
        )

    def _user(self, user_id: int) -> KnownUser:
        return KnownUser(name=self._state.user_names.get(user_id), groups=self._state.user_groups.get(user_id))


LUA_CLIENT = "job_submit_lua"
"""Asks for jobs that cannot carry a decision to their nodes."""
_FOR_SLURM = ("decide", "reused")
_VERBS = (*_FOR_SLURM, "preview", "query", "newest", "ping")
_ALL_USERS = -1


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
            reply = encode(answered.reply) if isinstance(answered.reply, Message) else b"".join(answered.reply)
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
