"""The last word on every decision: pure and total, it returns a valid decision whatever the policy says.

Nothing here reads a clock, a file or Slurm: daemon and twin call it alike. Every reason that applied is listed.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import (
    AnswerDetails,
    ClockChoice,
    DecisionEntry,
    EnergyDecision,
    OpenOffer,
    Reason,
    RuntimeEstimate,
)
from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import DecisionId, GpuTypeName, PartitionName, parse_decision_id
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.estimation.site_clocks import SiteClocks
from slurm_energy.policy.base import Case, CountCost, CountingPolicy, Policy
from slurm_energy.policy.guard.answer import CheckedAnswer, checked_answer, plain_note
from slurm_energy.policy.guard.clocks import allowed_clock, expected_runtime, slowdown_room, unknown_reasons
from slurm_energy.policy.guard.explanation import (
    Unchanged,
    announcement,
    comparison_notes,
    count_text,
    exchange_notes,
    explanation,
    joined_line,
    light_notes,
    missing_partitions,
    prediction_notes,
    sent_text,
    why_unchanged,
)
from slurm_energy.policy.guard.gpu_count import CountedCase, with_chosen_count
from slurm_energy.policy.guard.partitions import allowed_hint, allowed_partitions
from slurm_energy.policy.guard.trials import counted_clocks, learned_verdict, trial_bounds
from slurm_energy.policy.site.candidates import at_site, is_opened
from slurm_energy.policy.site.clock_terms import clock_terms
from slurm_energy.policy.site.comparison import first_tried, landing_on, landing_types
from slurm_energy.policy.site.mean_bound import site_clock_notes, with_site_clocks
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.policy.submission.open_offer import offer_announcement, offer_text, open_offer, slowdown_basis

_MAX_ENTRY_MINUTES = 0xFFFFFFFD


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What the checks left of an answer."""

    partitions: tuple[PartitionName, ...] | None = None
    clocks: tuple[ClockChoice, ...] = ()
    trial_bounds: Mapping[GpuTypeName, float] = field(default_factory=dict)
    prefer: str | None = None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    details: AnswerDetails = field(default_factory=AnswerDetails)

    @property
    def changes_nothing(self) -> bool:
        """Whether the job stays as it was asked for."""
        return self.partitions is None and self.prefer is None and not self.clocks


def new_decision_id() -> DecisionId:
    """Return a fresh random id."""
    return parse_decision_id(secrets.token_hex(8))


def job_mode(job: JobRequest, config: Config) -> EnergyMode:
    """Return the job's own mode, else the site's default."""
    return job.options.mode or EnergyMode(config.policy.default_mode)


def job_max_slowdown(job: JobRequest, config: Config) -> float:
    """Return the slowdown bound: the job's own option, else the site's for the mode."""
    if job.options.max_slowdown is not None:
        return job.options.max_slowdown
    saver = job_mode(job, config) is EnergyMode.SAVER
    return config.policy.saver_max_slowdown if saver else config.policy.max_slowdown


def decision_entry(decision: EnergyDecision, time_limit_minutes: float | None) -> DecisionEntry:
    """Return what travels inside the job; a limit that is unknown, infinite or absurd is left out."""
    limit = None
    if time_limit_minutes is not None and 1.0 <= time_limit_minutes <= _MAX_ENTRY_MINUTES:
        limit = int(time_limit_minutes)
    return DecisionEntry(
        decision_id=decision.decision_id,
        mode=decision.mode,
        clocks_mhz={clock.gpu_type: clock.sm_clock_mhz for clock in decision.clocks},
        assumed_watts={
            clock.gpu_type: round(clock.power_limit_watts)
            for clock in decision.clocks
            if clock.power_limit_watts is not None
        },
        time_limit_minutes=limit,
        trial_bounds=dict(decision.trial_bounds),
    )


