"""How much GPU memory a job's work takes, and whether two jobs fit on one GPU.

A family's memory is a base (its weights, the framework) and a part that grows with the batch size. Both follow from
measured memory where there is some, and from what ran or ran out of memory: a pair that did not run says that both
together take more than the GPU has. The figures are the most probable ones given a prior of 1 GB and 3 GB at a batch of
128 (logistic regression with a normal prior, damped Newton steps).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import erf, exp, isfinite, log, sqrt

import numpy as np

from slurm_energy.estimation.gaussian_process import FloatArray, Interval
from slurm_energy.estimation.rates import Work

_PRIOR_BASE, _PRIOR_GROWTH = log(1.0), log(3.0)
"""Gigabytes without any sample, and of a batch as large as the family's largest."""
_PRIOR_SPREAD = 1.0
_PRIOR_SHARPNESS, _SHARPNESS_SPREAD = log(2.0), 0.5
"""Of the step from fits to does not fit, per gigabyte."""
_CAPACITY_SPREAD = 0.1
"""How far a type's usable memory differs from its data sheet, as a share."""
_READING_SPREAD = 0.2
"""Of the logarithm of one measured peak about the family's line."""
_TYPICAL_BATCH = 128.0
_ROUNDS, _SETTLED = 60, 1e-6
_MAX_GIGABYTES = 4_096.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedTogether:
    """Some jobs that were started on one GPU at once, one or several."""

    works: tuple[Work, ...]
    gpu_type: str
    gpu_memory_gigabytes: float
    fits: bool
    """Whether they ran; False where memory ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """The most GPU memory that some work took."""

    work: Work
    gigabytes: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryModel:
    """Memory of each family, and how much of a GPU type's memory can be used."""

    families: Mapping[str, int]
    largest_batch: Mapping[str, float]
    gpu_types: Mapping[str, int]
    figures: FloatArray
    """Logarithms of bases, of growths, of the sharpness; then the share by which each type's capacity differs."""
    covariance: FloatArray

    def memory(self, work: Work) -> Interval:
        """Return the gigabytes that some work takes at its peak."""
        gigabytes, slope = self._gigabytes(work)
        known = work.family in self.families
        variance = float(slope @ self.covariance @ slope) / gigabytes**2 if known else 2.0 * _PRIOR_SPREAD**2
        return Interval(log_middle=log(gigabytes), log_doubt=sqrt(max(variance, 0.0) + _READING_SPREAD**2))

    def chance_to_fit(self, works: Sequence[Work], gpu_type: str, gpu_memory_gigabytes: float) -> float:
        """Return the probability that jobs run together on one GPU of so much memory."""
        if not (isfinite(gpu_memory_gigabytes) and gpu_memory_gigabytes > 0.0):
            return 0.5
        total, slopes = 0.0, np.zeros(len(self.figures))
        unknown = 0.0
        for work in works:
            gigabytes, slope = self._gigabytes(work)
            total, slopes = total + gigabytes, slopes + slope
            unknown += 0.0 if work.family in self.families else (_PRIOR_SPREAD * gigabytes) ** 2
        place = self.gpu_types.get(gpu_type)
        share = 0.0 if place is None else float(self.figures[2 * len(self.families) + 1 + place])
        variance = float(slopes @ self.covariance @ slopes) + unknown
        sharpness = exp(float(self.figures[2 * len(self.families)]))
        # A logistic step of this sharpness is about a normal one of 1.7/sharpness; both doubts add up.
        step = (1.7 / sharpness) ** 2
        room = gpu_memory_gigabytes * (1.0 + share) - total
        return 0.5 * (1.0 + erf(room / sqrt(2.0 * (step + variance))))

    def _gigabytes(self, work: Work) -> tuple[float, FloatArray]:
        """Return the memory and its derivative by each figure."""
        slope = np.zeros(len(self.figures))
        place = self.families.get(work.family)
        if place is None:
            growth = exp(_PRIOR_GROWTH) * (_batch(work) or _TYPICAL_BATCH) / _TYPICAL_BATCH
            return min(exp(_PRIOR_BASE) + growth, _MAX_GIGABYTES), slope
        base = exp(float(self.figures[place]))
        growth = exp(float(self.figures[len(self.families) + place])) * _batch(work) / self.largest_batch[work.family]
        slope[place], slope[len(self.families) + place] = base, growth
        return min(base + growth, _MAX_GIGABYTES), slope


def fit_memory(tried: Iterable[TriedTogether], measured: Iterable[MeasuredMemory] = ()) -> MemoryModel:
    """Return the memory of each family that was tried or measured; what is no number above 0 is left out."""
    attempts = [one for one in tried if isfinite(one.gpu_memory_gigabytes) and one.gpu_memory_gigabytes > 0.0]
    peaks = [one for one in measured if isfinite(one.gigabytes) and one.gigabytes > 0.0]
    works = [work for one in attempts for work in one.works] + [one.work for one in peaks]
    families = {name: index for index, name in enumerate(sorted({work.family for work in works if work.family}))}
    types = {name: index for index, name in enumerate(sorted({one.gpu_type for one in attempts}))}
    largest = {
        name: max([_batch(work) for work in works if work.family == name and _batch(work)], default=_TYPICAL_BATCH)
        for name in families
    }
    problem = _Problem(attempts, peaks, families, largest, types)
    figures, covariance = problem.solve()
    return MemoryModel(
        families=families, largest_batch=largest, gpu_types=types, figures=figures, covariance=covariance
    )


