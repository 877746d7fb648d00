"""Fits speeds on MIG slices and power against utilisation: MISO, A100."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.optimize import nnls

from slurm_energy.energy_model.calibration.files import (
    Document,
    Tell,
    Vector,
    document,
    mean_relative_error,
    read_json,
    read_rows,
)
from slurm_energy.energy_model.coefficients import FitError
from slurm_energy.energy_model.mig import WHOLE_SLICES
from slurm_energy.errors import DataFileError

SOURCE = "MISO, SoCC 2022, boringlee24/socc22-miso 39b1ee69 (MIT): A100-40GB; power of the 250 W PCIe board"
_REWEIGHTINGS = 9


def read_speeds(path: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Return relative speeds by (model, batch size) and compute slices."""
    speeds: dict[tuple[str, int], dict[int, float]] = {}
    for row in read_rows(path, ("compute_slices", "model", "batch_size", "speed_vs_full")):
        slices = row.count("compute_slices", 1)
        if slices > WHOLE_SLICES:
            raise row.error("compute_slices", f"an A100 has {WHOLE_SLICES}")
        key = row.text("model"), row.count("batch_size", 1)
        speeds.setdefault(key, {})[slices] = row.number("speed_vs_full", 1e-6)
    return speeds


def fit_mig(data: Path, tell: Tell) -> Document:
    """Return mig.json."""
    folder = data / "miso_a100_mig"
    tell("mig", 0, 2)
    curves = [_curve(*key, speeds) for key, speeds in sorted(read_speeds(folder / "mig_iteration_time.csv").items())]
    tell("mig", 1, 2)
    power, errors = fit_power(folder / "util_power_single_job.csv")
    tell("mig", 2, 2)
    speed_error = FitError(
        quantity="A100: speed on a MIG slice, by slices for each job",
        mean_relative_error=mean(curve["fit_error"] for curve in curves),
        num_points=sum(len(curve["speed_by_slices"]) for curve in curves),
    )
    parts = {
        "curves": curves,
        "power": power,
        "layouts": _layouts(folder / "partition_code.json"),
        "memory_mib": read_json(folder / "memory_footprint_mb.json"),
    }
    return document(SOURCE, [speed_error, *errors], parts)


def fit_power(path: Path) -> tuple[dict[str, float], list[FitError]]:
    """Return P = constant + sm u + memory sqrt(m) of least squared relative error, and its errors."""
    rows = read_rows(path, ("model", "avg_power_w", "mem_util_pct", "sm_util_pct"))
    models = np.array([row.text("model") for row in rows])
    watts = np.array([row.number("avg_power_w", 1e-3) for row in rows])
    busy = np.array([row.number("sm_util_pct", 0.0, 100.0) for row in rows]) / 100.0
    memory = np.array([row.number("mem_util_pct", 0.0, 100.0) for row in rows]) / 100.0
    basis: Vector = np.stack([np.ones_like(busy), busy, np.sqrt(memory)], axis=1)
    found = _relative_nnls(basis, watts)
    left_out = np.zeros_like(watts)
    for model in dict.fromkeys(models.tolist()):
        inside = models != model
        left_out[~inside] = basis[~inside] @ _relative_nnls(basis[inside], watts[inside])
    quantity = "A100: power from utilisation"
    errors = [
        FitError(
            quantity=quantity,
            mean_relative_error=mean_relative_error(predicted, watts),
            num_points=len(watts),
            method=method,
        )
        for method, predicted in (("leave-model-out", left_out), ("fit", basis @ found))
    ]
    constant, sm_watts, memory_watts = found.tolist()
    power = {
        "constant_watts": constant,
        "sm_watts": sm_watts,
        "memory_watts": memory_watts,
        "idle_watts": float(watts.min()),
    }
    return power, errors


def _curve(model: str, batch_size: int, speeds: Mapping[int, float]) -> dict[str, Any]:
    slices = np.array(sorted(speeds))
    speed = np.array([speeds[count] for count in sorted(speeds)])
    basis: Vector = np.stack([np.ones(len(slices)), WHOLE_SLICES / slices], axis=1)
    found, weight = np.zeros(2), np.ones_like(speed)
    for _ in range(_REWEIGHTINGS):  # towards least absolute error: a slice too small for the job runs far below the law
        found = nnls(basis * (weight * speed)[:, None], weight)[0]
        weight = 1.0 / np.sqrt(np.maximum(np.abs(basis @ found * speed - 1.0), 1e-2))
    fixed, stretch = found.tolist()
    fitted: Vector = np.minimum(1.0, 1.0 / (basis @ found))
    return {
        "model": model,
        "batch_size": batch_size,
        "speed_by_slices": {str(count): speeds[count] for count in sorted(speeds)},
        "fixed": fixed,
        "stretch": stretch,
        "fit_error": mean_relative_error(fitted, speed),
    }


def _relative_nnls(basis: Vector, target: Vector) -> Vector:
    found: Vector = nnls(basis / target[:, None], np.ones_like(target))[0]
    return found


def _layouts(path: Path) -> list[list[int]]:
    layouts = []
    for code, layout in read_json(path).items():
        whole = isinstance(layout, list) and all(isinstance(part, int) and part >= 1 for part in layout)
        if not whole or sum(layout) > WHOLE_SLICES:
            raise DataFileError(
                f"{path}: layout {code} is {str(layout)[:40]}: parts of {WHOLE_SLICES} slices are needed"
            )
        layouts.append(layout)
    return layouts
