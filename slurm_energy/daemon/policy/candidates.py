"""Candidates beside the configured policy: the champion that took its place, and a challenger in shadow or canary.

The recorder says what the row of the live policy says. What the row does not name any more stops at once; the files of
what it names are read in a thread, and what is made of them takes over between two answers. Until then, and where a
candidate cannot be made, the configured policy answers: no job waits.
"""

import asyncio
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.daemon.decide import Decided, Decider, Known
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, Reason
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.promotion import CONFIGURED, TOO_SLOW, Assignment, LivePolicy, ShadowAnswer, Stage
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.errors import CandidateError, SlurmEnergyError
from slurm_energy.estimation.job_history import JobHistory, NameOf
from slurm_energy.policy.base import Policy
from slurm_energy.policy.candidate import read_candidate
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.registry import create_policy
from slurm_energy.wire.messages import SubmittedFields

logger = logging.getLogger(__name__)

ClockTable = Mapping[NameOf, Mapping[GpuTypeName, LearnedClock]]
MAX_LATE_ANSWERS = 5
"""Over the limit, of the last `_LATE_WINDOW`, after which a challenger is not asked any more: each holds up the next
submission."""
_LATE_WINDOW = 40
READ_SECONDS = 30.0
"""For the files of a row's candidates: a file server that is away must not hold up the next row."""
RETRY_SECONDS = 60.0
"""After which a candidate that could not be made is tried again."""
_MAX_READERS = 3
"""That read the same folders: where they hang another one would as well."""
_Made = tuple["ServedCandidate | None", "ServedCandidate | None", str]


@dataclass(slots=True, kw_only=True)
class ServedCandidate:
    """A candidate that is ready to answer."""

    candidate_id: str
    decider: Decider | None
    """None where it brings no policy of its own: the configured one answers, with its estimates."""
    clocks: ClockTable

    def known(self, known: Known) -> Known:
        """Return what is known for a decision with the candidate's estimates behind those of the daemon."""
        if not self.clocks:
            return known
        return replace(known, history=with_clocks(known.history, self.clocks))


def with_clocks(history: JobHistory, clocks: ClockTable) -> JobHistory:
    """Return a history in which names without trials have the clocks that their runs measured."""
    return replace(history, clocks=_Layered(history.clocks, clocks))


class _Layered(Mapping[NameOf, Mapping[GpuTypeName, LearnedClock]]):
    """Two tables of clocks of which the first goes first; nothing is copied for a decision."""

    def __init__(self, first: ClockTable, second: ClockTable) -> None:
        self._first, self._second = first, second

    def __getitem__(self, name: NameOf) -> Mapping[GpuTypeName, LearnedClock]:
        first, second = self._first.get(name), self._second.get(name)
        if first is None or second is None:
            found = first or second
            if found is None:
                raise KeyError(name)
            return found
        return {**second, **first}

    def __iter__(self) -> Iterator[NameOf]:
        yield from self._first.keys() | self._second.keys()

    def __len__(self) -> int:
        return len(self._first.keys() | self._second.keys())


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Which policy decides one job."""

    candidate: ServedCandidate | None
    """None: the configured policy."""
    assignment: Assignment | None
    """None where no candidate has part in it."""

    @property
    def candidate_id(self) -> str:
        """The deciding candidate's; empty for the configured policy."""
        return CONFIGURED if self.candidate is None else self.candidate.candidate_id


