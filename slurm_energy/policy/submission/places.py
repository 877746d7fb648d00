"""A site's places, and a job's options as the table by place that every rule reads."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.gpu_places import GpuPlace
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.energy_model.catalog import CATALOG, catalogue_limit_watts
from slurm_energy.energy_model.coefficients import host_share
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint, clock_table_of
from slurm_energy.policy.placement import OptionTable, PlaceInfo
from slurm_energy.policy.site.candidates import catalogue_name
from slurm_energy.policy.site.comparison import Candidate
from slurm_energy.policy.submission.options import JobOptions, mean_watts

_GPUS_OF_MEASURED_HOST = 8
_MAX_TABLES = 256
MIN_EXPECTED_CLOCK = 0.5
"""Over the default clock: below it nothing is expected of a type without a measurement."""

PlaceKey = tuple[PartitionName, GpuTypeName]


class SitePlaces:
    """What does not change of a cluster's places, and the tables of jobs that are alike."""

    def __init__(self, snapshot: ClusterSnapshot, configured: Mapping[str, str]) -> None:
        """Take the places of a snapshot.

        Args:
            snapshot: Of the cluster.
            configured: [gpu_types].
        """
        self._known = _fixed_part(snapshot)
        self._types = [catalogue_name(place.slurm_type, configured) for place in self._known.places]
        self.infos = tuple(
            _info(place, name, seconds)
            for place, name, seconds in zip(self._known.places, self._types, self._known.max_seconds, strict=True)
        )
        self._of: dict[PlaceKey, list[int]] = {}
        for index, (place, name) in enumerate(zip(self._known.places, self._types, strict=True)):
            if name is not None:
                self._of.setdefault((place.partition, name), []).append(index)
        self._clocks = max((len(info.relative_clocks) for info in self.infos), default=1)
        self._tables: dict[tuple[object, ...], OptionTable] = {}

    def holds(self, snapshot: ClusterSnapshot) -> bool:
        """Return whether a snapshot has the same places."""
        return self._known == _fixed_part(snapshot)

    def of(self, candidate: Candidate, names: Sequence[GpuTypeName]) -> list[int]:
        """Return the places of some GPU types of a partition."""
        return [index for name in names for index in self._of.get((candidate.partition.name, name), ())]

    def partition(self, place: int) -> PartitionName:
        """Return a place's partition."""
        return self._known.places[place].partition

    def gpu_type(self, place: int) -> GpuTypeName | None:
        """Return the catalogue name of a place's GPUs."""
        return self._types[place]

    def free_gpus(self, snapshot: ClusterSnapshot, claimed: Mapping[PartitionName, float]) -> list[int]:
        """Return the free GPUs of each place, less those that were promised since the snapshot."""
        free = [room.free for _, room in snapshot.gpu_places]
        left = dict(claimed)
        for index, place in enumerate(self._known.places):
            taken = min(left.get(place.partition, 0.0), float(free[index]))
            if taken > 0.0:
                free[index] -= int(taken)
                left[place.partition] -= taken
        return free

    def table(self, options: JobOptions, gpus: int) -> OptionTable:
        """Return the options of a job of so many GPUs by place; the same object for jobs that are alike."""
        key = (gpus, options.is_comparison, tuple(options.room.items()), tuple(options.work.items()))
        found = self._tables.get(key)
        if found is None:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.clear()
            found = self._tables[key] = self._made(options, gpus)
        return found

    def _made(self, options: JobOptions, gpus: int) -> OptionTable:
        import numpy as np  # noqa: PLC0415  # rules that need no table are asked without it

        shape = (len(self.infos), 1, self._clocks)
        seconds, watts, free = np.full(shape, inf), np.full(shape, inf), np.zeros(shape)
        types = {name for _, name in options.room}
        # Beside a type whose power when free is not known, that of no type is taken off: they would not compare.
        has_free = not options.is_comparison or all(_idle_watts(name) is not None for name in types)
        for (partition, name), room in options.room.items():
            work = options.work.get(name)
            if work is None:
                continue
            row = {clock: at for at, clock in enumerate(clocks_mhz(name))}
            for index in self._of.get((partition, name), ()):
                if work.clocks is None:
                    seconds[index, 0, len(row) - 1], watts[index, 0, len(row) - 1] = work.seconds, gpus * work.watts
                for point in () if work.clocks is None else work.clocks.points:
                    if point.slowdown <= room:
                        where = index, 0, row[point.sm_clock_mhz]
                        seconds[where] = work.seconds * (1.0 + point.slowdown)
                        watts[where] = gpus * work.watts * (1.0 + point.energy_change) / (1.0 + point.slowdown)
                if has_free:
                    free[index] = min(gpus * self.infos[index].free_watts, float(watts[index].min()))
        return OptionTable(
            gpu_counts=(gpus,),
            seconds_per_unit=seconds,
            watts=watts,
            free_watts=free,
            joules_per_unit=np.where(np.isfinite(seconds), watts, 1.0) * seconds,
        )


