"""What the guard promises of every clock, proved over the functions that it calls: for all numbers, on every path.

Each promise says both sides: what must not pass does not, and what keeps every rule is not changed. Structures are
small and complete: two partitions, clocks of three kinds, every combination of what may be given or missing. Numbers
are symbols. What a promise says is written down here in its own terms (ends, limits, lists), not in the guard's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast

from slurm_energy.config import Config, GuardConfig, PolicyConfig
from slurm_energy.domain.decision import MAX_TRIAL_BOUND, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.evaluation.gate.logic.cases import (
    A40,
    A100,
    HOME,
    NOW,
    OTHER,
    UNKNOWN,
    SymbolComparison,
    candidate,
    case_of,
    job_of,
    partition,
)
from slurm_energy.evaluation.gate.logic.symbols import Path
from slurm_energy.policy.guard import clocks as guard_clocks
from slurm_energy.policy.guard import trials as guard_trials
from slurm_energy.policy.site import mean_bound
from slurm_energy.policy.site.clock_terms import ClockTerms
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.type_bound import slowdown_left

_CLOCKS = (1290, 1350, 1410)
UNMEASURED = GpuTypeName("h100-sxm5-80gb")
"""In the catalogue, without a curve."""


def takes_the_limit_that_slurm_enforces(path: Path) -> None:
    """A job runs under its own limit, else the partition's default, else its longest; one below 0 leaves none."""
    limits = [path.maybe(name, lambda: path.real("minutes")) for name in ("own", "default", "longest")]
    job = cast(JobRequest, SimpleNamespace(time_limit_minutes=limits[0]))
    home = partition(HOME, default_time_minutes=limits[1], max_time_minutes=limits[2])
    found = guard_clocks.time_limit_seconds(job, home)
    first = next((limit for limit in limits if limit is not None), inf)
    path.promise(found == (inf if first == inf else 60.0 * first if first >= 0 else 0.0), "the first that is given")
    shortest = guard_clocks.expected_runtime(
        case_of(job, SymbolComparison(path), candidates=(candidate(HOME, A100, partition=home), candidate(OTHER, A40))),
        GuardConfig(),
    )
    path.promise((shortest is None) == (first == inf), "no estimate without any limit")
    terms = [path.real("longest", 0.0), path.real("longest", 0.0)]
    both = [
        candidate(name, A100, partition=partition(name, max_time_minutes=minutes), is_submitted_to=True)
        for name, minutes in zip((HOME, OTHER), terms, strict=True)
    ]
    least = guard_clocks.expected_runtime(
        case_of(cast(JobRequest, SimpleNamespace(time_limit_minutes=None)), SymbolComparison(path), candidates=both),
        GuardConfig(),
    )
    tightest = terms[0] if terms[0] <= terms[1] else terms[1]
    path.promise(least is not None and least.upper_seconds == 0.8 * (60.0 * tightest), "the shortest of two limits")
    path.promise(
        shortest is None or shortest.upper_seconds == GuardConfig().unknown_runtime_share * found, "else a share"
    )


def keeps_the_limit_by_what_runs_say(path: Path) -> None:
    """No predicted end after the time limit, whatever is known of the run time and on which type it was measured."""
    source = path.choice("source", ("none", "history", "user"))
    known_on = path.choice("known on", (None, A100, A40)) if source != "none" else None
    _keeps_the_rules(path, source, known_on, None)


def keeps_deadline_and_bound(path: Path) -> None:
    """No predicted end after the deadline, none for a job that waits, and no time beyond the bound."""
    deadline = path.real("deadline", 1.0, 9.9e10)
    _keeps_the_rules(path, path.choice("source", ("none", "history")), A100, deadline)