@dataclass(slots=True)
class Candidates:
    """The candidates that answer now; changed by the event loop's own thread only."""

    live: LivePolicy = field(default_factory=LivePolicy)
    """As the row says, also while its candidates are being read."""
    champion: ServedCandidate | None = None
    challenger: ServedCandidate | None = None
    trouble: str = ""
    """Why a candidate of the row does not answer; empty where all do."""
    _late: dict[str, deque[bool]] = field(default_factory=dict)
    """Whether the last answers of a challenger were late, by its id: a change of the row forgives nothing."""

    @property
    def is_idle(self) -> bool:
        """Whether the configured policy alone decides."""
        return self.champion is None and self.challenger is None

    def take(
        self, live: LivePolicy, champion: ServedCandidate | None, challenger: ServedCandidate | None, trouble: str
    ) -> None:
        """Let the candidates of a row answer from now on."""
        self.live, self.trouble = live, trouble
        self.champion, self.challenger = champion, challenger
        self._late = {known: late for known, late in self._late.items() if known == live.challenger_id}

    def follow(self, live: LivePolicy) -> None:
        """Let those candidates answer on that a new row names, each in its place there, and no other."""
        ready = {one.candidate_id: one for one in (self.champion, self.challenger) if one is not None}
        self.take(live, ready.get(live.champion_id), ready.get(live.challenger_id), self.trouble)

    def serving(self, user_id: int, now_seconds: float, period_hours: float) -> Serving:
        """Return which policy decides a job of a user now."""
        challenger, stage = self.challenger, self.live.stage
        if self.live.champion_id and self.champion is None:
            # The configured policy stands in for the live one: nothing that it decides is a canary's comparison.
            return Serving(candidate=None, assignment=self._assigned(None, "", Stage.ACTIVE, 1.0))
        if challenger is None or stage is None:
            if self.champion is None:
                return Serving(candidate=None, assignment=None)
            return Serving(candidate=self.champion, assignment=self._assigned(self.champion, "", Stage.ACTIVE, 1.0))
        if stage is not Stage.CANARY or self._is_too_slow(challenger):
            live = self._assigned(self.champion, challenger.candidate_id, Stage.SHADOW, 1.0)
            return Serving(candidate=self.champion, assignment=live)
        share = self.live.canary_share
        is_drawn = share > 0.0 and draws(challenger.candidate_id, user_id, now_seconds, period_hours) < share
        chosen = challenger if is_drawn else self.champion
        likely = share if is_drawn else 1.0 - share
        return Serving(
            candidate=chosen, assignment=self._assigned(chosen, challenger.candidate_id, Stage.CANARY, likely)
        )

    @staticmethod
    def _assigned(
        candidate: ServedCandidate | None, challenger_id: str, stage: Stage, probability: float
    ) -> Assignment:
        return Assignment(
            candidate_id=CONFIGURED if candidate is None else candidate.candidate_id,
            challenger_id=challenger_id,
            stage=stage,
            probability=probability,
            milliseconds=0.0,
        )

    def note_time(self, serving: Serving, milliseconds: float, limit_milliseconds: float) -> None:
        """Note how long a new decision took: a challenger that is late too often decides no more jobs."""
        if serving.candidate is not None and serving.candidate is self.challenger:
            self._note_late(milliseconds > limit_milliseconds)

    def shadow(
        self,
        submitted: SubmittedFields,
        known: Known,
        base: Decider,
        decided: Decided,
        *,
        now_seconds: float,
        limit_milliseconds: float,
    ) -> tuple[bool, ShadowAnswer] | None:
        """Return whether the challenger in shadow would have decided otherwise, and what; None where it is not asked.

        Nothing is applied, and its policy remembers nothing of the job but what it would have learned anyway. For one
        that is too slow, in canary too, the answer is an error: what looks at the evidence rejects it for that.
        """
        challenger = self.challenger
        if challenger is None:
            return None
        if self._is_too_slow(challenger):
            return True, ShadowAnswer(error=TOO_SLOW, milliseconds=1e6)
        if self.live.stage is not Stage.SHADOW:
            return None
        began = time.thread_time()  # a busy host makes no policy slow
        try:
            decider = (challenger.decider or base).without_trace(known.snapshot)
            answer = decider.decide(submitted, challenger.known(known), now_seconds).decision
            error = _fault(answer)
        except Exception as fault:  # noqa: BLE001  # whatever a candidate raises: the job has its decision already
            answer, error = None, f"{type(fault).__name__}: {fault}"[:160]
        milliseconds = 1000.0 * (time.thread_time() - began)
        self._note_late(milliseconds > limit_milliseconds)
        if answer is None or error:
            return True, ShadowAnswer(error=error, milliseconds=milliseconds)
        if _same(answer, decided.decision):
            return False, ShadowAnswer(milliseconds=milliseconds)
        return True, ShadowAnswer(
            clocks_mhz={choice.gpu_type: choice.sm_clock_mhz for choice in answer.clocks},
            partitions=tuple(answer.partitions or ()),
            milliseconds=milliseconds,
        )

    def policies(self, configured: Policy) -> tuple[Policy, ...]:
        """Return every policy that decides or is compared, so that each can correct itself by ended jobs."""
        own = [one.decider.policy for one in (self.champion, self.challenger) if one is not None and one.decider]
        return (configured, *own)

    def _is_too_slow(self, challenger: ServedCandidate) -> bool:
        return sum(self._late.get(challenger.candidate_id, ())) >= MAX_LATE_ANSWERS

    def _note_late(self, is_late: bool) -> None:
        challenger = self.challenger
        if challenger is None or self._is_too_slow(challenger):
            return
        self._late.setdefault(challenger.candidate_id, deque(maxlen=_LATE_WINDOW)).append(is_late)
        if self._is_too_slow(challenger):
            logger.error("candidate too slow, it is not asked any more id=%s", challenger.candidate_id)


