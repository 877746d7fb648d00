"""What the gate says of a candidate: a result for each stage, and the sheet of all of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.hyperscore import hyperscore


class StageVerdict(StrEnum):
    """What a stage says."""

    PASSED = "passed"
    STOPPED = "stopped"
    """The candidate is rejected here."""
    NOT_JUDGED = "not judged"
    """What the stage needs is not there, such as a log or past weeks."""


STAGE_NAMES = (
    "logic",
    "sandbox",
    "novelty",
    "reproducibility",
    "twin",
    "impact",
    "off-policy",
    "fusion",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureInterval:
    """A figure with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Standard error, for an interval of about normal figures."""
        return (self.high - self.low) / (2.0 * 1.96)

    def overlaps(self, other: "FigureInterval") -> bool:
        """Return whether two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What a stage found."""

    stage: str
    verdict: StageVerdict
    summary: str
    """One sentence."""
    score: float | None = None
    """0 to 1, a half for "no better and no worse"; None: it says nothing for the fused value."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """By name with its unit."""
    intervals: Mapping[str, FigureInterval] = field(default_factory=dict)
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """For the plots."""
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    """What every check found, one by one: on the page and in the document, not in text."""
    seconds: float = 0.0
    """That the stage took."""

    def __post_init__(self) -> None:
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise EvaluationError(f"score {self.score} of stage {self.stage} is not between 0 and 1")
        wrong = [name for name, figure in self.figures.items() if not isfinite(figure)]
        if wrong:
            raise EvaluationError(f"figure {wrong[0]} of stage {self.stage} is not finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewItem:
    """A decision that a person should look at."""

    job: str
    """What was asked for, in words."""
    incumbent: str
    candidate: str
    uncertainty: float
    """1 where the two best options cost the same; 0 where there is no other."""
    joules: float
    """What the decision is about, as the policy expects it."""
    why: str
    """`uncertain` or `costly`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSheet:
    """Everything that the gate found of one candidate."""

    candidate_id: str
    incumbent_id: str
    judged_at_seconds: float
    stages: tuple[StageResult, ...]
    value: float = 0.0
    """V between 0 and 1; 0 where the candidate was stopped before it was worked out."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """What each stage's score counts in it."""
    needs_person: bool = False
    """Whether a person must approve it before it is given jobs."""
    review: tuple[ReviewItem, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the candidate may enter shadow: every stage ran, none stopped it, and its value is known."""
        names = tuple(stage.stage for stage in self.stages)
        stopped = any(stage.verdict is StageVerdict.STOPPED for stage in self.stages)
        return names == STAGE_NAMES and not stopped and self.value > 0.0

    @property
    def hyperscore(self) -> float | None:
        """The value in points; None where there is no value."""
        return hyperscore(self.value) if self.value > 0.0 else None

    @property
    def stopped_by(self) -> StageResult | None:
        """The stage that stopped it."""
        return next((stage for stage in self.stages if stage.verdict is StageVerdict.STOPPED), None)

    def stage(self, name: str) -> StageResult | None:
        """Return what a stage found, None where it was not reached."""
        return next((stage for stage in self.stages if stage.stage == name), None)

    def to_json(self) -> str:
        """Return the sheet as one document."""
        return json.dumps(to_plain(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "ScoreSheet":
        """Return the sheet of a document.

        Raises:
            EvaluationError: it is none.
        """
        try:
            return from_plain(cls, json.loads(text), "score sheet")
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"score sheet cannot be read: {error}") from error


def replicate_interval(values: Sequence[float]) -> FigureInterval:
    """Return the mean of a bootstrap's replicates and the 95 % interval of what they stand for.

    Their spread is the standard error of the figure, however many there are; Student's quantile takes in that few
    replicates know the spread badly.

    Raises:
        EvaluationError: there is no value.
    """
    found = mean_interval(values)
    wider = (len(values) + 1.0) ** 0.5 if len(values) > 1 else 1.0
    reach = wider * (found.high - found.mean)
    return FigureInterval(mean=found.mean, low=found.mean - reach, high=found.mean + reach)


def mean_interval(values: Sequence[float]) -> FigureInterval:
    """Return mean and Student's 95 % interval of some values; of one value the interval is the whole line's -1 to 1.

    Raises:
        EvaluationError: there is no value.
    """
    from scipy import stats  # noqa: PLC0415  # a sheet is read where scipy is not installed

    if not values:
        raise EvaluationError("no values to take a mean of")
    mean = sum(values) / len(values)
    if len(values) == 1:
        return FigureInterval(mean=mean, low=mean - 1.0, high=mean + 1.0)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * (variance / len(values)) ** 0.5
    return FigureInterval(mean=mean, low=mean - reach, high=mean + reach)
