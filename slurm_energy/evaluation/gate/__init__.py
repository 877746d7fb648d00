"""The gate: the evaluation pipeline that a candidate policy passes before it is given any job.

Its stages follow HyperScale's evaluation pipeline, applied to policies: logic, sandbox, novelty, reproducibility, the
self-evaluation in the twin, impact, the check against the log, and the fusion of all scores into one value V.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slurm_energy.config import Config
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.evaluation.gate.decisions import ProbeDecisions, decided, novelty, review_queue
from slurm_energy.evaluation.gate.evidence import GateHistory, first_seed_of, history_of_site
from slurm_energy.evaluation.gate.fusion import PastOutcome, fused, fusion_result
from slurm_energy.evaluation.gate.impact import LoadHistory, impact_result
from slurm_energy.evaluation.gate.logic import logic_result, proofs
from slurm_energy.evaluation.gate.off_policy import LoggedDecision, off_policy_estimate, off_policy_result
from slurm_energy.evaluation.gate.sandbox import Observed, SandboxLimits, observe, sandbox_result, sandboxed
from slurm_energy.evaluation.gate.sheet import (
    FigureInterval,
    ReviewItem,
    ScoreSheet,
    StageResult,
    StageVerdict,
)
from slurm_energy.evaluation.gate.states import EdgeState, edge_states, probe_states
from slurm_energy.evaluation.gate.twin_score import (
    LoopLimits,
    PredictedDay,
    TwinRuns,
    reproducibility_result,
    self_evaluation,
    twin_result,
)
from slurm_energy.evaluation.site_evidence import SiteEvidence
from slurm_energy.policy.candidate import CandidatePolicy

__all__ = [
    "FigureInterval",
    "GateHistory",
    "GateSettings",
    "LoadHistory",
    "LoggedDecision",
    "LoopLimits",
    "PastOutcome",
    "PredictedDay",
    "ReviewItem",
    "SandboxLimits",
    "ScoreSheet",
    "StageResult",
    "StageVerdict",
    "TwinRuns",
    "judge",
]
_PROBE_SEED = 20_240_601
"""Of the fixed probe: what policies decided on it years ago can still be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """How strict the gate is."""

    config: Config = field(default_factory=Config)
    """The site's: candidates bring their parts into it."""
    sandbox: SandboxLimits = field(default_factory=SandboxLimits)
    loop: LoopLimits = field(default_factory=LoopLimits)
    probe_states: int = 2_000
    first_seed: int = 0
    """Of the self-evaluation: one that no earlier candidate was judged on."""
    max_distance: float = 0.3
    """Share of changed decisions above which a candidate is a very different one."""
    person_for_different: bool = False
    """Whether a person must approve a very different candidate."""
    max_twin_error: float = 0.25
    min_value: float = 0.5
    """V that a candidate needs."""
    preferences: dict[str, float] = field(default_factory=dict)
    """`twin/impact = 3`: how many times as much one stage counts as another."""
    review_size: int = 10
    isolated: bool = True
    """Whether the sandbox is a process of its own; without, only what is decided is looked at."""


def judge(
    candidate: CandidatePolicy,
    incumbent: CandidatePolicy,
    evidence: GateHistory | SiteEvidence,
    settings: GateSettings | Config,
    progress: Callable[[str], None] | None = None,
) -> ScoreSheet:
    """Return the score sheet of a candidate: every stage in its order, up to the first that stops it.

    Args:
        candidate: Judged.
        incumbent: The live policy, or what the configuration alone is.
        evidence: Of the cluster: what its database says, or what was made of that already.
        settings: How strict the gate is; with the site's configuration alone, as it comes.
        progress: Is called with the name of each stage before it runs.
    """
    strict = GateSettings(config=settings) if isinstance(settings, Config) else settings
    history = history_of_site(evidence, candidate, strict.config) if isinstance(evidence, SiteEvidence) else evidence
    if isinstance(evidence, SiteEvidence) and isinstance(settings, Config):
        strict = replace(strict, first_seed=first_seed_of(candidate))
    judged = _Judgement(candidate, incumbent, history, strict)
    stages: list[StageResult] = []
    for name, run in judged.stages():
        if progress is not None:
            progress(name)
        began = time.monotonic()
        try:
            found = run(stages)
        except SlurmEnergyError as error:
            summary = f"{type(error).__name__}: {error}"[:400]
            found = StageResult(stage=name, verdict=StageVerdict.STOPPED, summary=summary, score=0.0)
        stages.append(replace(found, seconds=time.monotonic() - began))
        if found.verdict is StageVerdict.STOPPED:
            break
    return judged.sheet(tuple(stages))


