"""Curves of measured clock sweeps. Needs scipy and numpy, which only the `dev` extra installs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from slurm_energy.energy_model.calibration.files import Document, Tell, read_rows, silent, six_digits
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.coefficients import FitError
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


POWER_ERROR_BOUND = 0.04
RUNTIME_ERROR_BOUND = 0.03
Sweeps = dict[str, tuple[SweepPoint, ...]]
Stage = tuple[str, str, str, int]
_FIRM_FLOOR = 0.9
_PERSEUS_NAMES = {"A100-SXM4-80GB": "a100-sxm4-80gb", "A40": "a40"}
_BOARD_LIMITS_WATTS = {
    # The A100 boards of that study drew 464 to 480 W at 1410 MHz: the 500 W variant, not the 400 W of the data sheet.
    "a100-sxm4-80gb": 500.0,
    "a40": 300.0,
    "v100-pcie-16gb": 250.0,
}
_ORIGINS = {
    "a100-sxm4-80gb": "Perseus, SOSP 2024, ml-energy/zeus 1b1c4a9d (Apache-2.0): A100-SXM4-80GB, boards of 500 W",
    "a40": "Perseus, SOSP 2024, ml-energy/zeus 1b1c4a9d (Apache-2.0): A40",
    "v100-pcie-16gb": "nsfcac/gpupowermodel 0b28e68f (BSD-3-Clause): V100; 1380 MHz is the PCIe board's highest clock",
}
_SIBLINGS = {
    "v100-pcie-32gb": "v100-pcie-16gb",
    "v100-sxm2-16gb": "v100-pcie-16gb",
    "v100-sxm2-32gb": "v100-pcie-16gb",
}


def read_perseus_stages(path: Path) -> dict[Stage, tuple[SweepPoint, ...]]:
    """Return every measured A100 and A40 sweep by (GPU type, model, instruction, stage), clocks ascending."""
    raw: dict[Stage, list[SweepPoint]] = {}
    columns = ("gpu", "model", "stage", "instruction", "sm_clock_mhz", "time_s", "avg_power_w")
    for row in read_rows(path, columns):
        if row.text("gpu") not in _PERSEUS_NAMES:
            raise row.error("gpu", f"one of {', '.join(_PERSEUS_NAMES)} is needed")
        stage = _PERSEUS_NAMES[row.text("gpu")], row.text("model"), row.text("instruction"), row.count("stage")
        point = SweepPoint(
            sm_clock_mhz=row.count("sm_clock_mhz", 1),
            watts=row.number("avg_power_w", 1e-3),
            seconds=row.number("time_s", 1e-9),
        )
        raw.setdefault(stage, []).append(point)
    return {stage: tuple(sorted(points, key=lambda point: point.sm_clock_mhz)) for stage, points in raw.items()}


def read_perseus(path: Path) -> dict[str, Sweeps]:
    """Return the A100 and A40 sweeps by GPU type and workload; stages with equal readings are one workload."""
    stages: dict[tuple[str, str, str, tuple[SweepPoint, ...]], list[int]] = {}
    for (gpu, model, instruction, stage), points in read_perseus_stages(path).items():
        stages.setdefault((gpu, model, instruction, points), []).append(stage)
    sweeps: dict[str, Sweeps] = {}
    for (gpu, model, instruction, ordered), members in stages.items():
        span = f"stage-{members[0]}" if len(members) == 1 else f"stages-{min(members)}-{max(members)}"
        sweeps.setdefault(gpu, {})[f"{model}-{instruction}-{span}"] = ordered
    return sweeps


def read_v100(path: Path) -> Sweeps:
    """Return the V100 sweeps of the five applications whose run time is valid."""
    raw: dict[str, list[SweepPoint]] = {}
    for row in read_rows(path, ("application", "sm_clock_mhz", "avg_power_w", "run_time_s", "run_time_valid")):
        if row.text("run_time_valid") == "True":
            point = SweepPoint(
                sm_clock_mhz=row.count("sm_clock_mhz", 1),
                watts=row.number("avg_power_w", 1e-3),
                seconds=row.number("run_time_s", 1e-9),
            )
            raw.setdefault(row.text("application").lower(), []).append(point)
    return {name: tuple(sorted(points, key=lambda point: point.sm_clock_mhz)) for name, points in raw.items()}


def read_sweeps(data_directory: Path) -> dict[str, Sweeps]:
    """Return every measured sweep by catalogue name and workload."""
    sweeps = read_perseus(data_directory / "perseus_dvfs" / "stage_clock_sweep.csv")
    sweeps["v100-pcie-16gb"] = read_v100(data_directory / "nsfcac_v100_dvfs" / "v100_clock_sweep.csv")
    return sweeps


def board_limit_watts(gpu_type: str) -> float:
    """Return the power limit of the boards that were measured."""
    return _BOARD_LIMITS_WATTS[gpu_type]


def calibrated_table(sweeps: Mapping[str, Sweeps], tell: Tell = silent) -> Document:
    """Return the document of curves.json."""
    types: Document = {}
    num_sweeps, done = sum(len(workloads) for workloads in sweeps.values()), 0
    for gpu, workloads in sorted(sweeps.items()):
        clocks = [point.sm_clock_mhz for points in workloads.values() for point in points]
        curves = {}
        for name, points in sorted(workloads.items()):
            tell("clocks", done, num_sweeps)
            curves[name] = _rounded(fit_sweep(points, max(clocks), board_limit_watts(gpu)), points)
            done += 1
        types[gpu] = {
            "source": "measured",
            "origin": _ORIGINS[gpu],
            "reference_clock_mhz": max(clocks),
            "low_clock_mhz": min(clocks),
            "high_clock_mhz": max(clocks),
            "curves": curves,
        }
    tell("clocks", num_sweeps, num_sweeps)
    errors = [error for gpu, entry in types.items() for error in _errors(gpu, entry)]
    for sibling, measured in _SIBLINGS.items():
        if measured in types:
            types[sibling] = _sibling_entry(sibling, measured, types[measured])
    stated = [{key: value for key, value in asdict(error).items() if value is not None} for error in errors]
    source = "; ".join(_ORIGINS[gpu] for gpu in sorted(sweeps))
    return {"format": 1, "source": source, "fit_errors": six_digits(stated), "gpu_types": types}


def fit_clocks(data: Path, tell: Tell) -> Document:
    """Return curves.json from the folder of data sets."""
    return calibrated_table(read_sweeps(data), tell)


def _errors(gpu: str, entry: Mapping[str, Any]) -> list[FitError]:
    """Return the mean errors over all curves of a type; those of the V100 have no bound of their own."""
    curves = entry["curves"].values()
    num_points = sum(len(curve["readings"]) for curve in curves)
    bounds = (POWER_ERROR_BOUND, RUNTIME_ERROR_BOUND) if gpu in _PERSEUS_NAMES.values() else (None, None)
    return [
        FitError(
            quantity=f"{gpu}: {quantity} against the clock, {len(curves)} curves",
            mean_relative_error=mean(curve[key] for curve in curves),
            num_points=num_points,
            bound=bound,
        )
        for quantity, key, bound in zip(("power", "time"), ("power_error", "runtime_error"), bounds, strict=True)
    ]


def _rounded(fit: Fit, points: tuple[SweepPoint, ...]) -> dict[str, Any]:
    def six(value: float) -> float:
        return float(f"{value:.6g}")

    def five(value: float) -> float:
        return float(f"{value:.5g}")

    return {
        "power": {name: six(getattr(fit.power, name)) for name in fit.power.__slots__},
        "runtime": {name: six(getattr(fit.runtime, name)) for name in fit.runtime.__slots__},
        "power_limit_watts": six(fit.power_limit_watts),
        "readings": [[one.sm_clock_mhz, five(one.watts), five(one.seconds)] for one in smoothed_readings(points)],
        "power_error": round(fit.power_error, 4),
        "runtime_error": round(fit.runtime_error, 4),
    }


def _sibling_entry(sibling: str, measured: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a type's curves taken over from a board with the same chip, marked as a model.

    Above the measured clocks a time floor that starts only near the top may have been the other board's power limit:
    it is moved out of the way, so that the slowdown of a lower clock is rather over- than understated.
    """
    row = CATALOG[sibling]  # type: ignore[index]  # names of this module are catalogue names
    assert row.max_sm_clock_mhz is not None
    curves = dict(entry["curves"])
    if row.max_sm_clock_mhz > entry["reference_clock_mhz"]:
        for name, curve in curves.items():
            runtime = dict(curve["runtime"])
            if runtime["compute_seconds"] >= _FIRM_FLOOR * runtime["memory_seconds"]:
                runtime["memory_seconds"] = 0.0
            # The readings were taken against another highest clock: they say nothing about this one.
            new: dict[str, Any] = {
                "runtime": runtime,
                "power_limit_watts": row.power_limit_watts,
                "readings": [],
            }
            curves[name] = {**curve, **new}
    return {
        **entry,
        "source": "model",
        "origin": f"the curves of {measured}, same chip, up to {row.max_sm_clock_mhz} MHz; not measured on this board",
        "high_clock_mhz": row.max_sm_clock_mhz,
        "curves": curves,
    }
