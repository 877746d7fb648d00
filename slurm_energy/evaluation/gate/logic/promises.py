"""What the guard promises of every decision, proved over the functions that it calls: for all numbers, on every path.

Each promise says both sides: what must not pass does not, and what keeps every rule is not changed. Structures are
small and complete: two partitions, clocks of three kinds, every combination of what may be given or missing. Numbers
are symbols. What a promise says is written down here in its own terms (ends, limits, lists), not in the guard's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from types import SimpleNamespace
from typing import Any, cast

from slurm_energy.config import Config, GuardConfig, PolicyConfig, RoutingConfig
from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.decision import MAX_TRIAL_BOUND, Reason, RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.evaluation.gate.logic.symbols import Path
from slurm_energy.policy.base import Case, CountCost
from slurm_energy.policy.guard import clocks as guard_clocks
from slurm_energy.policy.guard import gpu_count as guard_count
from slurm_energy.policy.guard import partitions as guard_partitions
from slurm_energy.policy.guard import trials as guard_trials
from slurm_energy.policy.site.clock_terms import EACH_JOB, ClockTerms
from slurm_energy.policy.site.comparison import Candidate, TypeComparison
from slurm_energy.policy.site.type_bound import slowdown_left, type_bound

A100, A40, UNKNOWN = map(GpuTypeName, ("a100-sxm4-80gb", "a40", "no-such-gpu"))
HOME, OTHER, GHOST = map(PartitionName, ("home", "other", "ghost"))
NOW = 1_800_000_000.0
_CLOCKS = (1290, 1350, 1410)


class SymbolComparison:
    """Compares GPU types by symbols; a type that is left out cannot be compared."""

    terms = EACH_JOB

    def __init__(
        self, path: Path, *, known: bool = True, table: ClockTable | None = None, every: ClockTable | None = None
    ) -> None:
        self.limits = BoardLimits()
        self.path = path
        self.known = known
        self.table = table
        self.every = every
        self.costs: dict[tuple[GpuTypeName, GpuTypeName], RelativeCost] = {}

    def cost(self, gpu_type: GpuTypeName, reference: GpuTypeName) -> RelativeCost | None:
        """Return the same symbols at every question."""
        if gpu_type == reference:
            return RelativeCost(time_ratio=1.0, worst_time_ratio=1.0, energy_ratio=1.0, source="measured")
        if not self.known:
            return None
        found = self.costs.get((gpu_type, reference))
        if found is None:
            # Middle ratios only say which type is the faster one; worst ones are what is reckoned with.
            middle = self.path.choice("time ratio", (0.75, 4.0 / 3.0))
            source: Any = self.path.choice("source of ratios", ("runs of this name", "measured"))
            for pair, least in (((gpu_type, reference), middle), ((reference, gpu_type), 1.0 / middle)):
                self.costs[pair] = RelativeCost(
                    time_ratio=least,
                    worst_time_ratio=self.path.real("worst time ratio", least),
                    energy_ratio=1.0,
                    source=source,
                )
            found = self.costs[gpu_type, reference]
        return found

    def clock_table(self, _gpu_type: GpuTypeName) -> ClockTable | None:
        """Return the clocks that are worth their time."""
        return self.table

    def all_clocks(self, _gpu_type: GpuTypeName) -> ClockTable | None:
        """Return those that were measured."""
        return self.every

    def mean_watts(self, _gpu_type: GpuTypeName) -> float | None:
        """Return a power."""
        return 300.0

    def watts(self, _gpu_type: GpuTypeName) -> float | None:
        """Return that of a name without runs."""
        return None


def partition(name: PartitionName, **changes: Any) -> PartitionState:
    """Return an open partition."""
    given = {"name": name, "is_default": name == HOME, "up": True}
    return PartitionState(**cast(Any, given | changes))


def candidate(name: PartitionName, gpu_type: GpuTypeName | None, **changes: Any) -> Candidate:
    """Return a candidate with room."""
    types = () if gpu_type is None else (gpu_type,)
    given = {"partition": partition(name), "gpu_types": types, "has_idle_room": True, "is_submitted_to": name == HOME}
    return Candidate(**cast(Any, given | changes))


def case_of(job: JobRequest, comparison: SymbolComparison, **changes: Any) -> Case:
    """Return a case that compares GPU types by symbols."""
    given = {
        "job": job, "comparison": comparison, "now_seconds": NOW, "runtime": None, "candidates": (),
        "max_slowdown": 0.0, "may_route": False, "learned_clocks": {}, "board_limits": BoardLimits(),
        "site_tables": {}, "limit_room": -1.0,
        "scaling": None, "gpu_counts": (), "user_groups": None, "claimed_gpus": {}, "clock_terms": EACH_JOB,
    }  # fmt: skip
    given |= changes
    symbols = cast(TypeComparison, comparison)
    given.setdefault(
        "type_bound", type_bound(cast(Any, given["candidates"]), symbols, cast(Any, given["max_slowdown"]), None)
    )
    return cast(Case, SimpleNamespace(**given))


def _job(**changes: Any) -> JobRequest:
    options = {key: changes.pop(key) for key in ("deadline_seconds", "trials", "gpu_counts") if key in changes}
    given = {"user_id": 1000, "gpus": (GpuDemand(count=1),), "options": EnergyOptions(**options)}
    return JobRequest(**cast(Any, given | changes))


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
    job = _job(deadline_seconds=deadline, time_limit_minutes=minutes)
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


def names_open_partitions_with_room(path: Path) -> None:
    """No partition that the job may not be sent to; a proposal of open, free and fast ones is not changed."""
    found = {
        HOME: candidate(HOME, A100, may_be_named=path.boolean("home open"), has_idle_room=path.boolean("home idle")),
        OTHER: candidate(
            OTHER,
            A40 if path.boolean("known types") else None,
            may_be_named=path.boolean("other open"),
            has_idle_room=path.boolean("other idle"),
        ),
    }
    proposed = path.choice("proposed", (None, (HOME,), (OTHER,), (OTHER, HOME), (GHOST,), (HOME, GHOST)))
    comparison = SymbolComparison(path, known=path.boolean("compared"))
    bound, limit, upper = path.real("bound", 0.0, 2.0), path.real("limit minutes", 1.0), 3600.0
    may_route = path.boolean("may route")
    runtime = RuntimeEstimate(seconds=0.0, upper_seconds=upper, source="history", gpu_type=A100)
    job = _job(time_limit_minutes=limit)
    case = case_of(
        job, comparison, runtime=runtime, max_slowdown=bound, candidates=tuple(found.values()), may_route=may_route
    )
    guard = GuardConfig()
    verdict = guard_partitions.allowed_partitions(proposed, case, guard)
    if proposed is None:
        path.promise(verdict.partitions is None and not verdict.reasons, "no proposal leaves the job where it is")
        return
    path.promise(verdict.partitions in (None, proposed), "the proposal or nothing")
    path.promise((verdict.partitions is None) == bool(verdict.reasons), "a refusal has a reason, and no other answer")
    open_ones = may_route and all(name in found and found[name].may_be_named for name in proposed)
    if not open_ones:
        path.promise(verdict.reasons == (Reason.PARTITION_NOT_ALLOWED,), "a partition that is not open is refused")
        return
    if not all(found[name].has_idle_room for name in proposed):
        path.promise(verdict.reasons == (Reason.NO_IDLE_PARTITION,), "a partition without room is refused")
        return
    if not all(found[name].gpu_types for name in proposed):
        path.promise(verdict.reasons == (Reason.UNKNOWN_GPU_TYPE,), "a partition of unknown GPUs is refused")
        return
    is_slow = False
    for name in proposed:
        gpu_type = found[name].gpu_types[0]
        longer = _longer_than_at_home(comparison, gpu_type, list(found.values()))
        here: Any = 1.0
        if gpu_type == A40 and comparison.known:
            cost = cast(RelativeCost, comparison.cost(A40, A100))
            here = cost.worst_time_ratio
            here = here if cost.source == "runs of this name" or here >= 1.0 else 1.0
        elif gpu_type == A40:
            here = 1.0  # nothing is known of it: history counts as it is
        is_slow = (
            is_slow or bool(longer > 1.0 + bound) or bool(upper * here > 60.0 * limit * (1.0 - guard.time_limit_margin))
        )
    path.promise((verdict.partitions is None) == is_slow, "slow ones are refused, and no others")


def _longer_than_at_home(comparison: SymbolComparison, gpu_type: GpuTypeName, found: Sequence[Candidate]) -> Any:
    """Return how much longer than where Slurm starts the job work takes, at its worst; infinite where it is unknown.

    Where Slurm would make it wait, it is beside the fastest type with room.
    """
    home = next((one for one in found if one.is_submitted_to and one.has_idle_room), None)
    rivals = [one for one in found if one.may_be_named and one.has_idle_room and one.gpu_types]
    if home is not None:
        types = home.gpu_types
    elif len(rivals) < 2:
        types = tuple(name for one in rivals for name in one.gpu_types)
    elif comparison.known:
        is_a100_fastest = cast(RelativeCost, comparison.cost(A40, A100)).time_ratio >= 1.0
        types = (A100 if is_a100_fastest else A40,)
    else:
        types = ()
    cost = comparison.cost(gpu_type, types[0]) if types else None
    if cost is None:
        return inf
    worst = cost.worst_time_ratio
    return worst if worst > 1.0 else 1.0


def gives_a_declared_count(path: Path) -> None:
    """No count outside the user's numbers, none that misses a deadline, no node too small; else the job's own."""
    declared = path.choice("declared", ((), (2,), (1, 2, 4)))
    deadline = path.maybe("deadline", lambda: path.real("deadline", 1.0, 9.9e10))
    offered = path.choice("offered", ((), (2,), (1, 2, 4)))
    options = tuple(GpuCountOption(gpus=gpus) for gpus in offered)
    refusal = path.choice("refusal", ("", "account"))
    job = _job(
        gpus=(GpuDemand(count=2),), gpu_counts=declared, deadline_seconds=deadline, count_options=options,
        count_refusal=refusal, partitions=(HOME,),
    )  # fmt: skip
    upper = 3600.0
    runtime = path.maybe("runtime", lambda: RuntimeEstimate(seconds=0.0, upper_seconds=upper, source="history", gpus=2))
    scaling = _Scaling(path)
    fits = path.boolean("larger fits")
    node = SimpleNamespace(
        available=True, cpus=64, memory_mib=1e6, gpus=(SimpleNamespace(slurm_type=None, count=4 if fits else 2),)
    )
    home = partition(HOME)
    snapshot = SimpleNamespace(
        partition_by_name={HOME: home}, default_partition=home, nodes_by_partition={HOME: (node,)}
    )
    given = case_of(job, SymbolComparison(path), runtime=runtime, scaling=scaling, snapshot=snapshot)
    switch = path.choice("switch", ("on", "off"))
    case = Case(**{name: getattr(given, name) for name in ("job", "snapshot", "now_seconds", "runtime", "scaling")})
    weighs = runtime is None and deadline is None and offered == (1, 2, 4) and path.boolean("policy weighs")
    config = Config(policy=replace(PolicyConfig(), gpu_count=cast(Any, switch)))
    found = guard_count.with_chosen_count(case, config, _two_is_dear if weighs else None)
    path.promise(found.asked == 2, "what was asked for is known")
    if not declared or switch == "off" or refusal or not offered:
        path.promise(found.gpus is None, "without a choice, the job's own number stays unsaid")
        path.promise(found.case.job is job, "and the job is as it was")
        path.promise(bool(found.reasons) == bool(declared), "and a user who named numbers hears why")
        return
    path.promise(found.gpus == 2 or found.gpus in offered, "a number that was offered")
    can_have = [gpus for gpus in offered if gpus == 2 or (gpus > 2 and fits)]
    if 1 in offered and (
        deadline is None or (runtime is not None and bool(NOW + upper * _slowest(scaling, 2, 1) <= deadline))
    ):
        can_have.append(1)
    path.promise(found.case.gpu_counts == tuple(sorted(can_have)), "the choice is among all that can be had")
    if weighs and len(can_have) > 1:
        path.promise(found.gpus != 2, "a policy that weighs the numbers chooses")
    path.promise(found.case.job.gpu_count == found.gpus, "the case is judged with the number that is given")
    path.promise((found.gpus == 2) == (found.case.job is job), "and the job changes with it")
    # One node of four GPUs or two: four GPUs fit the one, and in no case two nodes of two, since there is one node.
    if found.gpus == 4:
        path.promise(fits, "no more GPUs than the nodes have")
    if found.gpus is not None and found.gpus < 2 and deadline is not None:
        path.promise(runtime is not None, "fewer GPUs under a deadline need a known run time")
        path.promise(NOW + upper * _slowest(scaling, 2, found.gpus) <= deadline, "no predicted end after the deadline")
    path.promise((Reason.GPU_COUNT in found.reasons) == (found.gpus != 2), "the number that changes says so")
    path.promise((Reason.GPU_COUNT_KEPT in found.reasons) == (found.gpus == 2), "the number that stays says so")


class _Scaling:
    """Speed-ups that may be anything that grows."""

    is_measured = True
    counts = (1, 2)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[tuple[int, float], float] = {}

    def speedup(self, gpus: int, deviations: float = 0.0) -> float:
        """Return a symbol, the same at each question."""
        if gpus <= 1:
            return 1.0
        key = gpus, deviations
        if key not in self.found:
            self.found[key] = self.path.real(f"speed-up of {gpus} at {deviations}", 1.0, float(gpus))
        return self.found[key]


def _slowest(scaling: _Scaling, before: int, gpus: int) -> float:
    """Return the longest time ratio within the doubt."""
    return max(scaling.speedup(before, away) / scaling.speedup(gpus, away) for away in (0.0, -1.645, 1.645))


def _two_is_dear(cases: Sequence[Case]) -> Sequence[CountCost]:
    return [
        CountCost(gpus=one.job.gpu_count, joules=9.0 if one.job.gpu_count == 2 else 1.0, has_room=True) for one in cases
    ]


def offers_only_what_the_nodes_hold(path: Path) -> None:
    """A number of GPUs is had where every partition of the job has enough nodes of that size, with CPUs and memory."""
    nodes = path.choice("nodes", (0, 1, 2))
    gpus, cpus = path.choice("GPUs", (3, 4)), path.whole("cpus of a node", 0, 100)
    memory = path.maybe("memory", lambda: path.real("memory of a node", 0.0))
    option = GpuCountOption(gpus=gpus, nodes=nodes, cpus_per_node=cpus, memory_per_node_mib=memory)
    sizes = path.choice("GPUs of the nodes", ((2, 2), (1, 4), (2, 4)))
    has = [path.whole("node's cpus", 0, 100) for _ in sizes]
    mib = [path.maybe("known memory", lambda: path.real("node's memory", 0.0)), 1e9]
    available = path.boolean("first is available")
    wanted = path.choice("type", (None, "a40"))
    kind = path.choice("type of the first", ("a100", "a40")) if wanted else "a100"
    pool = tuple(
        SimpleNamespace(
            available=available or number > 0, cpus=has[number], memory_mib=mib[number],
            gpus=(SimpleNamespace(slurm_type=kind if number == 0 else "a40", count=size),),
        )
        for number, size in enumerate(sizes)
    )  # fmt: skip
    snapshot = SimpleNamespace(nodes_by_partition={HOME: pool, OTHER: ()}, partition_by_name={
        HOME: partition(HOME), OTHER: partition(OTHER)}, default_partition=partition(HOME))  # fmt: skip
    where = path.choice("asked", ((HOME,), (HOME, OTHER)))
    job = _job(gpus=(GpuDemand(count=1, slurm_type=wanted),), partitions=where)
    found = guard_count._fits_nodes(case_of(job, SymbolComparison(path), snapshot=snapshot), option)
    serving = [number for number in (0, 1) if (number > 0 or available) and (number > 0 or wanted in (None, kind))]
    count = nodes or -(-gpus // max((sizes[number] for number in serving), default=1))
    each = cpus if nodes else ceil(cpus / count)
    share = 0.9
    enough = [
        number
        for number in serving
        if sizes[number] >= -(-gpus // count)
        and bool(has[number] * share >= each)
        and (memory is None or bool((mib[number] or 0.0) * share >= memory))
    ]
    path.promise(found == (len(enough) >= count and where == (HOME,)), "exactly where the nodes hold it")


def tries_clocks_inside_every_rule(path: Path) -> None:
    """No trial beyond what a decided clock keeps; none against user or site, and none under a deadline."""
    site = path.choice("site", ("off", "asked", "on"))
    wish = path.choice("wish", (None, True, False))
    own = path.boolean("own clock")
    deadline = path.maybe("deadline", lambda: NOW + 1e6)
    job = _job(
        trials=wish, deadline_seconds=deadline, gpu_frequency_given=own, time_limit_minutes=path.real("limit", 0.0)
    )
    bound = path.real("bound", 0.0, 2.0)
    upper = path.real("upper", 0.0)
    runtime = RuntimeEstimate(seconds=0.0, upper_seconds=upper, source="history", gpu_type=A100)
    case = case_of(
        job, SymbolComparison(path), runtime=runtime, max_slowdown=bound, candidates=(candidate(HOME, A100),)
    )
    config = Config(policy=replace(PolicyConfig(), clock_trials=cast(Any, site)))
    bounds = guard_trials.trial_bounds(case, case.candidates, None, config)
    by_trial = path.boolean("by trial")
    learned = {A100: cast(LearnedClock, SimpleNamespace(by_trial=by_trial))}
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
    is_large = bool(bound >= least) and bool(in_time)
    path.promise(is_large or not bounds, "no trial without room")
    path.promise(bool(bounds) or not is_large or wish is None, "a wish with room is met")
    for given in bounds.values():
        path.promise(given <= bound, "no trial beyond the bound")
        path.promise(given <= MAX_TRIAL_BOUND, "nor beyond what travels with the job")
        path.promise(upper + upper * given <= seconds * share, "nor beyond the time limit")


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
    ratio = path.choice("ratio", (0.0, 2.0))
    case = case_of(_job(), SymbolComparison(path), clock_terms=ClockTerms(min_saving_per_slowdown=ratio))
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


def adds_a_hint_only_where_slurm_would_take_it(path: Path) -> None:
    """A node feature is no more than a hint: never in place of the user's own words, never one that stops the job."""
    proposed = path.choice("proposed", (None, "fast"))
    job = _job(
        features=path.choice("features", (None, "ib")),
        prefer=path.choice("prefer", (None, "slow")),
        reservation=path.choice("reservation", (None, "maintenance")),
        nodes_min=path.whole("nodes", 1, 2),
        tasks=path.maybe("tasks", lambda: path.whole("tasks", 1, 64)),
        cpus_per_task=path.choice("cpus per task", (None, 2)),
        memory_per_node_mib=path.real("memory", 0.0, 1e6),
    )
    cpus, gpus = path.whole("node cpus", 0, 128), path.whole("gpus", 0, 8)
    memory = path.maybe("known memory", lambda: path.real("node memory", 1.0, 1e6))
    has, available = path.boolean("has the feature"), path.boolean("available")
    node = SimpleNamespace(
        available=available, cpus=cpus, memory_mib=memory, gpu_count=gpus,
        gpus=(SimpleNamespace(slurm_type="a100", count=gpus),), features=("fast",) if has else (),
    )  # fmt: skip
    opened = path.boolean("opened")
    snapshot = SimpleNamespace(nodes_by_partition={HOME: (node,)})
    case = case_of(job, SymbolComparison(path), snapshot=snapshot)
    routing = RoutingConfig(node_hints=opened)
    verdict = guard_partitions.allowed_hint(proposed, case, [candidate(OTHER, A40), candidate(HOME, A100)], routing)
    own_words = job.features is not None or job.prefer is not None or job.reservation is not None
    could = proposed is not None and opened and not own_words and has and available
    could = could and bool(job.nodes_min <= 1) and bool(cpus >= (job.tasks or 1) * (job.cpus_per_task or 1))
    could = could and bool(gpus >= 1) and bool((memory or 0.0) >= cast(float, job.memory_per_node_mib))
    path.promise(verdict.prefer == (proposed if could else None), "a hint exactly where the node could run the job")
    path.promise(bool(verdict.notes) == (proposed is not None and not could), "and a note where it is left out")


GUARD_PROMISES: Mapping[str, Callable[[Path], None]] = {
    "time limit": takes_the_limit_that_slurm_enforces,
    "no end after the limit": keeps_the_limit_by_what_runs_say,
    "deadline and bound": keeps_deadline_and_bound,
    "clock of the table": gives_a_clock_of_the_table,
    "mean and slowest": keeps_the_mean_and_the_deadline_of_the_slowest,
    "fair exchange": asks_enough_energy_for_time,
    "open partitions with room": names_open_partitions_with_room,
    "declared count": gives_a_declared_count,
    "nodes for a count": offers_only_what_the_nodes_hold,
    "trials inside every rule": tries_clocks_inside_every_rule,
    "measured clock": begins_with_a_measured_clock_that_keeps_the_rules,
    "node hint": adds_a_hint_only_where_slurm_would_take_it,
}
