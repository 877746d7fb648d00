"""Curves of a site's own boards from what was measured at several clocks; needs numpy and scipy."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from slurm_energy.energy_model.calibration.clocks import SweepPoint, fit_sweep
from slurm_energy.energy_model.calibration.files import six_digits
from slurm_energy.errors import ValueRangeError

MAX_ERROR = 0.05
"""Mean relative error of a fit beyond which what was measured is not used."""


def type_entry(
    points_by_load: Mapping[str, Sequence[SweepPoint]],
    supported_clocks_mhz: Sequence[int],
    power_limit_watts: float | None,
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a type's entry in the file of the site's curves.

    Args:
        points_by_load: What was measured; all loads at the same clocks, the highest the default clock.
        supported_clocks_mhz: Of the board, ascending.
        power_limit_watts: Of the board, None where it does not tell.
        measured: Where and how, for people.

    Raises:
        ValueRangeError: there is nothing to fit, or no fit is good enough.
    """
    if not points_by_load:
        raise ValueRangeError("no load was measured at enough clocks")
    clocks = sorted({point.sm_clock_mhz for points in points_by_load.values() for point in points})
    curves: dict[str, Any] = {}
    refused: list[str] = []
    for name, points in points_by_load.items():
        ordered = _without_faster_lower_clocks(points)
        fit = fit_sweep(ordered, clocks[-1], power_limit_watts or max(point.watts for point in ordered) * 1.05)
        worst = max(fit.power_error, fit.runtime_error)
        if worst > MAX_ERROR:
            refused.append(f"{name}: the fit is {worst:.1%} off, more than {MAX_ERROR:.0%}")
            continue
        curves[name] = {
            "power": asdict(fit.power),
            "runtime": asdict(fit.runtime),
            "power_limit_watts": fit.power_limit_watts,
            "power_error": fit.power_error,
            "runtime_error": fit.runtime_error,
            "readings": [[point.sm_clock_mhz, point.watts, point.seconds] for point in ordered],
        }
    if not curves:
        raise ValueRangeError("; ".join(refused))
    entry: dict[str, Any] = six_digits(
        {
            "source": "measured",
            "reference_clock_mhz": clocks[-1],
            "low_clock_mhz": clocks[0],
            "high_clock_mhz": clocks[-1],
            "supported_clocks_mhz": list(supported_clocks_mhz),
            "measured": {**measured, "refused": refused},
            "curves": curves,
        }
    )
    return entry


def _without_faster_lower_clocks(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Return the points by ascending clock; a lower clock counts as at least as slow as every higher one."""
    found: list[SweepPoint] = []
    slowest = -inf
    for point in sorted(points, key=lambda one: -one.sm_clock_mhz):
        slowest = max(slowest, point.seconds)
        found.append(SweepPoint(sm_clock_mhz=point.sm_clock_mhz, watts=point.watts, seconds=slowest))
    return tuple(reversed(found))
