"""Measured runs by job name (or script) and GPU type: means of logarithms, and how far they can be wrong."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.estimation.job_groups import job_group

FloatArray = NDArray[np.float64]
RUNS_PER_TYPE = 20
"""Newest runs of a name on a type that count."""
WINDOW_SECONDS = 30.0 * 86_400.0
"""Before a name's last run: programs and inputs grow, and an old run on one type says nothing beside a new one."""
NAMELESS = frozenset({"", "wrap", "sbatch", "interactive"})
"""Names that Slurm gives by itself (--wrap, a script on standard input, salloc): they say nothing of the work."""
FAILURES = 2
"""Runs that failed on a type, with none that ran through, from which on a name is not sent there."""
_DAY_SECONDS = 86_400.0
_PRIOR_RUNS = 4.0
"""How many differences between runs, or days, the typical spread counts beside a name's own."""
_PRIOR_SPREAD = np.array([0.3, 0.05]) ** 2
"""Typical variance of log seconds and log watts between runs of one name and day, before any is seen: assumed."""
_PRIOR_DAYS = np.array([0.15, 0.03]) ** 2
"""The same between days: a day's runs are often one sweep or one array, and alike."""
_MIN_SPREAD = np.array([0.01, 0.01]) ** 2
"""Boards of one type differ by about so much, whatever runs on them: assumed."""


class JobName(NamedTuple):
    """Whose jobs are taken to do the same work."""

    user: int | str
    name: str
    """Their name, or what their scripts share where names say nothing; see `job_groups`."""


class TypicalSpreads(NamedTuple):
    """Of the name in the middle, variances [2] each; those of single names are drawn towards them."""

    of_runs: FloatArray
    """Between runs of one day."""
    of_both: FloatArray
    of_days: FloatArray


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
    gpus: tuple[int, ...]
    """Of each name's runs."""
    spreads: FloatArray
    """Standard deviation of a single run's log seconds and log watts, [names, 2]."""
    typical: TypicalSpreads
    failed: Mapping[JobName, frozenset[GpuTypeName]] = field(default_factory=dict)
    """Types on which a name has failed and never run through."""


class _Sums(NamedTuple):
    """What the spread of runs and days is found from, each summed over a name's types."""

    within: FloatArray
    """Squares of runs about their day's mean, [names, 2]."""
    within_free: FloatArray
    """[names]."""
    between: FloatArray
    """Squares of days about the mean, by runs, [names, 2]."""
    between_free: FloatArray
    between_weight: FloatArray
    """Variances between days that the squares hold beside one of runs for each of `between_free`."""


def group_runs(
    runs: Iterable[MeasuredRun],
    failures: Iterable[FailedRuns] = (),
    gpu_types: Sequence[GpuTypeName] | None = None,
    typical: TypicalSpreads | None = None,
) -> RunGroups:
    """Return the groups of some runs.

    Of each name the runs of the 30 days before its last one count, with its most frequent number of GPUs. A name that
    stands for several programs (`job.sh`) has runs that differ, and so means of little weight; so has one whose
    runs differ from day to day. Names that only failed have no runs, and names that Slurm gave are none.

    Args:
        runs: Of any names.
        failures: Of any names.
        gpu_types: That count, in this order; None for all of the runs.
        typical: Of all names, where the runs are of a few; None where they are all.
    """
    kept: dict[JobName, list[MeasuredRun]] = {}
    for run in runs:
        group = job_group(run.name, run.script_key)
        if group not in NAMELESS and (gpu_types is None or run.gpu_type in gpu_types):
            kept.setdefault(JobName(run.user, group), []).append(run)
    kept = {name: _modal_count(_recent(found)) for name, found in kept.items()}
    failed = _failed(failures, kept)
    names = tuple(sorted({*kept, *failed}, key=lambda name: (str(name.user), name.name)))
    types = tuple(
        sorted({run.gpu_type for found in kept.values() for run in found}) if gpu_types is None else gpu_types
    )
    place = {gpu_type: index for index, gpu_type in enumerate(types)}
    shape = (len(names), 2, len(types))
    count, means = np.zeros((len(names), len(types)), dtype=np.int64), np.zeros(shape)
    days, slowed = np.zeros((len(names), len(types))), np.zeros((len(names), len(types)))
    rows = len(names)
    sums = _Sums(np.zeros((rows, 2)), np.zeros(rows), np.zeros((rows, 2)), np.zeros(rows), np.zeros(rows))
    for row, name in enumerate(names):
        for gpu_type, same in groupby(sorted(kept.get(name, ()), key=_newest_first), key=lambda run: run.gpu_type):
            newest, where = list(same)[:RUNS_PER_TYPE], place[gpu_type]
            count[row, where] = len(newest)
            means[row, :, where], days[row, where] = _add_up(newest, row, sums)
            slowed[row, where] = sum(run.slowed for run in newest) / len(newest)
    of_runs, of_days, typical = _spreads(sums, typical)
    variances = _variances_of_means(count, days, of_runs, of_days)
    variances[:, 0, :] += slowed**2 / 12.0  # somewhere between nothing and `slowed`, in all runs alike
    return RunGroups(
        names=names,
        gpu_types=types,
        runs=count,
        means=means,
        variances=variances,
        gpus=tuple(kept[name][0].gpus if name in kept else 1 for name in names),
        failed=failed,
        spreads=np.sqrt(of_runs + of_days),
        typical=typical,
    )