class Guard:
    """Asks a policy and lets through only what the job, its user and the site allow.

    Raises:
        ConfigError: the site gives a power limit to GPUs that are not known.
    """

    def __init__(self, config: Config, ids: Callable[[], DecisionId] = new_decision_id) -> None:
        self._config = config
        self._ids = ids
        self._board_limits = site_board_limits(config)

    def decide(  # noqa: PLR0913, PLR0917  # each is one fact that the caller knows and the guard does not
        self,
        policy: Policy,
        job: JobRequest,
        snapshot: ClusterSnapshot | None,
        now_seconds: float,
        runtime: RuntimeEstimate | None = None,
        user_groups: Collection[str] | None = None,
        claimed_gpus: Mapping[PartitionName, float] | None = None,
        work: WorkEstimate | None = None,
        learned_clocks: Mapping[GpuTypeName, LearnedClock] | None = None,
        scaling: GpuScaling | None = None,
        site_clocks: SiteClocks | None = None,
        predicted: PredictedWork | None = None,
    ) -> EnergyDecision:
        """Return the decision for one job; never raises, and what cannot be decided leaves the job unchanged.

        Args:
            policy: Asked for a proposal; whatever it raises or returns.
            job: The job as its user asked for it.
            snapshot: The cluster, None when there is none yet.
            now_seconds: Unix time, or the twin's.
            runtime: What history says of the job's length at the default clock.
            user_groups: The user's groups, for partitions with AllowGroups; None when unknown.
            claimed_gpus: GPUs that jobs decided since the snapshot will ask for in each partition.
            work: What runs of the job's name say of the GPU types; None for a name without.
            learned_clocks: What trials in runs of the job's name measured, by GPU type.
            scaling: What they say of more and fewer GPUs; None for a name without runs of two numbers.
            site_clocks: What all runs of the site say of clocks, where its bound is held in the mean.
            predicted: What a network expects of the job at lower clocks; None: the tables count.
        """
        name, version = _text(policy, "name"), _text(policy, "version")
        decision = EnergyDecision(
            decision_id=self._ids(),
            policy=name,
            policy_version=version,
            mode=job_mode(job, self._config),
            decided_at_seconds=now_seconds,
            estimate=runtime,
            snapshot_age_seconds=None if snapshot is None else now_seconds - snapshot.taken_at_seconds,
        )
        stop = self._stop(job, snapshot, decision)
        if stop is not None or snapshot is None:
            return replace(decision, reasons=(stop or Reason.NO_SNAPSHOT, *_own_clock(job)))
        learns = self._config.policy.learn_from_runs

        def as_placed(one: Case) -> Case:
            """Return a case at the site, with what runs say of work on so many GPUs."""
            known = None if work is None or not learns else work.for_gpus(one.job.gpu_count)
            placed = at_site(one if known is one.work else replace(one, work=known), self._config)
            if site_clocks is None or placed.predicted is not None:  # a network stands in the place of all tables
                return placed
            return with_site_clocks(placed, site_clocks, self._config.guard)

        counted = with_chosen_count(
            Case(
                job=job,
                snapshot=snapshot,
                now_seconds=now_seconds,
                user_groups=user_groups,
                claimed_gpus=claimed_gpus or {},
                runtime=runtime,
                learned_clocks=counted_clocks(learned_clocks, job, self._config),
                scaling=scaling if learns else None,
                predicted=predicted if self._config.policy.clock_predictions == "network" else None,
                board_limits=self._board_limits,
                max_slowdown=job_max_slowdown(job, self._config),
                clock_terms=clock_terms(job, self._config),
                max_type_slowdown=self._config.routing.max_type_slowdown if job.options.max_slowdown is None else None,
            ),
            self._config,
            lambda cases: _count_costs(policy, tuple(map(as_placed, cases))),
        )
        case = as_placed(counted.case)
        offer = self._offer(counted.case, as_placed)
        counted = replace(counted, case=case)
        missing = missing_partitions(case)
        if missing and not case.candidates:
            return replace(decision, reasons=(Reason.UNKNOWN_PARTITION, *_own_clock(job)), notes=missing)
        outcome = self._ask(policy, case)
        why = _why_unchanged(outcome, case) if outcome.changes_nothing else Unchanged(reasons=())
        outcome = replace(
            outcome,
            reasons=(*counted.reasons, *outcome.reasons, *why.reasons),
            notes=(*counted.notes, *outcome.notes, *why.notes, *missing),
        )
        return self._decision(decision, counted, outcome, offer)

    def _offer(self, case: Case, as_placed: Callable[[Case], Case]) -> OpenOffer | None:
        """Return what leaving its partition open would have given a job that names one; None where it is open."""
        job, routing = case.job, self._config.routing
        if not (routing.open and routing.invite and job.partitions) or is_opened(job, routing) or job.starts_later:
            return None
        try:
            return open_offer(as_placed(replace(case, job=replace(job, options=replace(job.options, open=True)))))
        except Exception:  # noqa: BLE001  # said beside the decision: it must not cost the job its decision
            return None

    def _stop(self, job: JobRequest, snapshot: ClusterSnapshot | None, decision: EnergyDecision) -> Reason | None:
        """Return why no policy is asked at all, None if one is."""
        if decision.mode is EnergyMode.OFF:
            return Reason.USER_OFF
        if job.gpu_count == 0:
            return Reason.NO_GPU
        if snapshot is None or decision.snapshot_age_seconds is None:
            return Reason.NO_SNAPSHOT
        if not abs(decision.snapshot_age_seconds) <= self._config.daemon.snapshot_max_age_seconds:
            return Reason.STALE_SNAPSHOT
        return None

    def _ask(self, policy: Policy, case: Case) -> _Outcome:
        """Return what is left of the policy's answer; nothing when it has none that can be read."""
        try:
            answer = checked_answer(policy.decide(case))
        except Exception as error:  # noqa: BLE001  # a policy is a guest: whatever it raises, the job stays unchanged
            note = plain_note(f"{type(error).__name__}: {_safe_text(error)}")
            reasons = (Reason.POLICY_ERROR, *case.reasons, *_own_clock(case.job))
            return _Outcome(reasons=reasons, notes=(note, *case.notes))
        routing = allowed_partitions(answer.partitions, case, self._config.guard)
        clocks = self._checked_clocks(answer, case, routing.partitions)
        compared = comparison_notes(case) if case.may_route else ()
        landing = landing_on(case.candidates, routing.partitions)
        tried = first_tried(case.candidates, routing.partitions)
        hint = allowed_hint(answer.prefer, case, tried, self._config.routing)
        return _Outcome(
            partitions=None if routing.partitions == _submitted_to(case) else routing.partitions,
            clocks=clocks.clocks,
            trial_bounds=trial_bounds(case, landing, routing.partitions, self._config),
            prefer=hint.prefer,
            reasons=(*answer.reasons, *case.reasons, *routing.reasons, *clocks.reasons),
            notes=(
                *answer.notes,
                *compared,
                *light_notes(landing, case),
                *case.notes,
                *routing.notes,
                *clocks.notes,
                *hint.notes,
            ),
            details=answer.details,
        )

    def _checked_clocks(
        self,
        answer: CheckedAnswer,
        case: Case,
        partitions: tuple[PartitionName, ...] | None,
    ) -> _Outcome:
        """Return the allowed clock for each GPU type that the job can still land on."""
        if case.job.gpu_frequency_given:
            return _Outcome(reasons=_own_clock(case.job))
        landing = landing_on(case.candidates, partitions)
        clocks: list[ClockChoice] = []
        reasons: tuple[Reason, ...] = ()
        notes: tuple[str, ...] = ()
        for gpu_type in landing_types(landing):
            learned = None if gpu_type in case.site_tables else case.learned_clocks.get(gpu_type)
            if gpu_type not in answer.clocks_mhz and learned is None:
                continue
            where = [candidate for candidate in landing if gpu_type in candidate.gpu_types]
            room = slowdown_room(gpu_type, case, where, self._config.guard, is_sent=partitions is not None)
            min_saving = self._config.guard.min_energy_saving
            measured = None if learned is None else learned_verdict(gpu_type, learned, room, min_saving, case)
            if measured is not None or gpu_type not in answer.clocks_mhz:
                clocks += [] if measured is None or measured.choice is None else [measured.choice]
                if measured is not None:
                    reasons, notes = (*reasons, *measured.reasons), (*notes, *measured.notes)
                continue
            verdict = allowed_clock(gpu_type, answer.clocks_mhz[gpu_type], room, min_saving, case.comparison)
            clocks += [] if verdict.choice is None else [verdict.choice]
            both_sides = () if verdict.choice is None else exchange_notes(verdict.choice)
            both_sides = (*both_sides, *site_clock_notes(gpu_type, case, verdict.choice))
            both_sides = (*both_sides, *prediction_notes(gpu_type, verdict.choice, room, case.comparison))
            reasons, notes = (*reasons, *verdict.reasons), (*notes, *verdict.notes, *both_sides)
        unknown = unknown_reasons(landing, case.comparison, clocks)
        return _Outcome(clocks=tuple(clocks), reasons=(*unknown[0], *reasons), notes=(*unknown[1], *notes))

    def _decision(
        self, decision: EnergyDecision, counted: CountedCase, outcome: _Outcome, offer: OpenOffer | None
    ) -> EnergyDecision:
        case = counted.case
        reasons = tuple(dict.fromkeys(outcome.reasons)) or (Reason.POLICY,)  # a policy that gives none is one still
        notes = tuple(dict.fromkeys(plain_note(note) for note in outcome.notes))
        count = count_text(counted)
        chosen = (outcome.partitions, outcome.clocks, outcome.prefer)
        observed = decision.mode is EnergyMode.OBSERVE
        sent = sent_text(case, outcome.partitions)
        line = explanation(*chosen, case.shown_names, count=count, sent=sent, observed=observed)
        # Slurm's side may keep the job's own partitions: what is said then is of the clocks alone.
        left = (None, outcome.clocks, None)
        moves, quiet = outcome.partitions is not None, case.job.options.quiet
        line_in_place = explanation(*left, case.shown_names, count=count, observed=observed) if moves else ""
        notes = (line, *notes) if observed and line else notes
        message, announced, announced_in_place = "" if quiet else line, "", ""
        if offer is not None:
            text = plain_note(offer_text(offer, ",".join(case.job.partitions)))
            notes = (*notes, text)
            message = message if quiet else joined_line(message, text)
        # A site that observes for a while has nothing to say to people who did not ask for it.
        if not quiet and (not observed or case.job.options.mode is EnergyMode.OBSERVE):
            own = case.work is not None and bool(case.work.runs_by_type)
            by_runs = own and (not counted.changes or (case.scaling is not None and case.scaling.is_measured))
            announced = announcement(*chosen, counts=counted.changes, observed=observed, by_own_runs=by_runs)
            if moves:
                announced_in_place = announcement(*left, counts=counted.changes, observed=observed, by_own_runs=by_runs)
            if offer is not None:
                announced = joined_line(announced, offer_announcement(offer))
        return replace(
            decision,
            partitions=None if observed else outcome.partitions,
            clocks=() if observed else outcome.clocks,
            prefer=None if observed else outcome.prefer,
            gpus=None if observed else counted.gpus,
            trial_bounds={} if observed else outcome.trial_bounds,
            reasons=(Reason.OBSERVE_ONLY, *reasons) if observed else reasons,
            notes=notes,
            details=outcome.details,
            estimate=expected_runtime(case, self._config.guard),
            opens=case.may_route and is_opened(case.job, self._config.routing),
            offer=offer,
            slowdown=slowdown_basis(case, job_max_slowdown(case.job, self._config)),
            message=message,
            message_in_place="" if quiet else line_in_place,
            announcement=announced,
            announcement_in_place=announced_in_place,
        )


