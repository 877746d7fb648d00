"""The ways of starting a waiting job now, as a learned policy sees them: one for each place and device count with room.

Time and energy come from the table that every rule sees. Energy is what the devices draw beyond being free, which is
what a choice can change.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from slurm_energy.graph.options import ClockOption, RunOption
from slurm_energy.policy.placement import ClusterView, FloatArray, OptionTable, WaitingJob
from slurm_energy.policy.rules.bounds import Bounds, bounds_of
from slurm_energy.policy.rules.tables import active_joules, last_clocks, slowdowns


class PlacedOption(NamedTuple):
    """An option with the placement that it stands for."""

    option: RunOption
    place: int
    gpus: int
    clocks: tuple[int, ...]
    """Index of each of the option's clocks."""
    oracle_clock: int
    """The open clock of least energy."""


class TableCosts(NamedTuple):
    """What is worked out of an option table once."""

    active: FloatArray
    """Joules per unit beyond being free, [places, counts, clocks]."""
    slowdown: FloatArray
    last: np.ndarray[tuple[int, ...], np.dtype[np.intp]]
    """Default clock, [places, counts]."""

    @classmethod
    def of(cls, table: OptionTable) -> "TableCosts":
        """Return the costs of a table."""
        return cls(active_joules(table), slowdowns(table), last_clocks(table))


def placed_options(
    job: WaitingJob, view: ClusterView, costs: TableCosts, partition_of_place: Sequence[int], *, with_clocks: bool
) -> list[PlacedOption]:
    """Return every way of starting the job now, options of one partition together.

    Args:
        job: The job.
        view: The cluster.
        costs: Of the job's table.
        partition_of_place: Number of each place's partition in the graph.
        with_clocks: Whether each option lists its clocks.
    """
    table, room = view.options(job), view.room(job)
    bounds = bounds_of(job, view.now_seconds)
    counts = table.gpu_counts
    found = []
    for place in sorted(range(len(room)), key=lambda index: (partition_of_place[index], index)):
        for column, gpus in enumerate(counts):
            if 0 < gpus <= room[place] and table.seconds_per_unit[place, column, 0] < inf:
                found.append(_placed(job, view, costs, (place, column), partition_of_place[place], bounds, with_clocks))
    return found


def _placed(  # noqa: PLR0913, PLR0917  # all of one place and count
    job: WaitingJob,
    view: ClusterView,
    costs: TableCosts,
    where: tuple[int, int],
    partition: int,
    bounds: Bounds | None,
    with_clocks: bool,
) -> PlacedOption:
    place, column = where
    table, info, units = view.options(job), view.places[place], job.estimated_units
    gpus = table.gpu_counts[column]
    last = int(costs.last[place, column])
    seconds = table.seconds_per_unit[place, column, : last + 1]
    active = costs.active[place, column, : last + 1]
    allowed = _allowed(seconds, costs.slowdown[place, column, : last + 1], bounds)
    best = int(np.where(allowed, active, inf).argmin())
    alone = float(table.seconds_per_unit[place, 0, last]) * table.gpu_counts[0]
    option = RunOption(
        partition=partition,
        gpus=gpus,
        count_position=column / (len(table.gpu_counts) - 1) if len(table.gpu_counts) > 1 else 0.0,
        has_room=True,
        is_where_submitted=True,
        seconds=units * float(seconds[best]),
        joules=units * float(active[best]),
        seconds_full=units * float(seconds[last]),
        joules_full=units * float(active[last]),
        wait_seconds=0.0,
        gpus_free_after=(view.free_gpus[place] - gpus) / info.total_gpus if info.total_gpus else 0.0,
        wake_joules=view.wakeup_joules(place, gpus),
        communication=max(0.0, 1.0 - alone / (gpus * float(seconds[last]))),
        is_cpu=info.is_cpu,
        open=True,
        clocks=_clocks(info.relative_clocks, seconds, active, table.watts[place, column, : last + 1], allowed, best)
        if with_clocks
        else (),
    )
    return PlacedOption(option, place, gpus, tuple(range(last + 1)) if with_clocks else (), best)


def _allowed(
    seconds: FloatArray, slowdown: FloatArray, bounds: Bounds | None
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the clocks inside the job's bounds; the default clock where none is."""
    allowed = np.ones(len(seconds), dtype=np.bool_)
    if bounds is not None:
        allowed = (slowdown <= bounds.slowdown) & (seconds <= bounds.deadline_seconds_per_unit)
        if not allowed.any():
            allowed = (slowdown <= bounds.slowdown) & (seconds <= bounds.limit_seconds_per_unit)
        if not allowed.any():
            allowed[-1] = True
    return allowed


def _clocks(
    relative: Sequence[float],
    seconds: FloatArray,
    active: FloatArray,
    watts: FloatArray,
    allowed: np.ndarray[tuple[int], np.dtype[np.bool_]],
    best: int,
) -> tuple[ClockOption, ...]:
    last = len(seconds) - 1
    return tuple(
        ClockOption(
            relative_clock=relative[clock] / relative[last],
            slowdown=float(seconds[clock] / seconds[last]) - 1.0,
            energy_change=float(active[clock] / active[last]) - 1.0 if active[last] > 0.0 else 0.0,
            is_default=clock == last,
            is_oracle=clock == best,
            bound_left=0.0,
            power_change=float(watts[clock] / watts[last]) - 1.0,
            open=bool(allowed[clock]),
        )
        for clock in range(last + 1)
    )
