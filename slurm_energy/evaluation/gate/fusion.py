"""One value of all stages' scores: what the administrator holds of each, what they tell apart, what came of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, factorial, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ConfigError
from slurm_energy.evaluation.gate.sheet import StageResult, StageVerdict

_RANDOM_INDEX = (0.0, 0.0, 0.0, 0.58, 0.90, 1.12, 1.24, 1.32, 1.41, 1.45, 1.49)
"""Mean consistency index of random matrices by their size (Saaty 1980)."""
MAX_CONSISTENCY_RATIO = 0.1
_PRIOR_SLOPE, _PRIOR_SPREAD = 1.0, 1.0
_PRIOR_CANDIDATES = 10.0
"""Candidates that the prior correlation, none, counts for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Weights of criteria from pairwise comparisons."""

    weights: Mapping[str, float]
    consistency_ratio: float


def pairwise_weights(names: Sequence[str], preferences: Mapping[str, float]) -> Hierarchy:
    """Return the analytic-hierarchy weights: the principal eigenvector of the comparisons (Saaty 1980).

    Args:
        names: Of the criteria.
        preferences: `twin/impact = 3`: the first counts three times as much as the second; criteria that no
            comparison connects count the same.

    Raises:
        ConfigError: a criterion is unknown, a figure out of its range, or the comparisons contradict one another.
    """
    stated: dict[tuple[int, int], float] = {}
    for pair, figure in preferences.items():
        first, _, second = pair.partition("/")
        unknown = [name for name in (first, second) if name not in names]
        if unknown or first == second:
            raise ConfigError(f"preference {pair[:64]!r} is not of two of {', '.join(names)}: write twin/impact = 3")
        if not 1.0 / 9.0 <= figure <= 9.0:
            raise ConfigError(f"preference {pair} = {figure} is not between 1/9 and 9")
        one, other = names.index(first), names.index(second)
        stated[one, other], stated[other, one] = figure, 1.0 / figure
    weights = np.ones(len(names))
    ratio = 0.0
    for group in _compared(len(names), stated):
        weights[group], found = _eigenvector(group, stated)
        ratio = max(ratio, found)
    if ratio > MAX_CONSISTENCY_RATIO:
        raise ConfigError(
            f"preferences contradict one another: consistency ratio {ratio:.2f} is above {MAX_CONSISTENCY_RATIO}; "
            "compare fewer pairs, or with figures that fit"
        )
    weights /= weights.sum()
    return Hierarchy(weights=dict(zip(names, map(float, weights), strict=True)), consistency_ratio=ratio)


def _compared(size: int, stated: Mapping[tuple[int, int], float]) -> list[list[int]]:
    """Return the criteria in groups that comparisons connect."""
    group_of = list(range(size))
    for one, other in stated:
        old, new = group_of[one], group_of[other]
        group_of = [new if group == old else group for group in group_of]
    return [[one for one in range(size) if group_of[one] == group] for group in dict.fromkeys(group_of)]


def _eigenvector(group: Sequence[int], stated: Mapping[tuple[int, int], float]) -> tuple[NDArray[np.float64], float]:
    """Return the weights of criteria with the geometric mean 1, and their consistency ratio.

    A pair that is not compared is missing, not equal: its place is 0, and the diagonal counts those of a row (Harker
    1987). The random index falls with the missing pairs, to 0 for a tree of comparisons, which cannot contradict itself
    (Szadoczki, Bozoki and Tekile 2022).
    """
    size = len(group)
    matrix = np.array([[stated.get((one, other), 0.0) for other in group] for one in group])
    missing = size - 1 - (matrix > 0.0).sum(axis=1)
    np.fill_diagonal(matrix, 1.0 + missing)
    values, vectors = np.linalg.eig(matrix)
    largest = int(np.argmax(values.real))
    vector: NDArray[np.float64] = np.abs(vectors[:, largest].real)
    index = (float(values[largest].real) - size) / (size - 1) if size > 1 else 0.0
    random_index = _RANDOM_INDEX[min(size, len(_RANDOM_INDEX) - 1)]
    pairs = (size - 1) * (size - 2)
    random_index *= 1.0 - float(missing.sum()) / pairs if pairs else 0.0
    return vector / np.exp(np.log(vector).mean()), max(0.0, index / random_index) if random_index > 1e-9 else 0.0


def correlation(rows: Sequence[Sequence[float]], size: int) -> NDArray[np.float64]:
    """Return how scores of past candidates go together, drawn to "not at all" while there are few."""
    if len(rows) < 3:
        return np.eye(size)
    scores = np.asarray(rows, dtype=np.float64)
    spread = scores.std(axis=0)
    centred = np.where(spread > 1e-9, (scores - scores.mean(axis=0)) / np.maximum(spread, 1e-9), 0.0)
    found = centred.T @ centred / len(rows)
    share = len(rows) / (len(rows) + _PRIOR_CANDIDATES)
    mixed: NDArray[np.float64] = share * found + (1.0 - share) * np.eye(size)
    np.fill_diagonal(mixed, 1.0)
    return mixed


def shapley_values(weights: Sequence[float], correlations: NDArray[np.float64]) -> tuple[float, ...]:
    """Return each criterion's Shapley value of what the weighted sum varies by; they add up to all of it.

    The worth of some criteria is the share of the sum's variance that knowing them explains (Owen 2014, "Sobol' indices
    and Shapley value"), for scores that are about normal. Two that say the same share what either would have alone.
    """
    weight = np.asarray(weights, dtype=np.float64)
    size = len(weight)
    covered = correlations @ weight
    total = float(weight @ covered)

    def worth(some: tuple[int, ...]) -> float:
        if not some:
            return 0.0
        index = list(some)
        part = covered[index]
        return float(part @ np.linalg.lstsq(correlations[np.ix_(index, index)], part, rcond=None)[0])

    worths = {some: worth(some) for count in range(size + 1) for some in combinations(range(size), count)}
    values = []
    for one in range(size):
        value = 0.0
        for some, known in worths.items():
            if one not in some:
                share = factorial(len(some)) * factorial(size - len(some) - 1) / factorial(size)
                value += share * (worths[tuple(sorted((*some, one)))] - known)
        values.append(value / total if total > 0.0 else 1.0 / size)
    return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastOutcome:
    """What came of an earlier candidate."""

    scores: Mapping[str, float]
    """Of its stages."""
    raw: float
    """Their weighted mean."""
    success: float
    """1 where measured jobs needed less energy with it, 0 where they did not; between them what a person said of it."""
    parts: tuple[str, ...] = ()
    """What it brought."""


def calibrated(raw: float, outcomes: Sequence[PastOutcome], successes: float = 0.0, failures: float = 0.0) -> float:
    """Return how probable it is that a candidate of such a raw score improves the cluster, between 0 and 1.

    Bayesian logistic regression of what came of past candidates on the logarithm of their odds: normal priors around
    slope 1 and intercept 0, the maximum of the posterior, and its doubt taken in (MacKay 1992). Without outcomes the
    raw score is the value. How often candidates with the same parts failed before moves the prior's intercept.
    """
    shift = log((successes + 2.0) / (failures + 2.0)) / 2.0
    prior = np.array([shift, _PRIOR_SLOPE])
    precision = np.eye(2) / _PRIOR_SPREAD**2
    rows = np.array([[1.0, _logit(outcome.raw)] for outcome in outcomes]).reshape(-1, 2)
    real = np.array([outcome.success for outcome in outcomes])
    found = prior.copy()
    hessian = precision
    for _ in range(50):
        probability = 1.0 / (1.0 + np.exp(-np.clip(rows @ found, -40.0, 40.0)))
        gradient = precision @ (found - prior) + rows.T @ (probability - real)
        hessian = precision + (rows * (probability * (1.0 - probability))[:, None]).T @ rows
        step = np.linalg.solve(hessian, gradient)
        found = found - step
        if float(np.abs(step).max()) < 1e-9:
            break
    asked = np.array([1.0, _logit(raw)])
    variance = float(asked @ np.linalg.solve(hessian, asked)) if outcomes else 0.0
    activation = float(asked @ found) / sqrt(1.0 + pi * variance / 8.0)
    return min(1.0 - 1e-6, max(1e-6, 1.0 / (1.0 + exp(-max(-40.0, min(40.0, activation))))))


def _logit(value: float) -> float:
    inside = min(0.999, max(0.001, value))
    return log(inside / (1.0 - inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedValue:
    """The value of a candidate and what made it."""

    value: float
    raw: float
    weights: Mapping[str, float]
    consistency_ratio: float


def fused(
    stages: Sequence[StageResult],
    preferences: Mapping[str, float],
    outcomes: Sequence[PastOutcome],
    parts: Sequence[str] = (),
) -> FusedValue | None:
    """Return V in (0, 1) and the weight of each stage, None where no stage has a score.

    A stage's weight is the square root of its Shapley value under the administrator's weights, so that it is just that
    weight while scores do not go together, and less where another stage says the same.
    """
    scores = {stage.stage: stage.score for stage in stages if stage.score is not None}
    if not scores:
        return None
    names = tuple(scores)
    asked = {pair: figure for pair, figure in preferences.items() if set(pair.split("/")) <= set(names)}
    hierarchy = pairwise_weights(names, asked)
    rows = [[outcome.scores[name] for name in names] for outcome in outcomes if set(names) <= set(outcome.scores)]
    weights = [hierarchy.weights[name] for name in names]
    roots = [sqrt(max(0.0, value)) for value in shapley_values(weights, correlation(rows, len(names)))]
    shares = {name: root / sum(roots) for name, root in zip(names, roots, strict=True)}
    raw = sum(shares[name] * score for name, score in scores.items())
    alike = [outcome for outcome in outcomes if set(outcome.parts) == set(parts)] if parts else []
    won = sum(outcome.success for outcome in alike)
    value = calibrated(raw, outcomes, successes=won, failures=len(alike) - won)
    return FusedValue(value=value, raw=raw, weights=shares, consistency_ratio=hierarchy.consistency_ratio)


def fusion_result(found: FusedValue | None, min_value: float, *, has_evidence: bool = True) -> StageResult:
    """Return what the fused value says; one below the bound stops the candidate.

    Args:
        found: The value, None where no stage has a score.
        min_value: Least V.
        has_evidence: Whether twin or log says what it does to energy: without, nothing speaks for a candidate.
    """
    if not has_evidence:
        return StageResult(
            stage="fusion",
            verdict=StageVerdict.STOPPED,
            summary="neither twin nor log says what it does to energy: the cluster's jobs cannot be replayed yet",
        )
    if found is None:
        return StageResult(stage="fusion", verdict=StageVerdict.STOPPED, summary="no stage has a score")
    low = found.value < min_value
    return StageResult(
        stage="fusion",
        verdict=StageVerdict.STOPPED if low else StageVerdict.PASSED,
        summary=f"V = {found.value:.3f} of a raw score of {found.raw:.3f}"
        + (f", below the least of {min_value:g}" if low else ""),
        figures={"value": found.value, "raw": found.raw, "consistency_ratio": found.consistency_ratio}
        | {f"weight_{name.replace('-', '_')}": weight for name, weight in found.weights.items()},
    )