def _keeps_the_rules(path: Path, source: str, known_on: GpuTypeName | None, deadline: float | None) -> None:
    """Prove that a slowdown is refused exactly where it breaks a rule, and with that rule's name."""
    margins = GuardConfig()
    share = margins.time_limit_margin
    minutes = path.maybe("limit", lambda: path.real("limit minutes", 0.0))
    upper = path.real("upper seconds", 0.0)
    runtime = (
        None
        if source == "none"
        else RuntimeEstimate(seconds=0.0, upper_seconds=upper, source=source, gpu_type=known_on)
    )
    comparison = SymbolComparison(path, known=source != "none" and known_on != A100 and path.boolean("compared"))
    idle = deadline is None or path.boolean("idle")
    where = [candidate(HOME, A100, has_idle_room=idle)]
    ratio, bound = path.real("routed ratio", 1.0), path.real("bound", 0.0, 2.0)
    job = job_of(deadline_seconds=deadline, time_limit_minutes=minutes)
    # In the mean, how widely runs of a name spread counts too: that is of logarithms, and not part of this proof.
    terms = ClockTerms(by_mean=source == "none" and path.boolean("by mean"))
    case = case_of(
        job, comparison, runtime=runtime, max_slowdown=bound, candidates=(*where, candidate(OTHER, A40)),
        clock_terms=terms,
        type_bound=SimpleNamespace(ratio=lambda _: ratio, left=lambda _: slowdown_left(ratio, bound)),
    )  # fmt: skip
    room = guard_clocks.slowdown_room(A100, case, where, margins, is_sent=True)
    slowdown = path.real("slowdown", 0.0)
    worst = slowdown if deadline is None else path.real("slowdown of the slowest", 0.0)
    broken = set(room.broken_by(slowdown, None if deadline is None else worst))
    path.promise(room.by_mean == terms.by_mean, "the bound is held against what the site says")

    seconds: Any = inf if minutes is None else 60.0 * minutes
    predicted: Any = inf if minutes is None else margins.unknown_runtime_share * ratio * seconds
    if source != "none":
        by_runs = upper * _type_factor(comparison, known_on)
        is_on_a_type = known_on == A100 or (known_on == A40 and comparison.known)
        predicted = by_runs if source == "history" or is_on_a_type or by_runs <= predicted else predicted
    path.promise(
        (Reason.SLOWDOWN_BOUND in broken) == bool(ratio * (1.0 + slowdown) > 1.0 + bound),
        "the bound of user or site is kept exactly",
    )
    kept = 1.0 - share
    late = minutes is not None and _is_late(predicted, slowdown, seconds * kept)
    path.promise((Reason.TIME_LIMIT in broken) == late, "no predicted end after the time limit's share")
    misses = deadline is not None and (
        not idle or bool(deadline <= NOW) or predicted == inf or _is_late(predicted, worst, (deadline - NOW) * kept)
    )
    path.promise((Reason.DEADLINE in broken) == misses, "no predicted end after the deadline's share")
    if deadline is None:
        path.promise(bool(broken) == bool(slowdown > room.smallest), "what all rules leave is what the tightest leaves")


def _is_late(predicted: Any, slowdown: float, seconds: float) -> bool:
    """Return whether a run ends after so many seconds; with none left, a job of no length does too."""
    return bool(predicted * (1.0 + slowdown) > seconds) or (bool(predicted == 0.0) and bool(seconds <= 0.0))


def _type_factor(comparison: SymbolComparison, known_on: GpuTypeName | None) -> Any:
    """Return by what the run time of one type is multiplied on an A100."""
    if known_on == A100:
        return 1.0
    if known_on == A40 and comparison.known:
        cost = comparison.costs.get((A100, A40)) or cast(RelativeCost, comparison.cost(A100, A40))
        worst = cost.worst_time_ratio
        return worst if cost.source == "runs of this name" or worst >= 1.0 else 1.0
    if not comparison.known:
        return 1.0
    cost = cast(RelativeCost, comparison.cost(A40, A100))
    if cost.time_ratio >= 1.0:
        return 1.0  # the A100 is the fastest
    back = comparison.costs[A100, A40].worst_time_ratio
    return back if back > 1.0 else 1.0


