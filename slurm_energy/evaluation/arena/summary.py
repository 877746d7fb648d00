"""A comparison over seeds: mean, bootstrap interval and paired difference from the reference of every figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite

import numpy as np
from scipy import stats

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.comparison import ArenaResult, FailedRun
from slurm_energy.evaluation.arena.run import RunRecord
from slurm_energy.evaluation.arena.run_bounds import RunBounds
from slurm_energy.evaluation.metrics import Metrics, Spread

_BOUND_PREFIX = "bound_"
NOT_COMPARED = frozenset({"jobs", "decisions", "mean_decision_seconds", "end_seconds"})
"""Figures whose difference from the reference says nothing."""


CONFIDENCE = 0.95


RESAMPLES = 9_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % interval; low and high are None with one seed: then there is no interval."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """One policy over its seeds."""

    policy: str
    rule: str
    seeds: tuple[int, ...]
    """Seeds whose runs were finished."""
    figures: Mapping[str, Estimate]
    """By name with its unit; what no run could say is missing."""
    differences_percent: Mapping[str, Estimate]
    """From the reference over the seeds that both have; empty for the reference itself, and with `--compat`, where
    policies do not meet the same arrivals."""
    waiting_at_day_end: tuple[float, ...]
    """Means over seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaSummary:
    """A comparison in figures."""

    reference: str
    policies: tuple[PolicySummary, ...]
    failed: tuple[FailedRun, ...]
    bound_joules_per_unit: Estimate | None
    """Least energy per unit that any policy could have reached with these arrivals; None where several kinds of work
    were not all done."""

    def of(self, policy: str) -> PolicySummary:
        """Return a policy's summary."""
        return next(summary for summary in self.policies if summary.policy == policy)


def figures_of(metrics: Metrics) -> dict[str, float]:
    """Return the figures of a run by name; spreads become three, and what is None is left out."""
    found: dict[str, float] = {}
    for item in fields(metrics):
        value = getattr(metrics, item.name)
        if isinstance(value, Spread):
            found |= {
                f"mean_{item.name}_seconds": value.mean_seconds,
                f"p95_{item.name}_seconds": value.p95_seconds,
                f"p99_{item.name}_seconds": value.p99_seconds,
            }
        elif isinstance(value, int | float):
            found[item.name] = value
        elif isinstance(value, Mapping) and item.name == "joules_by_component":
            found |= {f"{component}_joules": joules for component, joules in value.items()}
    return found


def bound_figures_of(bounds: RunBounds | None) -> dict[str, float]:
    """Return the bounds of a run by name, what is None left out."""
    if bounds is None:
        return {}
    values = {f"{_BOUND_PREFIX}{item.name}": getattr(bounds, item.name) for item in fields(bounds)}
    return {name: value for name, value in values.items() if value is not None and not isinstance(value, bool)}


def summary_of(result: ArenaResult) -> ArenaSummary:
    """Return a comparison's means, intervals and differences."""
    reference = result.plan.reference_policy
    base = {} if result.plan.compat else {record.seed: record for record in result.of(reference)}
    named = [policy for policy in result.plan.policies if result.of(policy)]
    return ArenaSummary(
        reference=reference,
        policies=tuple(_summary(policy, result.of(policy), {} if policy == reference else base) for policy in named),
        failed=result.failed,
        bound_joules_per_unit=_min_joules_per_unit(result.runs),
    )


def _min_joules_per_unit(runs: Sequence[RunRecord]) -> Estimate | None:
    """Return the bound over seeds; none with several kinds of work, where doing the cheapest alone is lowest."""
    if any(len(record.kinds) > 1 and not record.open_end for record in runs):
        return None
    least: dict[int, float] = {}
    for record in runs:
        if record.bounds is not None:
            found = record.bounds.arrivals_joules_per_unit
            least[record.seed] = min(least.get(record.seed, found), found)
    return estimate(list(least.values()))


def _summary(policy: str, runs: Sequence[RunRecord], base: Mapping[int, RunRecord]) -> PolicySummary:
    rows = [figures_of(record.metrics) | bound_figures_of(record.bounds) for record in runs]
    paired = [
        (row, figures_of(base[record.seed].metrics))
        for row, record in zip(rows, runs, strict=True)
        if record.seed in base
    ]
    figures, differences = {}, {}
    for name in dict.fromkeys(name for row in rows for name in row):
        found = estimate([row[name] for row in rows if name in row])
        if found is not None:
            figures[name] = found
        pairs = [(row[name], other[name]) for row, other in paired if name in row and name in other]
        if pairs and name not in NOT_COMPARED:
            difference = paired_difference_percent([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
            if difference is not None:
                differences[name] = difference
    days = min(len(record.metrics.waiting_at_day_end) for record in runs)
    return PolicySummary(
        policy=policy,
        rule=runs[0].rule,
        seeds=tuple(record.seed for record in runs),
        figures=figures,
        differences_percent=differences,
        waiting_at_day_end=tuple(
            sum(record.metrics.waiting_at_day_end[day] for record in runs) / len(runs) for day in range(days)
        ),
    )


def estimate(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """Return mean and bootstrap interval of a figure over seeds, None when there is no value.

    Percentile bootstrap, both sides of which are widened by one factor so that for normal figures the interval is as
    wide as Student's (after Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 3.4, where the
    percentiles are moved instead, which ends at the least and greatest value): without, one of five seeds is 1.6 times
    too narrow and holds the truth 84 times of 100 instead of 94. Skewed figures keep their lopsided interval; of
    exponential ones it holds the truth 89 times of 100 with five seeds and 93 with twenty.

    Args:
        values: One for each seed.
        seed: Of the resampling: the same values and seed give the same interval.

    Raises:
        EvaluationError: a value is not finite.
    """
    if not values:
        return None
    if not all(map(isfinite, values)):
        raise EvaluationError(f"values {list(values)[:8]} over seeds are not all finite numbers")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean=mean, low=None, high=None, seeds=1)
    if min(values) == max(values):
        return Estimate(mean=mean, low=mean, high=mean, seeds=len(values))
    found = stats.bootstrap(
        (np.array(values, dtype=np.float64),),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    wider = _widening(len(values))
    low, high = (mean + wider * (end - mean) for end in (float(found.low), float(found.high)))
    return Estimate(mean=mean, low=low, high=high, seeds=len(values))


def _widening(count: int) -> float:
    """Return Student's interval over the one that resampling gives for so many normal figures."""
    quantile = 0.5 + 0.5 * CONFIDENCE
    return float(stats.t.ppf(quantile, count - 1) / stats.norm.ppf(quantile) * np.sqrt(count / (count - 1.0)))


def paired_difference_percent(values: Sequence[float], reference: Sequence[float], seed: int = 0) -> Estimate | None:
    """Return the mean over seeds of each value's difference from the reference of its own seed, in per cent of that.

    Args:
        values: One for each seed.
        reference: Of the same seeds, in the same order.
        seed: Of the resampling.

    Raises:
        EvaluationError: the two are not of the same length, or a value is not finite.
    """
    if len(values) != len(reference):
        raise EvaluationError(f"{len(values)} values cannot be paired with {len(reference)} of the reference")
    if not all(reference):
        return None
    pairs = zip(values, reference, strict=True)
    return estimate([100.0 * (value - other) / abs(other) for value, other in pairs], seed)
