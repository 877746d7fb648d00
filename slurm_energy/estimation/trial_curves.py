"""Curves of a site's GPU types from clocks that were tried in its jobs; needs numpy and scipy.

A job reports no amount of work, so each name is a load of its own, with the time at the default clock as 1: curves say
what clocks do, and nothing of one GPU type against another. That is why a load's name has its type in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock, NamedTrial
from slurm_energy.energy_model.calibration.clocks import SweepPoint
from slurm_energy.energy_model.calibration.site_fit import type_entry
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.learned_clocks import learned_clocks

MIN_CLOCKS = 4
"""Of a name, the default one with them, that were answered."""
MIN_NAMES = 3
"""Of a type: its table holds for the slowest of its curves, and fewer say little of the next program."""
MAX_SLOWDOWN_ERROR = 0.015
"""Standard error of a point that is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeHistory:
    """What the jobs of one GPU type gave."""

    gpu_type: GpuTypeName
    entry: Mapping[str, Any] | None
    """For the file of the site's curves; None where there is too little."""
    jobs: int
    names: int
    """That had trials, answered or not."""
    used_names: int
    slowdown_error: float
    """Mean standard error of the points that are used; 0 where there are none."""
    lacks: str = ""
    """What is missing, for people."""


def history_of_types(trials: Iterable[NamedTrial], at_seconds: float) -> tuple[TypeHistory, ...]:
    """Return what can be fitted of each GPU type on which clocks were tried.

    Args:
        trials: The latest job's first, each job's in their order.
        at_seconds: Now, for the file.
    """
    by_type: dict[GpuTypeName, list[NamedTrial]] = {}
    for one in trials:
        by_type.setdefault(one.trial.gpu_type, []).append(one)
    return tuple(_history(name, found, at_seconds) for name, found in sorted(by_type.items()))


def _history(gpu_type: GpuTypeName, trials: list[NamedTrial], at_seconds: float) -> TypeHistory:
    jobs = len({one.run for one in trials})
    groups = {(one.user_id, job_group(one.name, one.script_key)) for one in trials}
    loads: dict[str, list[SweepPoint]] = {}
    errors: list[float] = []
    for number, (user_id, group, clocks) in enumerate(learned_clocks(trials), start=1):
        of_name = [one for one in trials if (one.user_id, job_group(one.name, one.script_key)) == (user_id, group)]
        known = [one for one in _all(clocks[gpu_type]) if one.error <= MAX_SLOWDOWN_ERROR]
        points = _points(known, of_name)
        if len(points) >= MIN_CLOCKS:
            loads[f"jobs of name {number} on {gpu_type}"] = points
            errors += [one.error for one in known]
    row = CATALOG.get(gpu_type)
    result = TypeHistory(
        gpu_type=gpu_type,
        entry=None,
        jobs=jobs,
        names=len(groups),
        used_names=len(loads),
        slowdown_error=sum(errors) / len(errors) if errors else 0.0,
    )
    if row is None:
        return replace(result, lacks="the type is not in the catalogue")
    if len(loads) < MIN_NAMES:
        return replace(
            result,
            lacks=f"{len(loads)} of {len(groups)} names have {MIN_CLOCKS - 1} or more lower clocks with an answer of "
            f"{MAX_SLOWDOWN_ERROR:.1%} error or less, {MIN_NAMES} are needed",
        )
    highest = max(points[-1].sm_clock_mhz for points in loads.values())
    lowest = max(points[0].sm_clock_mhz for points in loads.values())
    supported = row.sm_clocks_mhz or sorted({point.sm_clock_mhz for points in loads.values() for point in points})
    measured = {
        "from": "clocks tried in jobs",
        "jobs": jobs,
        "names": len(loads),
        "slowdown_error": result.slowdown_error,
        "at_seconds": round(at_seconds),
    }
    try:
        if any(points[-1].sm_clock_mhz != highest for points in loads.values()):
            raise ValueRangeError("boards with different default clocks: they are not one type")
        entry = type_entry(loads, supported, row.power_limit_watts, measured)
    except ValueRangeError as error:
        return replace(result, lacks=str(error))
    # Below the lowest clock that all of them were measured at, some curve would be a guess.
    return replace(result, entry={**entry, "low_clock_mhz": lowest})


def _all(learned: LearnedClock) -> tuple[LearnedClock, ...]:
    return (learned, *learned.others)


def _points(known: Sequence[LearnedClock], trials: Sequence[NamedTrial]) -> list[SweepPoint]:
    """Return power and time at each clock, ascending; a unit of work takes 1 s at the default clock."""
    watts = [one.trial.default_watts for one in trials if one.trial.default_watts > 0.0]
    if not known or not watts:
        return []
    default = sum(watts) / len(watts)
    points = [SweepPoint(sm_clock_mhz=known[0].default_clock_mhz, watts=default, seconds=1.0)]
    for one in known:
        if one.sm_clock_mhz < one.default_clock_mhz:
            seconds = 1.0 + one.slowdown
            watts_here = default * (1.0 + one.energy_change) / seconds
            points.append(SweepPoint(sm_clock_mhz=one.sm_clock_mhz, watts=watts_here, seconds=seconds))
    return sorted(points, key=lambda point: point.sm_clock_mhz)
