"""Gaussian processes: what measured entries say about entries that were not measured, each with its doubt.

How alike two entries are is a sum of terms, each a product of simple similarities of their columns: of the same family,
of nearby batch sizes, on the same GPU type. A term's scale is how far entries differ in that respect. A measurement
corrects all other entries as far as they are alike (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapter 2).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import DataFileError, ValueRangeError

FloatArray = NDArray[np.float64]
Columns = Mapping[str, FloatArray]
"""By name, [entries] each; a category is a number that stands for it."""
Kind = Literal["same", "near", "along"]
_Z_90 = 1.6449
_MAX_DOUBT = 12.0
_OFFSET_ENTRIES = 4.0
"""How many measurements of 0 the offset counts beside the process's own."""
_CALIBRATION_GROUPS = 10.0
"""How many left-out groups of the doubt that the kernel states count beside those found."""
_MIN_FACTOR, _MAX_FACTOR = 0.7, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One similarity of two entries."""

    kind: Kind
    """`same`: 1 for the same category, else 0; `near`: exp(-(x - y)^2 / 2 length^2); `along`: x y."""
    column: str
    length: float = 1.0

    def base(self, one: Columns, other: Columns) -> FloatArray:
        """Return what the similarity is made of, [entries of one, entries of other]: squared distance for `near`."""
        x, y = one[self.column][:, None], other[self.column][None, :]
        if self.kind == "same":
            return np.asarray(x == y, dtype=np.float64)
        return np.asarray((x - y) ** 2 if self.kind == "near" else x * y, dtype=np.float64)

    def similarity(self, one: Columns, other: Columns) -> FloatArray:
        """Return the similarity of each pair of entries, [entries of one, entries of other]."""
        base = self.base(one, other)
        return np.exp(-0.5 / self.length**2 * base) if self.kind == "near" else base


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A product of similarities, and the standard deviation of what entries have in common by it."""

    scale: float
    factors: tuple[Factor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A sum of terms, and the standard deviation of one measurement about the truth."""

    terms: tuple[Term, ...]
    noise: float

    def covariance(self, one: Columns, other: Columns) -> FloatArray:
        """Return the prior covariance of entries, [entries of one, entries of other]."""
        known: dict[Factor, FloatArray] = {}
        size = len(next(iter(one.values()))), len(next(iter(other.values())))
        total = np.zeros(size)
        for term in self.terms:
            product: FloatArray | None = None
            for factor in term.factors:
                if factor not in known:
                    known[factor] = factor.similarity(one, other)
                product = known[factor] if product is None else product * known[factor]
            total += term.scale**2 * (1.0 if product is None else product)
        return total

    def prior_variance(self, columns: Columns) -> FloatArray:
        """Return the variance of each entry before any measurement, [entries]."""
        total = np.zeros(len(next(iter(columns.values()))))
        for term in self.terms:
            square = np.ones(len(total))
            for factor in term.factors:
                if factor.kind == "along":
                    square = square * columns[factor.column] ** 2
            total += term.scale**2 * square
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A quantity above 0 as quantiles: its logarithm is taken to be normally distributed."""

    log_middle: float
    log_doubt: float
    """Standard deviation of the logarithm."""

    @property
    def middle(self) -> float:
        """The value that one of two stay below."""
        return exp(self.log_middle)

    @property
    def lower(self) -> float:
        """The value that one of twenty stay below."""
        return exp(self.log_middle - _Z_90 * self.log_doubt)

    @property
    def upper(self) -> float:
        """The value that nineteen of twenty stay below."""
        return exp(self.log_middle + _Z_90 * self.log_doubt)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GaussianProcess:
    """A Gaussian process given measurements."""

    kernel: Kernel
    columns: Columns
    """Of the measured entries."""
    values: FloatArray
    """Measured, as logarithms, [entries]."""
    offset: float
    precision: FloatArray
    """Inverse of the measurements' covariance, [entries, entries]."""
    weights: FloatArray
    """`precision` times the values without the offset, [entries]."""

    def estimate(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of new measurements of some entries, [entries] each."""
        alike = self.kernel.covariance(columns, self.columns)
        explained = np.einsum("ij,ij->i", alike @ self.precision, alike)
        variance = self.kernel.prior_variance(columns) - explained
        doubt = np.sqrt(np.maximum(variance, 0.0) + self.kernel.noise**2)
        return self.offset + alike @ self.weights, np.minimum(doubt, _MAX_DOUBT)

    def joint(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return mean [entries] and covariance [entries, entries] of what some entries truly are."""
        alike = self.kernel.covariance(columns, self.columns)
        covariance = self.kernel.covariance(columns, columns) - alike @ self.precision @ alike.T
        return self.offset + alike @ self.weights, covariance

    def refined(
        self, columns: Columns, values: FloatArray, extra_variance: FloatArray | None = None
    ) -> "GaussianProcess":
        """Return the process given some more measurements; a block inverse, not a new fit."""
        alike = self.kernel.covariance(self.columns, columns)
        noise = np.full(len(values), self.kernel.noise**2) + (0.0 if extra_variance is None else extra_variance)
        added = self.kernel.covariance(columns, columns) + np.diag(noise)
        pull = self.precision @ alike
        corner = np.linalg.inv(added - alike.T @ pull)
        side = -pull @ corner
        precision = np.block([[self.precision - side @ pull.T, side], [side.T, corner]])
        return _process(
            self.kernel,
            {name: np.concatenate([column, columns[name]]) for name, column in self.columns.items()},
            np.concatenate([self.values, values]),
            self.offset,
            precision,
        )


def fit_process(
    kernel: Kernel, columns: Columns, values: FloatArray, extra_variance: FloatArray | None = None
) -> GaussianProcess:
    """Return the process given some measurements, at least one; its offset is their mean, drawn to 0 where few.

    Args:
        kernel: How alike entries are.
        columns: Of the measured entries.
        values: Measured, as logarithms.
        extra_variance: Of single measurements, beside the kernel's noise.

    Raises:
        ValueRangeError: there is no measurement, or one is not finite.
    """
    if not len(values) or not np.isfinite(values).all():
        raise ValueRangeError(f"{len(values)} measurements are none, or one of them is not a finite number")
    noise = np.full(len(values), kernel.noise**2) + (0.0 if extra_variance is None else extra_variance)
    covariance = kernel.covariance(columns, columns) + np.diag(noise)
    offset = float(values.sum()) / (len(values) + _OFFSET_ENTRIES)
    return _process(kernel, columns, values, offset, np.asarray(np.linalg.inv(covariance), dtype=np.float64))


def left_out(process: GaussianProcess, group: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of a group of measurements by all others, without a new fit, [group] each.

    Sundararajan and Keerthi, Predictive approaches for choosing hyperparameters in Gaussian processes, 2001; of groups.
    """
    rows = np.flatnonzero(group)
    covariance = np.linalg.inv(process.precision[np.ix_(rows, rows)])
    mean = process.values[rows] - covariance @ process.weights[rows]
    return mean, np.sqrt(np.diag(covariance))


def doubt_factor(process: GaussianProcess, groups: Sequence[NDArray[np.bool_]], rows: NDArray[np.bool_]) -> float:
    """Return by how much doubts must be multiplied so that nine of ten of some rows are within, each group left out.

    Args:
        process: With all measurements.
        groups: Entries that are left out together, [entries] each.
        rows: Entries that count, [entries]; drawn to 1 where their groups are few.
    """
    apart: list[FloatArray] = []
    for group in groups:
        if not (group & rows).any() or group.all():
            continue
        mean, doubt = left_out(process, group)
        counted = rows[group]
        apart.append(np.abs(process.values[group] - mean)[counted] / doubt[counted])
    if not apart:
        return 1.0
    found = float(np.quantile(np.concatenate(apart), 0.9)) / _Z_90
    drawn = (len(apart) * found + _CALIBRATION_GROUPS) / (len(apart) + _CALIBRATION_GROUPS)
    return min(max(drawn, _MIN_FACTOR), _MAX_FACTOR)


def read_kernel(path: Path, name: str) -> Kernel:
    """Return a kernel of a JSON file.

    Raises:
        DataFileError: the file or the kernel is missing or malformed.
    """
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))["kernels"][name]
        terms = tuple(_term(term) for term in entry["terms"])
        kernel = Kernel(terms=terms, noise=float(entry["noise"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataFileError(f"{path}: kernel {name} cannot be read: {error}") from error
    if not all(isfinite(value) for value in (kernel.noise, *(term.scale for term in terms))):
        raise DataFileError(f"{path}: kernel {name} has a figure that is not finite")
    return kernel


def kernel_document(kernel: Kernel) -> dict[str, Any]:
    """Return a kernel as `read_kernel` reads it."""
    return {
        "noise": float(f"{kernel.noise:.5g}"),
        "terms": [
            {"scale": float(f"{term.scale:.5g}"), "factors": [_factor_text(factor) for factor in term.factors]}
            for term in kernel.terms
        ],
    }


def factor(text: str) -> Factor:
    """Return a factor from `same COLUMN`, `along COLUMN` or `near COLUMN LENGTH`."""
    kind, column, *length = text.split()
    if kind not in {"same", "near", "along"}:
        raise ValueRangeError(f"factor {text[:64]!r} is not `same`, `near` or `along` a column")
    return Factor(kind=kind, column=column, length=float(length[0]) if length else 1.0)  # type: ignore[arg-type]  # checked above


def _factor_text(one: Factor) -> str:
    return f"{one.kind} {one.column}" + (f" {one.length:.5g}" if one.kind == "near" else "")


def _term(entry: Mapping[str, Any]) -> Term:
    factors: Sequence[str] = entry["factors"]
    return Term(scale=float(entry["scale"]), factors=tuple(factor(text) for text in factors))


def _process(
    kernel: Kernel, columns: Columns, values: FloatArray, offset: float, precision: FloatArray
) -> GaussianProcess:
    return GaussianProcess(
        kernel=kernel,
        columns=columns,
        values=values,
        offset=offset,
        precision=precision,
        weights=precision @ (values - offset),
    )
