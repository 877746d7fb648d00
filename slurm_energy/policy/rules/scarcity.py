"""The price of devices: the dual variable of the capacity limit, found by ascent on their occupancy.

One price over all devices keeps some free for whoever comes; one for each device type keeps some of each, so that work
that gains most from a type finds room there.
"""

from collections.abc import Sequence

import numpy as np

from slurm_energy.policy.placement import ClusterView, FloatArray, PlaceInfo
from slurm_energy.policy.rules.total_cost_settings import HEADROOM

MOST_HEADROOM = 0.08
"""More would idle devices for deadlines that nobody could keep."""
_MISSED, _TOLERATED = 0.002, 0.01
"""What a missed deadline adds to the headroom, and the share of misses at which it stays where it is."""
_STEP = 0.02
"""At one arrival and an occupancy 1 above the wanted one, in terms of what a device draws."""
_TYPE_STEP = 0.1
"""The same of one device type: it fills faster than the cluster."""
_CEILING = 10.0
"""Most, in the same terms: the price must be able to come down again when jobs stop coming."""


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
        self._total = sum(places[index].total_gpus for index in self._priced)
        self._dual = _Dual(_STEP)
        self.device_watts: FloatArray = np.zeros(len(places))
        """By place."""

    def deadline(self, *, missed: bool) -> None:
        """Take in the end of a job with a deadline: the headroom rises with a miss and falls while few are missed."""
        change = _MISSED if missed else -_MISSED * _TOLERATED
        most = max(self._least, MOST_HEADROOM)
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

    def __init__(self, places: Sequence[PlaceInfo] = (), spare: float = 0.0) -> None:
        """Start with no prices.

        Args:
            places: Of the cluster.
            spare: Share of each type that its price keeps free; with 0 no price ever rises.
        """
        self._spare = spare
        self._places_by_device: dict[str, list[int]] = {}
        for index, place in enumerate(places):
            if not place.is_cpu:
                self._places_by_device.setdefault(place.device, []).append(index)
        self._totals = {
            device: sum(places[index].total_gpus for index in where) for device, where in self._places_by_device.items()
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
        if self._spare <= 0.0:
            return
        for device, where in self._places_by_device.items():
            free = sum(view.free_gpus[index] for index in where) / self._totals[device]
            dual = self._duals[device]
            dual.move(self._spare - free, typical_watts)
            self.device_watts[where] = dual.watts
