"""The prices of scarce devices: dual variables of the capacity limits, found by ascent on occupancy and demand.

One price over all devices keeps some free for the next job; one for each device type keeps some of each, so that work
that gains most from a type finds room there. A price of a place's own keeps its fast, frugal devices for the work that
gains most: it is found by ascent on what arrivals *would* take at the present prices, had all places room.

Jobs are charged less than that last one, and the less the more is free. The dual rests where those who gain most are
about indifferent: a little above it and they all stay away. One huge job, or a wrong estimate, can take it there for
days; what is left free then brings them back.
"""

from collections.abc import Sequence

import numpy as np

from slurm_energy.policy.placement import ClusterView, FloatArray, PlaceInfo
from slurm_energy.policy.rules.settings import HEADROOM

MAX_HEADROOM = 0.08
"""More would idle devices for deadlines that cannot be kept."""
_MISSED, _TOLERATED = 0.002, 0.01
"""What a missed deadline adds to the headroom, and the share of misses at which it stays where it is."""
_SCARCITY_STEP = 0.02
"""At one arrival and an occupancy 1 above the wanted one, in terms of what a device draws."""
_TYPE_STEP = 0.1
"""The same of one device type: it fills faster than the cluster."""
_CEILING = 10.0
"""Most, in the same terms: the price must be able to come down again when jobs stop coming."""
_FIRST_STEP, _MIN_STEP = 0.05, 0.001
"""For an hour in which twice a place's devices are asked for, in terms of what a device draws."""
_HALVED_SECONDS = 12.0 * 3600.0
"""When the step is half the first one; from then on it falls with time, as steps must for prices to settle."""
_CHARGED = 0.75
"""Share of the dual that jobs pay in a place that is full; it falls with the square of the share in use."""
_PLACE_CEILING = 3.0
"""Most, in the same terms."""


class _Dual:
    """The price of one limit."""

    __slots__ = ("_step", "watts")

    def __init__(self, step: float) -> None:
        self._step = step
        self.watts = 0.0

    def move(self, excess: float, typical_watts: float) -> None:
        """Move the price by how far the occupancy is above the wanted one."""
        moved = self.watts + self._step * typical_watts * excess
        self.watts = min(_CEILING * typical_watts, max(0.0, moved))


class Scarcity:
    """One price over all GPUs; the step is that of `adaptive-price`, in terms of watts that jobs here draw."""

    def __init__(self, places: Sequence[PlaceInfo] = (), headroom: float = HEADROOM) -> None:
        """Start with no price; it speaks of GPUs, or of CPU sockets where there is no GPU.

        Args:
            places: Of the cluster.
            headroom: Share of the devices that the price keeps free.
        """
        self.headroom = self._least = headroom
        gpu_places = [index for index, place in enumerate(places) if not place.is_cpu]
        self._priced = gpu_places or list(range(len(places)))
        self._total = max(1, sum(places[index].total_gpus for index in self._priced))
        self._dual = _Dual(_SCARCITY_STEP)
        self.device_watts: FloatArray = np.zeros(len(places))
        """By place."""

    def deadline(self, *, missed: bool) -> None:
        """Take in the end of a job with a deadline: the headroom rises with a miss and falls while few are missed."""
        change = _MISSED if missed else -_MISSED * _TOLERATED
        most = max(self._least, MAX_HEADROOM)
        self.headroom = min(most, max(self._least, self.headroom + change))

    def move(self, view: ClusterView, typical_watts: float) -> None:
        """Move the price at an arrival; a queue counts as full, whatever holds its jobs back.

        Args:
            view: The cluster.
            typical_watts: What the arriving job draws with one device.
        """
        if view.num_waiting:
            occupancy = 1.0
        else:
            occupancy = 1.0 - sum(view.free_gpus[index] for index in self._priced) / self._total
        self._dual.move(occupancy - 1.0 + self.headroom, typical_watts)
        self.device_watts[self._priced] = self._dual.watts


class TypeScarcity:
    """One price for each GPU type. Jobs that wait say nothing here: they may wait for another type."""

    def __init__(self, places: Sequence[PlaceInfo] = (), headroom: float = 0.0) -> None:
        """Start with no prices.

        Args:
            places: Of the cluster.
            headroom: Share of each type that its price keeps free; with 0 no price ever rises.
        """
        self._headroom = headroom
        self._places_by_device: dict[str, list[int]] = {}
        for index, place in enumerate(places):
            if not place.is_cpu:
                self._places_by_device.setdefault(place.device, []).append(index)
        self._totals = {
            device: max(1, sum(places[index].total_gpus for index in where))
            for device, where in self._places_by_device.items()
        }
        self._duals = {device: _Dual(_TYPE_STEP) for device in self._places_by_device}
        self.device_watts: FloatArray = np.zeros(len(places))
        """By place."""

    def move(self, view: ClusterView, typical_watts: float) -> None:
        """Move the prices at an arrival.

        Args:
            view: The cluster.
            typical_watts: What the arriving job draws with one device.
        """
        if self._headroom <= 0.0:
            return
        for device, where in self._places_by_device.items():
            free = sum(view.free_gpus[index] for index in where) / self._totals[device]
            dual = self._duals[device]
            dual.move(self._headroom - free, typical_watts)
            self.device_watts[where] = dual.watts


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
        step = max(_MIN_STEP, _FIRST_STEP / (1.0 + now_seconds / _HALVED_SECONDS)) * typical_watts / 3600.0
        prices = self.dual_watts - step * (now_seconds - self._since_seconds)
        prices[place] += step * device_seconds / self._gpus[place]
        self._since_seconds = now_seconds
        self.dual_watts = np.clip(prices, 0.0, _PLACE_CEILING * typical_watts)
