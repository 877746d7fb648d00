"""Fits speed and power of two programs on one H100 from what each does alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.energy_model.calibration.files import DataRow, Vector, read_json, read_rows
from slurm_energy.energy_model.coefficients import FitError
from slurm_energy.errors import DataFileError


@dataclass(frozen=True, slots=True)
class Solo:
    """One program that has the GPU alone."""

    rate: float
    utilisation: float
    watts: float


@dataclass(frozen=True, slots=True)
class SharedRun:
    """Two programs on the GPU at once."""

    names: tuple[str, str]
    speeds: tuple[float, float]
    solos: tuple[Solo, Solo]
    watts: float


def fit_time_slicing(folder: Path) -> tuple[dict[str, Any], list[FitError]]:
    """Return the model of speed by utilisation and of power by speed, and their leave-pair-out errors."""
    idle_path = folder / "facts.json"
    try:
        idle_watts = float(read_json(idle_path)["idle_with_context"]["mean_power_watts"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataFileError(f"{idle_path}: idle_with_context.mean_power_watts is missing or no number") from error
    runs = read_shared_runs(folder)
    crowding, factor = _crowding(runs), _power_factor(runs, idle_watts)
    speed_errors, power_errors = [], []
    for run in runs:
        others = [one for one in runs if one is not run]
        crowd, power = _crowding(others), _power_factor(others, idle_watts)
        for side in (0, 1):
            speed_errors.append(abs(1.0 / (1.0 + crowd * _excess(run)) / run.speeds[side] - 1.0))
        power_errors.append(abs((idle_watts + power * _above_idle(run, idle_watts)) / run.watts - 1.0))
    errors = [
        FitError(
            quantity="H100: speed of a program beside another, from utilisation",
            mean_relative_error=float(np.mean(speed_errors)),
            num_points=len(speed_errors),
            method="leave-pair-out",
        ),
        FitError(
            quantity="H100: power of two programs, from their speeds and solo powers",
            mean_relative_error=float(np.mean(power_errors)),
            num_points=len(power_errors),
            method="leave-pair-out",
        ),
    ]
    pairs = [[*run.names, *run.speeds, run.watts] for run in runs]
    solos = {
        name: {"utilisation": solo.utilisation, "watts": solo.watts, "iterations_per_second": solo.rate}
        for name, solo in read_solos(folder / "training_solo.csv").items()
    }
    found = {
        "crowding": crowding,
        "idle_watts": idle_watts,
        "power_factor": factor,
        "solo": solos,
        "measured": pairs,
        "gpu": "h100-sxm5-80gb",
    }
    return found, errors


def read_solos(path: Path) -> dict[str, Solo]:
    """Return what each program does alone."""
    columns = ("workload", "iterations_per_second", "gpu_util_pct", "energy_counter_joules", "seconds")
    return {
        row.text("workload"): Solo(
            rate=row.number("iterations_per_second", 1e-9),
            utilisation=row.number("gpu_util_pct", 0.0, 100.0) / 100.0,
            watts=_watts(row),
        )
        for row in read_rows(path, columns)
    }


def read_shared_runs(folder: Path) -> list[SharedRun]:
    """Return the measured pairs, speeds relative to running alone."""
    solos = read_solos(folder / "training_solo.csv")
    rates = ("iterations_per_second_a", "iterations_per_second_b")
    columns = ("workload_a", "workload_b", *rates, "energy_counter_joules", "seconds")
    runs = []
    for row in read_rows(folder / "training_pairs.csv", columns):
        for column in ("workload_a", "workload_b"):
            if row.text(column) not in solos:
                raise row.error(column, "this workload has no row of its own in training_solo.csv")
        first, second = solos[row.text("workload_a")], solos[row.text("workload_b")]
        runs.append(
            SharedRun(
                names=(row.text("workload_a"), row.text("workload_b")),
                speeds=(row.number(rates[0], 1e-9) / first.rate, row.number(rates[1], 1e-9) / second.rate),
                solos=(first, second),
                watts=_watts(row),
            )
        )
    return runs


def _crowding(runs: list[SharedRun]) -> float:
    """Return the slope of 1/speed - 1 over the utilisation beyond a full GPU, by least squares, at least 0."""
    excess: Vector = np.array([_excess(run) for run in runs for _ in run.speeds])
    slower: Vector = np.array([1.0 / speed - 1.0 for run in runs for speed in run.speeds])
    return max(0.0, float(excess @ slower / (excess @ excess)))


def _power_factor(runs: list[SharedRun], idle_watts: float) -> float:
    """Return the factor of least squared relative error."""
    share: Vector = np.array([_above_idle(run, idle_watts) / run.watts for run in runs])
    target: Vector = np.array([1.0 - idle_watts / run.watts for run in runs])
    return float(share @ target / (share @ share))


def _excess(run: SharedRun) -> float:
    return max(0.0, run.solos[0].utilisation + run.solos[1].utilisation - 1.0)


def _above_idle(run: SharedRun, idle_watts: float) -> float:
    return sum(speed * (solo.watts - idle_watts) for speed, solo in zip(run.speeds, run.solos, strict=True))


def _watts(row: DataRow) -> float:
    return row.number("energy_counter_joules", 1e-9) / row.number("seconds", 1e-9)
