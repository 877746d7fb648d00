"""Fits power to activity counters and clock on the V100, judged on programs that the fit never saw: activity.json."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

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
from slurm_energy.errors import ValueRangeError

GPU_TYPE = "v100-pcie-16gb"
LEAVE_OUT_BOUND = 0.15
SOURCE = "nsfcac/gpupowermodel 0b28e68f (BSD-3-Clause): V100, 24 applications, 117 clocks, DCGM counters"
EXPONENTS = tuple((engine, unit) for engine in (1.0, 2.0, 3.0) for unit in (0.25, 0.5, 0.75, 1.0))
"""Shapes that compete: (exponent of the engine's activity, of the units' activity)."""
TERMS = (
    "1",
    "f^3",
    "engine^p f",
    "engine^p f^3",
    "dram^q",
    "dram^q f",
    "dram^q f^3",
    "arithmetic^q f",
    "arithmetic^q f^3",
)
"""What each coefficient is multiplied with; f is the clock over the reference clock."""
_ACTIVITIES = ("gr_engine_active", "dram_active", "fp64_active", "fp32_active", "gpu_utilization")
_THINNING = 9
_STEPS = 8
_STEPS_OF_SELECTION = 3
_STALE_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Share of the time in which parts of a GPU were active, 0..1, as DCGM's profiling counters say."""

    engine: float
    """Graphics or compute engine (`gr_engine_active`), at most the utilisation that NVML reports."""
    dram: float
    """Memory interface (`dram_active`)."""
    arithmetic: float
    """Floating-point pipes: fp64 and fp32 together, at most 1."""

    def __post_init__(self) -> None:
        for name in ("engine", "dram", "arithmetic"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueRangeError(f"activity {name}={value} is not a share from 0 to 1")

    def consistent(self) -> "Activity":
        """Return the same activity with no part more active than the engine that drives it."""
        return Activity(
            engine=self.engine, dram=min(self.dram, self.engine), arithmetic=min(self.arithmetic, self.engine)
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One application at one clock."""

    application: str
    sm_clock_mhz: float
    watts: float
    activity: Activity


@dataclass(frozen=True, slots=True)
class Basis:
    """The terms of every sample for one pair of exponents, [num_samples, num_terms]."""

    exponents: tuple[float, float]
    matrix: Vector


def read_samples(path: Path) -> list[Sample]:
    """Return the samples; a counter that repeats one value at most clocks of an application was not updated.

    Such a value was left over from the application before: it counts as 0. The rule looks at counters, not at power.
    """
    rows = read_rows(path, ["application", "sm_clock_mhz", "avg_power_w", *_ACTIVITIES])
    by_application: dict[str, list[DataRow]] = {}
    for row in rows:
        by_application.setdefault(row.text("application"), []).append(row)
    samples = []
    for application, members in by_application.items():
        stale = {name for name in ("fp64_active", "fp32_active") if _is_stale([row.values[name] for row in members])}
        samples += [_sample(application, row, stale) for row in members]
    return samples


def fit_activity(data: Path, tell: Tell) -> Document:
    """Return activity.json: the coefficients, fitted to all applications, and the leave-one-application-out error.

    The left-out application is in no fit: neither in that of the coefficients nor in the choice of the exponents, which
    is made again for each left-out application, by leaving out one more of the remaining ones at a time.
    """
    samples = read_samples(data / "nsfcac_v100_dvfs" / "v100_clock_sweep.csv")
    clocks = [sample.sm_clock_mhz for sample in samples]
    highest = max(clocks)
    bases = [basis_of(samples, exponents, highest) for exponents in EXPONENTS]
    names = np.array([sample.application for sample in samples])
    watts = np.array([sample.watts for sample in samples])
    left_out = leave_one_application_out(bases, names, watts, tell)
    chosen = bases[int(np.argmin(_pair_errors(bases, names, watts).sum(axis=(1, 2))))]
    found = fit_watts(chosen.matrix, watts)
    errors = [
        FitError(
            quantity="V100 power from activity and clock, application never seen",
            mean_relative_error=float(np.mean(list(left_out.values()))),
            num_points=len(samples),
            method="leave-application-out",
            bound=LEAVE_OUT_BOUND,
        ),
        FitError(
            quantity="V100 power from activity and clock",
            mean_relative_error=mean_relative_error(chosen.matrix @ found, watts),
            num_points=len(samples),
        ),
    ]
    entry = {
        "reference_clock_mhz": highest,
        "low_clock_mhz": min(clocks),
        "engine_exponent": chosen.exponents[0],
        "unit_exponent": chosen.exponents[1],
        "terms": TERMS,
        "watts_per_term": found.tolist(),
        "leave_application_out": left_out,
    }
    return document(SOURCE, errors, {"gpu_types": {GPU_TYPE: entry}})


def leave_one_application_out(bases: Sequence[Basis], names: Vector, watts: Vector, tell: Tell) -> dict[str, float]:
    """Return the mean relative error on each application by fits that never saw it.

    Args:
        bases: The shapes that compete.
        names: Application of each sample, [num_samples].
        watts: Measured power in W, [num_samples].
        tell: Called with the progress.
    """
    applications = list(dict.fromkeys(names.tolist()))
    inner = _pair_errors(bases, names, watts)
    errors = {}
    for index, application in enumerate(applications):
        tell("activity", index, len(applications))
        inside = names != application
        basis = bases[int(np.argmin(inner[:, index].sum(axis=1)))]
        found = fit_watts(basis.matrix[inside], watts[inside])
        errors[str(application)] = mean_relative_error(basis.matrix[~inside] @ found, watts[~inside])
    tell("activity", len(applications), len(applications))
    return errors


def basis_of(samples: Sequence[Sample], exponents: tuple[float, float], highest_clock_mhz: float) -> Basis:
    """Return the terms of the samples for one pair of exponents."""
    rows = [terms(sample.activity, sample.sm_clock_mhz / highest_clock_mhz, *exponents) for sample in samples]
    return Basis(exponents, np.array(rows))


def terms(activity: Activity, relative_clock: float, engine_exponent: float, unit_exponent: float) -> tuple[float, ...]:
    """Return TERMS for one activity at one clock."""
    whole = activity.consistent()
    clock, cube = relative_clock, relative_clock**3
    engine, dram = whole.engine**engine_exponent, whole.dram**unit_exponent
    arithmetic = whole.arithmetic**unit_exponent
    return (
        1.0,
        cube,
        engine * clock,
        engine * cube,
        dram,
        dram * clock,
        dram * cube,
        arithmetic * clock,
        arithmetic * cube,
    )


def fit_watts(matrix: Vector, watts: Vector, num_reweightings: int = _STEPS) -> Vector:
    """Return non-negative coefficients of least absolute relative error, by reweighted least squares."""
    weight = np.ones_like(watts)
    found: Vector = np.zeros(matrix.shape[1])
    for _ in range(num_reweightings + 1):
        found, _residual = nnls(matrix * (weight / watts)[:, None], weight)
        weight = 1.0 / np.sqrt(np.maximum(np.abs(matrix @ found / watts - 1.0), 1e-2))
    return found


def _pair_errors(bases: Sequence[Basis], names: Vector, watts: Vector) -> Vector:
    """Return errors [shape, left-out application, application judged] of fits that saw neither of the two."""
    thin = np.concatenate([np.flatnonzero(names == name)[::_THINNING] for name in dict.fromkeys(names.tolist())])
    few_names, few_watts = names[thin], watts[thin]
    applications = list(dict.fromkeys(few_names.tolist()))
    errors = np.zeros((len(bases), len(applications), len(applications)))
    for shape, basis in enumerate(bases):
        matrix = basis.matrix[thin]
        for pair in combinations(range(len(applications)), 2):
            outside = [few_names == applications[index] for index in pair]
            inside = ~(outside[0] | outside[1])
            found = fit_watts(matrix[inside], few_watts[inside], _STEPS_OF_SELECTION)
            for left, judged in (pair, pair[::-1]):
                rows = few_names == applications[judged]
                errors[shape, left, judged] = mean_relative_error(matrix[rows] @ found, few_watts[rows])
    return errors


def _sample(application: str, row: DataRow, stale: set[str]) -> Sample:
    double, single = (0.0 if name in stale else row.number(name, 0.0, 1.0) for name in ("fp64_active", "fp32_active"))
    engine = min(row.number("gr_engine_active", 0.0, 1.0), row.number("gpu_utilization", 0.0, 100.0) / 100.0)
    return Sample(
        application=application,
        sm_clock_mhz=row.number("sm_clock_mhz", 1.0),
        watts=row.number("avg_power_w", 1e-3),
        activity=Activity(
            engine=engine, dram=row.number("dram_active", 0.0, 1.0), arithmetic=min(1.0, double + single)
        ),
    )


def _is_stale(values: Sequence[str]) -> bool:
    return Counter(values).most_common(1)[0][1] > _STALE_SHARE * len(values)
