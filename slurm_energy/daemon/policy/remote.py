"""A policy that answers from another process, with a baseline in this one for whenever it does not.

A policy that can be detached is brought to each snapshot by its process, and answers here: no job waits for a process
that has the next snapshot to work on.
"""

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import number_of, pack_numbered, unpack_numbered
from slurm_energy.daemon.ipc.frames import PolicyQuestion, PolicyReply
from slurm_energy.domain.decision import PolicyAnswer, Reason
from slurm_energy.errors import WireError
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.registry import baseline_of

logger = logging.getLogger(__name__)

BREAKER_FAILURES = 3
"""Late answers in a row after which the policy is not asked for a while: each costs a submission the whole wait."""
BREAKER_SECONDS = 5.0
NOT_LOADED = "not-loaded"
MAX_REPLY_BYTES = 64 * 1024
_MAX_ERROR_LENGTH = 160
_MAX_TROUBLE_LENGTH = 100
"""Of a note, which has other words too."""
_DETACHED_MODULE = "slurm_energy.policy.gnn.priced_answers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoAnswer:
    """Why the policy has no answer of its own."""

    reason: Reason
    note: str


class RemotePolicy:
    """Asks the process that `connect` names and waits a bounded time; total as long as its baseline is."""

    def __init__(
        self,
        name: str,
        baseline: Policy,
        *,
        timeout_seconds: float,
        max_age_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.baseline = baseline
        self.counters: Counter[str] = Counter()
        """Where questions, late answers and errors are counted."""
        self._timeout_seconds = timeout_seconds
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._line: QuestionLine | None = None
        self._at_snapshot = False
        self._loaded_version = NOT_LOADED
        """Of the policy that the process has."""
        self._looked_at: float | None = None
        """When the process last reported a snapshot that it brought the policy to."""
        self._trouble = ""
        """Why it could not bring the policy to a later one."""
        self._detached: Policy | None = None
        """The policy at the last snapshot that its process reported, also while there is no process."""
        self._detached_version = NOT_LOADED
        self._detached_at_seconds: float | None = None
        self._refusal, self._outlook = "", ""
        self._late_in_a_row = 0
        self._asked_again_at = float("-inf")
        self._silent_since: float | None = None

    @property
    def version(self) -> str:
        """Of the policy that answers: another that is only loaded has not decided anything yet."""
        return self._loaded_version if self._detached is None else self._detached_version

    @property
    def ready(self) -> bool:
        """Whether its process has loaded it and brought it to a snapshot."""
        return self._line is not None and self._at_snapshot

    @property
    def condition(self) -> str:
        """How it is, in words for people: `ready`, or what is wrong, with the last look that it had at the cluster."""
        if self._refusal:
            found = "; ".join(filter(None, (f"refused: {self._refusal}", self._outlook)))
        elif not self.ready:
            found = "loading"
        elif self._late_in_a_row >= BREAKER_FAILURES:
            return "not answering"
        elif self._trouble:
            found = f"behind: {self._trouble}"
        elif self._looked_ago is not None and self._looked_ago > self._max_age_seconds:
            found = "behind"
        else:
            return "ready"
        return found + self._last_look

    @property
    def answering_here(self) -> Policy:
        """What this process itself decides with now: the policy where it is detached, else the baseline."""
        return self.baseline if self._detached is None else self._detached

    @property
    def is_detached(self) -> bool:
        """Whether the policy itself answers in this process, and none is asked."""
        return self._detached is not None

    @property
    def _looked_ago(self) -> float | None:
        return None if self._looked_at is None else self._clock() - self._looked_at

    @property
    def _last_look(self) -> str:
        """What the last look is still good for; nothing where there is none, or it is answered from nowhere."""
        age = self._looked_ago
        if age is None or (self._detached is None and not self.ready):
            return ""
        is_old = age > self._max_age_seconds
        return (
            f"; its last look, {age:.0f} s ago, {f'is too old: {self.baseline.name} decides' if is_old else 'decides'}"
        )

    def silent_seconds(self) -> float:
        """Return for how long it has left every question unanswered; 0 when it answers or is not asked."""
        return 0.0 if self._silent_since is None else self._clock() - self._silent_since

    def connect(self, connection: socket.socket) -> None:
        """Use a new process, which has yet to load the policy."""
        self.disconnect()
        self._line = QuestionLine(connection, self._clock)

    def disconnect(self) -> None:
        """Use no process: the baseline answers."""
        if self._line is not None:
            self._line.close()
        self._line, self._at_snapshot = None, False
        self._late_in_a_row, self._asked_again_at, self._silent_since = 0, float("-inf"), None

    def loaded(self, version: str) -> None:
        """Note that the process has the policy."""
        self._loaded_version, self._refusal = version, ""

    def at_snapshot(self, detached: bytes | None = None, taken_at_seconds: float | None = None) -> None:
        """Note that the process can answer, or that another policy can do so here in its place.

        Args:
            detached: What is asked from now on, packed; None where the process is.
            taken_at_seconds: Of the snapshot.
        """
        self._at_snapshot, self._looked_at, self._trouble = True, self._clock(), ""
        self._detached, self._detached_at_seconds = None, taken_at_seconds
        self._detached_version = self._loaded_version
        if detached is not None:
            try:
                self._detached = unpack_numbered(detached)
            except Exception as error:  # noqa: BLE001  # whatever it raises: its process is asked then
                self.counters["policy errors"] += 1
                logger.warning("policy not taken from its process name=%s error=%s", self.name, short_error(error))

    def troubled(self, reason: str) -> None:
        """Note why the process could not bring the policy to a snapshot: it answers from the one before."""
        self._trouble = reason

    def refused(self, reason: str, outlook: str = "") -> None:
        """Note why the process cannot have the policy, and when it is tried again if not soon."""
        self._refusal, self._outlook = reason, outlook

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the process's answer, else the baseline's with the reason for it."""
        found = self._asked(case)
        if isinstance(found, PolicyAnswer):
            self.counters["policy answers"] += 1
            return found
        self.counters["policy baseline answers"] += 1
        answer = self.baseline.decide(case)
        reasons = (reason for reason in answer.reasons if reason is not Reason.POLICY)
        note = f"{found.note}: {self.baseline.name} decided"
        return replace(answer, reasons=(found.reason, *reasons), notes=(note, *answer.notes))

    def _asked(self, case: Case) -> PolicyAnswer | _NoAnswer:
        if self._detached is not None:
            old = self._stale(case, self._detached_at_seconds)
            if old is None:
                return self._answer_here(self._detached, case)
            if not self._refusal:
                return old
        if self._refusal:
            return _NoAnswer(reason=Reason.POLICY_ERROR, note=f"policy {self.name} was refused, {self._refusal}")
        if self._line is None or not self._at_snapshot:
            return _NoAnswer(reason=Reason.POLICY_LOADING, note=f"policy {self.name} is not ready yet")
        if self._clock() < self._asked_again_at:
            return _NoAnswer(reason=Reason.POLICY_TIMEOUT, note=f"policy {self.name} does not answer at present")
        try:
            reply = self._line.ask(PolicyQuestion.of(case), self._timeout_seconds)
        except (OSError, WireError) as error:
            self.counters["policy errors"] += 1
            return self._broken(error)
        if reply is None:
            self.counters["policy timeouts"] += 1
            return self._late()
        self._late_in_a_row, self._silent_since = 0, None
        if reply.answer is None:
            return self._failed(reply.error)
        return self._stale(case, reply.taken_at_seconds) or reply.answer

    def _answer_here(self, policy: Policy, case: Case) -> PolicyAnswer | _NoAnswer:
        try:
            return policy.decide(case)
        except Exception as error:  # noqa: BLE001  # whatever a policy raises: a submission waits
            return self._failed(short_error(error))

    def _stale(self, case: Case, taken_at_seconds: float | None) -> _NoAnswer | None:
        """Return why an answer from such a snapshot does not count, None where it is new enough."""
        now_seconds = case.now_seconds
        if taken_at_seconds is not None and now_seconds - taken_at_seconds <= self._max_age_seconds:
            return None
        self.counters["policy stale answers"] += 1
        why = self._trouble or ("" if self.ready else "its process is not ready yet")
        note = (
            f"policy {self.name} sees an old snapshot of the cluster{f': {why}'[:_MAX_TROUBLE_LENGTH] if why else ''}"
        )
        return _NoAnswer(reason=Reason.STALE_SNAPSHOT, note=note)

    def _failed(self, reason: str) -> _NoAnswer:
        self.counters["policy errors"] += 1
        return _NoAnswer(reason=Reason.POLICY_ERROR, note=f"policy {self.name} failed, {reason}")

    def _late(self) -> _NoAnswer:
        now = self._clock()
        self._late_in_a_row += 1
        self._silent_since = now if self._silent_since is None else self._silent_since
        if self._late_in_a_row >= BREAKER_FAILURES:
            self._asked_again_at = now + BREAKER_SECONDS
            if self._late_in_a_row == BREAKER_FAILURES:
                logger.warning("policy does not answer name=%s pause_seconds=%.0f", self.name, BREAKER_SECONDS)
        milliseconds = self._timeout_seconds * 1000.0
        note = f"policy {self.name} gave no answer within {milliseconds:.0f} ms"
        return _NoAnswer(reason=Reason.POLICY_TIMEOUT, note=note)

    def _broken(self, error: Exception) -> _NoAnswer:
        """Give up a line whose other end is gone or talks nonsense; a question too large leaves it as it is."""
        if isinstance(error, ConnectionError | WireError):
            logger.warning("policy line broken name=%s error=%s", self.name, error)
            self.disconnect()
        return _NoAnswer(reason=Reason.POLICY_ERROR, note=f"policy {self.name} cannot be asked, {error}")


def short_error(error: Exception) -> str:
    """Return what a policy's exception says, at a length for a note."""
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR_LENGTH]