def gives_a_clock_of_the_table(path: Path) -> None:
    """No clock outside the table or the room; a proposal that keeps every rule stays; else the best one that does."""
    gpu_type = path.choice("type", (A100, UNKNOWN))
    has_table = path.boolean("table")
    slow = [path.real(f"slowdown at {mhz}", 0.0) for mhz in _CLOCKS[:-1]]
    change = [path.real(f"energy at {mhz}", -1.0) for mhz in _CLOCKS[:-1]]
    # What equal figures do, the table's own tests say.
    for one, other in ((slow[1], 0.0), (slow[0], slow[1])):
        path.assume(one > other)
    for one, other in ((change[0], change[1]), (change[0], 0.0), (change[1], 0.0)):
        path.assume(one != other)
    figures = dict(zip(_CLOCKS, (*zip(slow, change, strict=True), (0.0, 0.0)), strict=True))
    every = ClockTable([_point(mhz, slowed, energy) for mhz, (slowed, energy) in figures.items()])
    proposed = path.choice("proposed", (1290, 1200, 1298, 1410, 1500))
    is_poor = proposed == 1290 and path.boolean("too little saved for its time")
    table = ClockTable([point for point in every.points if not is_poor or point.sm_clock_mhz != 1290])
    rules = [path.real("bound"), path.real("limit room") if proposed == 1290 and not is_poor else inf]
    room = guard_clocks.SlowdownRoom(bound=rules[0], time_limit=rules[1])
    saving = path.real("minimum saving", 0.0, 1.0)
    comparison = cast(TypeComparison, SymbolComparison(path, table=table, every=every if has_table else None))
    verdict = guard_clocks.allowed_clock(gpu_type, proposed, room, saving, comparison)
    given = verdict.choice
    if gpu_type == UNKNOWN or not has_table:
        path.promise(given is None, "a GPU type without a table keeps its default clock")
        path.promise(verdict.reasons == (Reason.UNKNOWN_GPU_TYPE,), "and says why")
        return
    nearest = {1298: 1305, 1500: 1410}.get(proposed, proposed)
    path.promise(nearest == proposed or (Reason.CLOCK_TABLE in verdict.reasons), "a clock that is moved says so")
    path.promise(
        (Reason.POOR_EXCHANGE in verdict.reasons) == is_poor, "a clock that saves too little for its time says so"
    )
    kept = [mhz for mhz in _CLOCKS if not is_poor or mhz != 1290]
    is_kept = nearest in kept and all(bool(figures[nearest][0] <= rule) for rule in rules)
    if is_kept:
        best: int | None = nearest
        path.promise(Reason.CLOCK_TABLE not in verdict.reasons or nearest != proposed, "a kept clock is in the table")
    else:
        inside = [mhz for mhz in kept if all(bool(figures[mhz][0] <= rule) for rule in rules)]
        best = min(inside, key=lambda mhz: (figures[mhz][1], -mhz), default=None)
        at = figures[nearest if nearest in figures else _CLOCKS[0]][0]
        path.promise(
            (Reason.SLOWDOWN_BOUND in verdict.reasons) == bool(at > rules[0]), "a broken bound is named, no other is"
        )
        path.promise((Reason.TIME_LIMIT in verdict.reasons) == bool(at > rules[1]), "a broken limit is named")
        path.promise(
            bool(at > rules[0]) or bool(at > rules[1]) or is_poor or Reason.CLOCK_TABLE in verdict.reasons,
            "some rule is named",
        )
    if best is not None and best != 1410 and bool(-figures[best][1] < saving):
        path.promise(Reason.NO_SAVING in verdict.reasons, "a clock that saves too little says so")
        best = None
    else:
        path.promise(
            Reason.NO_SAVING not in verdict.reasons, "a clock that saves enough, or the default one, is let be"
        )
    expected = None if best == 1410 else best
    path.promise((given is None) == (expected is None), "a clock below the default one, or none")
    if given is not None and expected is not None:
        path.promise(given.sm_clock_mhz == expected, "the proposal where it keeps every rule, else the best that does")
        path.promise(given.predicted_slowdown == figures[expected][0], "the slowdown is the table's")
        path.promise(given.predicted_energy_change == figures[expected][1], "the energy is the table's")


