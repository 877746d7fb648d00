"""What a candidate would have cost on the logged decisions: a doubly robust estimate, beside the twin's figure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.gate.sheet import FigureInterval, StageResult, StageVerdict

MIN_DECISIONS = 50
MIN_SUPPORT = 0.8
"""Share of the decisions for which the log must have the candidate's action in the same group: else it says nothing."""
_FOLDS = 5
_PRIOR_DECISIONS = 5.0
"""By which the mean of a group's action is drawn to the group's, and the group's to that of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDecision:
    """A decision that was made, how likely it was, and what it cost."""

    user: str
    """Jobs of one user are alike: intervals are taken over users."""
    group: str
    """What jobs are compared within, such as GPU type and count."""
    action: str
    """What was done, as `decision_text` puts it."""
    probability: float
    """Of that action when it was chosen, above 0; 1 where there was no choice by chance."""
    cost: float
    """Measured joules over those expected at the default clock."""
    candidate_action: str
    """What the candidate would have done."""

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            raise ValueRangeError(f"probability {self.probability} of a logged decision is not above 0 and up to 1")
        if not 0.0 <= self.cost < 1e9:
            raise ValueRangeError(f"cost {self.cost} of a logged decision is not a finite ratio from 0 up")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyEstimate:
    """What the log says of a candidate."""

    saving: FigureInterval
    """Share of the energy that was spent: 0.05 is 5 % less."""
    decisions: int
    matched: int
    """Decisions in which it would have done what was done."""
    effective: float
    """Decisions that the weights leave, after Kish."""


class _CostModel:
    """Mean cost by group and action, each drawn to the wider one."""

    def __init__(self, rows: Sequence[LoggedDecision]) -> None:
        self._all = float(np.mean([row.cost for row in rows])) if rows else 1.0
        self._group: dict[str, float] = {}
        self._action: dict[tuple[str, str], float] = {}
        by_group, by_action = defaultdict(list), defaultdict(list)
        for row in rows:
            by_group[row.group].append(row.cost)
            by_action[row.group, row.action].append(row.cost)
        for group, costs in by_group.items():
            self._group[group] = _drawn(costs, self._all)
        for (group, action), costs in by_action.items():
            self._action[group, action] = _drawn(costs, self._group[group])

    def cost(self, group: str, action: str) -> float:
        """Return what is expected."""
        return self._action.get((group, action), self._group.get(group, self._all))


def _drawn(costs: Sequence[float], to: float) -> float:
    return (sum(costs) + _PRIOR_DECISIONS * to) / (len(costs) + _PRIOR_DECISIONS)


def off_policy_estimate(log: Sequence[LoggedDecision], seed: int = 0) -> OffPolicyEstimate | None:
    """Return the doubly robust estimate of a candidate's saving, None where the log is too short.

    After Dudik, Langford and Li (2011): the cost that a model expects of the candidate's action, corrected by what the
    model missed wherever the candidate would have done what was done, over the probability of that. The model of each
    fifth of a group's decisions is fitted to the others. The interval is a bootstrap over users. None also where most
    of what the candidate would have done was never done: a model alone knows nothing of it.
    """
    users = sorted({row.user for row in log})
    if len(log) < MIN_DECISIONS or len(users) < 2:
        return None
    done = {(row.group, row.action) for row in log}
    if sum((row.group, row.candidate_action) in done for row in log) < MIN_SUPPORT * len(log):
        return None
    seen = Counter[tuple[str, str]]()
    folds = []
    for row in log:
        folds.append(seen[row.group, row.action] % _FOLDS)
        seen[row.group, row.action] += 1
    models = [_CostModel([row for row, own in zip(log, folds, strict=True) if own != fold]) for fold in range(_FOLDS)]
    estimated, real, owners, weights = [], [], [], []
    for row, fold in zip(log, folds, strict=True):
        model = models[fold]
        matched = row.action == row.candidate_action
        weight = 1.0 / row.probability if matched else 0.0
        estimated.append(
            model.cost(row.group, row.candidate_action) + weight * (row.cost - model.cost(row.group, row.action))
        )
        real.append(row.cost)
        owners.append(users.index(row.user))
        weights.append(weight)
    mine, theirs, owner = np.array(estimated), np.array(real), np.array(owners)
    sums = np.stack([np.bincount(owner, values, len(users)) for values in (mine, theirs)])
    random = np.random.default_rng(seed)
    picked = random.integers(len(users), size=(2000, len(users)))
    drawn = sums[:, picked].sum(axis=2)
    savings = 1.0 - drawn[0] / np.maximum(drawn[1], 1e-12)
    low, high = (float(end) for end in np.quantile(savings, (0.025, 0.975)))
    mean = 1.0 - float(mine.sum() / max(theirs.sum(), 1e-12))
    weighed = np.array(weights)
    return OffPolicyEstimate(
        saving=FigureInterval(mean=mean, low=min(low, mean), high=max(high, mean)),
        decisions=len(log),
        matched=int((weighed > 0.0).sum()),
        effective=float(weighed.sum() ** 2 / max(float((weighed**2).sum()), 1e-12)) if weighed.any() else 0.0,
    )


def off_policy_result(found: OffPolicyEstimate | None, twin: FigureInterval | None) -> StageResult:
    """Return whether log and twin agree on a candidate; no common value of their intervals stops it."""
    if found is None:
        return StageResult(
            stage="off-policy",
            verdict=StageVerdict.NOT_JUDGED,
            summary=f"the log has fewer than {MIN_DECISIONS} decisions with their probability, one user alone, or too "
            "few in which the candidate's action was ever tried",
        )
    saving = found.saving
    text = f"the log says {saving.mean:+.1%} energy saved ({saving.low:+.1%} to {saving.high:+.1%})"
    intervals = {"saving by the log": saving}
    figures = {
        "decisions": float(found.decisions),
        "matched_decisions": float(found.matched),
        "effective_decisions": found.effective,
    }
    stopped = False
    if twin is not None:
        intervals["saving in the twin"] = twin
        stopped = not saving.overlaps(twin)
        text += f", the twin {twin.mean:+.1%} ({twin.low:+.1%} to {twin.high:+.1%})"
        text += ": they disagree beyond both intervals" if stopped else ""
    return StageResult(
        stage="off-policy",
        verdict=StageVerdict.STOPPED if stopped else StageVerdict.PASSED,
        summary=text,
        score=0.0 if stopped else saving_score(saving),
        figures=figures,
        intervals=intervals,
    )


def saving_score(saving: FigureInterval) -> float:
    """Return how probable it is that energy is saved, for an estimate that is about normal."""
    from scipy.stats import norm  # noqa: PLC0415  # slow to load

    error = max(saving.error, 1e-6)
    return float(norm.cdf(saving.mean / error))