def _add_up(runs: list[MeasuredRun], row: int, sums: _Sums) -> tuple[FloatArray, float]:
    """Add runs of one name and type to the sums; return their mean [2] and the sum of squares of the days' shares."""
    figures = np.array([(log(run.seconds), log(run.watts)) for run in runs])
    day = [int(run.ended_at_seconds // _DAY_SECONDS) for run in runs]
    mean, total = figures.mean(axis=0), len(runs)
    shares = 0.0
    for number in set(day):
        of_day = figures[[index for index, one in enumerate(day) if one == number]]
        sums.within[row] += ((of_day - of_day.mean(axis=0)) ** 2).sum(axis=0)
        sums.between[row] += len(of_day) * (of_day.mean(axis=0) - mean) ** 2
        shares += (len(of_day) / total) ** 2
    sums.within_free[row] += total - len(set(day))
    sums.between_free[row] += len(set(day)) - 1
    sums.between_weight[row] += total * (1.0 - shares)
    return mean, shares


def _spreads(sums: _Sums, typical: TypicalSpreads | None) -> tuple[FloatArray, FloatArray, TypicalSpreads]:
    """Return the variances between runs of one day, and between days, [names, 2] each, and the typical ones.

    Both are a name's own, drawn towards that of the name in the middle: a one-way analysis of variance.
    """
    both, both_free = sums.within + sums.between, sums.within_free + sums.between_free
    # Where days hold one run each, what runs of a day differ by is seen between days only, and is no more than that.
    typical_run = _typical(sums.within, sums.within_free, _PRIOR_SPREAD) if typical is None else typical.of_runs
    typical_both = _typical(both, both_free, _PRIOR_SPREAD) if typical is None else typical.of_both
    of_runs = _drawn(sums.within, sums.within_free, typical_run)
    of_both = _drawn(both, both_free, typical_both)
    spread = np.maximum(np.minimum(of_runs, of_both), _MIN_SPREAD)
    free = sums.between_free[:, None]
    weight = np.where(sums.between_weight > 0.0, sums.between_weight, 1.0)[:, None]
    excess = np.maximum(0.0, sums.between - free * spread) / weight * free
    typical_day = _typical(excess, sums.between_free, _PRIOR_DAYS) if typical is None else typical.of_days
    of_days = _drawn(excess, sums.between_free, typical_day)
    return spread, of_days, TypicalSpreads(typical_run, typical_both, typical_day)


def _variances_of_means(
    count: NDArray[np.int64], days: FloatArray, of_runs: FloatArray, of_days: FloatArray
) -> FloatArray:
    """Return the variance of each mean, [names, 2, types]: of its runs, and of its days, which more runs do not lessen.

    Args:
        count: Runs, [names, types].
        days: Sum of squares of the days' shares of them, [names, types].
        of_runs: Variance between runs of one day, [names, 2].
        of_days: Variance between days, [names, 2].
    """
    found = np.full((len(count), 2, count.shape[1]), np.inf)
    seen = np.broadcast_to(count[:, None, :] > 0, found.shape)
    np.divide(of_runs[:, :, None], count[:, None, :], out=found, where=seen)
    return found + of_days[:, :, None] * days[:, None, :]


def _typical(squares: FloatArray, free: FloatArray, prior: FloatArray) -> FloatArray:
    """Return the variance [2] of the name in the middle, from sums of squares [names, 2]."""
    several = free > 0
    if not several.any():
        return prior
    towards_prior = (_PRIOR_RUNS * prior + squares) / (_PRIOR_RUNS + free)[:, None]
    return np.asarray(np.median(towards_prior[several], axis=0), dtype=np.float64)


def _drawn(squares: FloatArray, free: FloatArray, typical: FloatArray) -> FloatArray:
    """Return variances [names, 2] from sums of squares, drawn towards the typical one."""
    drawn: FloatArray = (_PRIOR_RUNS * typical + squares) / (_PRIOR_RUNS + free)[:, None]
    return drawn


def _failed(
    failures: Iterable[FailedRuns], kept: Mapping[JobName, list[MeasuredRun]]
) -> dict[JobName, frozenset[GpuTypeName]]:
    tally: Counter[tuple[JobName, GpuTypeName]] = Counter()
    for one in failures:
        tally[JobName(one.user, job_group(one.name, one.script_key)), one.gpu_type] += one.runs
    found: dict[JobName, frozenset[GpuTypeName]] = {}
    for (name, gpu_type), runs in tally.items():
        if name.name in NAMELESS:
            continue
        if runs >= FAILURES and all(run.gpu_type != gpu_type for run in kept.get(name, ())):
            found[name] = found.get(name, frozenset()) | {gpu_type}
    return found


def _recent(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    newest = max(run.ended_at_seconds for run in runs)
    return [run for run in runs if newest - run.ended_at_seconds <= WINDOW_SECONDS]


def _modal_count(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    tally = Counter(run.gpus for run in runs)
    usual = max(tally, key=lambda gpus: (tally[gpus], -gpus))
    return [run for run in runs if run.gpus == usual]


def _newest_first(run: MeasuredRun) -> tuple[str, float]:
    return run.gpu_type, -run.ended_at_seconds
