"""How fast a job's work goes, and what it draws, on each GPU type and number of GPUs, alone and beside a neighbour.

Rates are logarithms: what a family of programs gains on a GPU type, what a batch size costs and how numbers of GPUs
scale are then sums. The scales of the kernels were fitted to public measurements (`python -m research.estimates`), the
estimates come from what a site, or a data set, has measured. With nothing measured an estimate has the doubt of the
prior, which promises nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, log, log2
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from slurm_energy.energy_model.catalog import gpu_type
from slurm_energy.energy_model.data_sheets import DATA_SHEETS
from slurm_energy.estimation.gaussian_process import (
    Columns,
    FloatArray,
    GaussianProcess,
    Interval,
    Kernel,
    doubt_factor,
    fit_process,
    read_kernel,
)

KERNELS = Path(__file__).with_name("kernels.json")
MAX_ENTRIES = 1_500
"""Measured entries that an estimate is made from, the last ones: time and memory grow with their square."""
_TYPICAL_LOG_BATCH = 5.0
_MAX_LOG_BATCH = 24.0
_TYPICAL_TFLOPS, _TYPICAL_GIGABYTES_PER_SECOND = 10.0, 700.0
_TYPICAL_LIMIT_WATTS = 300.0
_MAX_LOG_RATE = 30.0


class Work(NamedTuple):
    """What a job does, as far as it is known."""

    name: str
    """Runs of one name are taken to do the same; an empty one is alike to nothing."""
    family: str = ""
    """The network or program; empty where it is not known."""
    batch_size: float | None = None


class RatePlace(NamedTuple):
    """Where it runs."""

    gpu_type: str
    gpus: int = 1
    spread: bool = False
    """Whether its GPUs are on several nodes."""


class Beside(NamedTuple):
    """A job and its neighbour on one GPU."""

    work: Work
    neighbour: Work
    gpu_type: str
    use: float = 0.0
    """Of the GPU by both together when each runs alone, beyond a full GPU: 0.6 of 80 % and 80 %; 0 if not known."""


class SheetRow(NamedTuple):
    """A GPU type's data sheet, as far as it says how types differ."""

    single_tflops: float
    gigabytes_per_second: float
    limit_watts: float = 300.0
    """The board's limit as shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """How fast some work went."""

    work: Work
    place: RatePlace
    value: float
    """Units (steps, samples) a second of the whole job; watts of one GPU in a model of power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNeighbour:
    """How fast some work went beside a neighbour."""

    beside: Beside
    value: float
    """Over its rate alone on the same GPU type, 1 where it lost nothing."""


AnyMeasured = TypeVar("AnyMeasured", MeasuredRate, MeasuredNeighbour)


@dataclass(slots=True, kw_only=True)
class Codes:
    """Numbers that stand for categories; what was never measured gets one that nothing else has."""

    known: dict[tuple[str, str], float] = field(default_factory=dict)

    def of(self, column: str, values: Sequence[str], *, learn: bool) -> FloatArray:
        """Return the codes of some values; an empty one is a category of its own."""
        found = np.empty(len(values))
        for index, value in enumerate(values):
            code = self.known.get((column, value)) if value else None
            if code is None:
                code = float(len(self.known) + 1) if learn and value else -1.0 - index
                if learn and value:
                    self.known[column, value] = code
            found[index] = code
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RateModel:
    """Rates of all work on all places."""

    process: GaussianProcess | None
    kernel: Kernel
    codes: Codes
    sheets: Mapping[str, SheetRow]
    doubt_factors: Mapping[str, float] = field(default_factory=dict)
    """By GPU type: what doubts are multiplied by, from measurements left out."""

    def estimate(self, work: Work, place: RatePlace) -> Interval:
        """Return the units a second of some work; known places and unknown ones alike."""
        return self.estimates([(work, place)])[0]

    def estimates(self, entries: Sequence[tuple[Work, RatePlace]]) -> list[Interval]:
        """Return the units a second of each entry."""
        columns = rate_columns(entries, self.codes, self.sheets, learn=False)
        types = [place.gpu_type for _, place in entries]
        mean, doubt = _figures(self.process, self.kernel, columns, types, self.doubt_factors)
        mean = np.clip(mean, -_MAX_LOG_RATE, _MAX_LOG_RATE)
        return [Interval(log_middle=one, log_doubt=two) for one, two in zip(mean.tolist(), doubt.tolist(), strict=True)]

    def refined(self, measured: Iterable[MeasuredRate]) -> "RateModel":
        """Return the model that has seen some more measurements, which correct every entry that is alike."""
        rows = _sound(measured)
        if not rows:
            return self
        if self.process is None:
            return fit_rates(rows, self.sheets, self.kernel)
        columns = rate_columns([(row.work, row.place) for row in rows], self.codes, self.sheets, learn=True)
        process = self.process.refined(columns, np.log([row.value for row in rows]))
        return replace(self, process=process)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourModel:
    """What jobs on one GPU do to each other's speed."""

    process: GaussianProcess | None
    kernel: Kernel
    codes: Codes
    doubt_factors: Mapping[str, float] = field(default_factory=dict)

    def estimate(self, beside: Beside) -> Interval:
        """Return the speed of the job beside its neighbour, over that alone; at most 1 in the middle."""
        return self.estimates([beside])[0]

    def estimates(self, entries: Sequence[Beside]) -> list[Interval]:
        """Return the relative speed of each job beside its neighbour."""
        columns = neighbour_columns(entries, self.codes, learn=False)
        types = [entry.gpu_type for entry in entries]
        mean, doubt = _figures(self.process, self.kernel, columns, types, self.doubt_factors)
        mean = np.clip(mean - columns["crowding"], -_MAX_LOG_RATE, 0.0)
        return [Interval(log_middle=one, log_doubt=two) for one, two in zip(mean.tolist(), doubt.tolist(), strict=True)]

    def refined(self, measured: Iterable[MeasuredNeighbour]) -> "NeighbourModel":
        """Return the model that has seen some more measurements."""
        rows = _sound(measured)
        if not rows:
            return self
        if self.process is None:
            return fit_neighbours(rows, self.kernel)
        columns = neighbour_columns([row.beside for row in rows], self.codes, learn=True)
        process = self.process.refined(columns, np.log([row.value for row in rows]) + columns["crowding"])
        return replace(self, process=process)


