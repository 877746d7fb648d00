"""Fits strong scaling by GPU count and the cost of agreeing across nodes: ElasticFlow, Gavel and Pollux."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar, nnls

from slurm_energy.energy_model.calibration.files import Document, Tell, Vector, document, mean_relative_error, read_rows
from slurm_energy.energy_model.coefficients import FitError

SOURCE = (
    "ElasticFlow, ASPLOS 2023, pkusys/ElasticFlow 04a0109a (A100, T4; Apache-2.0); "
    "Gavel, OSDI 2020, stanford-futuredata/gavel c4fa4009 (P100, V100, K80; MIT); "
    "Pollux, OSDI 2021, petuum/adaptdl c793c708 (T4 placements; Apache-2.0)"
)
LINK_GIGABYTES_PER_SECOND = 6.25
"""AWS g4dn.12xlarge, 50 Gbit/s by its data sheet."""
_RUNS = 1e-6
"""Rates below are written where a batch could not be divided any further: not run."""
_MAX_EXPONENT = 4.0
_REWEIGHTINGS = 9
_WHERE = {"inside": "inside a node", "across": "across nodes"}


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Measured rates of one model by number of GPUs, steps or iterations a second of the whole job."""

    gpu: str
    model: str
    batch_size: int
    placement: str
    rate_by_count: Mapping[int, float]

    def efficiency_by_count(self) -> dict[int, float]:
        """Return rate over what the smallest measured number would give if it scaled without loss."""
        smallest = min(self.rate_by_count)
        single = self.rate_by_count[smallest] / smallest
        return {count: rate / (count * single) for count, rate in sorted(self.rate_by_count.items())}


@dataclass(frozen=True, slots=True)
class Step:
    """One measured training step."""

    placement: str
    """A digit for each node: the GPUs taken there."""
    batch_size: int
    seconds: float
    sync_seconds: float
    """The part of it in which the GPUs agreed on the gradient."""

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(int(digit) for digit in self.placement)


def read_rate_curves(data: Path) -> list[RateCurve]:
    """Return the curves of both data sets that have at least two numbers of GPUs."""
    found: dict[tuple[str, str, int, str], dict[int, float]] = {}
    path = data / "elasticflow_scaling" / "throughput_vs_gpus.csv"
    for row in read_rows(path, ("gpu", "model", "global_batch_size", "num_gpus", "iterations_per_s")):
        key = (row.text("gpu").lower(), row.text("model"), row.count("global_batch_size", 1), "unstated")
        found.setdefault(key, {})[row.count("num_gpus", 1)] = row.number("iterations_per_s", 0.0)
    path = data / "gavel_throughputs" / "isolated.csv"
    for row in read_rows(path, ("gpu", "consolidated", "model", "batch_size", "scale_factor", "steps_per_s")):
        if row.values["batch_size"].strip():  # two kinds of job name no batch and run on one GPU only
            placement = "packed" if row.count("consolidated") else "spread"
            key = (row.text("gpu").lower(), row.text("model"), row.count("batch_size", 1), placement)
            found.setdefault(key, {})[row.count("scale_factor", 1)] = row.number("steps_per_s", 0.0)
    curves = [RateCurve(*key, {n: rate for n, rate in rates.items() if rate > _RUNS}) for key, rates in found.items()]
    return sorted((curve for curve in curves if len(curve.rate_by_count) > 1), key=_key)


def fit_scaling(data: Path, tell: Tell) -> Document:
    """Return scaling.json."""
    curves, entries = read_rate_curves(data), []
    for index, curve in enumerate(curves):
        tell("scaling", index, len(curves))
        entries.append(fit_curve(curve))
    tell("scaling", len(curves), len(curves))
    sync = fit_sync(data / "pollux_scaling" / "placements.csv")
    errors = [_law_error(gpu, entries) for gpu in sorted({entry["gpu"] for entry in entries})]
    for application, entry in sync.items():
        for where in ("inside", "across"):
            quantity = f"T4 {application}: step time, GPUs {_WHERE[where]}"
            error, points = entry[f"{where}_error"], entry.pop(f"num_{where}")
            errors.append(FitError(quantity=quantity, mean_relative_error=error, num_points=points))
    return document(SOURCE, errors, {"curves": entries, "sync": sync})


