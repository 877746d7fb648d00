"""A table's options in the order of a score, sorted once, so that a decision is a short walk."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from slurm_energy.policy.placement import ClusterView, FloatArray, OptionTable, Placement
from slurm_energy.policy.rules.bounds import Bounds
from slurm_energy.policy.rules.tables import slowdowns


class Option(NamedTuple):
    """One way of running a job."""

    place: int
    gpus: int
    placement: Placement
    seconds: float
    """Per unit of work."""
    slowdown: float
    """Over the default clock of the same place and count."""
    score: float
    """Per unit of work: what to make small."""
    joule_score: float
    """Score of one more joule per unit, such as for waking a node."""
    level: int
    """What comes before the score: options of a lower level are always better."""


class Ranking:
    """Options of one table, the least score first; equal scores in the order of place, count, clock."""

    __slots__ = ("_best_clock", "_every_clock", "_fastest")

    def __init__(
        self,
        table: OptionTable,
        score: FloatArray,
        joule_score: FloatArray | None = None,
        *,
        fewest_first: bool = False,
    ) -> None:
        """Sort the options.

        Args:
            table: The options.
            score: What to make small, [places, counts, clocks]; infinite for what must never be chosen.
            joule_score: What one joule per unit adds to the score, same shape; None for 1.
            fewest_first: Whether fewer devices come before any score.
        """
        ratio = slowdowns(table)
        self._every_clock = [
            Option(
                place=place,
                gpus=table.gpu_counts[count],
                placement=Placement(place, table.gpu_counts[count], clock),
                seconds=float(table.seconds_per_unit[place, count, clock]),
                slowdown=float(ratio[place, count, clock]),
                score=float(score[place, count, clock]),
                joule_score=1.0 if joule_score is None else float(joule_score[place, count, clock]),
                level=count if fewest_first else 0,
            )
            for place, count, clock in np.argwhere(np.isfinite(table.seconds_per_unit) & np.isfinite(score)).tolist()
        ]
        self._fastest = sorted(self._every_clock, key=_seconds)
        self._every_clock.sort(key=_rank)
        first = {(option.place, option.gpus): option for option in reversed(self._every_clock)}
        self._best_clock = sorted(first.values(), key=_rank)

    def choose(
        self, room: Sequence[int], view: ClusterView, bounds: Bounds | None, wake_units: float
    ) -> Placement | None:
        """Return the option with the least score among those with room, None when there is none.

        Bounds that no option can keep give way: first the deadline, then the time limit, for which the fastest option
        is taken. The slowdown bound always holds, since the default clock keeps it.

        Args:
            room: By place, the most devices that the job could start with.
            view: The cluster.
            bounds: Of the job.
            wake_units: Work over which the energy of waking nodes is spread; 0 leaves that energy out.
        """
        if bounds is None:
            return self._walk(self._best_clock, room, view, wake_units)
        slowdown, limit, deadline = bounds
        found = self._walk(self._every_clock, room, view, wake_units, slowdown, deadline)
        if found is None and deadline < limit:
            found = self._walk(self._every_clock, room, view, wake_units, slowdown, limit)
        return self.fastest(room, view) if found is None else found

    def fastest(self, room: Sequence[int], view: ClusterView) -> Placement | None:
        """Return the fastest option with room."""
        return self._walk(self._fastest, room, view, 0.0)

    @staticmethod
    def _walk(
        options: Sequence[Option],
        room: Sequence[int],
        view: ClusterView,
        units: float,
        slowdown: float = inf,
        seconds: float = inf,
    ) -> Placement | None:
        """Return the best of some options in their order; waking counts when `units` is above 0."""
        best, least, best_level = None, inf, 0
        for place, gpus, placement, takes, ratio, score, joule_score, level in options:
            if room[place] < gpus or takes > seconds or ratio > slowdown:
                continue
            if units <= 0.0:
                return placement
            if best is not None and (score >= least or level > best_level):
                break
            joules = view.wakeup_joules(place, gpus)
            if joules <= 0.0:
                return placement
            total = score + joule_score * joules / units
            if total < least:
                best, least, best_level = placement, total, level
        return best


def _seconds(option: Option) -> float:
    return option.seconds


def _rank(option: Option) -> tuple[int, float]:
    return option.level, option.score
