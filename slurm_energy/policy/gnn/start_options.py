"""A job that could start now, as a network reads it: its columns, and its options by place and device count with room.

It is read alike in a simulated cluster and at a submission to Slurm. Time and energy come from the table that every
rule sees. Energy is what the devices draw beyond being free, which is what a choice can change.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from slurm_energy.domain.ids import PartitionName
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.job_features import JobWishes, QueueFacts, submitted_vector
from slurm_energy.graph.options import ClockOption, RunOption
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, FloatArray, OptionTable
from slurm_energy.policy.prices import BALANCED_WEIGHTS, JobWeights
from slurm_energy.policy.rules.tables import TIME_MARGIN, Prepared, active_joules, last_clocks

_WITHIN = 1.0 + 1e-9
UNKNOWN = -1
"""Number of a partition that the graph does not know: none of its options is read."""


class PlacedOption(NamedTuple):
    """An option with the placement that it stands for."""

    option: RunOption
    place: int
    gpus: int
    clocks: tuple[int, ...]
    """Index of each of the option's clocks."""
    oracle_clock: int
    """The open clock of least energy."""


class RunOptionCosts(NamedTuple):
    """What is worked out of an option table once."""

    active: FloatArray
    """Joules per unit beyond being free, [places, counts, clocks]."""
    last: np.ndarray[tuple[int, ...], np.dtype[np.intp]]
    """Default clock, [places, counts]."""

    @classmethod
    def of(cls, table: OptionTable) -> "RunOptionCosts":
        """Return the costs of a table."""
        return cls(active_joules(table), last_clocks(table))


class StartReader:
    """Reads jobs that could start from views of one run."""

    def __init__(self) -> None:
        self._costs = Prepared(RunOptionCosts.of)

    def options(
        self, job: WaitingJob, view: ClusterView, numbers: Mapping[PartitionName, int], *, with_clocks: bool
    ) -> list[PlacedOption]:
        """Return every way of starting the job now in the partitions that have a number in the graph."""
        partitions = [numbers.get(PartitionName(place.partition), UNKNOWN) for place in view.places]
        return placed_options(job, view, self._costs.of(view.options(job)), partitions, with_clocks=with_clocks)


def job_columns(
    job: WaitingJob, view: ClusterView, facts: QueueFacts, weights: JobWeights = BALANCED_WEIGHTS
) -> Floats:
    """Return the job as the vertex that a decision is asked for, [TASK].

    Args:
        job: The job.
        view: The cluster.
        facts: What is known of the queue.
        weights: Its w_time and w_energy.
    """
    shown = view.submission(job)
    time_weight, energy_weight = weights
    wishes = JobWishes(max_slowdown=job.max_slowdown, time_weight=time_weight, energy_weight=energy_weight)
    return submitted_vector(
        shown.request, shown.now_seconds, facts, runtime=shown.runtime, wishes=wishes, kind=job.kind
    )


def placed_options(
    job: WaitingJob, view: ClusterView, costs: RunOptionCosts, partition_of_place: Sequence[int], *, with_clocks: bool
) -> list[PlacedOption]:
    """Return every way of starting the job now, options of one partition together.

    Args:
        job: The job.
        view: The cluster.
        costs: Of the job's table.
        partition_of_place: Number of each place's partition in the graph, or `UNKNOWN`.
        with_clocks: Whether each option lists its clocks.
    """
    table, room = view.options(job), view.room(job)
    counts = table.gpu_counts
    found = []
    for place in sorted(range(len(room)), key=lambda index: (partition_of_place[index], index)):
        if partition_of_place[place] == UNKNOWN:
            continue
        for column, gpus in enumerate(counts):
            if gpus <= room[place] and table.seconds_per_unit[place, column, costs.last[place, column]] < inf:
                found.append(_placed(job, view, costs, (place, column), partition_of_place[place], with_clocks))
    return found


def _placed(
    job: WaitingJob, view: ClusterView, costs: RunOptionCosts, where: tuple[int, int], partition: int, with_clocks: bool
) -> PlacedOption:
    place, column = where
    table, info, units = view.options(job), view.places[place], job.estimated_units
    gpus = table.gpu_counts[column]
    last = int(costs.last[place, column])
    seconds = table.seconds_per_unit[place, column, : last + 1]
    active = costs.active[place, column, : last + 1]
    first = int(np.isfinite(seconds).argmax())  # at a submission, clocks beyond the job's bound are no options
    watts = table.watts[place, column]
    limit = min(job.time_limit_seconds, info.max_seconds)
    allowed = _allowed(seconds, job, limit, view.now_seconds)
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
        clocks=tuple(
            ClockOption(
                relative_clock=info.relative_clocks[clock] / info.relative_clocks[last],
                slowdown=float(seconds[clock] / seconds[last]) - 1.0,
                energy_change=float(active[clock] / active[last]) - 1.0 if active[last] > 0.0 else 0.0,
                is_default=clock == last,
                is_oracle=clock == best,
                bound_left=0.0,
                power_change=float(watts[clock] / watts[last]) - 1.0,
                open=bool(allowed[clock]),
            )
            for clock in range(first, last + 1)
        )
        if with_clocks
        else (),
    )
    return PlacedOption(option, place, gpus, tuple(range(first, last + 1)) if with_clocks else (), best)


def _allowed(
    seconds: FloatArray, job: WaitingJob, limit_seconds: float, now_seconds: float
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which clocks keep the job's bounds as `guarded_placement` reads them, with a margin under limits.

    The default clock is always among them: it stays where a limit leaves no other, and a deadline that it cannot meet
    binds no more.

    Args:
        seconds: Per unit at each clock, the default one last.
        job: The job.
        limit_seconds: The lower of the job's and the partition's time limit.
        now_seconds: Time of the start.
    """
    default, units = float(seconds[-1]), job.estimated_units
    longest = default * (1.0 + job.max_slowdown)
    if units > 0.0:
        left = job.deadline_seconds - now_seconds
        for bound, binds in ((limit_seconds, limit_seconds < inf), (left, left < inf and units * default <= left)):
            if binds:
                longest = min(longest, max(default, bound * (1.0 - TIME_MARGIN) / units))
    return np.asarray(seconds <= longest * _WITHIN)