class _Problem:
    """Attempts and readings as matrices."""

    def __init__(
        self,
        attempts: Sequence[TriedTogether],
        peaks: Sequence[MeasuredMemory],
        families: Mapping[str, int],
        largest: Mapping[str, float],
        types: Mapping[str, int],
    ) -> None:
        self._num = len(families)
        self._uses = np.zeros((len(attempts), 2 * self._num))
        self._rest = np.zeros(len(attempts))
        for row, attempt in enumerate(attempts):
            for work in attempt.works:
                if work.family in families:
                    self._add(self._uses[row], work, families, largest)
                else:
                    self._rest[row] += exp(_PRIOR_BASE)
        self._peaks = np.zeros((len(peaks), 2 * self._num))
        for row, peak in enumerate(peaks):
            if peak.work.family in families:
                self._add(self._peaks[row], peak.work, families, largest)
        self._peaks_known = self._peaks.sum(axis=1) > 0.0
        self._logs = np.log([peak.gigabytes for peak in peaks])
        self._capacity = np.zeros((len(attempts), len(types)))
        for row, attempt in enumerate(attempts):
            self._capacity[row, types[attempt.gpu_type]] = attempt.gpu_memory_gigabytes
        self._fits = np.array([attempt.fits for attempt in attempts], dtype=np.float64)
        self._prior = np.concatenate(
            [
                np.full(self._num, _PRIOR_BASE),
                np.full(self._num, _PRIOR_GROWTH),
                [_PRIOR_SHARPNESS],
                np.zeros(len(types)),
            ]
        )
        self._weight = np.concatenate(
            [
                np.full(2 * self._num, _PRIOR_SPREAD**-2.0),
                [_SHARPNESS_SPREAD**-2.0],
                np.full(len(types), _CAPACITY_SPREAD**-2.0),
            ]
        )

    def solve(self) -> tuple[FloatArray, FloatArray]:
        """Return the most probable figures and their covariance by the curvature there."""
        figures, damping = self._prior.copy(), 1e-3
        loss, gradient, curvature = self._at(figures)
        for _ in range(_ROUNDS):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
            tried = figures + np.clip(step, -1.0, 1.0)
            new_loss, new_gradient, new_curvature = self._at(tried)
            if new_loss < loss:
                settled = loss - new_loss < _SETTLED
                figures, loss, gradient, curvature = tried, new_loss, new_gradient, new_curvature
                damping = max(damping / 3.0, 1e-6)
                if settled:
                    break
            else:
                damping *= 5.0
        return figures, np.asarray(np.linalg.inv(curvature), dtype=np.float64)

    def _at(self, figures: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return the negative logarithm of the posterior, its gradient and its Gauss-Newton curvature."""
        sizes, sharpness, share = (
            np.exp(figures[: 2 * self._num]),
            exp(figures[2 * self._num]),
            figures[2 * self._num + 1 :],
        )
        room = self._capacity @ (1.0 + share) - self._uses @ sizes - self._rest
        score = sharpness * room
        chance = 1.0 / (1.0 + np.exp(-np.clip(score, -50.0, 50.0)))
        slopes = np.hstack([-sharpness * self._uses * sizes, score[:, None], sharpness * self._capacity])
        apart = figures - self._prior
        loss = float(
            np.logaddexp(0.0, np.where(self._fits > 0.5, -score, score)).sum() + 0.5 * (self._weight * apart**2).sum()
        )
        gradient = slopes.T @ (chance - self._fits) + self._weight * apart
        curvature = slopes.T @ (slopes * (chance * (1.0 - chance))[:, None]) + np.diag(self._weight)
        if self._peaks_known.any():
            parts = self._peaks[self._peaks_known] * sizes
            total = parts.sum(axis=1)
            miss = (np.log(total) - self._logs[self._peaks_known]) / _READING_SPREAD
            # Beyond two spreads an outlier pulls no harder (Huber).
            pull = np.minimum(1.0, 2.0 / np.maximum(np.abs(miss), 1e-9))
            lines = np.zeros((len(total), len(figures)))
            lines[:, : 2 * self._num] = parts / total[:, None] / _READING_SPREAD
            loss += float(np.where(np.abs(miss) <= 2.0, 0.5 * miss**2, 2.0 * np.abs(miss) - 2.0).sum())
            gradient += lines.T @ (pull * miss)
            curvature += lines.T @ (lines * pull[:, None])
        return loss, gradient, curvature

    def _add(self, row: FloatArray, work: Work, families: Mapping[str, int], largest: Mapping[str, float]) -> None:
        row[families[work.family]] += 1.0
        row[self._num + families[work.family]] += _batch(work) / largest[work.family]


def _batch(work: Work) -> float:
    batch = work.batch_size
    return 0.0 if batch is None or not isfinite(batch) or batch <= 0.0 else min(batch, 1e7)