def fit_rates(
    measured: Iterable[MeasuredRate], sheets: Mapping[str, SheetRow] | None = None, kernel: Kernel | None = None
) -> RateModel:
    """Return the model of some measured rates; values that are no number above 0 are left out.

    Args:
        measured: The last 1,500 different entries count, of one measured several times the median.
        sheets: Data sheets by GPU type, the catalogue's if not given. A type without one is taken for a typical GPU.
        kernel: The packaged one if not given.
    """
    kernel = read_kernel(KERNELS, "rates") if kernel is None else kernel
    codes, known = Codes(), catalogue_sheets() if sheets is None else sheets
    by_entry: dict[tuple[Work, RatePlace], list[float]] = {}
    for row in _sound(measured):
        by_entry.setdefault((row.work, row.place), []).append(log(row.value))
    entries = list(by_entry)[-MAX_ENTRIES:]
    model = RateModel(process=None, kernel=kernel, codes=codes, sheets=known)
    if not entries:
        return model
    columns = rate_columns(entries, codes, known, learn=True)
    process = fit_process(kernel, columns, np.array([median(by_entry[entry]) for entry in entries]))
    types = [place.gpu_type for _, place in entries]
    cells = [(work.name, place.gpu_type) for work, place in entries]
    groups = [np.array([cell == other for other in cells]) for cell in dict.fromkeys(cells)]
    return replace(model, process=process, doubt_factors=_doubt_factors(process, groups, types))


def fit_power(
    measured: Iterable[MeasuredRate], sheets: Mapping[str, SheetRow] | None = None, kernel: Kernel | None = None
) -> RateModel:
    """Return the same model of one GPU's mean power in watts."""
    return fit_rates(measured, sheets, read_kernel(KERNELS, "power") if kernel is None else kernel)


def fit_neighbours(measured: Iterable[MeasuredNeighbour], kernel: Kernel | None = None) -> NeighbourModel:
    """Return the model of some measured pairs; values that are no number above 0 are left out.

    Before anything is measured, two jobs that use more than one GPU together slow each other by what is beyond it.
    """
    kernel = read_kernel(KERNELS, "neighbours") if kernel is None else kernel
    codes = Codes()
    by_entry: dict[Beside, list[float]] = {}
    for row in _sound(measured):
        by_entry.setdefault(row.beside, []).append(log(row.value))
    entries = list(by_entry)[-MAX_ENTRIES:]
    model = NeighbourModel(process=None, kernel=kernel, codes=codes)
    if not entries:
        return model
    columns = neighbour_columns(entries, codes, learn=True)
    values = np.array([median(by_entry[entry]) for entry in entries]) + columns["crowding"]
    process = fit_process(kernel, columns, values)
    types = [entry.gpu_type for entry in entries]
    names = {(work.name, entry.gpu_type) for entry in entries for work in (entry.work, entry.neighbour)}
    groups = [
        np.array([entry.gpu_type == kind and name in {entry.work.name, entry.neighbour.name} for entry in entries])
        for name, kind in sorted(names)
    ]
    return replace(model, process=process, doubt_factors=_doubt_factors(process, groups, types))


