"""A price of devices for each place: what the best device is worth to those who need it most.

Fast, frugal devices are few, and every kind of work runs a little cheaper on them. Taken by whoever comes first, they
are full when the work comes that gains most. A price of a place's own keeps it for that work: the dual variable of the
place's capacity, found by ascent on what arrivals *would* take at the present prices, had all places room.

Jobs are charged less than that, and the less the more is free. The dual rests where those who gain most are about
indifferent: a little above it and they all stay away. One huge job, or a wrong estimate, can take it there for days;
what is left free then brings them back.
"""

from collections.abc import Sequence

import numpy as np

from slurm_energy.policy.placement import FloatArray, PlaceInfo

_FIRST_STEP, _LEAST_STEP = 0.05, 0.001
"""For an hour in which twice a place's devices are asked for, in terms of what a device draws."""
_HALVED_SECONDS = 12.0 * 3600.0
"""When the step is half the first one; from then on it falls with time, as steps must for prices to settle."""
_CHARGED = 0.75
"""Share of the dual that jobs pay in a place that is full; it falls with the square of the share in use."""
_CEILING = 3.0
"""Most, in the same terms."""


class PlacePrices:
    """One price for each place; 0 where more is free than asked for."""

    def __init__(self, places: Sequence[PlaceInfo] = ()) -> None:
        """Start with no prices."""
        self._gpus = np.array([max(1, place.total_gpus) for place in places], dtype=np.float64)
        self._since_seconds = 0.0
        self.dual_watts: FloatArray = np.zeros(len(places))
        """By place: what arrivals are asked with what they would take."""

    def charged_watts(self, free_gpus: Sequence[int]) -> FloatArray:
        """Return what a job pays for a device, by place.

        Args:
            free_gpus: By place.
        """
        used = 1.0 - np.minimum(np.asarray(free_gpus, dtype=np.float64) / self._gpus, 1.0)
        charged: FloatArray = _CHARGED * self.dual_watts * used**2
        return charged

    def move(self, place: int, device_seconds: float, typical_watts: float, now_seconds: float) -> None:
        """Move the prices at an arrival.

        Args:
            place: Where the job would cost least.
            device_seconds: What it would take there.
            typical_watts: What jobs draw with one device in the mean.
            now_seconds: Time of the arrival.
        """
        step = max(_LEAST_STEP, _FIRST_STEP / (1.0 + now_seconds / _HALVED_SECONDS)) * typical_watts / 3600.0
        prices = self.dual_watts - step * (now_seconds - self._since_seconds)
        prices[place] += step * device_seconds / self._gpus[place]
        self._since_seconds = now_seconds
        self.dual_watts = np.clip(prices, 0.0, _CEILING * typical_watts)