def keeps_the_mean_and_the_deadline_of_the_slowest(path: Path) -> None:
    """Where the mean keeps the bound, the slowest program still ends before the deadline."""
    slow, energy = path.real("slowdown", 0.0), path.real("energy", -1.0)
    worst = path.real("slowdown of the slowest", 0.0)
    path.assume(worst >= slow)
    table = ClockTable([replace(_point(1290, slow, energy), worst_slowdown=worst), _point(1410, 0.0, 0.0)])
    by_mean = path.boolean("by mean")
    bound, limit, deadline = path.real("bound"), path.real("limit"), path.real("deadline")
    room = guard_clocks.SlowdownRoom(bound=bound, time_limit=limit, deadline=deadline, by_mean=by_mean)
    found = room.best_of(table)

    def keeps(slowdown: float, slowest: float) -> bool:
        return bool(slowdown <= bound) and bool(slowdown <= limit) and bool(slowest <= deadline)

    lower = keeps(slow, worst if by_mean else slow) and bool(energy < 0.0)
    expected = 1290 if lower else (1410 if keeps(0.0, 0.0) else None)
    if expected is None and keeps(slow, worst if by_mean else slow):
        expected = 1290
    path.promise((None if found is None else found.sm_clock_mhz) == expected, "the least energy inside every rule")


def asks_enough_energy_for_time(path: Path) -> None:
    """A clock is worth its time where it saves the site's ratio, or where it makes the job cheaper."""
    by_price = path.boolean("by price")
    hour, kwh = (path.real("hour", 0.01), path.real("kWh", 0.01)) if by_price else (0.0, 0.0)
    ratio = 0.0 if by_price else path.real("ratio", 0.0)
    watts = path.maybe("watts", lambda: path.choice("W", (300.0, 0.0)))
    slowdown, energy = path.real("slowdown"), path.real("energy", -1.0)
    terms = ClockTerms(min_saving_per_slowdown=ratio, price_per_gpu_hour=hour, price_per_kwh=kwh)
    found = terms.is_worth_its_time(slowdown, energy, watts)
    if by_price and not watts:
        path.promise(not found or bool(slowdown <= 0.0), "without a known draw no time is worth it")
        return
    least: Any = hour / (0.3 * kwh) if by_price else ratio
    asked = bool(least > 0.0)
    worth = not asked or (bool(-energy >= least * slowdown) if slowdown > 0.0 else bool(-energy >= 0.0))
    path.promise(bool(found) == worth, "both sides of the exchange are kept exactly")


def _point(mhz: int, slowdown: float, energy_change: float) -> OperatingPoint:
    return OperatingPoint(
        sm_clock_mhz=mhz,
        default_clock_mhz=1410,
        slowdown=slowdown,
        worst_slowdown=slowdown,
        mean_slowdown=slowdown,
        energy_change=energy_change,
    )


