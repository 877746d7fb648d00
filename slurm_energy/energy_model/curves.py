"""Power and time of workloads against the SM clock: fitted curves, readings, and the table that ships."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.errors import ValueRangeError

CURVES_PATH = Path(__file__).with_name("curves.json")
CurveSource = Literal["measured", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """P(f) = cubic f^3 + linear f + constant, with f = SM clock / the curve's reference clock.

    The cubic part is switching power with a voltage that rises with the clock, the linear part is switching at constant
    voltage, the constant is leakage, memory and idle. No part is negative, so a lower clock never draws more.
    """

    cubic_watts: float
    linear_watts: float
    constant_watts: float

    def __post_init__(self) -> None:
        for name in ("cubic_watts", "linear_watts", "constant_watts"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueRangeError(f"power coefficient {name}={value} is not a finite number from 0 up")

    def watts(self, relative_clock: float) -> float:
        """Return the power in W that the load would draw at this real clock, without a board limit."""
        return self.cubic_watts * relative_clock**3 + self.linear_watts * relative_clock + self.constant_watts

    def relative_clock_at(self, limit_watts: float, highest: float) -> float:
        """Return the highest relative clock up to `highest` that stays inside the limit; 0 when not even idle does."""
        if self.watts(highest) <= limit_watts:
            return highest
        low, high = 0.0, highest
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.watts(middle) <= limit_watts else (low, middle)
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCurve:
    """T(f) = max(memory, compute / f) + fixed, in s for one unit of work, f = SM clock / the curve's reference clock.

    `compute` stretches with the clock, `memory` is the floor that the memory sets, `fixed` is host and link time.
    The common alpha + beta/f is the case memory = 0, fixed = alpha, compute = beta.
    """

    memory_seconds: float
    compute_seconds: float
    fixed_seconds: float

    def __post_init__(self) -> None:
        for name in ("memory_seconds", "compute_seconds", "fixed_seconds"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueRangeError(f"time coefficient {name}={value} is not a finite number from 0 up")
        if self.memory_seconds + self.compute_seconds + self.fixed_seconds <= 0.0:
            raise ValueRangeError("time coefficients are all 0: work takes time")

    def seconds(self, relative_clock: float) -> float:
        """Return the time in s of one unit of work at this real clock."""
        return max(self.memory_seconds, self.compute_seconds / relative_clock) + self.fixed_seconds


class Reading(NamedTuple):
    """One measured clock, freed of single bad readings; see fitting."""

    sm_clock_mhz: float
    watts: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadCurve:
    """Power and time of one workload on one GPU type; clocks given to it are clocks that were set.

    The board holds its power limit: the real clock is the set one or, if lower, the one at which power meets the limit.
    The highest clock is the one that may be set; what a board reaches at it, the reference of `slowdown`, may be less.

    A fit is smooth, a GPU is not always: at the clocks that get chosen, the fit's saving was up to 4 points from the
    readings'. Where there are readings, `joules` rests on them, and `slowdown` on whichever is slower.
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
    readings: tuple[Reading, ...] = ()
    """What was measured at each clock, ascending; a lower clock is nowhere faster. Empty for a model."""
    board_limit_watts: float = inf
    """Limit of the boards in question, which may be below that of the boards that were measured."""
    source: CurveSource = "measured"
    """`model` when the curve was taken over from a GPU of the same chip."""

    def on_board(self, limit_watts: float) -> "WorkloadCurve":
        """Return the same workload on boards of this limit; one above that of the measured boards changes nothing."""
        return replace(self, board_limit_watts=limit_watts)

    def in_proportion(self, gpu_type: GpuTypeName, high_clock_mhz: int, watts: float) -> "WorkloadCurve":
        """Return the curve as another type would have it, were it the same but for its clocks and its power.

        Args:
            gpu_type: The other type.
            high_clock_mhz: Its highest clock.
            watts: Its power over this one's, at the highest clocks.
        """
        clock, power = high_clock_mhz / self.high_clock_mhz, self.power
        return replace(
            self,
            gpu_type=gpu_type,
            power=PowerCurve(
                cubic_watts=power.cubic_watts * watts,
                linear_watts=power.linear_watts * watts,
                constant_watts=power.constant_watts * watts,
            ),
            reference_clock_mhz=round(self.reference_clock_mhz * clock),
            low_clock_mhz=ceil(self.low_clock_mhz * clock),
            high_clock_mhz=high_clock_mhz,
            power_limit_watts=self.power_limit_watts * watts,
            readings=tuple(Reading(one.sm_clock_mhz * clock, one.watts * watts, one.seconds) for one in self.readings),
            source="model",
        )

    def real_clock_mhz(self, sm_clock_mhz: float) -> float:
        """Return the clock in MHz at which the GPU runs, by the fit, when this one is set; none below the lowest."""
        self._check(sm_clock_mhz)
        limit_watts = min(self.power_limit_watts, self.board_limit_watts)
        relative = self.power.relative_clock_at(limit_watts, sm_clock_mhz / self.reference_clock_mhz)
        return max(relative * self.reference_clock_mhz, self.low_clock_mhz)

    def reading(self, sm_clock_mhz: float) -> Reading | None:
        """Return power and time at the real clock as they were measured, in between by straight lines; None if never.

        The real clock is the highest up to the set one at which no reading is above the board's limit.
        """
        self._check(sm_clock_mhz)
        before: Reading | None = None
        for after in self.readings:
            if after.sm_clock_mhz > sm_clock_mhz or after.watts > self.board_limit_watts:
                return after if before is None else self._between(before, after, sm_clock_mhz)
            before = after
        return before

    def watts(self, sm_clock_mhz: float) -> float:
        """Return mean board power in W by the fit while the workload runs with this clock set."""
        return self.power.watts(self.real_clock_mhz(sm_clock_mhz) / self.reference_clock_mhz)

    def seconds(self, sm_clock_mhz: float) -> float:
        """Return the time in s of one unit of work by the fit with this clock set."""
        return self.runtime.seconds(self.real_clock_mhz(sm_clock_mhz) / self.reference_clock_mhz)

    def slowdown(self, sm_clock_mhz: float) -> float:
        """Return by what ratio work takes longer than at the highest clock: by fit or readings, the larger."""
        modelled = self.seconds(sm_clock_mhz) / self.seconds(self.high_clock_mhz) - 1.0
        here, default = self.reading(sm_clock_mhz), self.reading(self.high_clock_mhz)
        return modelled if here is None or default is None else max(modelled, here.seconds / default.seconds - 1.0)

    def joules(self, sm_clock_mhz: float) -> float:
        """Return the energy in J of one unit of work with this clock set: by the readings, without them by the fit."""
        here = self.reading(sm_clock_mhz)
        return self.watts(sm_clock_mhz) * self.seconds(sm_clock_mhz) if here is None else here.watts * here.seconds

    def _between(self, before: Reading, after: Reading, sm_clock_mhz: float) -> Reading:
        span_mhz, span_watts = after.sm_clock_mhz - before.sm_clock_mhz, after.watts - before.watts
        share = min(1.0, (sm_clock_mhz - before.sm_clock_mhz) / span_mhz)
        if after.watts > self.board_limit_watts:
            share = min(share, (self.board_limit_watts - before.watts) / span_watts)
        return Reading(*(low + share * (high - low) for low, high in zip(before, after, strict=True)))

    def _check(self, sm_clock_mhz: float) -> None:
        if not self.low_clock_mhz <= sm_clock_mhz <= self.high_clock_mhz:
            raise ValueRangeError(
                f"clock {sm_clock_mhz} MHz is outside what is known of {self.workload} on {self.gpu_type}: "
                f"{self.low_clock_mhz} to {self.high_clock_mhz} MHz"
            )


