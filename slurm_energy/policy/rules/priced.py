"""Options of a table under prices that change from one decision to the next."""

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from slurm_energy.policy.placement import ClusterView, FloatArray, OptionTable, Placement
from slurm_energy.policy.rules.bounds import Bounds
from slurm_energy.policy.rules.ranking import Ranking
from slurm_energy.policy.rules.tables import cheapest_by_speed, slowdowns


class PricedOptions:
    """Least score + sum over places of price x device-seconds, all per unit of work.

    Options are flat and pruned: at the same place and count an option that is no faster and no cheaper than another is
    left out, since it can win at no price from 0 up and under no bound.
    """

    __slots__ = ("_device_seconds", "_gpus", "_place", "_placements", "_score", "_seconds", "_slowdown", "free")

    def __init__(self, table: OptionTable, score: FloatArray) -> None:
        """Prepare a table for a score without the prices, [places, counts, clocks]."""
        where = cheapest_by_speed(table.seconds_per_unit, score)
        place, count, clock = where
        gpus = np.asarray(table.gpu_counts)[count]
        self.free = Ranking(table, score)
        """The same options while all prices are 0."""
        self._place = place
        self._gpus = gpus
        self._score = score[where]
        self._seconds = table.seconds_per_unit[where]
        self._slowdown = slowdowns(table)[where]
        self._device_seconds = gpus * self._seconds
        self._placements = [Placement(*row) for row in np.stack([place, gpus, clock], axis=1).tolist()]

    def choose(
        self, prices: FloatArray, room: Sequence[int], view: ClusterView, bounds: Bounds | None, wake_units: float
    ) -> Placement | None:
        """Return the best option with room; arguments and the order in which bounds give way are those of `Ranking`.

        Args:
            prices: Watts of one device by place, [places].
            room: By place, the most devices that the job could start with.
            view: The cluster.
            bounds: Of the job.
            wake_units: Work over which the energy of waking nodes is spread; 0 leaves that energy out.
        """
        fits = np.asarray(room)[self._place] >= self._gpus
        if bounds is not None:
            fits = self._within(fits, bounds)
        total = np.where(fits, self._score + prices[self._place] * self._device_seconds, inf)
        if not total.size:
            return None
        best = int(total.argmin())
        if total[best] == inf:
            return self.free.fastest(room, view)
        if wake_units > 0.0:
            best = self._with_waking(total, best, view, wake_units)
        return self._placements[best]

    def _within(self, fits: NDArray[np.bool_], bounds: Bounds) -> NDArray[np.bool_]:
        fits = fits & (self._slowdown <= bounds.slowdown)
        in_time = fits & (self._seconds <= bounds.deadline_seconds_per_unit)
        if not in_time.any():
            in_time = fits & (self._seconds <= bounds.limit_seconds_per_unit)
        return in_time

    def _with_waking(self, total: FloatArray, best: int, view: ClusterView, units: float) -> int:
        """Return the best option when waking counts; the view is asked only for options that come first."""
        charged: set[tuple[int, int]] = set()
        while True:
            place, gpus = self._placements[best][:2]
            if (place, gpus) in charged:
                return best
            joules = view.wakeup_joules(place, gpus)
            if joules <= 0.0:
                return best
            charged.add((place, gpus))
            total[(self._place == place) & (self._gpus == gpus)] += joules / units
            best = int(total.argmin())