_last: list[tuple[Mapping[str, str], ClusterSnapshot, SitePlaces]] = []


def site_of(snapshot: ClusterSnapshot, configured: Mapping[str, str]) -> SitePlaces:
    """Return the places of a snapshot: the same object, with its tables, as long as they are the same."""
    if _last and _last[0][0] == configured:
        _, seen, site = _last[0]
        if seen is snapshot:
            return site
        if site.holds(snapshot):
            _last[:] = [(configured, snapshot, site)]
            return site
    site = SitePlaces(snapshot, configured)
    _last[:] = [(configured, snapshot, site)]
    return site


def busy_watts(name: GpuTypeName) -> float:
    """Return what a busy GPU of a type draws at its default clock beyond a free one, with the host's share of it."""
    idle_watts = _idle_watts(name) or 0.0
    return (mean_watts(name, catalogue_limit_watts(name)) - idle_watts) * host_share().per_gpu_watt


def _idle_watts(name: GpuTypeName | None) -> float | None:
    row = None if name is None else CATALOG.get(name)
    return None if row is None else row.idle_watts


class _Fixed(NamedTuple):
    places: tuple[GpuPlace, ...]
    max_seconds: tuple[float, ...]


def _fixed_part(snapshot: ClusterSnapshot) -> _Fixed:
    limits = {
        name: inf if partition.max_time_minutes is None else 60.0 * partition.max_time_minutes
        for name, partition in snapshot.partition_by_name.items()
    }
    places = tuple(place for place, _ in snapshot.gpu_places)
    return _Fixed(places, tuple(limits.get(place.partition, inf) for place in places))


def _info(place: GpuPlace, name: GpuTypeName | None, max_seconds: float) -> PlaceInfo:
    """Return what rules know of a place; a type that the catalogue lacks has its default clock alone.

    What a host draws is that of the measured servers: a share of its GPUs' power, and a constant that can be saved only
    where nodes are seen to sleep.
    """
    host = host_share()
    free_watts = _idle_watts(name) or 0.0
    awake_watts = place.gpus_per_node * (free_watts + host.constant_watts / _GPUS_OF_MEASURED_HOST)
    clocks = clocks_mhz(name)
    return PlaceInfo(
        name=f"{place.partition}/{place.slurm_type or 'gpu'}",
        partition=str(place.partition),
        device=str(name or place.slurm_type or "gpu"),
        total_gpus=place.total,
        gpus_per_node=max(1, place.gpus_per_node),
        relative_clocks=tuple(clock / clocks[-1] for clock in clocks),
        free_watts=free_watts,
        host_share=host.per_gpu_watt - 1.0,
        node_watts=awake_watts if place.can_sleep else 0.0,
        resume_watts=awake_watts if place.can_sleep else 0.0,
        resume_seconds=place.wake_seconds,
        max_seconds=max_seconds,
    )


def clocks_mhz(name: GpuTypeName | None) -> tuple[int, ...]:
    """Return the clocks of a type in MHz, ascending; a single 1 where only the default clock is known.

    Of a type that was never measured, those at which a network may expect something.
    """
    table, row = (None, None) if name is None else (clock_table_of(name), CATALOG.get(name))
    if table is not None:
        return tuple(point.sm_clock_mhz for point in table.points)
    highest = None if row is None else row.default_sm_clock_mhz
    if row is None or highest is None or highest not in row.sm_clocks_mhz:
        return (1,)
    return tuple(clock for clock in row.sm_clocks_mhz if clock >= MIN_EXPECTED_CLOCK * highest)


def point_at(table: ClockTable | None, name: GpuTypeName, clock: int) -> OperatingPoint | None:
    """Return the operating point of a place's clock by its index; None where only the default clock is known."""
    return None if table is None else table.at(clocks_mhz(name)[clock])