@cache
def shipped_curves() -> Mapping[GpuTypeName, tuple[WorkloadCurve, ...]]:
    """Return every curve of the table in the package, by GPU type; types without a measurement are absent."""
    document = json.loads(CURVES_PATH.read_text(encoding="utf-8"))
    return {GpuTypeName(name): _decode_type(GpuTypeName(name), entry) for name, entry in document["gpu_types"].items()}


_site_curves: dict[GpuTypeName, tuple[WorkloadCurve, ...]] = {}
"""Measured on the site's own boards; they stand in the place of the package's of the same type."""
_assumed_curves: dict[GpuTypeName, tuple[WorkloadCurve, ...]] = {}
"""Another type's in proportion, where the site permits that."""


def curves_of(gpu_type: GpuTypeName) -> tuple[WorkloadCurve, ...]:
    """Return the curves of a GPU type: the site's own, else the package's, none when it was never measured."""
    return _site_curves.get(gpu_type) or shipped_curves().get(gpu_type) or _assumed_curves.get(gpu_type, ())


def put_site_curves(
    curves: Mapping[GpuTypeName, tuple[WorkloadCurve, ...]],
    assumed: Mapping[GpuTypeName, tuple[WorkloadCurve, ...]],
) -> None:
    """Use curves from now on, in the place of those that were put before.

    Args:
        curves: Of the site's own boards.
        assumed: Of types of which none are known otherwise.
    """
    _site_curves.clear()
    _site_curves.update(curves)
    _assumed_curves.clear()
    _assumed_curves.update(assumed)


def curve_source(gpu_type: GpuTypeName) -> Literal["measured here", "measured", "assumed", "none"]:
    """Return how the clock curves of a type are known; what an assumed curve saves is never said to be known."""
    if gpu_type in _site_curves:
        return "measured here"
    curves = curves_of(gpu_type)
    if not curves:
        return "none"
    return "measured" if curves[0].source == "measured" else "assumed"


def decoded_curves(name: GpuTypeName, entry: Mapping[str, Any]) -> tuple[WorkloadCurve, ...]:
    """Return the curves of one type of a document; KeyError, TypeError or ValueRangeError where it is none."""
    return _decode_type(name, entry)


def _decode_type(name: GpuTypeName, entry: Mapping[str, Any]) -> tuple[WorkloadCurve, ...]:
    return tuple(
        WorkloadCurve(
            gpu_type=name,
            workload=workload,
            power=PowerCurve(**row["power"]),
            runtime=RuntimeCurve(**row["runtime"]),
            power_limit_watts=row["power_limit_watts"],
            power_error=row["power_error"],
            readings=tuple(Reading(*reading) for reading in row["readings"]),
            runtime_error=row["runtime_error"],
            reference_clock_mhz=entry["reference_clock_mhz"],
            low_clock_mhz=entry["low_clock_mhz"],
            high_clock_mhz=entry["high_clock_mhz"],
            source=entry["source"],
        )
        for workload, row in entry["curves"].items()
    )
