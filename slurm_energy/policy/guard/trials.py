"""Trials of clocks in running jobs: whether a job has any, up to which slowdown, and what earlier ones are worth."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from slurm_energy.config import Config
from slurm_energy.domain.decision import MAX_TRIAL_BOUND, ClockChoice, Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.operating_point import clock_table_of, mean_measured_watts
from slurm_energy.policy.base import Case
from slurm_energy.policy.guard.clocks import ClockVerdict, SlowdownRoom, slowdown_room
from slurm_energy.policy.site.clock_terms import EACH_JOB, ClockTerms, measured_by, worth_their_time
from slurm_energy.policy.site.comparison import Candidate, landing_types
from slurm_energy.policy.site.mean_bound import trial_limit

MIN_POSSIBLE_GAIN = 0.01
"""Of the energy; below it trials are made only for a job whose user asked for them."""
WITHOUT_LOCK = frozenset({"p100-sxm2-16gb", "p100-pcie-16gb"})
"""Boards before Volta: their driver locks no clock."""
MIN_TRIAL_BOUND = 0.01
"""With less room no trial can show that a lower clock keeps it."""
WELL_KNOWN_RUNS = 3
RECHECK_SECONDS = 7 * 86_400.0
"""A clock that was measured longer ago is tried again: programs change under one name."""
_NONE: Mapping[GpuTypeName, float] = MappingProxyType({})


def counted_clocks(
    learned: Mapping[GpuTypeName, LearnedClock] | None, job: JobRequest, config: Config
) -> Mapping[GpuTypeName, LearnedClock]:
    """Return what earlier runs measured that counts for the job: what trials found only where it may have trials."""
    if not learned:
        return {}
    if config.policy.clock_trials != "off" and job.options.trials is not False:
        return learned
    return {gpu_type: clock for gpu_type, clock in learned.items() if not clock.by_trial}


def has_trials(job: JobRequest, config: Config) -> bool:
    """Return whether clocks may be tried while the job runs, by its user and its site.

    A job with a deadline has none: when it starts, and how much time is left then, is not known here.
    """
    wanted = job.options.trials is True or (job.options.trials is None and config.policy.clock_trials == "on")
    allowed = config.policy.clock_trials != "off" and not job.gpu_frequency_given
    return wanted and allowed and job.options.deadline_seconds is None


def trial_bounds(
    case: Case, landing: Sequence[Candidate], partitions: tuple[PartitionName, ...] | None, config: Config
) -> Mapping[GpuTypeName, float]:
    """Return the slowdown that trials may come up to on each GPU type that the job can land on.

    It is what every rule leaves that a decided clock has to keep: the user's bound, the time limit, and a slower type.
    """
    if not has_trials(case.job, config):
        return _NONE
    bounds = {}
    asked = case.job.options.trials is True
    for gpu_type in landing_types(landing):
        where = [candidate for candidate in landing if gpu_type in candidate.gpu_types]
        room = slowdown_room(gpu_type, case, where, config.guard, is_sent=partitions is not None)
        bound = min(room.smallest, MAX_TRIAL_BOUND)
        limit_watts = case.board_limits.known_watts(gpu_type)
        if gpu_type in WITHOUT_LOCK or bound < MIN_TRIAL_BOUND or _is_well_known(gpu_type, case, room, config):
            continue
        if gpu_type in case.site_tables:
            bounds[gpu_type] = max(trial_limit(gpu_type, case, bound), MIN_TRIAL_BOUND)
            continue
        if asked or possible_gain(gpu_type, limit_watts, config.policy.max_slowdown, case.clock_terms) >= (
            MIN_POSSIBLE_GAIN
        ):
            bounds[gpu_type] = bound
    return bounds


@lru_cache(maxsize=256)
def possible_gain(
    gpu_type: GpuTypeName, limit_watts: float | None, bound: float, terms: ClockTerms = EACH_JOB
) -> float:
    """Return what programs' own clocks save beyond the table's, as a mean over measured ones.

    Where the table is near the best for every program, the minutes at the default clock that trials need cost more.
    Without a measured curve jobs run at the default clock anyway, and nothing but trials can find a lower one.
    """
    row, table, curves = CATALOG.get(gpu_type), clock_table_of(gpu_type, None, limit_watts), curves_of(gpu_type)
    if row is None:
        return 0.0
    if table is None or not curves:
        return MIN_POSSIBLE_GAIN
    default_watts = mean_measured_watts(gpu_type, limit_watts)
    best = worth_their_time(measured_by(table, terms), terms, default_watts).best(bound)
    default_mhz = table.points[-1].sm_clock_mhz
    table_mhz = default_mhz if best is None else best.sm_clock_mhz
    gains = []
    for measured in curves:
        curve = measured if limit_watts is None else measured.on_board(limit_watts)
        clocks = [point.sm_clock_mhz for point in table.points]
        default_joules = curve.joules(default_mhz)
        own = min(
            curve.joules(clock)
            for clock in clocks
            if clock == default_mhz
            or (
                (slowdown := curve.slowdown(clock)) <= bound
                and terms.is_worth_its_time(slowdown, curve.joules(clock) / default_joules - 1.0, default_watts)
            )
        )
        gains.append((curve.joules(table_mhz) - own) / default_joules)
    return sum(gains) / len(gains)


def _is_well_known(gpu_type: GpuTypeName, case: Case, room: SlowdownRoom, config: Config) -> bool:
    """Return whether the job begins with a clock that several runs measured lately: then another trial tells little."""
    learned = case.learned_clocks.get(gpu_type)
    if learned is not None and gpu_type in case.site_tables:
        return any(_is_recent(one, case) and one.runs >= WELL_KNOWN_RUNS for one in (learned, *learned.others))
    verdict = (
        None if learned is None else learned_verdict(gpu_type, learned, room, config.guard.min_energy_saving, case)
    )
    if learned is None or verdict is None or verdict.choice is None:
        return False
    begun = next(one for one in (learned, *learned.others) if one.sm_clock_mhz == verdict.choice.sm_clock_mhz)
    return begun.runs >= WELL_KNOWN_RUNS and _is_recent(begun, case)


def _is_recent(clock: LearnedClock, case: Case) -> bool:
    return case.now_seconds - clock.measured_at_seconds <= RECHECK_SECONDS


def learned_verdict(
    gpu_type: GpuTypeName, learned: LearnedClock, room: SlowdownRoom, min_energy_saving: float, case: Case
) -> ClockVerdict | None:
    """Return the clock that runs of this name measured, None where it does not keep every rule with its error.

    Its figures are this program's own, and stand in the place of the worst over all programs.
    """
    row = CATALOG.get(gpu_type)
    if row is None:
        return None
    fit = [
        one
        for one in (learned, *learned.others)
        if row.nearest_supported_clock_mhz(one.sm_clock_mhz) == one.sm_clock_mhz
        and not room.broken_by(one.upper)
        and -one.energy_change >= min_energy_saving
    ]
    if not fit:
        return None
    comparison = case.comparison
    watts = comparison.watts(gpu_type) or comparison.mean_watts(gpu_type)
    terms = case.clock_terms
    worth = [one for one in fit if terms.is_worth_its_time(one.slowdown, one.energy_change, watts)]
    learned = min(worth or fit, key=lambda one: one.energy_change)
    if not worth:
        note = (
            f"{gpu_type}: {learned.sm_clock_mhz} MHz took {learned.slowdown:+.1%} time for "
            f"{learned.energy_change:+.1%} energy in runs of this name; {terms.sentence(watts)}"
        )
        return ClockVerdict(choice=None, reasons=(Reason.POOR_EXCHANGE,), notes=(note,))
    choice = ClockChoice(
        gpu_type=gpu_type,
        sm_clock_mhz=learned.sm_clock_mhz,
        default_clock_mhz=learned.default_clock_mhz,
        predicted_slowdown=learned.slowdown,
        predicted_energy_change=learned.energy_change,
        power_limit_watts=case.board_limits.known_watts(gpu_type),
        known_runs=learned.runs,
    )
    runs = "1 run" if learned.runs == 1 else f"{learned.runs} runs"
    source = f"measured in {runs}" if learned.runs else "expected from runs at higher clocks"
    note = (
        f"{gpu_type}: {learned.sm_clock_mhz} MHz {source} of this name: {learned.slowdown:.1%} longer "
        f"(at most {learned.upper:.1%}), {learned.energy_change:+.1%} energy"
    )
    return ClockVerdict(choice=choice, notes=(note,))