class _Judgement:
    """One candidate on its way through the stages."""

    def __init__(
        self, candidate: CandidatePolicy, incumbent: CandidatePolicy, history: GateHistory, settings: GateSettings
    ) -> None:
        self.candidate, self.incumbent = candidate, incumbent
        self.history, self.settings = history, settings
        self._probe: list[EdgeState] = []
        self._seen: Observed | None = None
        self._saving: FigureInterval | None = None
        self._is_different = False
        self._value = 0.0
        self._weights: dict[str, float] = {}
        self._review: tuple[ReviewItem, ...] = ()

    def stages(self) -> tuple[tuple[str, Callable[[list[StageResult]], StageResult]], ...]:
        """Return the stages in their order; the first ones are the quickest and the surest."""
        return (
            ("logic", lambda _: logic_result(self.candidate, proofs())),
            ("sandbox", lambda _: self._sandbox()),
            ("novelty", lambda _: self._novelty()),
            ("reproducibility", lambda _: self._reproducibility()),
            ("twin", lambda _: self._twin()),
            ("impact", lambda _: impact_result(self.history.load, self._saving)),
            ("off-policy", lambda _: off_policy_result(off_policy_estimate(self.history.log), self._saving)),
            ("fusion", self._fusion),
        )

    def _sandbox(self) -> StageResult:
        limits, config = self.settings.sandbox, self.settings.config
        if self.settings.isolated:
            self._seen, trouble = sandboxed(self.candidate, config, limits, _PROBE_SEED, self.history.known)
        else:
            self._seen, trouble = self._observed(self.candidate, limits.states), ""
        # The states make the guard act on any rule of clocks: the shipped one says how often it must.
        count = min(limits.states, self.settings.probe_states)
        oracle = CandidatePolicy(candidate_id="oracle", made_at_seconds=0.0, policy="oracle")
        usual = max(
            (
                observe(one, config, edge_states(count, _PROBE_SEED), self.history.known)
                for one in (self.incumbent, oracle)
            ),
            key=lambda seen: seen.guard_changes,
        )
        return sandbox_result(self._seen, trouble, usual, limits)

    def _observed(self, candidate: CandidatePolicy, count: int) -> Observed:
        states = probe_states(candidate, count, _PROBE_SEED)
        return observe(candidate, self.settings.config, states, self.history.known)

    def _novelty(self) -> StageResult:
        config, known = self.settings.config, self.history.known
        self._probe = list(probe_states(self.candidate, self.settings.probe_states, _PROBE_SEED))
        archived = {}
        for archived_one in self.history.archived:
            try:
                archived[archived_one.candidate_id] = decided(archived_one, config, self._probe, known)
            except SlurmEnergyError:
                continue  # of an older version, or its files are gone: it can no longer be compared
        found = ProbeDecisions(
            candidate=decided(self.candidate, config, self._probe, known),
            incumbent=decided(self.incumbent, config, self._probe, known),
            archived=archived,
        )
        result = novelty(found, self.settings.max_distance)
        self._is_different = result.figures["distance_from_incumbent"] > self.settings.max_distance
        return result

    def _reproducibility(self) -> StageResult:
        again = self._observed(self.candidate, self.settings.sandbox.states).digest
        assert self._seen is not None
        return reproducibility_result(
            (self._seen.digest, again),
            self.history.last_week,
            Counter(self.history.earlier_stops),
            self.settings.max_twin_error,
        )

    def _twin(self) -> StageResult:
        twin, limits = self.history.twin, self.settings.loop
        if twin is None:
            return twin_result(None, limits)
        found = self_evaluation(
            lambda seed: twin.compare(self.candidate, self.incumbent, seed), limits, self.settings.first_seed
        )
        self._saving = found.saving
        return twin_result(found, limits)

    def _fusion(self, stages: list[StageResult]) -> StageResult:
        found = fused(stages, self.settings.preferences, self.history.outcomes, self.candidate.parts)
        if found is not None:
            self._value, self._weights = found.value, dict(found.weights)
        self._review = review_queue(
            self.candidate,
            self.incumbent,
            self.settings.config,
            self._probe,
            self.settings.review_size,
            self.history.known,
        )
        has_evidence = any(
            stage.stage in {"twin", "off-policy"} and stage.verdict is StageVerdict.PASSED for stage in stages
        )
        return fusion_result(found, self.settings.min_value, has_evidence=has_evidence)

    def sheet(self, stages: tuple[StageResult, ...]) -> ScoreSheet:
        """Return the sheet."""
        return ScoreSheet(
            candidate_id=self.candidate.candidate_id,
            incumbent_id=self.incumbent.candidate_id,
            judged_at_seconds=time.time(),
            stages=stages,
            value=self._value,
            weights=self._weights,
            needs_person=self._is_different and self.settings.person_for_different,
            review=self._review,
        )