def remote_policy(config: Config) -> RemotePolicy:
    """Return the learned policy of a configuration, without a process yet.

    Raises:
        ConfigError: the baseline cannot be made of the settings.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads would not pay for some hundred numbers
    with suppress(ImportError):  # without numpy the policy's process cannot load it either, and says so
        # Now, since the first detached policy would else hold up answers while numpy is imported.
        import_module(_DETACHED_MODULE)
    return RemotePolicy(
        config.policy.name,
        baseline_of(config),
        timeout_seconds=config.policy.timeout_milliseconds / 1000.0,
        max_age_seconds=config.daemon.snapshot_max_age_seconds,
    )


class QuestionLine:
    """Our end of the socket on which a policy process is asked, one question at a time.

    The socket keeps messages apart, so that none is ever half sent; an answer to an earlier question, whose time was
    over, is known by its number and dropped.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._number = 0

    def ask(self, question: PolicyQuestion, limit_seconds: float) -> PolicyReply | None:
        """Return the answer, None when there is none in time.

        Raises:
            OSError: the other end is gone, or the question is too large for the socket.
            WireError: what came is no answer.
        """
        end = self._clock() + limit_seconds
        self._number += 1
        self._connection.setblocking(False)
        try:
            self._connection.send(pack_numbered(self._number, question))
            while (left := end - self._clock()) > 0.0:
                self._connection.settimeout(left)
                message = self._connection.recv(MAX_REPLY_BYTES + 1)
                if not message:
                    raise ConnectionResetError("the policy's process has gone")
                if len(message) > MAX_REPLY_BYTES:
                    raise WireError(f"the policy's answer is over {MAX_REPLY_BYTES} bytes")
                if number_of(message) == self._number:
                    return _reply(message)
        except (BlockingIOError, TimeoutError):
            pass
        return None

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()


def _reply(message: bytes) -> PolicyReply:
    reply = unpack_numbered(message)
    if not isinstance(reply, PolicyReply):
        raise WireError(f"the policy's process sent a {type(reply).__name__}, not an answer")
    return reply
