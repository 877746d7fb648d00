"""Fits the curves to measured clock sweeps. Needs scipy and numpy, which only the `dev` extra installs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from slurm_energy.energy_model.curves import PowerCurve, RuntimeCurve
from slurm_energy.errors import ValueRangeError

Vector = npt.NDArray[np.float64]
_NEIGHBOURS = 2
_CAP_CANDIDATES = 41
_KNEE_CANDIDATES = 161


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One measured clock: the clock that was set, mean board power, time of one unit of work."""

    sm_clock_mhz: int
    watts: float
    seconds: float


def smoothed_readings(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Return the readings by ascending clock, without single bad ones.

    Power and time are each the median over five neighbouring clocks; a lower clock then counts as at least as slow as
    every higher one. What stays is what a smooth curve would hide, such as the A40's steps of 8 %.
    """
    ordered = sorted(points, key=lambda point: point.sm_clock_mhz)
    watts = _medians([point.watts for point in ordered])
    seconds = np.maximum.accumulate(_medians([point.seconds for point in ordered])[::-1])[::-1]
    return tuple(
        SweepPoint(sm_clock_mhz=point.sm_clock_mhz, watts=float(power), seconds=float(time))
        for point, power, time in zip(ordered, watts, seconds, strict=True)
    )


def _medians(values: Sequence[float]) -> Vector:
    return np.array(
        [np.median(values[max(0, index - _NEIGHBOURS) : index + _NEIGHBOURS + 1]) for index in range(len(values))]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted coefficients; errors are mean absolute relative errors over the sweep."""

    power: PowerCurve
    runtime: RuntimeCurve
    power_limit_watts: float
    power_error: float
    runtime_error: float


def fit_sweep(points: Sequence[SweepPoint], reference_clock_mhz: int, board_limit_watts: float) -> Fit:
    """Return the curves that fit one workload's sweep best in relative error; no coefficient is negative.

    The power that the board held is fitted too, up to `board_limit_watts`: boards hold a few watts less than their
    limit. Where power is held, the real clock is the one at which P meets it, and T is fitted against that.
    """
    if len(points) < 4:
        raise ValueRangeError(f"a sweep of {len(points)} clocks is too short to fit, 4 are needed")
    clock: Vector = np.array([point.sm_clock_mhz for point in points], dtype=np.float64) / reference_clock_mhz
    watts: Vector = np.array([point.watts for point in points], dtype=np.float64)
    seconds: Vector = np.array([point.seconds for point in points], dtype=np.float64)
    best: tuple[float, PowerCurve, RuntimeCurve, float] | None = None
    highest = min(board_limit_watts, float(watts.max()) * 1.05)
    for limit in (*np.linspace(0.90 * highest, highest, _CAP_CANDIDATES), board_limit_watts):
        power = _fit_power(clock, watts, float(limit))
        real = np.minimum(clock, power.relative_clock_at(float(limit), float(clock.max())))
        runtime = fit_runtime(real, seconds, num_reweightings=0)
        error = _power_error(power, real, watts) + _runtime_error(runtime, real, seconds)
        if best is None or error < best[0] - 1e-9:
            best = (error, power, runtime, float(limit))
    assert best is not None
    _, power, _, limit_watts = best
    real = np.minimum(clock, power.relative_clock_at(limit_watts, float(clock.max())))
    runtime = fit_runtime(real, seconds)
    return Fit(
        power=power,
        runtime=runtime,
        power_limit_watts=limit_watts,
        power_error=_power_error(power, real, watts),
        runtime_error=_runtime_error(runtime, real, seconds),
    )


def fit_runtime(real_clock: Vector, seconds: Vector, num_reweightings: int = 8) -> RuntimeCurve:
    """Return T(f) = max(memory, compute/f) + fixed; each knee memory/compute is tried, the rest is linear.

    Reweighting turns least squares into least absolute error, so that a few disturbed readings do not bend the curve.

    Args:
        real_clock: Relative clocks at which the GPU ran, [num_clocks].
        seconds: Time of one unit of work, [num_clocks].
        num_reweightings: Steps towards least absolute error; 0 is least squares.
    """
    best: tuple[float, RuntimeCurve] | None = None
    knees = (*np.linspace(float(real_clock.min()), float(real_clock.max()), _KNEE_CANDIDATES), np.inf)
    for knee in knees:
        stretch = 1.0 / np.minimum(real_clock, knee)
        basis = np.stack([stretch, np.ones_like(stretch)], axis=1)
        weight = np.ones_like(seconds)
        for _ in range(num_reweightings + 1):
            compute, fixed = _relative_nnls(basis, seconds, weight)
            predicted = basis @ np.array([compute, fixed])
            deviation = np.abs(predicted / seconds - 1.0)
            weight = 1.0 / np.sqrt(np.maximum(deviation, 1e-4))
            error = float(np.mean(deviation))
            if compute + fixed > 0.0 and (best is None or error < best[0] - 1e-9):
                memory = 0.0 if np.isinf(knee) else compute / float(knee)
                curve = RuntimeCurve(memory_seconds=memory, compute_seconds=compute, fixed_seconds=fixed)
                best = (error, curve)
    if best is None:
        raise ValueRangeError("a sweep whose times are all 0 cannot be fitted")
    return best[1]


def _fit_power(clock: Vector, watts: Vector, limit_watts: float) -> PowerCurve:
    """Return P fitted to the points that the limit leaves free: power there still rises with the clock."""
    free = watts < 0.985 * limit_watts
    if free.sum() < 4:
        free = np.ones_like(free)
    basis = np.stack([clock[free] ** 3, clock[free], np.ones_like(clock[free])], axis=1)
    cubic, linear, constant = _relative_nnls(basis, watts[free], np.ones_like(watts[free]))
    return PowerCurve(cubic_watts=cubic, linear_watts=linear, constant_watts=constant)


def _relative_nnls(basis: Vector, target: Vector, weight: Vector) -> list[float]:
    """Return non-negative coefficients of least squared weighted relative error."""
    coefficients, _ = nnls(basis * (weight / target)[:, None], weight)
    return [float(value) for value in coefficients]


def _power_error(power: PowerCurve, real_clock: Vector, watts: Vector) -> float:
    predicted = np.array([power.watts(float(clock)) for clock in real_clock])
    return float(np.mean(np.abs(predicted / watts - 1.0)))


def _runtime_error(runtime: RuntimeCurve, real_clock: Vector, seconds: Vector) -> float:
    predicted = np.array([runtime.seconds(float(clock)) for clock in real_clock])
    return float(np.mean(np.abs(predicted / seconds - 1.0)))
