"""How much faster a job's work runs on more GPUs, with its doubt.

What more GPUs lose is loss = GPUs / speed-up - 1: 0 without any loss, 1 where half of them are wasted. Its logarithm is
nearly a line over log(GPUs - 1) for every application measured; applications differ in where the line begins, and
agreeing across nodes lifts it. The measured shapes of public applications (ElasticFlow, Pollux) are the prior, a job's
own measurements at some numbers of GPUs correct all others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite
from typing import NamedTuple

import numpy as np

from slurm_energy.estimation.gaussian_process import (
    Columns,
    FloatArray,
    GaussianProcess,
    Kernel,
    fit_process,
    read_kernel,
)
from slurm_energy.estimation.rates import KERNELS, Codes, Work, work_columns

MAX_ENTRIES = 1_000
"""Measured speed-ups that an estimate is made from, the last ones."""
_MIN_LOSS, _MAX_LOSS = 0.01, 1e4
_Z_90 = 1.6449
_RATE_ERROR = 0.04
"""Standard deviation of the logarithm of a measured rate."""
_MAX_GPUS = 100_000


class GpuLayout(NamedTuple):
    """A number of GPUs, and how they are used."""

    gpus: int
    nodes: int = 1
    total_batch_fixed: bool = False
    """Whether the batch is divided over the GPUs (strong scaling); else each GPU has a whole one."""
    gpu_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeedup:
    """How much faster some work went than on one GPU."""

    work: Work
    spread: GpuLayout
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """How much faster than on one GPU: in the middle, and what nineteen of twenty are above and below."""

    gpus: int
    lower: float
    middle: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingModel:
    """Speed-ups of all work on all numbers of GPUs."""

    process: GaussianProcess | None
    kernel: Kernel
    codes: Codes

    def speedups(self, work: Work, spreads: Sequence[GpuLayout]) -> list[Speedup]:
        """Return the speed-up of some work on each number of GPUs; one GPU has 1 without doubt."""
        if not spreads:
            return []
        columns = scaling_columns([(work, spread) for spread in spreads], self.codes, learn=False)
        if self.process is None:
            mean, doubt = np.full(len(spreads), -1.0), np.sqrt(self.kernel.prior_variance(columns))
        else:
            mean, doubt = self.process.estimate(columns)
        return [
            _speedup(spread.gpus, middle, apart)
            for spread, middle, apart in zip(spreads, mean.tolist(), doubt.tolist(), strict=True)
        ]

    def refined(self, measured: Iterable[MeasuredSpeedup]) -> "ScalingModel":
        """Return the model that has seen some more measurements."""
        rows = _sound(measured)
        if not rows:
            return self
        if self.process is None:
            return fit_scaling_model(rows, self.kernel)
        columns = scaling_columns([(row.work, row.spread) for row in rows], self.codes, learn=True)
        return replace(self, process=self.process.refined(columns, *log_losses(rows)))


def fit_scaling_model(measured: Iterable[MeasuredSpeedup], kernel: Kernel | None = None) -> ScalingModel:
    """Return the model of some measured speed-ups; those of one GPU, or no number above 0, are left out."""
    kernel = read_kernel(KERNELS, "scaling") if kernel is None else kernel
    codes, rows = Codes(), _sound(measured)[-MAX_ENTRIES:]
    model = ScalingModel(process=None, kernel=kernel, codes=codes)
    if not rows:
        return model
    columns = scaling_columns([(row.work, row.spread) for row in rows], codes, learn=True)
    return replace(model, process=fit_process(kernel, columns, *log_losses(rows)))


def scaling_columns(entries: Sequence[tuple[Work, GpuLayout]], codes: Codes, *, learn: bool) -> Columns:
    """Return the columns of speed-ups: the work, the number of GPUs, nodes, and how the batch is divided."""
    spreads = [spread for _, spread in entries]
    gpus = [min(max(spread.gpus, 2), _MAX_GPUS) for spread in spreads]
    across = np.array([float(spread.nodes > 1) for spread in spreads])
    kinds = ["divided" if spread.total_batch_fixed else "whole" for spread in spreads]
    divided = np.array([float(spread.total_batch_fixed) for spread in spreads])
    return {
        **work_columns([work for work, _ in entries], codes, "", learn=learn),
        "log_others": np.log(np.array(gpus, dtype=np.float64) - 1.0),
        "log_nodes": np.log(np.array([max(1, spread.nodes) for spread in spreads], dtype=np.float64)),
        "across": across,
        "divided": divided,
        "kind": codes.of("kind", kinds, learn=learn),
        "gpu_type": codes.of("gpu_type", [spread.gpu_type for spread in spreads], learn=learn),
    }


def _speedup(gpus: int, log_loss: float, doubt: float) -> Speedup:
    if gpus <= 1:
        return Speedup(gpus=gpus, lower=1.0, middle=1.0, upper=1.0)
    lower, middle, upper = (
        gpus / (1.0 + exp(min(max(log_loss + side * _Z_90 * doubt, -20.0), 20.0))) for side in (1.0, 0.0, -1.0)
    )
    return Speedup(gpus=gpus, lower=lower, middle=middle, upper=upper)


def log_losses(rows: Sequence[MeasuredSpeedup]) -> tuple[FloatArray, FloatArray]:
    """Return the logarithm of each loss, and the variance that a rate's own error adds: much where little is lost."""
    loss = np.array([min(max(row.spread.gpus / row.speedup - 1.0, _MIN_LOSS), _MAX_LOSS) for row in rows])
    return np.log(loss), (_RATE_ERROR * (1.0 + loss) / loss) ** 2


def _sound(measured: Iterable[MeasuredSpeedup]) -> list[MeasuredSpeedup]:
    return [row for row in measured if row.spread.gpus > 1 and isfinite(row.speedup) and row.speedup > 0.0]
