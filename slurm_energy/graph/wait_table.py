"""Pending jobs and the partitions that each of them waits for, and the queue of them as a block of the graph."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import log, nan

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.cluster import JobDependency
from slurm_energy.domain.ids import GpuTypeName, JobId
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.relative_speed import RelativeCost, relative_cost
from slurm_energy.graph.blocks import Flags, Floats, Indices, QueueBlock
from slurm_energy.graph.columns import Scaler, raw
from slurm_energy.graph.job_table import JobEntry, JobVertices
from slurm_energy.graph.partitions import Frame, PlaceSums, Types
from slurm_energy.graph.place_features import catalogue_type
from slurm_energy.graph.schema import DEPENDS, OPTION

OPTION_SCALER = Scaler(OPTION)
Cost = tuple[float, float]
"""ln of run time over the fastest option's, ln of energy over the cheapest option's."""
_CostsOf = Callable[[tuple[int, ...], tuple[str, ...]], tuple[Cost, ...]]
_UNKNOWN: Cost = (nan, nan)
_STEPS_PER_DOUBLING = 4.0
_WAIT_UNIT_SECONDS = 60.0


class WaitTable:
    """The (job, partition) pairs of the queue, ascending by vertex and partition."""

    def __init__(self, gpu_types: Mapping[str, str], board_limits: BoardLimits) -> None:
        self._gpu_types = gpu_types
        self._limits = board_limits
        self._key: Indices = np.zeros(0, dtype=np.int64)
        self.task: Indices = np.zeros(0, dtype=np.int64)
        """Vertex of each pair, [waits]."""
        self.partition: Indices = np.zeros(0, dtype=np.int64)
        self.x: Floats = np.zeros((0, len(OPTION)), dtype=np.float32)
        """[waits, OPTION]."""
        self._pairs: _Pairs | None = None
        self._types: Sequence[Types] | None = None

    def forget(self) -> None:
        """Recompute the pairs at the next refresh: jobs have changed."""
        self._pairs = None

    def pair_up(self, jobs: JobVertices, frame: Frame, types: Sequence[Types]) -> None:
        """Work out the pairs where jobs or types are new: the first half of `refresh`, for who takes it in two steps.

        Args:
            jobs: The queue.
            frame: The partitions.
            types: GPU types of each partition by catalogue name, None among them for unknown ones.
        """
        if self._pairs is None or types is not self._types:
            self._types = types
            self._pairs = _Pairs(jobs, frame, self._costs(types))

    def refresh(self, jobs: JobVertices, frame: Frame, sums: PlaceSums, types: Sequence[Types]) -> set[int]:
        """Bring the pairs up to date; return the vertices of which a pair came, went or differs.

        Args:
            jobs: The queue.
            frame: The partitions.
            sums: What their nodes add up to.
            types: GPU types of each partition by catalogue name, None among them for unknown ones.
        """
        self.pair_up(jobs, frame, types)
        pairs = self._pairs
        assert pairs is not None
        rows = OPTION_SCALER.scaled(pairs.rows(frame, sums))
        key = pairs.task * len(frame.partitions) + pairs.partition
        order = np.argsort(key)
        key, rows = key[order], rows[order]
        different = self._compare(key, rows, pairs.task[order])
        self._key, self.x = key, rows
        self.task, self.partition = pairs.task[order], pairs.partition[order]
        return different

    def _costs(self, types: Sequence[Types]) -> _CostsOf:
        """Return a function from partitions and wanted GRES types to relative costs, which remembers its answers."""

        @cache
        def costs_of(places: tuple[int, ...], wanted: tuple[str, ...]) -> tuple[Cost, ...]:
            names = {catalogue_type(slurm_type, self._gpu_types) for slurm_type in wanted}
            served = (tuple(name for name in types[place] if not names or name in names) for place in places)
            return relative_costs(tuple(served), self._limits)

        return costs_of

    def _compare(self, key: Indices, rows: Floats, task: Indices) -> set[int]:
        if np.array_equal(key, self._key):
            changed = task[(rows != self.x).any(axis=1)]
            return set(map(int, changed))
        came, went = ~np.isin(key, self._key), ~np.isin(self._key, key)
        stayed = np.zeros(len(key), dtype=bool)
        stayed[~came] = (rows[~came] != self.x[~went]).any(axis=1)
        return set(map(int, np.concatenate([task[came | stayed], self.task[went]])))


class _Pairs:
    """What of the pairs does not depend on the nodes, in the order of the queue."""

    def __init__(self, jobs: JobVertices, frame: Frame, costs_of: _CostsOf) -> None:
        entries = [jobs.entries[job_id] for job_id in jobs.queue]
        wishes = [(entry.job.partitions, entry.job.gpu_types) for entry in entries]
        answers = {}
        for partitions, gpu_types in dict.fromkeys(wishes):
            places = frame.places(partitions)
            answers[partitions, gpu_types] = [
                (place, *cost) for place, cost in zip(places, costs_of(places, gpu_types), strict=True)
            ]
        waits = [answers[wish] for wish in wishes]
        counts = np.array([len(wait) for wait in waits], dtype=np.int64)
        self.task: Indices = np.repeat(np.array([entry.slot for entry in entries], dtype=np.int64), counts)
        places_and_costs = np.array([row for wait in waits for row in wait], dtype=np.float64).reshape(-1, 3)
        self.partition: Indices = places_and_costs[:, 0].astype(np.int64)
        seconds, joules = places_and_costs[:, 1], places_and_costs[:, 2]
        figures = np.array([_figures(entry) for entry in entries], dtype=np.float64).reshape(-1, 4)
        gpus, nodes, tasks, estimate = np.repeat(figures, counts, axis=0).T
        self._gpus, self._nodes, self._tasks, self._estimate = gpus, nodes, tasks, estimate
        self._relative_seconds, self._relative_joules = seconds, joules

    def rows(self, frame: Frame, sums: PlaceSums) -> NDArray[np.float64]:
        """Return the unscaled OPTION columns, [waits, OPTION].

        A waiting job's clock is not known: both pairs of relative columns hold the figures at the highest clock.
        """
        where = self.partition
        is_cpu: Flags = (sums.gpus[where] == 0) & (sums.nodes[where] > 0)
        devices = np.where(is_cpu & (self._gpus == 0.0), self._nodes, self._gpus)
        ahead_devices = _before(where, devices * self._tasks)
        ahead_seconds = _before(where, devices * self._tasks * np.nan_to_num(self._estimate))
        up = np.array([partition.up for partition in frame.partitions.values()], dtype=bool)
        has_room = up[where] & (sums.free[where] > 0) & (ahead_devices + devices <= sums.free[where])
        known = np.isfinite(self._relative_seconds) & np.isfinite(self._estimate)
        capacity = sums.devices[where].astype(np.float64)
        wait = np.where(capacity > 0.0, ahead_seconds / np.maximum(capacity, 1.0), nan)
        rows = np.zeros((len(where), len(OPTION)))
        rows[:, 0] = has_room
        rows[:, 1] = 1.0
        rows[:, 2] = devices
        rows[:, 4] = known
        rows[:, [5, 7]] = self._relative_seconds[:, None]
        rows[:, [6, 8]] = self._relative_joules[:, None]
        rows[:, 9] = self._estimate * np.exp(np.nan_to_num(self._relative_seconds))
        rows[:, 11] = rounded_wait(wait)
        rows[:, 15] = is_cpu
        return rows


def rounded_wait(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return waits in four steps per doubling: so that one job more does not change every job behind it."""
    steps = np.round(_STEPS_PER_DOUBLING * np.log2(1.0 + seconds / _WAIT_UNIT_SECONDS))
    rounded: NDArray[np.float64] = _WAIT_UNIT_SECONDS * (2.0 ** (steps / _STEPS_PER_DOUBLING) - 1.0)
    return rounded


