"""Fits what a server draws beside its GPUs, and takes over the node constants of other systems."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

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

SOURCE = (
    "AcmeTrace, NSDI 2024, InternLM/AcmeTrace 6d6ac9cd (CC-BY-4.0, Shanghai AI Laboratory; converted): A100-SXM-80GB; "
    "node constants: ExaDigiT/RAPS 6c142bfd (MIT or Apache-2.0)"
)
GPUS_PER_SERVER = 8
_COLUMNS = {
    "kalos-gpu": "kalos_gpu_power_w",
    "seren-gpu": "seren_gpu_power_w",
    "gpu-server": "gpu_server_power_w",
    "cpu-server": "cpu_server_power_w",
}
_LOWEST_PERCENT = 1.0
"""Below are drop-outs of sensors."""
_PERCENT = {"idle_watts": 5.0, "median_watts": 50.0, "high_watts": 90.0}
_PARTS = ("power_mem", "power_nic", "power_nvme")


def fit_host(data: Path, tell: Tell) -> Document:
    """Return host.json; the host's share comes from the cluster whose GPUs fit the servers better."""
    tell("host", 0, 1)
    percent, powers = read_percentiles(data / "acme_power_cdf" / "power_cdf.csv")
    spreads = {
        name: {
            **{field: float(np.interp(at, percent, watts)) for field, at in _PERCENT.items()},
            "peak_watts": float(watts.max()),
        }
        for name, watts in powers.items()
    }
    servers = powers["gpu-server"]
    fits = {name: _fit_line(GPUS_PER_SERVER * powers[name], servers) for name in ("kalos-gpu", "seren-gpu")}
    errors = [
        FitError(
            quantity=f"8-GPU server: power from its GPUs' power, ranks of {name.removesuffix('-gpu').title()}",
            mean_relative_error=mean_relative_error(line[0] + line[1] * GPUS_PER_SERVER * powers[name], servers),
            num_points=len(servers),
        )
        for name, line in fits.items()
    ]
    best = min(zip(errors, fits.values(), strict=True), key=lambda pair: pair[0].mean_relative_error)[1]
    nodes = read_nodes(data / "raps_system_power" / "system_power_constants.csv")
    tell("host", 1, 1)
    share = {"constant_watts": best[0], "per_gpu_watt": best[1]}
    return document(SOURCE, errors, {"spreads": spreads, "host_share": share, "nodes": nodes})


def read_percentiles(path: Path) -> tuple[Vector, dict[str, Vector]]:
    """Return percentiles in %, ascending, and the power in W at each by kind, [num_percentiles]."""
    rows = read_rows(path, ("cdf_pct", *_COLUMNS.values()))
    percent = np.array([row.number("cdf_pct", 0.0, 100.0) for row in rows])
    for row, before, after in zip(rows[1:], percent[:-1], percent[1:], strict=True):
        if after < before:
            raise row.error("cdf_pct", "percentiles must not fall")
    kept = percent >= _LOWEST_PERCENT
    powers = {name: np.array([row.number(column, 0.0) for row in rows])[kept] for name, column in _COLUMNS.items()}
    return percent[kept], powers


def read_nodes(path: Path) -> dict[str, dict[str, Any]]:
    """Return the constants of each system's node; a network card without one figure takes its idle one."""
    columns = ("system", "cpus_per_node", "gpus_per_node", "power_gpu_idle", "power_gpu_max", "power_cpu_idle")
    rows = read_rows(path, (*columns, "power_cpu_max", "power_nic_idle", *_PARTS))
    return {row.text("system"): _node(row) for row in rows}


def _node(row: DataRow) -> dict[str, Any]:
    rest = [row.optional(name, 0.0) for name in _PARTS]
    nic_idle = row.optional("power_nic_idle", 0.0) or 0.0
    return {
        "cpus": row.count("cpus_per_node"),
        "gpus": row.count("gpus_per_node"),
        "cpu_idle_watts": row.number("power_cpu_idle", 0.0),
        "cpu_max_watts": row.number("power_cpu_max", 0.0),
        "gpu_idle_watts": row.number("power_gpu_idle", 0.0),
        "gpu_max_watts": row.number("power_gpu_max", 0.0),
        "rest_watts": sum(watts for watts in rest if watts is not None) + (nic_idle if rest[1] is None else 0.0),
    }


def _fit_line(gpus: Vector, servers: Vector) -> tuple[float, float]:
    basis = np.stack([np.ones_like(gpus), gpus], axis=1)
    constant, slope = nnls(basis / servers[:, None], np.ones_like(servers))[0].tolist()
    return constant, slope
