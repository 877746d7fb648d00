"""What the choice by cost promises: the cheapest option inside every mask, and a number of GPUs that was declared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.job import GpuDemand
from slurm_energy.evaluation.gate.logic.cases import (
    HOME,
    NOW,
    OTHER,
    SymbolComparison,
    case_of,
    job_of,
    partition,
)
from slurm_energy.evaluation.gate.logic.symbols import Path
from slurm_energy.policy.base import Case, CountCost
from slurm_energy.policy.guard import gpu_count as guard_count
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, OptionTable
from slurm_energy.policy.rules.cost_table import CostTable, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.tables import Bounds, bounds_of
from slurm_energy.policy.rules.total_cost import PowerPrice

_PRICES = ("time_watts", "slowdown_joules", "share", "opened_nodes", "waking", "power", "makespan_watts")
_MARGIN = 0.05


class _View:
    """A cluster that wakes and opens nodes as a promise wants it."""

    def __init__(self, opened: Any = 1, joules: Any = 7.0) -> None:
        self.opened, self.joules = opened, joules

    def opened_nodes(self, place: int, _gpus: int) -> Any:
        """Return how many nodes a start opens."""
        return self.opened if place == 1 else 0

    def wakeup_joules(self, _place: int, _gpus: int) -> Any:
        """Return what it takes to wake them."""
        return self.joules


def _table() -> OptionTable:
    """Return two places with two clocks each: the second is slower, needs less, and can sleep."""
    seconds = np.array([[[2.0, 1.0]], [[4.0, 2.0]]])
    watts = np.array([[[100.0, 250.0]], [[40.0, 90.0]]])
    return cast(
        OptionTable,
        SimpleNamespace(
            seconds_per_unit=seconds,
            watts=watts,
            free_watts=np.array([10.0, 5.0])[:, None, None],
            gpu_counts=(1,),
        ),
    )


_SECONDS = {(0, 0): 2.0, (0, 1): 1.0, (1, 0): 4.0, (1, 1): 2.0}
_ACTIVE = {(0, 0): 90.0 * 2.0, (0, 1): 240.0, (1, 0): 35.0 * 4.0, (1, 1): 85.0 * 2.0}
_FREE = (10.0, 5.0)
_PLACES = PlaceCosts(
    *(
        np.array(figures, dtype=object)  # of symbols where prices are
        for figures in (
            _FREE,
            (0.0, 80.0),
            (0.0, 20.0),
            (3.0, 2.0),
            (0.125, 0.25),
            (0.0, 30.0),
            (0.0, 60.0),
            (inf, inf),
        )
    )
)


def _cost(option: tuple[int, int], units: Any, prices: Prices, opened: Any, waking: Any) -> Any:
    """Return what an option costs per unit of work, after the reference page's formula."""
    place = option[0]
    seconds, active = _SECONDS[option], _ACTIVE[option]
    default = _SECONDS[place, 1]
    host = (0.125, 0.25)[place] * active + (3.0, 2.0)[place] * seconds
    cost = active + host + prices.time_watts * seconds + prices.device_watts[place] * seconds
    cost = cost + prices.power * (active + _FREE[place] * seconds) + prices.share * (0.0, 20.0)[place] * seconds
    cost = cost + prices.slowdown_joules * (seconds / default) / units
    late = seconds - prices.last_end_seconds / units
    cost = cost + prices.makespan_watts * (late if late > 0 else 0.0)
    if place == 1:
        cost = cost + prices.opened_nodes * opened * 80.0 * (seconds + 30.0 / units) + prices.waking * waking / units
        if waking > 0:
            cost = cost + (prices.time_watts + prices.slowdown_joules / default / units) * 60.0 / units
    return cost


def costs_what_the_formula_says(path: Path) -> None:
    """Each option costs what the reference page's formula says, whatever one price is."""
    table, prices, symbol, opened, waking, units, view = _priced(path)
    figures = table._costs(PricedJob(units=units, bounds=None, spare_watts=inf), prices, np.ones(4, dtype=bool), view)
    for placement, figure in zip(table._placements, figures, strict=True):
        expected = _cost((placement.place, placement.clock), units, prices, opened, waking if opened else 0.0)
        path.promise(figure <= expected + 1e-6 * (1.0 + symbol), "no more than the formula")
        path.promise(figure >= expected - 1e-6 * (1.0 + symbol), "no less than the formula")