def relative_costs(options: Sequence[Types], limits: BoardLimits) -> tuple[Cost, ...]:
    """Return what the same work costs in each of several places; NaN where that cannot be compared.

    Args:
        options: GPU types of each place: a job may land on any of them, the costliest counts.
        limits: The site's boards.
    """
    names = list(dict.fromkeys(name for types in options for name in types if name is not None))
    fastest = _fastest(names, limits)
    if fastest is None:
        return (_UNKNOWN,) * len(options)
    found = [
        _worst([None if name is None else relative_cost(name, fastest, limits) for name in types]) for types in options
    ]
    known = [cost for cost in found if cost is not None]
    if not known:
        return (_UNKNOWN,) * len(options)
    fastest_seconds, cheapest_joules = min(cost[0] for cost in known), min(cost[1] for cost in known)
    return tuple(
        _UNKNOWN if cost is None else (log(cost[0] / fastest_seconds), log(cost[1] / cheapest_joules)) for cost in found
    )


def _fastest(names: Sequence[GpuTypeName], limits: BoardLimits) -> GpuTypeName | None:
    best = names[0] if names else None
    for name in names[1:]:
        assert best is not None
        cost = relative_cost(name, best, limits)
        if cost is not None and cost.time_ratio < 1.0:
            best = name
    return best


def _worst(costs: Sequence[RelativeCost | None]) -> Cost | None:
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    return max(cost.time_ratio for cost in known), max(cost.energy_ratio for cost in known)


def _figures(entry: JobEntry) -> tuple[float, float, float, float]:
    """Return GPUs, nodes, tasks of the array and expected run time."""
    figures = entry.figures
    return float(figures.gpus), float(max(1, entry.job.node_count)), float(figures.tasks), figures.estimate_seconds


def _before(group: Indices, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each entry, the sum of the earlier ones of the same group."""
    order = np.argsort(group, kind="stable")
    sorted_values = values[order]
    running = np.cumsum(sorted_values) - sorted_values
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    base = np.repeat(running[starts], np.diff(starts, append=len(group)))
    before = np.empty_like(running)
    before[order] = running - base
    return before


DEPENDS_SCALER = Scaler(DEPENDS)


def queue_block(jobs: JobVertices, waits: WaitTable, slots: Indices) -> QueueBlock:
    """Return jobs in the order of the slots, with the dependencies between them and the partitions they wait for."""
    local = np.full(jobs.store.capacity, -1, dtype=np.int64)
    local[slots] = np.arange(len(slots))
    edges: list[tuple[int, int]] = []
    rows: list[tuple[float, float, float]] = []
    for place, job in enumerate(jobs.store["job"][slots].tolist()):
        for dependency in jobs.dependencies.needs(JobId(job)):
            needed = jobs.entries[dependency.job_id].slot
            if needed >= 0 and local[needed] >= 0:
                edges.append((int(local[needed]), place))
                rows.append(_depends_row(dependency))
    chosen = np.flatnonzero(local[waits.task] >= 0)
    order = chosen[np.argsort(local[waits.task[chosen]], kind="stable")]
    return QueueBlock(
        task_x=jobs.store["x"][slots],
        depends_index=np.array(edges, dtype=np.int64).reshape(-1, 2).T,
        depends_x=DEPENDS_SCALER.scaled(rows),
        wait_task=local[waits.task[order]],
        wait_partition=waits.partition[order],
        wait_x=waits.x[order],
    )


def _depends_row(dependency: JobDependency) -> tuple[float, float, float]:
    data = raw(dependency.data_gib)
    return data, float(np.isfinite(data)), float(dependency.needs_success)
