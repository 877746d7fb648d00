"""What policies and the scheduler are told about costs, in a world where that is not the truth."""

from collections.abc import Sequence
from math import exp

import numpy as np

from slurm_energy.policy.placement import OptionTable
from slurm_energy.twin.places import OptionTables, Place
from slurm_energy.twin.world import EstimateErrors, World

_BRANCH = 0x657374
"""Keeps this stream apart from those that others spawn from the same seed."""


class EstimatedTables(OptionTables):
    """The option tables with every device's watts and seconds off by the factors of its kinds of work.

    A factor holds for all counts and clocks, as a wrong calibration does: the order of the clocks by energy beyond free
    changes through the free power alone, the order of the devices through everything.
    """

    def __init__(
        self, world: World, places: Sequence[Place], factors: dict[tuple[str, str], tuple[float, float]]
    ) -> None:
        super().__init__(world, places)
        self._devices = [place.device.name for place in places]
        self._factors = factors

    def made(self, kind: str, gpu_counts: tuple[int, ...]) -> OptionTable:
        """Return a new table with its errors."""
        table = super().made(kind, gpu_counts)
        found = [self._factors.get((device, kind), (1.0, 1.0)) for device in self._devices]
        watts, seconds = (np.array(column)[:, None, None] for column in zip(*found, strict=True))
        return OptionTable(
            gpu_counts=table.gpu_counts,
            seconds_per_unit=table.seconds_per_unit * seconds,
            watts=table.watts * watts,
            free_watts=table.free_watts,
            joules_per_unit=table.joules_per_unit * (watts * seconds),
        )


def estimated_tables(world: World, places: Sequence[Place], true: OptionTables, seed: int) -> OptionTables:
    """Return what is told of a world in the run of a seed: the true tables themselves where there are no errors."""
    errors = world.estimate_errors
    return true if errors is None else EstimatedTables(world, places, estimate_factors(world, errors, seed))


def estimate_factors(world: World, errors: EstimateErrors, seed: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the factors on watts and on seconds by device type and kind of work.

    Drawn in the order of the names, so that they depend on nothing but names and seed.
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_BRANCH,)))
    pairs = sorted((name, kind) for name, device in world.devices.items() for kind in device.loads)
    draws = random.standard_normal((len(pairs), 2)).tolist()
    return {
        pair: (exp(errors.watts_sigma * watts), exp(errors.seconds_sigma * seconds))
        for pair, (watts, seconds) in zip(pairs, draws, strict=True)
    }
