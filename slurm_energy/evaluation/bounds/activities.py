"""Every way in which one busy device can be used: the columns of the linear programmes.

An activity is scaled to one device that is busy all the time: it yields units per device-second of one group of work
(two, when two jobs share the device) and draws watts. Whatever the cluster does at an instant is a sum of activities,
at most as many as a pool has devices; how jobs pack onto nodes, wait and are launched is left out, which only helps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.evaluation.bounds.floor import PoolFloor
from slurm_energy.twin.engine.places import Place, option_table, places_of
from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import DeviceModel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class WorkGroup(NamedTuple):
    """Work of one kind whose jobs have the same choices."""

    kind: str
    gpu_counts: tuple[int, ...]
    """Ascending."""
    places: tuple[int, ...]
    """Indices of the world's places in which it may run."""
    shareable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activities:
    """Columns of equal length [num_activities]."""

    pool: IntArray
    group: IntArray
    partner: IntArray
    """Group of the job that shares the device, -1 for none."""
    gpus: IntArray
    """Device count of each job."""
    clock: IntArray
    partner_clock: IntArray
    """Clock of the partner, -1 for none."""
    rate: FloatArray
    """Units of the group per device-second."""
    partner_rate: FloatArray
    """Units of the partner's group per device-second, 0 for none."""
    watts: FloatArray
    """Of the device, network included."""
    extra_watts: FloatArray
    """What it adds to the floor of its pool, from 0 up."""

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def jobs(self) -> FloatArray:
        """Jobs that run per busy device: 1 / n, or 2 where two share it."""
        shared: FloatArray = np.where(self.partner >= 0, 2.0, 1.0) / self.gpus
        return shared

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Activities":
        """Return some of the rows."""
        return Activities(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def activities_of(
    world: World, groups: Sequence[WorkGroup], floors: Sequence[PoolFloor], *, prune: bool = True
) -> Activities:
    """Return the activities of some groups of work on a world's pools.

    Args:
        world: The cluster; its links count as free of congestion.
        groups: Groups of work.
        floors: Floors of the pools for the kinds of these groups.
        prune: Leave out what no programme over energy and devices alone would use; not for limits on time.
    """
    places = places_of(world)
    tables = _Tables(world, places)
    parts: list[Activities] = []
    for pool_index, floor in enumerate(floors):
        singles: list[Activities | None] = []
        for index, group in enumerate(groups):
            rows = [place for place in group.places if places[place].pool_index == pool_index]
            singles.append(_single(tables, group, index, rows, floor, pool_index) if rows else None)
        parts += [_hull(single) if prune else single for single in singles if single is not None]
        pool = world.pools[pool_index]
        if pool.jobs_per_gpu > 1:
            parts += _pairs(world.devices[pool.device], groups, singles, floor, pool_index)
    return _joined(parts)


class _Tables:
    """Option tables, each made once."""

    def __init__(self, world: World, places: Sequence[Place]) -> None:
        self._world, self._places = world, places
        self._found: dict[tuple[str, tuple[int, ...]], tuple[FloatArray, FloatArray]] = {}

    def costs(self, kind: str, gpu_counts: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
        """Return seconds per unit and watts of the allocation, each [places, counts, clocks]."""
        key = (kind, gpu_counts)
        if key not in self._found:
            table = option_table(self._world, kind, gpu_counts, congestion=1.0, places=self._places)
            self._found[key] = (table.seconds_per_unit, table.watts)
        return self._found[key]


def _single(
    tables: _Tables, group: WorkGroup, index: int, rows: list[int], floor: PoolFloor, pool_index: int
) -> Activities | None:
    """Return the options of one group in one pool with devices of its own; None when there are none."""
    seconds, watts = tables.costs(group.kind, group.gpu_counts)
    # The places of one pool differ in their limits only: where one of them allows an option, its costs hold.
    seconds, watts = seconds[rows].min(axis=0), watts[rows].min(axis=0)
    counts, clocks = np.nonzero(np.isfinite(seconds))
    if not len(counts):
        return None
    gpus = np.array(group.gpu_counts, dtype=np.int64)[counts]
    per_device = watts[counts, clocks] / gpus
    rows_of = len(gpus)
    return Activities(
        pool=_same(pool_index, rows_of),
        group=_same(index, rows_of),
        partner=_same(-1, rows_of),
        gpus=gpus,
        clock=clocks.astype(np.int64),
        partner_clock=_same(-1, rows_of),
        rate=1.0 / (gpus * seconds[counts, clocks]),
        partner_rate=np.zeros(rows_of),
        watts=per_device,
        extra_watts=per_device + floor.busy_extra_watts,
    )


def _hull(options: Activities) -> Activities:
    """Keep the options on the lower left hull of device-seconds and extra joules per unit; the rest are never chosen.

    A point above the hull is beaten by a mixture of two that are on it: no more devices and no more energy for the same
    work.
    """
    device_seconds = 1.0 / options.rate
    joules = options.extra_watts * device_seconds
    kept: list[int] = []
    for row in np.lexsort((joules, device_seconds)).tolist():
        if kept and joules[row] >= joules[kept[-1]]:
            continue
        while len(kept) >= 2 and _above(device_seconds, joules, kept[-2], kept[-1], row):
            kept.pop()
        kept.append(row)
    return options.take(np.array(kept, dtype=np.int64))


def _above(x: FloatArray, y: FloatArray, left: int, middle: int, right: int) -> bool:
    """Return whether the middle point is on or above the line from left to right."""
    across = (x[right] - x[left]) * (y[middle] - y[left]) - (x[middle] - x[left]) * (y[right] - y[left])
    return bool(across >= 0.0)


def _pairs(
    device: DeviceModel,
    groups: Sequence[WorkGroup],
    singles: Sequence[Activities | None],
    floor: PoolFloor,
    pool_index: int,
) -> Iterator[Activities]:
    """Yield the options of two jobs on one device. Either job keeps its clock; the pair's power follows both."""
    alone = [_one_device(single) if group.shareable else None for group, single in zip(groups, singles, strict=True)]
    for first, own in enumerate(alone):
        for second, theirs in enumerate(alone[first:], start=first):
            if own is None or theirs is None:
                continue
            pair = device.pair(groups[first].kind, groups[second].kind)
            if pair is None:
                continue
            full_watts = device.loads[groups[first].kind].watts[-1] + device.loads[groups[second].kind].watts[-1]
            one, other = (index.ravel() for index in np.indices((len(own), len(theirs))))
            watts = pair.watts * (own.watts[one] + theirs.watts[other]) / full_watts
            yield Activities(
                pool=_same(pool_index, len(one)),
                group=_same(first, len(one)),
                partner=_same(second, len(one)),
                gpus=_same(1, len(one)),
                clock=own.clock[one],
                partner_clock=theirs.clock[other],
                rate=pair.speed * own.rate[one],
                partner_rate=pair.partner_speed * theirs.rate[other],
                watts=watts,
                extra_watts=watts + floor.busy_extra_watts,
            )


def _one_device(options: Activities | None) -> Activities | None:
    """Return the clocks of one device that a pair can gain from: more speed at each step, each dearer than the last."""
    if options is None:
        return None
    ones = options.take(options.gpus == 1)
    kept: list[int] = []
    for row in np.lexsort((-ones.rate, ones.watts)).tolist():
        if kept and ones.rate[row] <= ones.rate[kept[-1]]:
            continue
        while len(kept) >= 2 and _above(ones.rate, ones.watts, kept[-2], kept[-1], row):
            kept.pop()
        kept.append(row)
    return ones.take(np.array(kept, dtype=np.int64)) if kept else None


def _same(value: int, rows: int) -> IntArray:
    return np.full(rows, value, dtype=np.int64)


def _joined(parts: Sequence[Activities]) -> Activities:
    if not parts:
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Activities(
            pool=whole,
            group=whole,
            partner=whole,
            gpus=whole,
            clock=whole,
            partner_clock=whole,
            rate=real,
            partner_rate=real,
            watts=real,
            extra_watts=real,
        )
    names = [field.name for field in fields(Activities)]
    return Activities(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
