"""Write the shipped table of curves from the data sets: `python -m slurm_energy.energy_model.calibrate DATA_FOLDER`.

Needs the `dev` extra. DATA_FOLDER holds perseus_dvfs/ and nsfcac_v100_dvfs/; the result is curves.json.
"""

import argparse
import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.curves import CURVES_PATH
from slurm_energy.energy_model.fitting import Fit, SweepPoint, fit_sweep, smoothed_readings

Sweeps = dict[str, tuple[SweepPoint, ...]]
_FIRM_FLOOR = 0.9
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


def read_perseus(path: Path) -> dict[str, Sweeps]:
    """Return the A100 and A40 sweeps by GPU type and workload; stages with equal readings are one workload."""
    names = {"A100-SXM4-80GB": "a100-sxm4-80gb", "A40": "a40"}
    raw: dict[tuple[str, str, str, int], list[SweepPoint]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (names[row["gpu"]], row["model"], row["instruction"], int(row["stage"]))
            raw.setdefault(key, []).append(
                SweepPoint(
                    sm_clock_mhz=int(row["sm_clock_mhz"]),
                    watts=float(row["avg_power_w"]),
                    seconds=float(row["time_s"]),
                )
            )
    stages: dict[tuple[str, str, str, tuple[SweepPoint, ...]], list[int]] = {}
    for (gpu, model, instruction, stage), points in raw.items():
        ordered = tuple(sorted(points, key=lambda point: point.sm_clock_mhz))
        stages.setdefault((gpu, model, instruction, ordered), []).append(stage)
    sweeps: dict[str, Sweeps] = {}
    for (gpu, model, instruction, ordered), members in stages.items():
        span = f"stage-{members[0]}" if len(members) == 1 else f"stages-{min(members)}-{max(members)}"
        sweeps.setdefault(gpu, {})[f"{model}-{instruction}-{span}"] = ordered
    return sweeps


def read_v100(path: Path) -> Sweeps:
    """Return the V100 sweeps of the five applications whose run time is valid."""
    raw: dict[str, list[SweepPoint]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["run_time_valid"] == "True":
                raw.setdefault(row["application"].lower(), []).append(
                    SweepPoint(
                        sm_clock_mhz=int(row["sm_clock_mhz"]),
                        watts=float(row["avg_power_w"]),
                        seconds=float(row["run_time_s"]),
                    )
                )
    return {name: tuple(sorted(points, key=lambda point: point.sm_clock_mhz)) for name, points in raw.items()}


def read_sweeps(data_directory: Path) -> dict[str, Sweeps]:
    """Return every measured sweep by catalogue name and workload."""
    sweeps = read_perseus(data_directory / "perseus_dvfs" / "stage_clock_sweep.csv")
    sweeps["v100-pcie-16gb"] = read_v100(data_directory / "nsfcac_v100_dvfs" / "v100_clock_sweep.csv")
    return sweeps


def board_limit_watts(gpu_type: str) -> float:
    """Return the power limit of the boards that were measured."""
    return _BOARD_LIMITS_WATTS[gpu_type]


def calibrated_table(sweeps: Mapping[str, Sweeps]) -> dict[str, Any]:
    """Return the document of curves.json."""
    types: dict[str, Any] = {}
    for gpu, workloads in sorted(sweeps.items()):
        clocks = [point.sm_clock_mhz for points in workloads.values() for point in points]
        types[gpu] = {
            "source": "measured",
            "origin": _ORIGINS[gpu],
            "reference_clock_mhz": max(clocks),
            "low_clock_mhz": min(clocks),
            "high_clock_mhz": max(clocks),
            "curves": {
                name: _rounded(fit_sweep(points, max(clocks), board_limit_watts(gpu)), points)
                for name, points in sorted(workloads.items())
            },
        }
    for sibling, measured in _SIBLINGS.items():
        types[sibling] = _sibling_entry(sibling, measured, types[measured])
    return {"format": 1, "gpu_types": types}


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


def _document(table: Mapping[str, Any]) -> str:
    """Return the table as JSON, a reading on one line."""
    text = json.dumps(table, indent=1, sort_keys=True)
    return re.sub(r"\[\s+([-\d.e]+),\s+([-\d.e]+),\s+([-\d.e]+)\s+\]", r"[\1, \2, \3]", text) + "\n"


def main() -> None:
    """Read the data sets, fit, write the table."""
    parser = argparse.ArgumentParser(description="Fit power and time curves and write the table that ships.")
    parser.add_argument("data_directory", type=Path, help="folder with perseus_dvfs and nsfcac_v100_dvfs")
    parser.add_argument("--output", type=Path, default=CURVES_PATH, help="file to write (default: in the package)")
    arguments = parser.parse_args()
    table = calibrated_table(read_sweeps(arguments.data_directory))
    arguments.output.write_text(_document(table), encoding="utf-8")


if __name__ == "__main__":
    main()