def draws(candidate_id: str, user_id: int, now_seconds: float, period_hours: float) -> float:
    """Return a number from 0 to 1 that is the same for all jobs of a user in a period, and another in the next."""
    period = int(now_seconds // (3600.0 * period_hours))
    digest = hashlib.blake2b(f"{candidate_id}:{user_id}:{period}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


class CandidateSlot:
    """Makes the candidates of the live row ready, away from the answers, and puts them into the daemon's state."""

    def __init__(
        self, candidates: Candidates, config: Callable[[], Config], snapshot: Callable[[], ClusterSnapshot | None]
    ) -> None:
        """Make none ready yet; configuration and cluster are asked for when files are read."""
        self._candidates = candidates
        self._config = config
        self._snapshot = snapshot
        self._wanted: LivePolicy | None = None
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._readers: list[tuple[tuple[str, str], threading.Thread]] = []
        """With the folders that they read: of those that hang only a few are started."""

    def use(self, live: LivePolicy) -> None:
        """Let the candidates of a row answer as soon as they are ready; what it does not name stops now."""
        self._wanted = live
        self._candidates.follow(live)
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._make_ready(live))

    def reload(self) -> None:
        """Make the candidates again of a configuration that has changed, or of files that could not be read."""
        if self._wanted is not None:
            self.use(self._wanted)

    async def _make_ready(self, live: LivePolicy) -> None:
        made = await self._made(live) if live.champion_id or live.challenger_id else (None, None, "")
        self._candidates.take(live, *made)
        logger.info(
            "candidates in use champion=%s challenger=%s stage=%s trouble=%s",
            live.champion_id or "configured",
            live.challenger_id or "none",
            None if live.stage is None else live.stage.value,
            self._candidates.trouble or "none",
        )
        if self._candidates.trouble:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.reload)

    async def _made(self, live: LivePolicy) -> _Made:
        """Return what is made of a row's files; what answers already, and why, where they cannot be read in time."""
        folders = (live.champion_folder, live.challenger_folder)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Made] = loop.create_future()

        def give(made: _Made) -> None:
            if not done.done():
                done.set_result(made)

        def read(config: Config, snapshot: ClusterSnapshot | None) -> None:
            made = make_candidates(live, config, snapshot)
            with suppress(RuntimeError):  # the daemon has ended
                loop.call_soon_threadsafe(give, made)

        self._readers = [one for one in self._readers if one[1].is_alive()]
        if sum(known == folders for known, _ in self._readers) < _MAX_READERS:
            # No pool: the daemon would wait for its threads when it ends.
            thread = threading.Thread(target=read, args=(self._config(), self._snapshot()), daemon=True)
            self._readers.append((folders, thread))
            thread.start()
        try:
            return await asyncio.wait_for(done, READ_SECONDS)
        except TimeoutError:
            trouble = f"candidates in {', '.join(filter(None, folders))} are not read within {READ_SECONDS:g} s"
            logger.error("%s", trouble)
            return self._candidates.champion, self._candidates.challenger, trouble


def make_candidates(
    live: LivePolicy, config: Config, snapshot: ClusterSnapshot | None
) -> tuple[ServedCandidate | None, ServedCandidate | None, str]:
    """Return champion and challenger of a row, and why one of them cannot be made."""
    made: list[ServedCandidate | None] = []
    troubles: list[str] = []
    for candidate_id, folder in (
        (live.champion_id, live.champion_folder),
        (live.challenger_id, live.challenger_folder),
    ):
        try:
            made.append(_served(candidate_id, folder, config, snapshot) if candidate_id else None)
        except SlurmEnergyError as error:
            logger.error("candidate cannot be served id=%s error=%s", candidate_id, error)
            troubles.append(str(error))
            made.append(None)
        except Exception as error:
            logger.exception("candidate cannot be served id=%s", candidate_id)
            troubles.append(f"candidate {candidate_id}: {type(error).__name__}: {error}"[:300])
            made.append(None)
    return made[0], made[1], "; ".join(troubles)


def _served(candidate_id: str, folder: str, config: Config, snapshot: ClusterSnapshot | None) -> ServedCandidate:
    if not folder:
        raise CandidateError(f"candidate {candidate_id} has no folder in the database")
    candidate = read_candidate(Path(folder))
    if candidate.candidate_id != candidate_id:
        raise CandidateError(f"{folder} holds candidate {candidate.candidate_id}, not {candidate_id}")
    own = servable_config(candidate_id, candidate.configured(config), config)
    decider = None
    if own is not None:
        decider = Decider(create_policy(own), Guard(own))
        if snapshot is not None:
            for _ in decider.rehearse(snapshot):
                pass
    return ServedCandidate(candidate_id=candidate_id, decider=decider, clocks=candidate.clocks_by_name())


def servable_config(candidate_id: str, own: Config, config: Config) -> Config | None:
    """Return the configuration of a candidate's own policy, None where it has none.

    Raises:
        CandidateError: its curves or its network would have to be those of the whole daemon.
    """
    if own.policy.curves_file != config.policy.curves_file or own.policy.checkpoint != config.policy.checkpoint:
        raise CandidateError(
            f"candidate {candidate_id} has curves or a network of its own, which cannot answer beside others: name "
            "them in policy.curves_file or policy.checkpoint"
        )
    return own if own.policy.name != config.policy.name else None


def _fault(decision: EnergyDecision) -> str:
    return "its policy failed" if Reason.POLICY_ERROR in decision.reasons else ""


def _same(one: EnergyDecision, other: EnergyDecision) -> bool:
    def clocks(decision: EnergyDecision) -> dict[str, int]:
        return {str(choice.gpu_type): choice.sm_clock_mhz for choice in decision.clocks}

    places = (one.partitions or ()) == (other.partitions or ())
    return places and clocks(one) == clocks(other) and one.gpus == other.gpus
