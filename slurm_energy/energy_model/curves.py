"""Workloads that were measured on a GPU type at many clocks: fitted curves, and the table of them that ships."""

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Literal

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.power import PowerCurve
from slurm_energy.energy_model.runtime import RuntimeCurve
from slurm_energy.errors import ValueRangeError

CURVES_PATH = Path(__file__).with_name("curves.json")
CurveSource = Literal["measured", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadCurve:
    """Power and time of one workload on one GPU type; clocks given to it are clocks that were set.

    The board holds its power limit: the real clock is the set one or, if lower, the one at which power meets the limit.
    """

    gpu_type: GpuTypeName
    workload: str
    """Name, the same on every GPU type that ran it."""
    power: PowerCurve
    runtime: RuntimeCurve
    reference_clock_mhz: int
    """Where the relative clock is 1."""
    low_clock_mhz: int
    """Lowest clock that was measured; nothing below it is answered."""
    high_clock_mhz: int
    power_limit_watts: float
    """Power that the board held during the measurement; above every reading when it held none back."""
    power_error: float
    """Mean absolute relative error of P over the measured clocks."""
    runtime_error: float
    """Mean absolute relative error of T over the measured clocks."""
    measured_slowdowns: tuple[tuple[int, float], ...] = ()
    """Slowdown against the highest clock that the readings themselves show at each clock, ascending; see fitting.

    A curve is smooth, a GPU is not always: where the readings are slower than the curve, they count.
    """
    source: CurveSource = "measured"
    """`model` when the curve was taken over from a GPU of the same chip."""

    def real_clock_mhz(self, sm_clock_mhz: float) -> float:
        """Return the clock in MHz at which the GPU runs when this one is set."""
        if not self.low_clock_mhz <= sm_clock_mhz <= self.high_clock_mhz:
            raise ValueRangeError(
                f"clock {sm_clock_mhz} MHz is outside what is known of {self.workload} on {self.gpu_type}: "
                f"{self.low_clock_mhz} to {self.high_clock_mhz} MHz"
            )
        relative = self.power.relative_clock_at(self.power_limit_watts, sm_clock_mhz / self.reference_clock_mhz)
        return relative * self.reference_clock_mhz

    def watts(self, sm_clock_mhz: float) -> float:
        """Return mean board power in W while the workload runs with this clock set."""
        return self.power.watts(self.real_clock_mhz(sm_clock_mhz) / self.reference_clock_mhz)

    def seconds(self, sm_clock_mhz: float) -> float:
        """Return the time in s of one unit of work with this clock set."""
        return self.runtime.seconds(self.real_clock_mhz(sm_clock_mhz) / self.reference_clock_mhz)

    def slowdown(self, sm_clock_mhz: float) -> float:
        """Return by what ratio work takes longer than at the highest clock: by the curve or the readings, the larger."""
        modelled = self.seconds(sm_clock_mhz) / self.seconds(self.high_clock_mhz) - 1.0
        index = bisect_right(self.measured_slowdowns, (sm_clock_mhz, inf)) - 1
        return max(modelled, self.measured_slowdowns[index][1]) if index >= 0 else modelled

    def joules(self, sm_clock_mhz: float) -> float:
        """Return the energy in J of one unit of work with this clock set."""
        return self.watts(sm_clock_mhz) * self.seconds(sm_clock_mhz)


@cache
def shipped_curves() -> Mapping[GpuTypeName, tuple[WorkloadCurve, ...]]:
    """Return every curve of the table in the package, by GPU type; types without a measurement are absent."""
    document = json.loads(CURVES_PATH.read_text(encoding="utf-8"))
    return {GpuTypeName(name): _decode_type(GpuTypeName(name), entry) for name, entry in document["gpu_types"].items()}


def curves_of(gpu_type: GpuTypeName) -> tuple[WorkloadCurve, ...]:
    """Return the curves of a GPU type, none when nobody has measured it at several clocks."""
    return shipped_curves().get(gpu_type, ())


def _decode_type(name: GpuTypeName, entry: Mapping[str, Any]) -> tuple[WorkloadCurve, ...]:
    return tuple(
        WorkloadCurve(
            gpu_type=name,
            workload=workload,
            power=PowerCurve(**row["power"]),
            runtime=RuntimeCurve(**row["runtime"]),
            power_limit_watts=row["power_limit_watts"],
            power_error=row["power_error"],
            measured_slowdowns=tuple((clock, slowdown) for clock, slowdown in row.get("measured_slowdowns", ())),
            runtime_error=row["runtime_error"],
            reference_clock_mhz=entry["reference_clock_mhz"],
            low_clock_mhz=entry["low_clock_mhz"],
            high_clock_mhz=entry["high_clock_mhz"],
            source=entry["source"],
        )
        for workload, row in entry["curves"].items()
    )
