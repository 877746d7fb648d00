"""What served options cost at given prices, and the clock of the least cost inside the bound: exact, by enumeration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint
from slurm_energy.policy.comparison import TypeComparison
from slurm_energy.policy.gnn.serving_options import ServedOption, ServedType

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionPrices:
    """What is paid beyond an option's own energy."""

    time_watts: float
    """Of a second, wait or run."""
    slowdown_joules: float
    """Of one more run time, in terms of the run at the type's highest clock."""
    waking: float
    """Of a joule that wakes a node."""
    scarcity: Sequence[float]
    """Of a GPU of each option's partition for as long as it is held, in terms of what it draws at its highest clock."""


class Costs(NamedTuple):
    """Parts of the cost of one way of running the job, J each."""

    energy: float
    time: float
    slowdown: float
    waking: float
    scarcity: float

    @property
    def total(self) -> float:
        """What is compared."""
        return sum(self)


class TypeChoice(NamedTuple):
    """The clock of the least cost on one GPU type."""

    gpu_type: GpuTypeName
    point: OperatingPoint | None
    """None where nobody has measured the type at several clocks: it stays at its highest."""
    costs: Costs
    full: Costs
    """At the highest clock."""


class OptionChoice(NamedTuple):
    """An option with its types' clocks; it costs what its dearest type does, since Slurm chooses among them."""

    served: ServedOption
    types: tuple[TypeChoice, ...]

    @property
    def dearest(self) -> TypeChoice:
        """The type that the option is judged by."""
        return max(self.types, key=lambda one: one.costs.total)

    @property
    def total(self) -> float:
        """What is compared, J."""
        return self.dearest.costs.total


class _Clocks(NamedTuple):
    """Clocks of a type, the highest first: of equal costs the first is taken."""

    slowdown: _Array
    energy: _Array
    """Over that at the highest clock."""
    points: tuple[OperatingPoint | None, ...]


def least_joules(options: Sequence[ServedOption], comparison: TypeComparison) -> float:
    """Return the least energy with which a job can be run inside its bound; 0 when no option is open."""
    found = []
    for served in options:
        for one in served.types:
            clocks = _clocks(comparison.clock_table(one.gpu_type))
            inside = clocks.slowdown <= one.room
            found.append(one.joules_full * float(clocks.energy[inside].min()))
    return min(found, default=0.0)


def option_choices(
    options: Sequence[ServedOption], prices: OptionPrices, comparison: TypeComparison
) -> tuple[OptionChoice, ...]:
    """Return the open options with the clock of the least cost for each GPU type, the cheapest option first.

    Args:
        options: Open or not.
        prices: At which they are compared; scarcity in the order of the options.
        comparison: Of GPU types for the job.
    """
    found = [
        OptionChoice(served, tuple(_type_choice(served, one, prices, scarcity, comparison) for one in served.types))
        for served, scarcity in zip(options, prices.scarcity, strict=True)
        if served.types
    ]
    return tuple(sorted(found, key=lambda choice: choice.total))


def clock_by_type(choices: Sequence[OptionChoice]) -> Mapping[GpuTypeName, OperatingPoint | None]:
    """Return the clock of each GPU type; a type of several partitions has the highest of theirs."""
    found: dict[GpuTypeName, OperatingPoint | None] = {}
    for one in (one for choice in choices for one in choice.types):
        before = found.get(one.gpu_type, one.point)
        higher = before is None or (one.point is not None and one.point.sm_clock_mhz > before.sm_clock_mhz)
        found[one.gpu_type] = one.point if higher else before
    return found


def _type_choice(
    served: ServedOption, one: ServedType, prices: OptionPrices, scarcity: float, comparison: TypeComparison
) -> TypeChoice:
    clocks = _clocks(comparison.clock_table(one.gpu_type))
    slowdown, option = clocks.slowdown, served.option
    seconds = one.seconds_full * (1.0 + slowdown)
    energy = one.joules_full * clocks.energy
    time = prices.time_watts * ((option.wait_seconds or 0.0) + seconds)
    slow = prices.slowdown_joules * slowdown
    held = scarcity * (one.joules_full / one.seconds_full) * seconds  # W of all its GPUs, for as long as it holds them
    waking = prices.waking * (option.wake_joules or 0.0)
    total = np.where(slowdown <= one.room, energy + time + slow + held, np.inf)
    best = int(total.argmin())

    def at(place: int) -> Costs:
        return Costs(float(energy[place]), float(time[place]), float(slow[place]), waking, float(held[place]))

    return TypeChoice(gpu_type=one.gpu_type, point=clocks.points[best], costs=at(best), full=at(0))


@lru_cache(maxsize=256)
def _clocks(table: ClockTable | None) -> _Clocks:
    if table is None:
        return _Clocks(np.zeros(1), np.ones(1), (None,))
    points = tuple(reversed(table.points))
    return _Clocks(
        slowdown=np.array([point.slowdown for point in points]),
        energy=np.array([1.0 + point.energy_change for point in points]),
        points=points,
    )
