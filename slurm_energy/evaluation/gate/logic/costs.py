"""What the cost table promises: the cheapest option inside every mask, at prices that no option can gain from."""

from collections.abc import Callable, Mapping
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from slurm_energy.evaluation.gate.logic.symbols import Path
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, OptionTable
from slurm_energy.policy.rules.cost_table import CostTable, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.tables import Bounds, bounds_of
from slurm_energy.policy.rules.total_cost import PowerPrice

_PRICES = ("time_watts", "slowdown_joules", "share", "opened_nodes", "waking", "power", "makespan_watts")
_MARGIN = 0.05


class _View:
    """A cluster that wakes and opens as told."""

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


def chooses_the_cheapest_of_the_allowed(path: Path) -> None:
    """The option that is chosen costs no more, by the formula, than any other inside room and power."""
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
    opened, waking = path.choice("nodes", ((0, 0.0), (1, 0.0), (1, 700.0), (2, 700.0)))
    units = path.choice("units", (1.0, 100.0))
    view = cast(ClusterView, _View(opened, waking))
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
    slowdown = path.choice("slowdown", (inf, 1.5))
    limit, deadline = path.real("limit", 0.0), path.real("deadline", 0.0)
    path.assume(deadline <= limit)
    bounds = Bounds(slowdown, limit, deadline) if path.boolean("bounds") else None
    spare = inf if path.boolean("no budget") else path.real("spare watts")
    prices = Prices(*(0.0,) * 6, device_watts=np.zeros(2))
    found = table.choose(
        PricedJob(units=1.0, bounds=bounds, spare_watts=spare), prices, [1, 1], cast(ClusterView, _View())
    )
    fits = list(_SECONDS)
    share = 1.0 - _MARGIN
    in_limit = [
        option for option in fits if (longest[option[0]] == inf or bool(_SECONDS[option] <= longest[option[0]] * share))
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
    budget = path.choice("budget", (inf, 0.0, 1000.0))
    power, coming = path.real("power", 0.0), path.real("coming", 0.0)
    waits, free = path.boolean("waits"), path.boolean("free")
    view = SimpleNamespace(
        power_budget_watts=budget, power_watts=power, coming_watts=coming, num_waiting=int(waits), free_gpus=[int(free)]
    )
    price.move(cast(ClusterView, view))
    if budget != 1000.0:
        path.promise(price.price == 0.0, "without a budget power has no price")
        return
    path.promise(price.price >= 0.0, "never below 0")
    path.promise(price.price <= 3.0, "never above its ceiling")
    usage = power + coming
    full = bool(usage / 1000.0 > 0.95) or (waits and free)
    path.promise(price.price >= before if full else price.price <= before, "rises while the budget binds, falls else")
    if not (waits and free):
        step = 0.2 * (usage / 1000.0 - 0.95)
        moved = before + step
        inside = bool(moved >= 0.0) and bool(moved <= 3.0)
        path.promise(not inside or abs(price.price - moved) <= 1e-9, "by a fifth of what is used above the share")


COST_PROMISES: Mapping[str, Callable[[Path], None]] = {
    "cheapest of the allowed": chooses_the_cheapest_of_the_allowed,
    "masks and power": keeps_masks_and_power,
    "bounds of a job": makes_bounds_of_what_the_job_says,
    "price of power": keeps_the_price_of_power_in_its_range,
}
