"""Kinds of world `tum128`: products of square matrices on old GPUs and CPUs, from data sheets and measured shapes.

These devices were not swept. What is taken from where:

- peak rate, bandwidth and power limit: data sheets;
- how the rate rises with the matrix, and power with the rate: products measured on one H100 (`h100-measured`), the
  size at which a device fills scaled by the root of its number of multiprocessors;
- time of a call: the H100's, whose smallest products are bound by calls;
- operands: one matrix of a product stays on the device, one goes in, the result comes out, copied while others compute.

So T(f) = max(copy, compute / f) + calls, and P(f) = static + clocked f + activity (cubic f^3 + linear f). Whether a
kind wants a high clock follows: where copies or calls rule, a higher clock buys no time and costs power.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MATRIX_SIZES = tuple(range(200, 2000, 200))
_CALLS_PER_PRODUCT = 3
"""Copy in, multiply, copy out."""
_H100_CONTEXT_WATTS = 117.0
_H100_LIMIT_WATTS = 700.0
_H100_MULTIPROCESSORS = 132
_CUBIC_SHARE = 0.12
"""Of dynamic power at the highest clock: that of dgemm on V100, the oldest GPU with a measured sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Shape of matrix products over their size n, as measured on one H100 in fp32."""

    top_gigaflops: float
    """Rate that large products tend to."""
    half_size: float
    """Size at which half of it is reached."""
    exponent: float
    call_seconds: float
    power_exponent: float
    """Activity (share of the power between idle with a context and the limit) = (share of the top rate) ^ this."""
    rate_error: float
    """Mean absolute relative error of the fitted rates."""
    activity_error: float
    """Mean absolute error of the fitted activity."""

    def share(self, size: int, half_size: float) -> float:
        """Return the share of the top rate that products of one size reach on a device with another half size."""
        return 1.0 / (1.0 + float((half_size / size) ** self.exponent))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixDevice:
    """A device that multiplies matrices; powers are those of one device at its highest clock."""

    peak_gigaflops: float
    """Double precision, at the highest clock."""
    top_share: float
    """Share of the peak that large products reach."""
    half_size: float
    copy_gigabytes_per_second: float
    """Over PCIe, as reached; infinite for a CPU."""
    has_calls: bool
    static_watts: float
    """Whatever it does while allocated, and at any clock."""
    clocked_watts: float
    """Idle, but with the clock running."""
    limit_watts: float
    cubic_share: float = _CUBIC_SHARE


def matrix_devices(saturation: Saturation) -> dict[str, MatrixDevice]:
    """Return the devices of the world by name."""

    def half_size(multiprocessors: int) -> float:
        return float(saturation.half_size * (multiprocessors / _H100_MULTIPROCESSORS) ** 0.5)

    return {
        # Peak at 875 MHz and 245 W: NVIDIA's data sheet; idle with a context 62 W: assumed from listings of idle K40.
        "k40c": MatrixDevice(
            peak_gigaflops=1682.0,
            top_share=0.8,
            half_size=half_size(15),
            copy_gigabytes_per_second=10.0,
            has_calls=True,
            static_watts=45.0,
            clocked_watts=17.0,
            limit_watts=245.0,
        ),
        # Peak and 238 W: data sheet; PCIe 2.0. Its driver sets no clocks.
        "c2070": MatrixDevice(
            peak_gigaflops=513.9,
            top_share=0.6,
            half_size=half_size(14),
            copy_gigabytes_per_second=5.5,
            has_calls=True,
            static_watts=60.0,
            clocked_watts=20.0,
            limit_watts=238.0,
        ),
        # Xeon E5-2690 v3: 12 cores x 16 double-precision operations x 2.3 GHz, 135 W (Intel). Nothing is copied.
        "xeon": MatrixDevice(
            peak_gigaflops=441.6,
            top_share=0.9,
            half_size=60.0,
            copy_gigabytes_per_second=float("inf"),
            has_calls=False,
            static_watts=35.0,
            clocked_watts=10.0,
            limit_watts=135.0,
            cubic_share=0.6,
        ),
    }


def tum_document(data: Path) -> dict[str, Any]:
    """Return the JSON document of the world's matrix kinds.

    Args:
        data: Folder that holds h100-measured.
    """
    saturation = fit_saturation(data / "h100-measured" / "gemm_saturation.csv")
    devices = {}
    for name, device in matrix_devices(saturation).items():
        kinds = {f"matrix-{size}": matrix_kind(size, device, saturation) for size in MATRIX_SIZES}
        devices[name] = {"kinds": kinds}
    return {
        "source": "H100 80GB HBM3, NVML, products in fp32: shape of rate and power over the size; data sheets of "
        "NVIDIA (Tesla K40c, C2070) and Intel (Xeon E5-2690 v3): peak rates and limits",
        "fit": {
            "half_size": round(saturation.half_size, 1),
            "exponent": round(saturation.exponent, 2),
            "call_microseconds": round(saturation.call_seconds * 1e6, 2),
            "power_exponent": round(saturation.power_exponent, 2),
            "rate_error": round(saturation.rate_error, 4),
            "activity_error": round(saturation.activity_error, 4),
        },
        "devices": devices,
    }


def matrix_kind(size: int, device: MatrixDevice, saturation: Saturation) -> dict[str, list[float]]:
    """Return power and time coefficients of products of one size; one unit is one product."""
    operations = 2.0 * size**3
    rate = device.peak_gigaflops * 1e9 * device.top_share * saturation.share(size, device.half_size)
    compute = operations / rate
    copy = 2.0 * 8.0 * size**2 / (device.copy_gigabytes_per_second * 1e9)
    calls = _CALLS_PER_PRODUCT * saturation.call_seconds if device.has_calls else 0.0
    reached = operations / (max(copy, compute) + calls) / (device.peak_gigaflops * 1e9 * device.top_share)
    activity = reached**saturation.power_exponent
    dynamic = activity * (device.limit_watts - device.static_watts - device.clocked_watts)
    return {
        "power": [
            round(device.cubic_share * dynamic, 3),
            round(device.clocked_watts + (1.0 - device.cubic_share) * dynamic, 3),
            device.static_watts,
        ],
        "runtime": [float(f"{value:.6g}") for value in (copy, compute, calls)],
    }


def fit_saturation(path: Path) -> Saturation:
    """Return the shape fitted to the fp32 products of a file of measurements."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["workload"].startswith("gemm:fp32x")]
    size = _column([{"n": row["workload"].partition("x")[2]} for row in rows], "n")
    seconds = 1.0 / _column(rows, "iterations_per_second")
    rate = 2.0 * size**3 / seconds / 1e9
    call = float(seconds.min())
    top, half, exponent, rate_error = _fit_rate(size, seconds, call)
    activity = (_column(rows, "mean_power_watts") - _H100_CONTEXT_WATTS) / (_H100_LIMIT_WATTS - _H100_CONTEXT_WATTS)
    activity, reached = np.clip(activity, 0.0, 1.0), np.clip(rate / top, 0.0, 1.0)
    errors = {power: float(np.mean(np.abs(reached**power - activity))) for power in np.arange(0.3, 1.5, 0.01)}
    power_exponent = min(errors, key=lambda power: errors[power])
    return Saturation(
        top_gigaflops=top,
        half_size=half,
        exponent=exponent,
        call_seconds=call,
        power_exponent=float(power_exponent),
        rate_error=rate_error,
        activity_error=errors[power_exponent],
    )


def _fit_rate(
    size: NDArray[np.float64], seconds: NDArray[np.float64], call: float
) -> tuple[float, float, float, float]:
    """Return top rate [GFLOP/s], half size, exponent and error of T(n) = max(call, 2 n^3 / (top share(n)))."""
    best = (0.0, 0.0, 0.0, np.inf)
    operations = 2.0 * size**3 / 1e9
    for exponent in np.arange(1.0, 4.01, 0.1):
        for half in np.arange(200.0, 1500.0, 10.0):
            share = size**exponent / (size**exponent + half**exponent)
            bound = seconds > 1.2 * call
            top = float(np.median((operations / seconds / share)[bound]))
            error = float(np.mean(np.abs(np.maximum(call, operations / (top * share)) / seconds - 1.0)))
            if error < best[3]:
                best = (top, float(half), float(exponent), error)
    return best


def _column(rows: Sequence[Mapping[str, str]], name: str) -> NDArray[np.float64]:
    return np.array([float(row[name]) for row in rows], dtype=np.float64)
