"""Move parts while training, when a device has become slower or faster than the plan thought.

Each epoch says for how long every rank computed, which gives each device's speed. With these speeds the agent learns
again which device should have which part. Parts move where the epochs that are left win back twice what moving costs.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from slurm_energy.hyperscale.allocation import Agent, PartAllocation
from slurm_energy.hyperscale.training import EpochReport

WINDOW_EPOCHS = 5
MIN_GAIN = 0.1
"""Share of an epoch's time that a move must save."""
_WINS_BACK = 2.0
_UPDATES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One state, what was done in it, and what came of it: measured."""

    epoch: int
    """The last of the window."""
    utilisation: tuple[float, ...]
    """U: share of the epoch for which each device computed."""
    received_share: tuple[float, ...]
    """B: share of the exchanged bytes that each device receives."""
    communication_seconds: float
    """C."""
    rank_of_part: tuple[int, ...]
    """The action that led here."""
    reward: float
    """-T - lambda C, seconds."""


class Reallocator:
    """Watches epochs; called with each, it returns other places for the parts where that pays."""

    def __init__(
        self,
        plan: PartAllocation,
        epochs: int,
        *,
        agent: Agent | None = None,
        move_seconds: float = 5.0,
        on_move: Callable[[Transition, float], None] = lambda _, __: None,
    ) -> None:
        """Store what is watched.

        Args:
            plan: Work, bytes and the speeds that were planned with.
            epochs: Of the whole training.
            agent: Chooses places; a new one where None.
            move_seconds: Of reading parts and agreeing about rows.
            on_move: Takes the state before a move and the seconds of an epoch that are expected after it.
        """
        self._plan = plan
        self._epochs = epochs
        self._agent = agent or Agent()
        self._move_seconds = move_seconds
        self._on_move = on_move
        self._window: deque[EpochReport] = deque(maxlen=WINDOW_EPOCHS)
        self.transitions: list[Transition] = []

    def __call__(self, report: EpochReport, rank_of_part: tuple[int, ...]) -> tuple[int, ...] | None:
        """Take an epoch; return the new rank of every part, None where all stay."""
        self._window.append(report)
        if len(self._window) < WINDOW_EPOCHS:
            return None
        problem = self.measured(rank_of_part)
        now = self._transition(problem, rank_of_part)
        self.transitions.append(now)
        self._window.clear()
        if problem.epoch_seconds(rank_of_part) <= (1.0 + MIN_GAIN) * problem.reference_seconds:
            return None  # nothing could gain as much
        found = self._agent.learn(problem, updates=_UPDATES)
        before, after = problem.cost(rank_of_part), problem.cost(found)
        saved = (before - after) * (self._epochs - report.epoch)
        if after > (1.0 - MIN_GAIN) * before or saved < _WINS_BACK * self._move_seconds:
            return None
        self._on_move(now, problem.epoch_seconds(found))
        return found

    def measured(self, rank_of_part: tuple[int, ...]) -> PartAllocation:
        """Return the plan with the speeds of the last epochs; a rank without parts keeps the one it had."""
        speeds = list(self._plan.speeds)
        work = np.bincount(rank_of_part, weights=self._plan.work, minlength=len(speeds))
        for rank, edges in enumerate(work.tolist()):
            if edges > 0.0:
                seconds = median(one.busy_seconds[rank] for one in self._window)
                speeds[rank] = edges / max(seconds, 1e-9)
        self._plan = replace(self._plan, speeds=tuple(speeds))
        return self._plan

    def _transition(self, problem: PartAllocation, rank_of_part: tuple[int, ...]) -> Transition:
        seconds = median(one.seconds for one in self._window)
        received = problem.received_bytes(rank_of_part)
        crossing = float(received.sum()) / problem.link_bytes_per_second
        return Transition(
            epoch=self._window[-1].epoch,
            utilisation=tuple(
                median(one.busy_seconds[rank] / one.seconds for one in self._window)
                for rank in range(len(problem.speeds))
            ),
            received_share=tuple((received / max(1.0, float(received.sum()))).tolist()),
            communication_seconds=crossing,
            rank_of_part=rank_of_part,
            reward=-seconds - problem.communication_weight * crossing,
        )
