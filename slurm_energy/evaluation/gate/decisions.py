"""What policies decide on a fixed set of states: how far two of them are apart, and whether one repeats itself."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import log2

from slurm_energy.config import Config
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import DecisionId
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.evaluation.gate.sheet import ReviewItem, StageResult, StageVerdict
from slurm_energy.evaluation.gate.states import EdgeState
from slurm_energy.policy.base import FollowingPolicy, Policy
from slurm_energy.policy.candidate import CandidatePolicy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.registry import create_policy

NOTHING_KNOWN = JobHistory()


class GuardedCandidate:
    """A candidate behind the guard, as the daemon has it."""

    def __init__(
        self,
        candidate: CandidatePolicy,
        config: Config,
        wrapped: Callable[[Policy], Policy] | None = None,
        known: JobHistory = NOTHING_KNOWN,
    ) -> None:
        """Make its policy.

        Args:
            candidate: Judged.
            config: The site's.
            wrapped: Puts something around the policy.
            known: What the site's daemon knows of earlier jobs.

        Raises:
            SlurmEnergyError: it cannot be made.
        """
        self.config = candidate.configured(config)
        self.made = create_policy(self.config)
        self.policy = self.made if wrapped is None else wrapped(self.made)
        self._numbers = count(1)
        self._guard = Guard(self.config, lambda: DecisionId(f"{next(self._numbers):016x}"))
        self._seen: object = None
        self._clocks = candidate.clocks_by_name()
        self._known = known

    def decide(self, state: EdgeState) -> EnergyDecision:
        """Return the decision in a state."""
        if state.snapshot is not self._seen:
            self._seen = state.snapshot
            if isinstance(self.made, FollowingPolicy):
                self.made.warm_up(state.snapshot)
        now, job, known = state.snapshot.taken_at_seconds, state.job, self._known
        asked = job.user_id, job.name, job.script
        limit = job.time_limit_minutes
        runtime, work = known.expected(*asked, None if limit is None else 60.0 * limit)
        # As the daemon does: a candidate's clocks stand behind what trials measured.
        learned = {**self._clocks.get((job.user_id, job.name), {}), **(known.clocks_of(*asked) or {})}
        return self._guard.decide(
            self.policy,
            job,
            state.snapshot,
            now,
            runtime=state.runtime or runtime,
            work=work,
            learned_clocks=learned or None,
            scaling=known.scaling_of(*asked),
            site_clocks=known.site_clocks,
            predicted=known.predicted_of(*asked),
        )


def decision_text(decision: EnergyDecision) -> str:
    """Return what is done to the job, as one short text; empty for nothing."""
    parts = [] if decision.partitions is None else ["partitions " + ",".join(decision.partitions)]
    parts += [f"{clock.gpu_type} {clock.sm_clock_mhz} MHz" for clock in decision.clocks]
    parts += [] if decision.gpus is None else [f"{decision.gpus} GPUs"]
    parts += [] if decision.prefer is None else [f"prefer {decision.prefer}"]
    return "; ".join(parts)


def decided(
    candidate: CandidatePolicy, config: Config, probe: Iterable[EdgeState], known: JobHistory = NOTHING_KNOWN
) -> tuple[str, ...]:
    """Return what a candidate does in each state of a probe, by what is known of earlier jobs."""
    decider = GuardedCandidate(candidate, config, known=known)
    return tuple(decision_text(decider.decide(state)) for state in probe)


def share_changed(mine: Sequence[str], others: Sequence[str]) -> float:
    """Return the share of states in which two policies decide differently."""
    return sum(one != other for one, other in zip(mine, others, strict=True)) / len(mine) if mine else 0.0


def information_gain_bits(mine: Sequence[str], others: Sequence[str]) -> float:
    """Return what a policy's decisions tell beyond another's: the conditional entropy H(mine | others), in bits."""
    pairs, given = Counter(zip(mine, others, strict=True)), Counter(others)
    return abs(sum(seen / len(mine) * log2(given[other] / seen) for (_, other), seen in pairs.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDecisions:
    """What policies decide on the probe."""

    candidate: tuple[str, ...]
    incumbent: tuple[str, ...]
    archived: Mapping[str, tuple[str, ...]]


def novelty(found: ProbeDecisions, max_distance: float) -> StageResult:
    """Return the distance from every known policy; a candidate that changes nothing is stopped.

    Args:
        found: Decisions on the probe.
        max_distance: Share of changed decisions from which on a candidate counts as a very different one.
    """
    total = len(found.candidate)
    known = {"incumbent": found.incumbent, **found.archived}
    distances = {name: share_changed(found.candidate, others) for name, others in known.items()}
    nearest = min(distances, key=lambda name: distances[name])
    changed = round(distances["incumbent"] * total)
    gain = information_gain_bits(found.candidate, known[nearest])
    figures = {
        "changed_decisions": float(changed),
        "decisions": float(total),
        "distance_from_incumbent": distances["incumbent"],
        "distance_from_nearest": distances[nearest],
        "information_gain_bits": gain,
    }
    summary = f"changes {changed} of {total} decisions"
    if changed == 0:
        return StageResult(
            stage="novelty",
            verdict=StageVerdict.STOPPED,
            summary=f"{summary}: nothing would be gained by it",
            score=0.0,
            figures=figures,
        )
    notes = [f"nearest known policy: {nearest}, {distances[nearest]:.1%} of the decisions differ, {gain:.2f} bits new"]
    if distances[nearest] == 0.0:
        notes.append(f"decides as archived policy {nearest} did: its outcome is known")
    if distances["incumbent"] > max_distance:
        notes.append(f"very different: more than {max_distance:.0%} of the decisions change")
    return StageResult(
        stage="novelty",
        verdict=StageVerdict.PASSED,
        summary=summary,
        # How much it changes is no merit beyond the first changes: what they are worth, other stages say.
        score=0.5 + 0.5 * min(1.0, distances[nearest] / 0.01) if distances[nearest] else 0.5,
        figures=figures,
        notes=tuple(notes),
    )


def review_queue(  # two policies, and all that their decisions rest on
    candidate: CandidatePolicy,
    incumbent: CandidatePolicy,
    config: Config,
    probe: Iterable[EdgeState],
    size: int,
    known: JobHistory = NOTHING_KNOWN,
) -> tuple[ReviewItem, ...]:
    """Return the decisions that a person should look at: half of them the most uncertain, the rest the most costly.

    Only decisions that differ from the incumbent's are asked about.
    """
    mine, other = (GuardedCandidate(one, config, known=known) for one in (candidate, incumbent))
    items = []
    for state in probe:
        decision, before = mine.decide(state), other.decide(state)
        texts = decision_text(decision) or "unchanged", decision_text(before) or "unchanged"
        if texts[0] == texts[1]:
            continue
        joules = sorted(option.joules for option in decision.details.options)
        uncertainty = 0.0
        if len(joules) > 1 and joules[1] > 0.0:
            uncertainty = max(0.0, min(1.0, joules[0] / joules[1]))
        estimate = decision.estimate
        expected = (
            joules[0] if joules else 300.0 * state.job.gpu_count * (0.0 if estimate is None else estimate.seconds)
        )
        items.append((uncertainty, max(0.0, expected), _job_words(state), texts))
    uncertain = sorted(items, key=lambda item: -item[0])[: size // 2]
    costly = sorted((item for item in items if item not in uncertain), key=lambda item: -item[1])[
        : size - len(uncertain)
    ]
    return tuple(
        ReviewItem(job=words, candidate=texts[0], incumbent=texts[1], uncertainty=doubt, joules=joules, why=why)
        for why, some in (("uncertain", uncertain), ("costly", costly))
        for doubt, joules, words, texts in some
    )


def _job_words(state: EdgeState) -> str:
    job = state.job
    where = ",".join(job.partitions) or "the default partition"
    limit = "no limit" if job.time_limit_minutes is None else f"{job.time_limit_minutes:g} min"
    name = f"{job.name}, " if job.name else ""
    gpus = "1 GPU" if job.gpu_count == 1 else f"{job.gpu_count} GPUs"
    return f"{name}user {job.user_id}: {gpus} in {where}, {limit}"