def _priced(path: Path) -> tuple[CostTable, Prices, float, Any, Any, float, ClusterView]:
    """Return a table, and prices of which one is a symbol, on a cluster that wakes and opens nodes or not."""
    table = CostTable(_table(), _PLACES)
    price = path.choice("price", (*_PRICES, "device_watts"))
    given: dict[str, Any] = dict.fromkeys(_PRICES, 0.5) | {"makespan_watts": 0.0, "last_end_seconds": 3.0}
    devices: Any = [1.0, 2.0]
    symbol = path.real(price, 0.0)
    if price == "device_watts":
        devices = [symbol, 2.0]
    else:
        given[price] = symbol
    prices = Prices(device_watts=np.array(devices), **given)
    opened, waking = path.choice("nodes", ((0, 700.0), (1, 0.0), (1, 700.0), (2, 0.5)))
    units = path.choice("units", (1.0, 100.0))
    view = cast(ClusterView, _View(opened, waking))
    return table, prices, symbol, opened, waking, units, view


def chooses_the_cheapest_of_the_allowed(path: Path) -> None:
    """The option that is chosen costs no more, by the formula, than any other inside room and power."""
    table, prices, _, opened, waking, units, view = _priced(path)
    free = [path.whole("free in the first", 0, 2), path.whole("free in the second", 0, 2)]
    found = table.choose(PricedJob(units=units, bounds=None, spare_watts=inf), prices, free, view)
    allowed = [option for option in _SECONDS if bool(free[option[0]] >= 1)]
    path.promise((found is None) == (not allowed), "an option wherever there is room")
    if found is None:
        return
    option = found.place, found.clock
    path.promise(option in allowed, "in a place with room")
    mine = _cost(option, units, prices, opened, waking if opened else 0.0)
    for other in allowed:
        theirs = _cost(other, units, prices, opened, waking if opened else 0.0)
        path.promise(mine <= theirs + 1e-9, "no other option costs less")
    wanted = table.wanted(units, prices, [0, 1])
    path.promise(
        wanted is not None and wanted in {(place, seconds * units) for (place, _), seconds in _SECONDS.items()},
        "the time that is wanted is that of an option",
    )
    path.promise(table.wanted(units, prices, []) is None, "nothing is wanted of no place")


def keeps_masks_and_power(path: Path) -> None:
    """Bounds of slowdown, limit and deadline hold where any option keeps them; power always does."""
    longest = [inf if path.boolean("no longest time") else path.real("longest time in the first", 0.0), inf]
    table = CostTable(_table(), _PLACES._replace(max_seconds=np.array(longest)))
    slowdown = path.choice("slowdown", (inf, 1.5, 2.0))
    limit, deadline = path.real("limit", 0.0), path.real("deadline", 0.0)
    path.assume(deadline <= limit)
    bounds = Bounds(slowdown, limit, deadline) if path.boolean("bounds") else None
    spare = inf if path.boolean("no budget") else path.real("spare watts")
    prices = Prices(*(0.0,) * 6, device_watts=np.zeros(2))
    found = table.choose(
        PricedJob(units=4.0, bounds=bounds, spare_watts=spare), prices, [1, 1], cast(ClusterView, _View())
    )
    fits = list(_SECONDS)
    share = 1.0 - _MARGIN
    in_limit = [
        option
        for option in fits
        if (longest[option[0]] == inf or bool(4.0 * _SECONDS[option] <= longest[option[0]] * share))
    ]
    fits = in_limit or fits
    within = fits
    if bounds is not None:
        slow = [one for one in fits if _SECONDS[one] / _SECONDS[one[0], 1] <= slowdown]
        within = [one for one in slow if bool(_SECONDS[one] <= deadline)] or [
            one for one in slow if bool(_SECONDS[one] <= limit)
        ]
        if not within:
            fastest = min(_SECONDS[one] for one in fits)
            within = [one for one in fits if _SECONDS[one] == fastest]
    if spare != inf:
        within = [one for one in within if bool(_ACTIVE[one] / _SECONDS[one] <= spare)]
    path.promise((found is None) == (not within), "a start exactly where an option is allowed")
    if found is not None:
        path.promise((found.place, found.clock) in within, "inside every mask")