def tries_clocks_inside_every_rule(path: Path) -> None:
    """No trial beyond what a decided clock keeps; none against user or site, and none under a deadline."""
    site = path.choice("site", ("off", "asked", "on"))
    wish = path.choice("wish", (None, True, False))
    own = path.boolean("own clock")
    deadline = path.maybe("deadline", lambda: NOW + 1e6)
    job = job_of(
        trials=wish, deadline_seconds=deadline, gpu_frequency_given=own, time_limit_minutes=path.real("limit", 0.0)
    )
    bound = path.real("bound", 0.0, 2.0)
    upper = path.real("upper", 0.0)
    gpu_type = path.choice("type", (A100, UNMEASURED))
    runtime = RuntimeEstimate(seconds=0.0, upper_seconds=upper, source="history", gpu_type=gpu_type)
    case = case_of(
        job, SymbolComparison(path), runtime=runtime, max_slowdown=bound, candidates=(candidate(HOME, gpu_type),),
        type_bound=SimpleNamespace(ratio=lambda _: 1.25, left=lambda _: slowdown_left(1.25, bound)),
    )  # fmt: skip
    sent = path.choice("sent", (None, (HOME,)))
    # Inside a bound of 0 no clock saves anything beyond the table's; without a table only trials can find one.
    is_poor = gpu_type == A100 and path.boolean("little to gain")
    policy = replace(PolicyConfig(), clock_trials=cast(Any, site), max_slowdown=0.0 if is_poor else 0.05)
    config = Config(policy=policy)
    bounds = guard_trials.trial_bounds(case, case.candidates, sent, config)
    by_trial = path.boolean("by trial")
    learned = {gpu_type: cast(LearnedClock, SimpleNamespace(by_trial=by_trial))}
    counts = not by_trial or (site != "off" and wish is not False)
    path.promise(bool(guard_trials.counted_clocks(learned, job, config)) == counts, "what trials found is opted out of")
    allowed = site != "off" and not own and deadline is None and (wish is True or (wish is None and site == "on"))
    path.promise(guard_trials.has_trials(job, config) == allowed, "trials are the user's and the site's word")
    if not allowed:
        path.promise(not bounds, "no trials without their word")
        return
    share = 1.0 - config.guard.time_limit_margin
    seconds = 60.0 * cast(float, job.time_limit_minutes)
    least = guard_trials.MIN_TRIAL_BOUND
    in_time = seconds > 0.0 if upper == 0.0 else upper + upper * least <= seconds * share
    # Where the policy sends it, a slower type has used up a part of the bound.
    left: Any = bound if sent is None else (bound - 0.25) / 1.25
    is_large = bool(left >= least) and bool(in_time)
    path.promise(is_large or not bounds, "no trial without room")
    path.promise(bool(bounds) or not is_large or (is_poor and wish is None), "a wish, or much to gain, is met")
    path.promise(not bounds or not is_poor or wish is True, "no trial for a little that its user does not ask for")
    for given in bounds.values():
        path.promise(given <= left, "no trial beyond the bound")
        path.promise(given <= MAX_TRIAL_BOUND, "nor beyond what travels with the job")
        path.promise(upper + upper * given <= seconds * share, "nor beyond the time limit")


def tries_clocks_a_little_beyond_the_site_s_own(path: Path) -> None:
    """Where the bound holds in the mean, a trial reaches a little beyond the site's clock, never beyond the bound."""
    bound, slowed = path.real("bound", 0.0, 2.0), path.maybe("site's clock", lambda: path.real("slowdown", 0.0))
    point = None if slowed is None else SimpleNamespace(slowdown=slowed)
    case = case_of(
        job_of(trials=True), SymbolComparison(path), max_slowdown=bound, candidates=(candidate(HOME, A100),),
        site_tables={A100: SimpleNamespace(best=lambda _: point)},
    )  # fmt: skip
    policy = replace(PolicyConfig(), clock_trials="on")
    given = guard_trials.trial_bounds(case, case.candidates, None, Config(policy=policy)).get(A100)
    least = guard_trials.MIN_TRIAL_BOUND
    path.promise((given is not None) == bool(bound >= least), "a trial where there is room for one")
    if given is None:
        return
    path.promise(given <= bound and given <= MAX_TRIAL_BOUND, "no trial beyond the bound")
    path.promise(given >= least, "none that is too small to tell")
    reached = given >= bound or given >= MAX_TRIAL_BOUND
    if slowed is None:
        path.promise(reached, "the whole bound where the site has no clock")
        return
    path.promise(given <= slowed + mean_bound.TRIAL_MARGIN or given <= least, "no farther than a little beyond it")
    path.promise(reached or given >= slowed + mean_bound.TRIAL_MARGIN, "and no less")