def fit_curve(curve: RateCurve) -> dict[str, Any]:
    """Return one curve's table and the law 1/(1 + loss (n/n_0 - 1)^exponent) of least relative error.

    For a given exponent the loss is found by non-negative least squares on 1/e - 1, relative to 1/e.
    """
    table = curve.efficiency_by_count()
    smallest = min(table)
    count = np.array([n / smallest for n in table if n > smallest])
    efficiency = np.array([e for n, e in table.items() if n > smallest])

    def loss_of(exponent: float) -> float:
        basis = ((count - 1.0) ** exponent * efficiency)[:, None]
        return float(nnls(basis, 1.0 - efficiency)[0][0])

    def error_of(exponent: float) -> float:
        return mean_relative_error(1.0 / (1.0 + loss_of(exponent) * (count - 1.0) ** exponent), efficiency)

    exponent = 1.0
    if len(count) > 1:
        grid = np.linspace(0.05, _MAX_EXPONENT, 80)
        start = float(grid[int(np.argmin([error_of(float(one)) for one in grid]))])
        bounds = (max(0.01, start - 0.05), start + 0.05)
        exponent = float(minimize_scalar(error_of, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)
    return {
        "gpu": curve.gpu,
        "model": curve.model,
        "batch_size": curve.batch_size,
        "placement": curve.placement,
        "efficiency_by_count": table,
        "loss": loss_of(exponent),
        "exponent": exponent,
        "fit_error": error_of(exponent),
    }


def fit_sync(path: Path) -> dict[str, dict[str, Any]]:
    """Return the agreement cost of each application, fitted in least absolute error over the whole step's time.

    Agreement overlaps with computing, so its own time scatters; what counts is how far the step's time is off.
    """
    found: dict[str, list[Step]] = {}
    for row in read_rows(path, ("application", "placement", "local_batch_size", "step_time_s", "sync_time_s")):
        placement = row.text("placement")
        if not placement.isdecimal() or "0" in placement:
            raise row.error("placement", "digits from 1 up are needed, one for each node")
        seconds = row.number("step_time_s", 1e-9)
        step = Step(placement, row.count("local_batch_size", 1), seconds, row.number("sync_time_s", 0.0, seconds))
        found.setdefault(row.text("application"), []).append(step)
    return {application: _fit_application(steps) for application, steps in sorted(found.items())}


def _fit_application(steps: Sequence[Step]) -> dict[str, Any]:
    inside = [step for step in steps if step.num_gpus > 1 and len(step.placement) == 1]
    across = [step for step in steps if len(step.placement) > 1]
    inside_base, inside_slope, inside_error = _line(inside)
    across_base, across_slope, across_error = _line(across)
    apart = {step.batch_size: step.sync_seconds for step in steps if step.placement == "22"}
    factors = [
        apart[step.batch_size] / step.sync_seconds
        for step in steps
        if step.placement == "4" and step.batch_size in apart and step.sync_seconds > 0.0
    ]
    return {
        "inside_base_seconds": inside_base,
        "inside_seconds_per_gpu": inside_slope,
        "inside_error": inside_error,
        "num_inside": len(inside),
        "across_base_seconds": across_base,
        "across_seconds_per_gpu": across_slope,
        "across_error": across_error,
        "num_across": len(across),
        "inter_node_factor": median(factors),
        "effective_gigabytes_per_step": LINK_GIGABYTES_PER_SECOND
        * median(step.sync_seconds for step in steps if step.placement == "11"),
    }


def _line(steps: Sequence[Step]) -> tuple[float, float, float]:
    """Return base, slope over n - 2, and the mean error over the step's time."""
    whole = np.array([step.seconds for step in steps])
    share = np.array([step.sync_seconds for step in steps]) / whole
    basis: Vector = np.array([[1.0, step.num_gpus - 2.0] for step in steps]) / whole[:, None]
    weight = np.ones_like(share)
    found: Vector = np.zeros(2)
    for _ in range(_REWEIGHTINGS):
        found = nnls(basis * weight[:, None], share * weight)[0]
        weight = 1.0 / np.sqrt(np.maximum(np.abs(basis @ found - share), 1e-3))
    return float(found[0]), float(found[1]), float(np.mean(np.abs(basis @ found - share)))


def _law_error(gpu: str, entries: Sequence[Mapping[str, Any]]) -> FitError:
    members = [entry for entry in entries if entry["gpu"] == gpu]
    return FitError(
        quantity=f"{gpu.upper()} strong scaling: efficiency by number of GPUs, {len(members)} curves",
        mean_relative_error=mean(entry["fit_error"] for entry in members),
        num_points=sum(len(entry["efficiency_by_count"]) - 1 for entry in members),
    )


def _key(curve: RateCurve) -> tuple[str, str, int, str]:
    return curve.gpu, curve.model, curve.batch_size, curve.placement
