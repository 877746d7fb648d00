"""Sums over readings that add up: of a job, of a group, of all groups."""

import math
from collections.abc import Mapping
from typing import Any

from slurm_energy.domain.energy import EnergyError
from slurm_energy.domain.report import EnergySum, EnergyUse
from slurm_energy.store.summaries import SUM_NAMES
from slurm_energy.store.sums import USE_NAMES

PRICED_NAMES = ("cost", "co2_grams", "unpriced_joules")
COUNT_NAMES = ("jobs", "gpu_jobs", "jobs_with_energy", "jobs_without_energy")
TIME_NAMES = ("wait_seconds", "waits", "run_seconds", "runs")
_NAMES = (
    *(f"{prefix}_{name}" for prefix in ("gpu", "host") for name in SUM_NAMES),
    *USE_NAMES,
    *PRICED_NAMES,
    *COUNT_NAMES,
    *TIME_NAMES,
)


class Totals:
    """What is not known of any part stays None."""

    def __init__(self) -> None:
        self._values: dict[str, float | None] = dict.fromkeys(_NAMES)

    def __getitem__(self, name: str) -> float | None:
        return self._values[name]

    def count(self, name: str) -> int:
        """Return a number of things, 0 for none."""
        return int(self._values[name] or 0)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add known values by name; other names are left out."""
        for name, value in values.items():
            if value is not None and name in self._values:
                self._values[name] = (self._values[name] or 0.0) + float(value)

    def add_all(self, other: "Totals") -> None:
        """Add another's sums."""
        self.add(other._values)

    def replace(self, other: "Totals", names: tuple[str, ...]) -> None:
        """Take some sums from another: what cannot be added up since one job is in several groups."""
        self._values.update({name: other._values[name] for name in names})

    def add_missing_nodes(self, nodes: int, gpus_per_node: float, device_seconds: float, wall_seconds: float) -> None:
        """Count nodes that have not reported as unknown readings of their GPUs and of their host."""
        gpus = math.ceil(gpus_per_node * nodes)
        self.add(
            {
                "gpu_readings": gpus,
                "gpu_unknown_readings": gpus,
                "gpu_window_seconds": gpus * device_seconds,
                "host_readings": nodes,
                "host_unknown_readings": nodes,
                "host_window_seconds": nodes * wall_seconds,
            }
        )

    def energy_sum(self, prefix: str) -> EnergySum:
        """Return the sum of `gpu` or `host`, with its error."""
        joules, window = self[f"{prefix}_joules"], self[f"{prefix}_window_seconds"]
        squares = self[f"{prefix}_timing_squares"]
        error = None
        if joules and not self[f"{prefix}_unbounded"] and squares is not None:
            error = EnergyError(timing=min(1.0, math.sqrt(squares) / joules))
        return EnergySum(
            joules=joules,
            readings=self.count(f"{prefix}_readings"),
            unknown_readings=self.count(f"{prefix}_unknown_readings"),
            coverage_share=min(1.0, (self[f"{prefix}_covered_seconds"] or 0.0) / window) if window else None,
            error_share=None if error is None else error.total,
            timing_error_share=None if error is None else error.timing,
            calibration_error_share=None if error is None else error.calibration,
        )

    def use(self) -> EnergyUse:
        """Return what became of the joules."""
        watched, used = self["watched_seconds"], self["used_seconds"]
        lows = sorted(value for value in (self["saving_low_joules"], self["saving_high_joules"]) if value is not None)
        return EnergyUse(
            saving_low_joules=lows[0] if lows else None,
            saving_high_joules=lows[-1] if lows else None,
            covered_gpu_seconds=self["gpu_covered_seconds"],
            idle_gpu_joules=self["idle_gpu_joules"],
            utilisation=min(1.0, used / watched) if watched and used is not None else None,
            cost=self["cost"],
            co2_grams=self["co2_grams"],
            unpriced_joules=self["unpriced_joules"] or 0.0,
        )

    def mean(self, name: str, count: str) -> float | None:
        """Return a sum over a count; None without any."""
        total, number = self[name], self[count]
        return None if total is None or not number else total / number