def _count_costs(policy: Policy, cases: Sequence[Case]) -> Sequence[CountCost]:
    """Return what a policy says of numbers of GPUs; nothing where it weighs none, or fails."""
    if not isinstance(policy, CountingPolicy):
        return ()
    try:
        return [one for one in policy.count_costs(cases) if isinstance(one, CountCost)]
    except Exception:  # noqa: BLE001  # a policy is a guest: whatever it raises, the rule chooses
        return ()


def _why_unchanged(outcome: _Outcome, case: Case) -> Unchanged:
    return why_unchanged(landing_on(case.candidates, None), case, outcome.reasons)


def _own_clock(job: JobRequest) -> tuple[Reason, ...]:
    """Return the reason that says that the user set the clock himself: also where nothing was decided, for history."""
    return (Reason.USER_CLOCK,) if job.gpu_frequency_given else ()


def _submitted_to(case: Case) -> tuple[PartitionName, ...]:
    """Return the partitions that the job goes to anyway."""
    default = case.snapshot.default_partition
    return case.job.partitions or (() if default is None else (default.name,))


def _text(policy: object, attribute: str) -> str:
    try:
        return plain_note(str(getattr(policy, attribute)))[:64]
    except Exception:  # noqa: BLE001  # a policy is a guest, its name too
        return "unknown"


def _safe_text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an error of a policy may fail again while it is printed
        return "no text"
