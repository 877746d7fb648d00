"""In which order a site should list its partitions: every order, as Slurm alone fares with it at default clocks.

The order says where Slurm starts a job that may start in several partitions. It is a setting of the site, needs no
program, and is what every policy should be held against.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial, inf

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.plan import ArenaPlan, world_of_plan
from slurm_energy.evaluation.arena.run import simulated_run
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.evaluation.metrics import metrics_of

MAX_PARTITIONS = 5
MAX_LONGER = 1.05
"""Turnaround of an order that is recommended, over the shortest of all."""
_FELT = 0.005
_HOW_TO_SET = (
    "To set it: PriorityTier, descending in this order, for partitions that jobs list together; the first as "
    "Default=YES; in a partition of several GPU types Weight of the nodes, ascending in this order."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFigures:
    """What one order costs, as a mean over seeds."""

    order: tuple[str, ...]
    joules_per_unit: float
    turnaround_seconds: float


def tried_orders(plan: ArenaPlan) -> tuple[OrderFigures, ...]:
    """Return the figures of every order of a world's partitions; the first is the world's own.

    Raises:
        EvaluationError: it has too many partitions.
        SlurmEnergyError: world or jobs cannot be made.
    """
    names = tuple(partition.name for partition in world_of_plan(plan).partitions)
    if len(names) > MAX_PARTITIONS:
        raise EvaluationError(
            f"{len(names)} partitions have {factorial(len(names)):,} orders: at most {MAX_PARTITIONS} can be tried; "
            "give a --world with the partitions among which jobs choose"
        )
    return tuple(_figures(plan, order) for order in permutations(names))


def best_order(tried: Sequence[OrderFigures]) -> OrderFigures:
    """Return the order of least energy among those whose turnaround is near the shortest; of equals the first."""
    shortest = min(one.turnaround_seconds for one in tried)
    return min(
        (one for one in tried if one.turnaround_seconds <= MAX_LONGER * shortest),
        key=lambda one: round(one.joules_per_unit, 6),
    )


def order_sentences(tried: Sequence[OrderFigures]) -> Iterator[str]:
    """Yield which order is the best, what it is worth against the world's own, and how to set it."""
    own, best = tried[0], best_order(tried)
    dearest = max(tried, key=lambda one: one.joules_per_unit)
    if dearest.joules_per_unit <= own.joules_per_unit * (1.0 + _FELT) and best is own:
        yield f"The order of partitions ({', '.join(own.order)}) is worth nothing here: jobs name one each."
        return
    yield f"Best order of the partitions, of {len(tried)}, under Slurm alone: {', '.join(best.order)}."
    yield f"Against the order {', '.join(own.order)}: {_against(best, own)}."
    yield f"The dearest, {', '.join(dearest.order)}: {_against(dearest, own)}."
    yield _HOW_TO_SET


def _against(one: OrderFigures, own: OrderFigures) -> str:
    energy = one.joules_per_unit / own.joules_per_unit - 1.0
    turnaround = one.turnaround_seconds / own.turnaround_seconds - 1.0
    return f"{energy:+.1%} energy, {turnaround:+.1%} turnaround"


def _figures(plan: ArenaPlan, order: tuple[str, ...]) -> OrderFigures:
    joules, seconds = [], []
    ordered = replace(plan, partition_order=order, policies=(), reference="")
    for seed in plan.seeds:
        world, _, jobs, outcome = simulated_run(ordered, create_contender("slurm-default"), seed)
        found = metrics_of(outcome, world, jobs)
        joules.append(inf if found.joules_per_unit is None else found.joules_per_unit)
        seconds.append(inf if found.turnaround is None else found.turnaround.mean_seconds)
    return OrderFigures(
        order=order,
        joules_per_unit=sum(joules) / len(joules),
        turnaround_seconds=sum(seconds) / len(seconds),
    )
