"""The exact clock oracle: of all clocks that a GPU type supports, the one of least energy inside a slowdown bound.

Slowdown and saving are always measured against the default clock, the highest that may be set, whatever was chosen
before. A board whose power limit is too low for it runs slower there by itself: what it really reaches is the reference
of both figures, while `default_clock_mhz` stays the number that people know.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Literal

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import catalogue_limit_watts
from slurm_energy.energy_model.catalog import gpu_type as catalog_row
from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.errors import ValueRangeError

_DECIMALS = 9
"""Clocks above a board's limit run alike: without rounding, the last bits of a float would choose between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockCost:
    """Slowdown and energy of one unit of work with one clock set."""

    sm_clock_mhz: int
    slowdown: float
    """Ratio of the time to that at the default clock, less 1."""
    joules: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One clock against the default clock, over one workload or over all that may run."""

    sm_clock_mhz: int
    default_clock_mhz: int
    """The highest that may be set; a board that its power limit holds back runs below it."""
    slowdown: float
    """Ratio, 0.05 is 5 % longer than at the default clock: what a bound is held against, one of the next two."""
    worst_slowdown: float
    """The worst over the workloads."""
    mean_slowdown: float
    """The mean over the workloads."""
    energy_change: float
    """Ratio, the mean over the workloads: -0.13 is 13 % fewer joules than at the default clock."""
    source: Literal["measured", "model"] = "measured"


class ClockTable:
    """The operating points of one GPU type for one workload or an unknown one; ready to be asked many times."""

    def __init__(self, points: Sequence[OperatingPoint]) -> None:
        self.points = tuple(sorted(points, key=lambda point: point.sm_clock_mhz))
        self._by_clock = {point.sm_clock_mhz: point for point in self.points}
        by_slowdown = sorted(self.points, key=lambda point: (point.slowdown, point.energy_change, -point.sm_clock_mhz))
        self._slowdowns = [point.slowdown for point in by_slowdown]
        self._best: list[OperatingPoint] = []
        for point in by_slowdown:
            self._best.append(min(self._best[-1], point, key=_preference) if self._best else point)

    def at(self, sm_clock_mhz: int) -> OperatingPoint | None:
        """Return the point of one supported clock, None when nothing is known of it."""
        return self._by_clock.get(sm_clock_mhz)

    def best(self, max_slowdown: float, max_worst: float = inf) -> OperatingPoint | None:
        """Return the point of least energy whose slowdown is inside the bound; of equals, the highest clock.

        None when no clock is inside: only for a bound below 0 or NaN, since the default clock has slowdown 0.

        Args:
            max_slowdown: Bound of the table's slowdown.
            max_worst: Bound of the slowdown of the slowest workload.
        """
        index = bisect_right(self._slowdowns, max_slowdown) if max_slowdown >= 0.0 else 0
        point = self._best[index - 1] if index else None
        if point is None or point.worst_slowdown <= max_worst:
            return point
        inside = [one for one in self.points if one.slowdown <= max_slowdown and one.worst_slowdown <= max_worst]
        return min(inside, key=_preference, default=None)


def clock_table(
    workloads: Sequence[Sequence[ClockCost]], source: Literal["measured", "model"] = "measured"
) -> ClockTable:
    """Return the operating points of workloads that were measured, or modelled, at the same clocks.

    Args:
        workloads: Costs of each workload at each clock; the highest clock is the default clock.
        source: Where the costs come from.
    """
    costs = [{cost.sm_clock_mhz: cost for cost in workload} for workload in workloads]
    clocks = sorted(costs[0]) if costs else []
    if any(sorted(cost) != clocks for cost in costs):
        raise ValueRangeError("the workloads of one clock table have different clocks")
    points = []
    for clock in clocks:
        pairs = [(cost[clock], cost[clocks[-1]]) for cost in costs]
        worst = round(max(here.slowdown for here, _ in pairs), _DECIMALS)
        energy_change = sum(here.joules / default.joules - 1.0 for here, default in pairs) / len(pairs)
        points.append(
            OperatingPoint(
                sm_clock_mhz=clock,
                default_clock_mhz=clocks[-1],
                slowdown=worst,
                worst_slowdown=worst,
                mean_slowdown=round(sum(here.slowdown for here, _ in pairs) / len(pairs), _DECIMALS),
                energy_change=round(energy_change, _DECIMALS),
                source=source,
            )
        )
    return ClockTable(points)


def modelled_costs(curve: WorkloadCurve, clocks_mhz: Sequence[int]) -> tuple[ClockCost, ...]:
    """Return slowdown and energy of a workload at each clock, from its readings and the curve fitted to them."""
    return tuple(
        ClockCost(sm_clock_mhz=clock, slowdown=curve.slowdown(clock), joules=curve.joules(clock))
        for clock in clocks_mhz
    )


@lru_cache(maxsize=256)
def clock_table_of(
    gpu_type: GpuTypeName, workload: str | None = None, power_limit_watts: float | None = None
) -> ClockTable | None:
    """Return the points of a type's supported clocks that its curves cover; None when its energy is UNKNOWN.

    Args:
        gpu_type: Catalogue name.
        workload: One of the measured workloads; None when it is not known which kind of work will run. The slowdown is
            then the worst of all curves and of the readings behind them, so that the bound holds for each, and the
            energy change is the mean of the readings.
        power_limit_watts: Limit of the boards in question, None for the catalogue's. Where it is below that of the
            boards that were measured, the board holds its clock back by itself and leaves less to save. A limit above
            that of the measured boards changes nothing.
    """
    row = catalog_row(gpu_type)
    curves = [curve for curve in curves_of(gpu_type) if workload is None or curve.workload == workload]
    if row is None or row.default_sm_clock_mhz is None or not curves:
        return None
    limit_watts = catalogue_limit_watts(gpu_type) if power_limit_watts is None else power_limit_watts
    curves = [curve.on_board(limit_watts) for curve in curves]
    low, high = max(curve.low_clock_mhz for curve in curves), min(curve.high_clock_mhz for curve in curves)
    clocks = [clock for clock in row.sm_clocks_mhz if low <= clock <= high]
    if not clocks or clocks[-1] != row.default_sm_clock_mhz:
        return None
    return clock_table([modelled_costs(curve, clocks) for curve in curves], source=curves[0].source)


@lru_cache(maxsize=256)
def default_clock_only(table: ClockTable) -> ClockTable:
    """Return the table without its lower clocks, for work on which their effect is unknown."""
    return ClockTable([point for point in table.points if point.sm_clock_mhz == point.default_clock_mhz])


@lru_cache(maxsize=256)
def follows_the_clock(table: ClockTable) -> ClockTable:
    """Return the table for work that at worst takes as much longer as the clock is lower."""
    points = []
    for point in table.points:
        inverse = round(point.default_clock_mhz / point.sm_clock_mhz - 1.0, _DECIMALS)
        points.append(replace(point, worst_slowdown=max(point.worst_slowdown, inverse)))
    return ClockTable(points)


@lru_cache(maxsize=256)
def min_measured_watts(gpu_type: GpuTypeName, power_limit_watts: float | None = None) -> float | None:
    """Return the least power of a type's measured workloads at the default clock, on boards of such a limit.

    None when the type was not measured; a limit of None is the catalogue's.
    """
    limit_watts = catalogue_limit_watts(gpu_type) if power_limit_watts is None else power_limit_watts
    curves = [curve.on_board(limit_watts) for curve in curves_of(gpu_type)]
    return min((curve.watts(curve.high_clock_mhz) for curve in curves), default=None)


@lru_cache(maxsize=256)
def mean_measured_watts(gpu_type: GpuTypeName, power_limit_watts: float | None = None) -> float | None:
    """Return the mean power of a type's measured workloads at the default clock, on boards of such a limit.

    None when the type was not measured; a limit of None is the catalogue's.
    """
    limit_watts = catalogue_limit_watts(gpu_type) if power_limit_watts is None else power_limit_watts
    curves = [curve.on_board(limit_watts) for curve in curves_of(gpu_type)]
    return sum(curve.watts(curve.high_clock_mhz) for curve in curves) / len(curves) if curves else None


def _preference(point: OperatingPoint) -> tuple[float, int]:
    return point.energy_change, -point.sm_clock_mhz