def makes_bounds_of_what_the_job_says(path: Path) -> None:
    """Bounds are what user and limits leave for each unit of work, less the margin."""
    limit, deadline = (inf if path.boolean("none") else path.real(name, 0.0) for name in ("limit", "deadline"))
    slowdown = path.choice("slowdown", (inf, 0.05))
    units = path.real("units", 0.0)
    now = path.real("now", 0.0)
    job = cast(
        WaitingJob,
        SimpleNamespace(
            max_slowdown=slowdown, time_limit_seconds=limit, deadline_seconds=deadline, estimated_units=units
        ),
    )
    found = bounds_of(job, now)
    if slowdown == inf and limit == inf and deadline == inf:
        path.promise(found is None, "nothing binds")
        return
    path.promise(found is not None, "something binds")
    if found is None:
        return
    path.promise(slowdown == inf or abs(found.slowdown - 1.05) < 1e-8, "the slowdown is the user's")
    if units == 0.0:
        path.promise(found.limit_seconds_per_unit == inf, "no work takes no time")
        return
    run = found.limit_seconds_per_unit
    path.promise(run == inf if limit == inf else run * units == limit * (1.0 - _MARGIN), "the limit less the margin")
    late = found.deadline_seconds_per_unit
    left: Any = inf if deadline == inf else (deadline - now if deadline > now else 0.0)
    tight = limit if limit < left else left
    path.promise(late == inf if tight == inf else late * units == tight * (1.0 - _MARGIN), "the earlier of the two")


def keeps_the_price_of_power_in_its_range(path: Path) -> None:
    """The price of power rises while the budget is used up and never leaves 0 to 3."""
    price = PowerPrice()
    price.price = before = path.real("price", 0.0, 3.0)
    budget = path.choice("budget", (inf, 0.0, 0.5, 1000.0))
    power, coming = path.real("power", 0.0), path.real("coming", 0.0)
    waits, free = path.boolean("waits"), path.boolean("free")
    view = SimpleNamespace(
        power_budget_watts=budget, power_watts=power, coming_watts=coming, num_waiting=int(waits), free_gpus=[int(free)]
    )
    price.move(cast(ClusterView, view))
    if budget in (inf, 0.0):
        path.promise(price.price == 0.0, "without a budget power has no price")
        return
    path.promise(price.price >= 0.0, "never below 0")
    path.promise(price.price <= 3.0, "never above its ceiling")
    usage = power + coming
    full = bool(usage / budget > 0.95) or (waits and free)
    path.promise(price.price >= before if full else price.price <= before, "rises while the budget binds, falls else")
    used = usage / budget
    counted = 1.0 if waits and free and used < 1.0 else used
    moved = before + 0.2 * (counted - 0.95)
    inside = bool(moved >= 0.0) and bool(moved <= 3.0)
    path.promise(not inside or abs(price.price - moved) <= 1e-9, "by a fifth of what is used above the share")


def gives_a_declared_count(path: Path) -> None:
    """No count outside the user's numbers, none that misses a deadline, no node too small; else the job's own."""
    declared = path.choice("declared", ((), (2,), (1, 2, 4)))
    deadline = path.maybe("deadline", lambda: path.real("deadline", 1.0, 9.9e10))
    offered = path.choice("offered", ((), (2,), (1, 2, 4)))
    options = tuple(GpuCountOption(gpus=gpus) for gpus in offered)
    refusal = path.choice("refusal", ("", "account"))
    job = job_of(
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
    job = job_of(gpus=(GpuDemand(count=1, slurm_type=wanted),), partitions=where)
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


COST_PROMISES: Mapping[str, Callable[[Path], None]] = {
    "formula of the cost": costs_what_the_formula_says,
    "cheapest of the allowed": chooses_the_cheapest_of_the_allowed,
    "masks and power": keeps_masks_and_power,
    "bounds of a job": makes_bounds_of_what_the_job_says,
    "price of power": keeps_the_price_of_power_in_its_range,
    "declared count": gives_a_declared_count,
    "nodes for a count": offers_only_what_the_nodes_hold,
}
