"""slurmctld's door: a unix socket of its own, whose requests are answered at once, and what is answered there.

slurmctld holds its locks while it waits. Its request is short and there as soon as the connection is, so it is read,
answered and closed without setting up a stream and a task, which would cost more than the decision itself. The socket
is open to SlurmUser and root alone: a user can neither connect there nor fill the queue in which slurmctld waits.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slurm_energy.daemon.decide import Decided, Known
from slurm_energy.daemon.doors.callers import NotServed, Peer, peer_of
from slurm_energy.daemon.doors.listeners import BACKLOG
from slurm_energy.daemon.policy.candidates import Serving, with_clocks
from slurm_energy.daemon.recorder.entries import decision_line
from slurm_energy.daemon.reuse import REUSE_MILLISECONDS, Basis, LikeDecision, is_reusable
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.ids import DecisionId, parse_decision_id
from slurm_energy.domain.promotion import Assignment, Stage
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import PermissionRefused, WireError
from slurm_energy.wire.codec import END_LINE, MAX_DECIDE_BYTES, Message, decode, encode
from slurm_energy.wire.messages import SubmittedFields, decision_reply, job_name, parse_submitted_job

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
_ACCEPTS_AT_ONCE = 16
_FIRST_BYTES_SECONDS = 0.001
_PAUSE_SECONDS = 0.1
_END = b"\n" + END_LINE

AnswerNow = Callable[[bytes, Peer], tuple[bytes, Callable[[], None] | None]]
"""From a whole request to the reply and what to do afterwards; never raises."""

FOR_SLURM = ("decide", "reused")
LUA_CLIENT = "job_submit_lua"
"""Asks for jobs that cannot carry a decision to their nodes."""


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


class SlurmVerbs:
    """What slurmctld's plugin asks for and reports: a message and its sender in, a reply out."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._not_served = NotServed(state.count)

    def answer_now(self, request: bytes, peer: Peer) -> tuple[bytes, Callable[[], None] | None]:
        """Return the reply to a request of the plugin, and what to do once it is on its way."""
        try:
            message = decode(request, MAX_DECIDE_BYTES)
            answered = self.for_slurm(message, peer)
            reply = encode(answered.reply) if isinstance(answered.reply, Message) else b"".join(answered.reply)
        except Exception as error:  # noqa: BLE001  # the request loop: one bad request never ends the daemon
            return encode(self._not_served.reply(error, f"uid {peer.user_id}")), None
        return reply, answered.afterwards

    def for_slurm(self, message: Message, peer: Peer) -> Answer:
        """Return the answer to what slurmctld's plugin asks for or reports.

        Raises:
            SlurmEnergyError: the request is malformed or of another verb, or the caller may not ask.
        """
        if message.verb not in FOR_SLURM:
            raise WireError(f"verb {message.verb!r} is not served here: only {' and '.join(FOR_SLURM)} are")
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
        submitted = parse_submitted_job(fields)
        decided, known = self.decided(submitted)
        serving = state.serving(decided.job.user_id)
        state.candidates.note_time(serving, received.cpu_milliseconds(), state.config.nightly.late_milliseconds)
        policy = state.decider_of(serving).policy
        milliseconds = REUSE_MILLISECONDS if is_reusable(decided, fields, known, policy, state.config) else 0
        decided = self._tracked(decided, fields)
        if fields.get("client") == LUA_CLIENT:
            state.uncarried.keep(decided.decision.decision_id, decided.entry)
        has_candidate = serving.candidate is not None  # it may have learned clocks of names of its own
        reply = encode(
            decision_reply(
                decided.decision,
                decided.entry,
                explained=submitted.explain,
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
            decided, _ = self.decided(parse_submitted_job(fields))
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
        serving = state.serving(decided.job.user_id)
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

        serving = self._state.serving(decided.job.user_id)
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
            state.known(decided.job.user_id),
            state.decider,
            decided,
            now_seconds=decided.decision.decided_at_seconds,
            limit_milliseconds=limit,
        )
        return found if answer is None else replace(found, differs=answer[0], shadow=answer[1])

    def decided(self, submitted: SubmittedFields, *, is_preview: bool = False) -> tuple[Decided, Known]:
        """Return the decision on a job, and what it was made on; a preview leaves no trace in the policy."""
        state, now = self._state, time.time()
        serving = state.serving(submitted.user_id)
        known = state.known(submitted.user_id)
        decider = state.decider_of(serving)
        if is_preview:
            decider = decider.without_trace(state.snapshot)
        if serving.candidate is None:
            return decider.decide(self._read_script(submitted), known, now), known
        known = serving.candidate.known(known)
        decided = decider.decide(self._read_script(submitted), known, now)
        version = f"{decided.decision.policy_version}+{serving.candidate_id}"[-128:]
        return replace(decided, decision=replace(decided.decision, policy_version=version)), known

    def _read_script(self, submitted: SubmittedFields) -> SubmittedFields:
        return replace(submitted, script=None) if self._state.config.script.read == "off" else submitted

    def _basis(self, user_id: int, name: str, script: ScriptFeatures | None) -> Basis:
        """Return what the answer to a job of a user, name and script rests on now, beside the request."""
        state, history = self._state, self._state.history
        serving = state.serving(user_id)
        runtime, work = history.about(user_id, name, script)
        if serving.candidate is not None and serving.candidate.clocks:
            history = with_clocks(history, serving.candidate.clocks)
        return Basis(
            policy=state.decider_of(serving).policy,
            snapshot=state.snapshot,
            user=state.known_user(user_id),
            runtime=runtime,
            work=work,
            clocks=history.clocks_of(user_id, name, script),
            site_clocks=history.site_clocks,
            predicted=history.predicted_of(user_id, name, script),
        )


class PluginDoor:
    """Accepts slurmctld's connections."""

    def __init__(self, privileged: Callable[[], frozenset[int]], now: AnswerNow) -> None:
        self._privileged = privileged
        self._now = now
        self._socket: socket.socket | None = None

    def open(self, listening: socket.socket) -> None:
        """Answer what comes at a listening socket."""
        listening.setblocking(False)
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def close(self) -> list[str]:
        """Accept nothing more than what has come already; return the path at which it did.

        Notifications of the plugin, whose reply is not waited for, lie in the queue and would go with it.
        """
        if self._socket is None:
            return []
        path: str = self._socket.getsockname()
        asyncio.get_running_loop().remove_reader(self._socket)
        for _ in range(BACKLOG):
            if not self._accept_one(self._socket):
                break
        self._socket.close()
        self._socket = None
        return [path]

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if self._socket is None or not self._accept_one(self._socket):
                return

    def _accept_one(self, listening: socket.socket) -> bool:
        """Accept the next connection; return whether there was one."""
        try:
            connection, _address = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:  # no descriptor left: others must end first
            logger.warning("connection not accepted error=%s", error)
            self._pause(listening)
            return False
        self._on_connect(connection)
        return True

    def _pause(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def go_on() -> None:
            if self._socket is listening:
                loop.add_reader(listening, self._accept)

        loop.call_later(_PAUSE_SECONDS, go_on)

    def _on_connect(self, connection: socket.socket) -> None:
        try:
            peer = peer_of(connection, self._privileged())
            first = _first_bytes(connection) if peer.privileged else b""
        except OSError:
            connection.close()
            return
        if not peer.privileged:
            connection.close()
        elif first.endswith(_END):
            self._answer(connection, first, peer)
        else:
            self._wait(connection, bytearray(first), peer)

    def _wait(self, connection: socket.socket, raw: bytearray, peer: Peer) -> None:
        """Read the rest of a request as it comes, for a while."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)

        def stop() -> None:
            timer.cancel()
            loop.remove_reader(connection)

        def give_up() -> None:
            stop()
            connection.close()

        def read() -> None:
            try:
                chunk = connection.recv(MAX_DECIDE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                give_up()
                return
            raw.extend(chunk)
            if not chunk and not raw:
                give_up()
            elif not chunk or raw.endswith(_END) or len(raw) > MAX_DECIDE_BYTES:
                stop()
                self._answer(connection, bytes(raw), peer)

        timer = loop.call_later(REQUEST_SECONDS, give_up)
        loop.add_reader(connection, read)

    def _answer(self, connection: socket.socket, request: bytes, peer: Peer) -> None:
        reply, afterwards = self._now(request, peer)
        with connection, contextlib.suppress(OSError):
            sent = 0
            with contextlib.suppress(BlockingIOError):
                sent = connection.send(reply, socket.MSG_DONTWAIT)
            if sent < len(reply):
                connection.settimeout(_FIRST_BYTES_SECONDS)
                connection.sendall(reply[sent:])
        if afterwards is not None:  # before the next request, whose answer may rest on it
            try:
                afterwards()
            except Exception:
                logger.exception("an answered request was not recorded")


def _first_bytes(connection: socket.socket) -> bytes:
    """Return what a caller has sent by now; waits for a millisecond at most."""
    try:
        return connection.recv(MAX_DECIDE_BYTES + 1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        connection.settimeout(_FIRST_BYTES_SECONDS)
    try:
        return connection.recv(MAX_DECIDE_BYTES + 1)
    except TimeoutError:
        return b""
