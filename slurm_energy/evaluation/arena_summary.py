"""A comparison over seeds: mean and interval of every figure of every policy, and its difference from the reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from slurm_energy.evaluation.arena import ArenaResult, FailedRun
from slurm_energy.evaluation.arena_bounds import RunBounds
from slurm_energy.evaluation.arena_run import RunRecord
from slurm_energy.evaluation.intervals import Estimate, estimate, paired_difference_percent
from slurm_energy.evaluation.metrics import Metrics, Spread

_BOUND_PREFIX = "bound_"
NOT_COMPARED = frozenset({"jobs", "decisions", "mean_decision_seconds", "end_seconds"})
"""Figures whose difference from the reference says nothing."""


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
        bound_joules_per_unit=_least_joules_per_unit(result.runs),
    )


def _least_joules_per_unit(runs: Sequence[RunRecord]) -> Estimate | None:
    """Return the bound over seeds; none with several kinds of work, where whoever did the cheapest alone is lowest."""
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
