"""What a job name's work costs on each GPU type, from its own runs and, by similarity, from those of all other names.

Every name is a point: the logarithms of its run time and of one GPU's power on every type. Names are draws from one
normal distribution, whose mean and covariance are found from all runs; what a name measured says by it what it would
measure elsewhere. A name that draws little on one type and was never seen on another is so taken to gain as little
there as other names that draw little. This is the first estimate of GOGH, which asks for the most similar job on the
same device, with an explicit doubt in the place of a network: some hundred names are too few to train one.

Means and covariance: expectation-maximisation for the normal distribution with missing values (Dempster, Laird and
Rubin 1977; Little and Rubin, Statistical Analysis with Missing Data), with an inverse-Wishart prior.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.work import WorkEstimate
from slurm_energy.estimation.run_groups import FloatArray, JobName, RunGroups

MIN_RUNS = 2
"""Of a name that gets an estimate: most names of one run never come again."""
_PRIOR_NAMES = 5.0
"""How many names the prior covariance counts for."""
_SIZE = 2.0
"""Prior standard deviation of the logarithm of a name's run time on all types together."""
_SPEED = 0.35
"""The same of one type beside the others: kinds of work differ in what they gain from a faster GPU."""
_DRAW, _OWN_DRAW = 0.4, 0.15
"""The same of a GPU's power, on all types together and on one beside the others."""
_MAX_ROUNDS = 200
_SETTLED = 5e-4
"""Change of every mean, as a logarithm, below which no more rounds are made."""
_MAX_FITTED = 2_000
"""Names that mean and covariance are found from; more say nothing new and cost time."""
_MAX_NAMES_OF_A_USER = 100
"""Of these, names of one user: no one user may make the picture of all others' work."""
_AT_ONCE = 1_000


class WorkModel(NamedTuple):
    """A normal distribution over names: log seconds of every type, then log watts of every type."""

    mean: FloatArray
    """[2 x types]."""
    covariance: FloatArray
    """[2 x types, 2 x types]."""


def fit_work_model(groups: RunGroups) -> WorkModel:
    """Return the distribution of names behind some groups of runs; the same groups give the same model.

    Args:
        groups: Of at least one name. Of more than 2,000 names, or 100 of one user, those with most runs count.
    """
    means, precision = _flat(groups, _fitted(groups))
    model = WorkModel(mean=_first_mean(means, precision), covariance=prior_covariance(len(groups.gpu_types)))
    seen = (precision > 0.0).any(axis=0)
    for _ in range(_MAX_ROUNDS):
        points, doubts = _posterior(model, means, precision)
        mean = np.where(seen, points.mean(axis=0), model.mean)
        apart = points - mean
        total = _PRIOR_NAMES * prior_covariance(len(groups.gpu_types)) + doubts.sum(axis=0) + apart.T @ apart
        change = float(np.abs(mean - model.mean).max())
        model = WorkModel(mean=mean, covariance=total / (_PRIOR_NAMES + len(points)))
        if change < _SETTLED:
            break
    return model


def work_estimates(groups: RunGroups, model: WorkModel | None = None) -> Iterator[tuple[JobName, WorkEstimate]]:
    """Yield what is expected of names on every type that any name was seen on, if they ran twice or have failed.

    Args:
        groups: Of the names.
        model: Of all names, over the same types; None to find it from these.
    """
    types = len(groups.gpu_types)
    if not types:
        yield from _failed_alone(groups)
        return
    model = fit_work_model(groups) if model is None else model
    for begin in range(0, len(groups.names), _AT_ONCE):
        rows = np.arange(begin, min(begin + _AT_ONCE, len(groups.names)))
        points, doubts = _posterior(model, *_flat(groups, rows))
        seconds = doubts[:, :types, :types]
        own = np.diagonal(seconds, axis1=1, axis2=2)
        apart = np.sqrt(np.maximum(0.0, own[:, :, None] + own[:, None, :] - 2.0 * seconds))  # [names, types, types]
        for row, point, doubt in zip(rows.tolist(), points.tolist(), apart.tolist(), strict=True):
            name, counts = groups.names[row], groups.runs[row].tolist()
            failed = groups.failed.get(name, frozenset())
            if sum(counts) < MIN_RUNS and not failed:
                continue
            yield (
                name,
                WorkEstimate(
                    runs_by_type={
                        gpu_type: runs for gpu_type, runs in zip(groups.gpu_types, counts, strict=True) if runs
                    },
                    gpus=groups.gpus[row],
                    watts_spread=float(groups.spreads[row, 1]),
                    failed_types=failed,
                    gpu_types=groups.gpu_types,
                    log_seconds=tuple(point[:types]),
                    log_seconds_doubt=tuple(map(tuple, doubt)),
                    log_watts=tuple(point[types:]),
                ),
            )


def _failed_alone(groups: RunGroups) -> Iterator[tuple[JobName, WorkEstimate]]:
    for name, failed in groups.failed.items():
        yield (
            name,
            WorkEstimate(
                runs_by_type={}, gpu_types=(), log_seconds=(), log_seconds_doubt=(), log_watts=(), failed_types=failed
            ),
        )


def _fitted(groups: RunGroups) -> NDArray[np.intp]:
    """Return the rows of the names that the distribution is found from."""
    names_of: Counter[int | str] = Counter()
    kept: list[int] = []
    runs = groups.runs.sum(axis=1)
    for row in np.argsort(-runs, kind="stable").tolist():
        user = groups.names[row].user
        names_of[user] += 1
        if runs[row] and names_of[user] <= _MAX_NAMES_OF_A_USER:
            kept.append(row)
    return np.array(kept[:_MAX_FITTED], dtype=np.intp)


def prior_covariance(types: int) -> FloatArray:
    """Return what is known of names before any run: sizes differ much, speeds and draws less, [2 types, 2 types]."""
    together, apart = np.ones((types, types)), np.eye(types)
    found = np.zeros((2 * types, 2 * types))
    found[:types, :types] = _SIZE**2 * together + _SPEED**2 * apart
    found[types:, types:] = _DRAW**2 * together + _OWN_DRAW**2 * apart
    return found


def _flat(groups: RunGroups, rows: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
    """Return means and their precision (0 where there is no run) of some names, [names, 2 x types] each."""
    means = groups.means[rows].reshape(len(rows), -1)
    variances = groups.variances[rows].reshape(len(rows), -1)
    return means, np.where(np.isfinite(variances), 1.0 / variances, 0.0)


def _first_mean(means: FloatArray, precision: FloatArray) -> FloatArray:
    """Return a mean to begin with: of each column's own figures, of the others' where it has none."""
    seen = precision > 0.0
    types = means.shape[1] // 2
    found = np.empty(means.shape[1])
    for half in (slice(0, types), slice(types, 2 * types)):
        figures, known = means[:, half], seen[:, half]
        overall = figures[known].mean()
        number = known.sum(axis=0)
        sums = np.where(known, figures, 0.0).sum(axis=0)
        found[half] = np.where(number > 0, sums / np.maximum(number, 1), overall)
    return found


def _posterior(model: WorkModel, means: FloatArray, precision: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean [names, columns] and covariance [names, columns, columns] of every name given its own figures."""
    prior = np.linalg.inv(model.covariance)
    diagonal = np.arange(len(model.mean))
    total = np.repeat(prior[None], len(means), axis=0)
    total[:, diagonal, diagonal] += precision
    covariance = np.linalg.inv(total)
    pull = (prior @ model.mean)[None] + precision * means
    return np.einsum("nij,nj->ni", covariance, pull), covariance
