"""Measured runs by job name and GPU type: means of logarithms, and how much runs of one name differ."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import MeasuredRun

FloatArray = NDArray[np.float64]
RUNS_PER_TYPE = 20
"""Newest runs of a name on a type that count."""
WINDOW_SECONDS = 30.0 * 86_400.0
"""Before a name's last run: programs and inputs grow, and old runs on one type say nothing beside new ones elsewhere."""
_PRIOR_RUNS = 4.0
"""How many differences between runs the typical spread counts beside a name's own."""
_PRIOR_SECONDS, _PRIOR_WATTS = 0.3, 0.05
"""Typical spread of the logarithms between runs of one name before any is seen: assumed."""
_LEAST_SECONDS, _LEAST_WATTS = 0.01, 0.01
"""Boards of one type differ by about so much, whatever runs on them: assumed."""


class JobName(NamedTuple):
    """Whose jobs are taken to do the same work."""

    user: int | str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunGroups:
    """Means over runs; figures are [names, 2, types]: first log seconds, then log watts of one GPU."""

    names: tuple[JobName, ...]
    gpu_types: tuple[GpuTypeName, ...]
    runs: NDArray[np.int64]
    """[names, types]."""
    means: FloatArray
    """0 where there is no run."""
    variances: FloatArray
    """Of the means; infinite where there is no run."""


def group_runs(runs: Iterable[MeasuredRun]) -> RunGroups:
    """Return the groups of some runs.

    Of each name the runs of the 30 days before its last one count, with its most frequent number of GPUs. A name that
    stands for several programs (`wrap`, `job.sh`) has runs that differ, and so means of little weight.
    """
    kept: dict[JobName, list[MeasuredRun]] = {}
    for run in runs:
        kept.setdefault(JobName(run.user, run.name), []).append(run)
    kept = {name: _most_frequent_count(_recent(found)) for name, found in kept.items()}
    names = tuple(sorted(kept, key=lambda name: (str(name.user), name.name)))
    types = tuple(sorted({run.gpu_type for found in kept.values() for run in found}))
    place = {gpu_type: index for index, gpu_type in enumerate(types)}
    shape = (len(names), 2, len(types))
    count, means, squares = np.zeros((len(names), len(types)), dtype=np.int64), np.zeros(shape), np.zeros(shape)
    for row, name in enumerate(names):
        for gpu_type, same in groupby(sorted(kept[name], key=_newest_first), key=lambda run: run.gpu_type):
            figures = np.array([(log(run.seconds), log(run.watts)) for run in list(same)[:RUNS_PER_TYPE]])
            where = place[gpu_type]
            count[row, where] = len(figures)
            means[row, :, where] = figures.mean(axis=0)
            squares[row, :, where] = ((figures - figures.mean(axis=0)) ** 2).sum(axis=0)
    return RunGroups(
        names=names, gpu_types=types, runs=count, means=means, variances=_variances_of_means(count, squares)
    )


def _variances_of_means(count: NDArray[np.int64], squares: FloatArray) -> FloatArray:
    """Return the variance of each mean: the name's own spread, drawn towards that of the name in the middle."""
    free = np.maximum(count - 1, 0).sum(axis=1)  # [names]
    own = squares.sum(axis=2)  # [names, 2]
    prior = np.array([_PRIOR_SECONDS, _PRIOR_WATTS]) ** 2
    towards_prior = (_PRIOR_RUNS * prior + own) / (_PRIOR_RUNS + free)[:, None]
    several = free > 0
    typical = np.median(towards_prior[several], axis=0) if several.any() else prior
    spread = (_PRIOR_RUNS * typical + own) / (_PRIOR_RUNS + free)[:, None]
    spread = np.maximum(spread, np.array([_LEAST_SECONDS, _LEAST_WATTS]) ** 2)
    seen = count[:, None, :] > 0
    found = np.full(squares.shape, np.inf)
    np.divide(spread[:, :, None], count[:, None, :], out=found, where=np.broadcast_to(seen, squares.shape))
    return found


def _recent(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    newest = max(run.ended_at_seconds for run in runs)
    return [run for run in runs if newest - run.ended_at_seconds <= WINDOW_SECONDS]


def _most_frequent_count(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    tally: dict[int, int] = {}
    for run in runs:
        tally[run.gpus] = tally.get(run.gpus, 0) + 1
    usual = max(tally, key=lambda gpus: (tally[gpus], -gpus))
    return [run for run in runs if run.gpus == usual]


def _newest_first(run: MeasuredRun) -> tuple[str, float]:
    return run.gpu_type, -run.ended_at_seconds
