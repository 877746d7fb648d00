"""The rounds of a training: collect, absorb, write down; Ctrl-C and SIGTERM end it where its state is whole."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from slurm_energy.errors import TrainingError
from slurm_energy.learning.collectors import EpisodeRunner
from slurm_energy.learning.experience import Learner, Weights, episode_seed
from slurm_energy.learning.ranks import Ranks
from slurm_energy.learning.training_log import TrainingLog
from slurm_energy.learning.training_state import TrainingState, learner_bytes, learner_state, on_host, write_state

SCORE = "score"
"""The figure of a learner that says how good the weights are that acted in the round; higher is better."""


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the training was asked to stop.

    The first signal is only noted, unless it comes inside `at_once`, where nothing would be left half done; there, and
    from the second one on, it raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take the signals, in the main thread; elsewhere they stay what they are."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal interrupt what is inside."""
        if self.asked:
            raise KeyboardInterrupt
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._at_once:
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What came of a round."""

    number: int
    rounds: int
    """Of the whole training."""
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What the rounds need to know."""

    seed: int
    rounds: int
    collectors: int
    save_every_rounds: int
    settings_sha256: str
    folder: Path


class Keeping(Protocol):
    """Writes the weights of a round as a checkpoint."""

    def __call__(self, weights: Weights, number: int, figures: Mapping[str, float], *, is_best: bool) -> None:
        """Write them, as the best so far or as the last."""
        ...


class Rounds:
    """A training in progress on one rank."""

    def __init__(
        self, learner: Learner, runner: EpisodeRunner, log: TrainingLog, keep: Keeping, plan: RoundPlan
    ) -> None:
        self.done = 0
        self._learner = learner
        self._runner = runner
        self._log = log
        self._keep = keep
        self._plan = plan
        self._best: float | None = None
        self._figures: Mapping[str, float] = {}

    def resume_from(self, state: TrainingState) -> None:
        """Count on from where a state ended; its learner has been restored."""
        self.done, self._best = state.rounds, state.best_score

    def run(self, ranks: Ranks, stop: StopRequest, report: Callable[[RoundReport], None]) -> bool:
        """Run the rounds that are left, and return whether they were all run: False if the training was stopped.

        Raises:
            TrainingError: an episode failed, weights are no longer finite, or a file cannot be written; the rounds
                before are in the training's state.
        """
        saved = self.done
        if self.done == 0:
            self._save(ranks)  # what cannot be written should be known now, and not after hours
        while self.done < self._plan.rounds:
            if ranks.any_of(stop.asked):
                break
            weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._learner.acting.items()}
            begin = time.monotonic()
            try:
                experience = self._collect(weights, ranks, stop)
            except KeyboardInterrupt:
                break
            except TrainingError:
                if ranks.count == 1 and saved < self.done:
                    self._save(ranks)
                raise
            self._absorb(weights, experience, ranks, time.monotonic() - begin)
            if self.done % self._plan.save_every_rounds == 0:
                self._save(ranks)
                saved = self.done
            report(RoundReport(number=self.done, rounds=self._plan.rounds, figures=self._figures))
        if saved < self.done:
            self._save(ranks)
        if self.done < self._plan.rounds:
            return False
        if ranks.writes:
            self._keep(self._learner.acting, self.done, self._figures, is_best=False)
        return True

    def _collect(self, weights: Weights, ranks: Ranks, stop: StopRequest) -> list[Any]:
        first = ranks.number * self._plan.collectors
        seeds = [
            episode_seed(self._plan.seed, self.done + 1, first + number) for number in range(self._plan.collectors)
        ]
        if ranks.count > 1:  # the others would wait for ever: all stop together, after this round
            return _joined(self._runner.collect(weights, seeds))
        with stop.at_once():
            return _joined(self._runner.collect(weights, seeds))

    def _absorb(self, weights: Weights, experience: Sequence[Any], ranks: Ranks, collect_seconds: float) -> None:
        begin = time.monotonic()
        number = self.done + 1
        try:
            figures = dict(self._learner.absorb(experience))
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"the GPU's memory ran out in round {number}: give the learner smaller batches, or --device cpu"
                f"{self._what_is_left()}"
            ) from error
        ranks.end_updates()
        for name, tensor in self._learner.acting.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise TrainingError(
                    f"the weights are no longer finite after round {number} (the first is {name}): lower the learning "
                    f"rate{self._what_is_left()}"
                )
        figures |= {
            "experience": float(len(experience)),
            "collect_seconds": collect_seconds,
            "learn_seconds": time.monotonic() - begin,
        }
        self.done, self._figures = number, figures
        self._log.write(number, figures)
        score = figures.get(SCORE)
        if score is not None and isfinite(score) and (self._best is None or score > self._best):
            self._best = score
            if ranks.writes:
                self._keep(weights, number, figures, is_best=True)

    def _what_is_left(self) -> str:
        return f"; {self._plan.folder} still holds the state of an earlier round" if self.done else ""

    def _save(self, ranks: Ranks) -> None:
        ranks.check_equal(self._learner.acting)
        states: tuple[Mapping[str, Any], ...] = (on_host(self._learner.state()),)
        if ranks.count > 1:
            states = tuple(learner_state(data) for data in ranks.gather(learner_bytes(states[0])))
        if ranks.writes:
            state = TrainingState(
                settings_sha256=self._plan.settings_sha256, rounds=self.done, best_score=self._best, learners=states
            )
            write_state(self._plan.folder, state)


def _joined(found: Sequence[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(found))