def rate_columns(
    entries: Sequence[tuple[Work, RatePlace]], codes: Codes, sheets: Mapping[str, SheetRow], *, learn: bool
) -> Columns:
    """Return the columns of rates: what the work is, the GPU type and its data sheet, number and placement."""
    works, places = [work for work, _ in entries], [place for _, place in entries]
    typical = SheetRow(_TYPICAL_TFLOPS, _TYPICAL_GIGABYTES_PER_SECOND)
    sheet = [sheets.get(place.gpu_type, typical) for place in places]
    count = np.array([float(max(1, place.gpus)) for place in places])
    where = ["" if place.gpus <= 1 else "spread" if place.spread else "packed" for place in places]
    setting = [f"{place.gpu_type} {where[index]} {place.gpus}" for index, place in enumerate(places)]
    return {
        **work_columns(works, codes, "", learn=learn),
        "gpu_type": codes.of("gpu_type", [place.gpu_type for place in places], learn=learn),
        "log_tflops": np.log([row.single_tflops / _TYPICAL_TFLOPS for row in sheet]),
        "log_bandwidth": np.log([row.gigabytes_per_second / _TYPICAL_GIGABYTES_PER_SECOND for row in sheet]),
        "log_limit": np.log([row.limit_watts / _TYPICAL_LIMIT_WATTS for row in sheet]),
        "log_count": np.log2(count),
        "several": (count > 1.0).astype(np.float64),
        "placement": codes.of("placement", where, learn=learn),
        "setting": codes.of("setting", setting, learn=learn),
    }


def neighbour_columns(entries: Sequence[Beside], codes: Codes, *, learn: bool) -> Columns:
    """Return the columns of pairs: the work, its neighbour, and the GPU type."""
    return {
        **work_columns([entry.work for entry in entries], codes, "", learn=learn),
        **work_columns([entry.neighbour for entry in entries], codes, "other_", learn=learn),
        "gpu_type": codes.of("gpu_type", [entry.gpu_type for entry in entries], learn=learn),
        "crowding": np.log1p([min(max(entry.use, 0.0), 4.0) if isfinite(entry.use) else 0.0 for entry in entries]),
    }


def catalogue_sheets() -> Mapping[str, SheetRow]:
    """Return the data sheets of the catalogue's GPU types: single precision by cores and highest clock."""
    found = {}
    for name, sheet in DATA_SHEETS.items():
        known = gpu_type(name)
        clock_mhz = None if known is None else known.default_sm_clock_mhz
        if known is not None and clock_mhz is not None:
            limit_watts = known.power_limit_watts or _TYPICAL_LIMIT_WATTS
            found[str(name)] = SheetRow(2e-6 * sheet.lanes * clock_mhz, sheet.memory_gb_per_second, limit_watts)
    return found


def work_columns(works: Sequence[Work], codes: Codes, prefix: str, *, learn: bool) -> dict[str, FloatArray]:
    """Return the columns of what works do, each with a prefix."""
    return {
        f"{prefix}work": codes.of("work", [work.name for work in works], learn=learn),
        f"{prefix}family": codes.of("family", [work.family for work in works], learn=learn),
        f"{prefix}log_batch": np.array([_log_batch(work.batch_size) for work in works]),
    }


def _log_batch(batch_size: float | None) -> float:
    """Return the binary logarithm of a batch size about a typical one; 0 where there is none."""
    if batch_size is None or not isfinite(batch_size) or batch_size <= 0.0:
        return 0.0
    return min(max(log2(batch_size), 0.0), _MAX_LOG_BATCH) - _TYPICAL_LOG_BATCH


def _sound(measured: Iterable[AnyMeasured]) -> list[AnyMeasured]:
    return [row for row in measured if isfinite(row.value) and row.value > 0.0 and abs(log(row.value)) < _MAX_LOG_RATE]


def _figures(
    process: GaussianProcess | None,
    kernel: Kernel,
    columns: Columns,
    types: Sequence[str],
    factors: Mapping[str, float],
) -> tuple[FloatArray, FloatArray]:
    """Return means and doubts of some entries; the prior's where nothing was measured."""
    if process is None:
        doubt = np.sqrt(kernel.prior_variance(columns) + kernel.noise**2)
        return np.zeros(len(doubt)), doubt
    mean, doubt = process.estimate(columns)
    widest = max(factors.values(), default=1.0)
    return mean, doubt * np.array([factors.get(one, widest) for one in types])


def _doubt_factors(
    process: GaussianProcess, groups: Sequence[NDArray[np.bool_]], types: Sequence[str]
) -> dict[str, float]:
    return {
        kind: doubt_factor(process, groups, np.array([one == kind for one in types])) for kind in dict.fromkeys(types)
    }