def begins_with_a_measured_clock_that_keeps_the_rules(path: Path) -> None:
    """A clock that runs of a name measured counts only supported, inside the room with its error, and if it saves."""
    clock = path.choice("clock", (1290, 1298))
    slowed, error, change = path.real("slowdown", 0.0), path.real("error", 0.0), path.real("energy", -1.0)
    learned = cast(
        LearnedClock,
        SimpleNamespace(
            sm_clock_mhz=clock, default_clock_mhz=1410, slowdown=slowed, upper=slowed + error, energy_change=change,
            runs=path.choice("runs", (1, 3)), measured_at_seconds=NOW, others=(), by_trial=True,
        ),
    )  # fmt: skip
    room = guard_clocks.SlowdownRoom(bound=path.real("bound"), time_limit=path.real("limit"), deadline=inf)
    least = path.real("minimum saving", 0.0, 1.0)
    gpu_type = path.choice("type", (A100, UNKNOWN))
    ratio = path.choice("ratio", (0.0, 2.0, 3.0))
    terms = ClockTerms(min_saving_per_slowdown=ratio)
    comparison = SymbolComparison(path)
    if ratio == 3.0:
        # By price: as many units for an hour as for so many kWh; runs of the name tell its draw, else programs do.
        comparison.own_watts = path.choice("own draw", (None, 600.0))
        terms = ClockTerms(price_per_gpu_hour=0.9, price_per_kwh=1.0)
        ratio = 0.9 / ((comparison.own_watts or 300.0) / 1000.0)
    case = case_of(job_of(), comparison, clock_terms=terms)
    verdict = guard_trials.learned_verdict(gpu_type, learned, room, least, case)
    allowed = (
        gpu_type == A100
        and clock == 1290
        and bool(slowed + error <= room.bound)
        and bool(slowed + error <= room.time_limit)
        and bool(-change >= least)
    )
    path.promise((verdict is not None) == allowed, "it decides exactly where every rule is kept")
    worth = allowed and (ratio == 0.0 or bool(-change >= (ratio * slowed if slowed > 0.0 else 0.0)))
    path.promise(
        (verdict is not None and verdict.choice is not None) == worth, "and is given where it is worth its time"
    )
    if verdict is not None and verdict.choice is not None:
        path.promise(verdict.choice.sm_clock_mhz == clock, "the clock is the one that was measured")
        path.promise(verdict.choice.predicted_slowdown == slowed, "with its slowdown")
        path.promise(verdict.choice.predicted_energy_change == change, "and its energy")


def begins_with_the_best_of_measured_clocks(path: Path) -> None:
    """Of several measured clocks that keep every rule, the one of the least energy decides."""
    change = [path.real("energy at the first", -1.0, 0.0), path.real("energy at the second", -1.0, 0.0)]
    path.assume(change[0] != change[1])
    found = [
        SimpleNamespace(
            sm_clock_mhz=mhz, default_clock_mhz=1410, slowdown=0.0, upper=0.0, energy_change=energy, runs=3,
            measured_at_seconds=NOW, others=(), by_trial=True,
        )
        for mhz, energy in zip((1290, 1350), change, strict=True)
    ]  # fmt: skip
    found[0].others = (found[1],)
    room = guard_clocks.SlowdownRoom(bound=0.1, time_limit=inf, deadline=inf)
    case = case_of(job_of(), SymbolComparison(path))
    verdict = guard_trials.learned_verdict(A100, cast(LearnedClock, found[0]), room, 0.0, case)
    best = found[0] if change[0] < change[1] else found[1]
    path.promise(verdict is not None and verdict.choice is not None, "one of them is given")
    if verdict is not None and verdict.choice is not None:
        path.promise(verdict.choice.sm_clock_mhz == best.sm_clock_mhz, "the one of the least energy")


CLOCK_PROMISES: Mapping[str, Callable[[Path], None]] = {
    "time limit": takes_the_limit_that_slurm_enforces,
    "no end after the limit": keeps_the_limit_by_what_runs_say,
    "deadline and bound": keeps_deadline_and_bound,
    "clock of the table": gives_a_clock_of_the_table,
    "mean and slowest": keeps_the_mean_and_the_deadline_of_the_slowest,
    "fair exchange": asks_enough_energy_for_time,
    "trials inside every rule": tries_clocks_inside_every_rule,
    "trials of a bound in the mean": tries_clocks_a_little_beyond_the_site_s_own,
    "measured clock": begins_with_a_measured_clock_that_keeps_the_rules,
    "best measured clock": begins_with_the_best_of_measured_clocks,
}
