"""Where jobs can run in a world, and what every way of running a kind of work costs there.

Where a world has errors of estimation, policies and the scheduler get other figures than the true ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf
from typing import TYPE_CHECKING

import numpy as np

from slurm_energy.policy.placement import OptionTable, PlaceInfo
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import EstimateErrors, Partition, Pool, World
from slurm_energy.twin.world.device_model import DeviceModel, Load

if TYPE_CHECKING:
    from slurm_energy.twin.engine.execution import Execution
    from slurm_energy.twin.engine.waiting import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One pool inside one partition: where a rule can send a job."""

    index: int
    partition: Partition
    pool: Pool
    pool_index: int
    device: DeviceModel

    @property
    def info(self) -> PlaceInfo:
        """What rules see of it."""
        pool = self.pool
        return PlaceInfo(
            name=self.partition.name if len(self.partition.pools) == 1 else f"{self.partition.name}/{pool.name}",
            partition=self.partition.name,
            device=self.device.name,
            total_gpus=pool.nodes * pool.gpus_per_node,
            gpus_per_node=pool.gpus_per_node,
            relative_clocks=self.device.relative_clocks,
            free_watts=self.device.free_watts,
            is_cpu=self.device.is_cpu,
            region=pool.region,
            node_watts=_sleep_saves_watts(pool, self.device),
            busy_watts=(pool.host_busy_watts - pool.host_idle_watts) / pool.gpus_per_node,
            idle_seconds=0.0 if pool.suspend is None else pool.suspend.idle_seconds,
            resume_seconds=0.0 if pool.suspend is None else pool.suspend.resume_seconds,
            resume_watts=0.0 if pool.suspend is None else pool.suspend.resume_watts,
            max_seconds=self.partition.max_time_seconds,
        )


def _sleep_saves_watts(pool: Pool, device: DeviceModel) -> float:
    """Return what a node with all its devices free draws more than a suspended one, 0 where nodes never sleep."""
    if pool.suspend is None:
        return 0.0
    awake = pool.host_idle_watts + pool.gpus_per_node * device.free_watts
    return max(0.0, awake - pool.suspend.suspended_watts)


def places_of(world: World) -> tuple[Place, ...]:
    """Return the places of a world: its partitions in order, their pools in order."""
    index_of = {pool.name: index for index, pool in enumerate(world.pools)}
    pairs = [(partition, index_of[name]) for partition in world.partitions for name in partition.pools]
    return tuple(
        Place(
            index=index,
            partition=partition,
            pool=world.pools[pool_index],
            pool_index=pool_index,
            device=world.devices[world.pools[pool_index].device],
        )
        for index, (partition, pool_index) in enumerate(pairs)
    )


def can_run(place: Place, job: Job, *, is_open: bool = False) -> bool:
    """Return whether request, partition and device allow the job in this place at all, with nothing else running.

    Args:
        place: The place.
        job: The job.
        is_open: Whether the partitions that it asks for are a preference.
    """
    partition, pool, load = place.partition, place.pool, place.device.loads.get(job.kind)
    if load is None or load.memory_gib > place.device.memory_gib:
        return False
    if job.partitions and not is_open and partition.name not in job.partitions:
        return False
    if job.devices and place.device.name not in job.devices:
        return False
    gpus = job.gpu_counts[0]
    if gpus > min(partition.max_gpus_per_job, pool.nodes * pool.gpus_per_node):
        return False
    if (job.cpus or job.memory_gib) and not _holds_share(pool, job, gpus):
        return False
    return job.time_limit_seconds <= partition.max_time_seconds or job.time_limit_seconds == inf


def _holds_share(pool: Pool, job: Job, gpus: int) -> bool:
    """Return whether empty nodes have the CPUs and the memory that go with so many devices of a job."""
    most = min(gpus, pool.gpus_per_node)
    while most and (
        (pool.cpus_per_node and ceil(job.cpus * most / gpus) > pool.cpus_per_node)
        or job.memory_gib * most / gpus > pool.memory_gib_per_node
    ):
        most -= 1
    if job.spread and not job.exclusive:
        return most * pool.nodes >= gpus
    return most == min(gpus, pool.gpus_per_node)


def network_cost(load: Load, place: Place, gpus: int, congestion: float) -> tuple[float, float]:
    """Return extra seconds and joules of one unit of work on `gpus` devices: 0 while the job fits one node."""
    traffic = load.scaling.traffic_gigabytes_per_unit
    if traffic == 0.0 or gpus <= place.pool.gpus_per_node:
        return 0.0, 0.0
    per_node = traffic * place.pool.gpus_per_node
    return (
        per_node / (place.pool.link_gigabytes_per_second * congestion),
        traffic * gpus * place.pool.link_joules_per_gigabyte,
    )


def option_table(
    world: World,
    kind: str,
    gpu_counts: Sequence[int],
    *,
    congestion: float = 1.0,
    places: Sequence[Place] | None = None,
) -> OptionTable:
    """Return the costs of one kind of work in every place, at every allowed count and clock.

    Args:
        world: Gives devices, pools and links.
        kind: Kind of work.
        gpu_counts: Device counts that the job may run with, ascending.
        congestion: Factor (0, 1] on the links between nodes.
        places: The world's places, if the caller has them.
    """
    places = places_of(world) if places is None else places
    num_clocks = max(len(place.device.relative_clocks) for place in places)
    shape = (len(places), len(gpu_counts), num_clocks)
    seconds, watts, free = np.full(shape, inf), np.full(shape, inf), np.zeros(shape)
    joules = np.full(shape, inf)
    for place in places:
        load = place.device.loads.get(kind)
        if load is None or load.memory_gib > place.device.memory_gib:
            continue
        clocks = len(load.watts)
        most = min(place.partition.max_gpus_per_job, place.pool.nodes * place.pool.gpus_per_node)
        for column, gpus in enumerate(gpu_counts):
            if gpus > most:
                continue
            extra_seconds, extra_joules = network_cost(load, place, gpus, congestion)
            times = np.array([load.scaling.seconds(single, gpus) for single in load.seconds_per_unit]) + extra_seconds
            here = (place.index, column, slice(0, clocks))
            seconds[here] = times
            watts[here] = gpus * np.array(load.watts) + extra_joules / times
            free[here] = gpus * place.device.free_watts
            joules[here] = watts[here] * times
    return OptionTable(
        gpu_counts=tuple(gpu_counts), seconds_per_unit=seconds, watts=watts, free_watts=free, joules_per_unit=joules
    )


class OptionTables:
    """The option tables of a world under its present congestion, made when first asked for."""

    def __init__(self, world: World, places: Sequence[Place]) -> None:
        self._world = world
        self._places = places
        self._congestion = 1.0
        self._tables: dict[tuple[str, tuple[int, ...]], OptionTable] = {}
        self._rows: dict[tuple[str, tuple[int, ...]], CostRows] = {}
        self._last: tuple[str, tuple[int, ...], CostRows | None] = ("", (), None)
        """Kind, counts and rows that were asked for last: mostly the same again, found without hashing the counts."""

    def table(self, kind: str, gpu_counts: tuple[int, ...]) -> OptionTable:
        """Return the table of a kind and its counts; the same object until conditions change."""
        key = (kind, gpu_counts)
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self.made(kind, gpu_counts)
        return found

    def made(self, kind: str, gpu_counts: tuple[int, ...]) -> OptionTable:
        """Return a new table at the present conditions."""
        return option_table(self._world, kind, gpu_counts, congestion=self._congestion, places=self._places)

    def rows(self, kind: str, gpu_counts: tuple[int, ...]) -> "CostRows":
        """Return the same as nested lists, which the engine reads faster than arrays."""
        last_kind, last_counts, last_rows = self._last
        if gpu_counts is last_counts and kind == last_kind and last_rows is not None:
            return last_rows
        key = (kind, gpu_counts)
        found = self._rows.get(key)
        if found is None:
            table = self.table(kind, gpu_counts)
            found = CostRows(
                column={gpus: column for column, gpus in enumerate(gpu_counts)},
                seconds=table.seconds_per_unit.tolist(),
                watts=table.watts.tolist(),
                fastest_seconds=[
                    min((row[len(place.device.relative_clocks) - 1] for row in rows), default=inf)
                    for place, rows in zip(self._places, table.seconds_per_unit.tolist(), strict=True)
                ],
                num_clocks=[
                    len(place.device.relative_clocks) if kind in place.device.loads else 0 for place in self._places
                ],
            )
            self._rows[key] = found
        self._last = (kind, gpu_counts, found)
        return found

    def set_congestion(self, factor: float) -> None:
        """Change the factor on the links: tables are rebuilt."""
        self._congestion = factor
        self._tables.clear()
        self._rows.clear()
        self._last = ("", (), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRows:
    """An option table as lists [place][count][clock]."""

    column: Mapping[int, int]
    """Column of each device count."""
    seconds: list[list[list[float]]]
    watts: list[list[list[float]]]
    fastest_seconds: list[float]
    """Of each place: one unit at the default clock with the best device count."""
    num_clocks: list[int]
    """Of each place, 0 where the kind cannot run."""


_BRANCH = 0x657374
"""Keeps this stream apart from those that others spawn from the same seed."""


class EstimatedTables(OptionTables):
    """The option tables with every device's watts and seconds off by the factors of its kinds of work.

    A factor holds for all counts and clocks, as a wrong calibration does: the order of the clocks by energy beyond free
    changes through the free power alone, the order of the devices through everything.
    """

    def __init__(
        self, world: World, places: Sequence[Place], factors: dict[tuple[str, str], tuple[float, float]]
    ) -> None:
        super().__init__(world, places)
        self._devices = [place.device.name for place in places]
        self._factors = factors

    def made(self, kind: str, gpu_counts: tuple[int, ...]) -> OptionTable:
        """Return a new table with its errors."""
        table = super().made(kind, gpu_counts)
        found = [self._factors.get((device, kind), (1.0, 1.0)) for device in self._devices]
        watts, seconds = (np.array(column)[:, None, None] for column in zip(*found, strict=True))
        return OptionTable(
            gpu_counts=table.gpu_counts,
            seconds_per_unit=table.seconds_per_unit * seconds,
            watts=table.watts * watts,
            free_watts=table.free_watts,
            joules_per_unit=table.joules_per_unit * (watts * seconds),
        )


def estimated_tables(world: World, places: Sequence[Place], true: OptionTables, seed: int) -> OptionTables:
    """Return what is known of a world in the run of a seed: the true tables themselves where there are no errors."""
    errors = world.estimate_errors
    return true if errors is None else EstimatedTables(world, places, estimate_factors(world, errors, seed))


def estimate_factors(world: World, errors: EstimateErrors, seed: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the factors on watts and on seconds by device type and kind of work.

    Drawn in the order of the names, so that they depend on nothing but names and seed.
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_BRANCH,)))
    pairs = sorted((name, kind) for name, device in world.devices.items() for kind in device.loads)
    draws = random.standard_normal((len(pairs), 2)).tolist()
    return {
        pair: (exp(errors.watts_sigma * watts), exp(errors.seconds_sigma * seconds))
        for pair, (watts, seconds) in zip(pairs, draws, strict=True)
    }


class Site:
    """A place with its pool, its ledger and its device: what starts and ends there need, gathered once."""

    __slots__ = (
        "device",
        "free_watts",
        "index",
        "ledger",
        "max_time_seconds",
        "plain",
        "plain_without_limit",
        "pool",
        "pool_index",
        "queues",
        "siblings",
    )

    def __init__(self, execution: "Execution", place: Place, waiting: "Waiting") -> None:
        self.index = place.index
        self.pool_index = place.pool_index
        self.pool = execution.pools[place.pool_index]
        self.device = place.device
        self.free_watts = place.device.free_watts
        self.ledger = execution.ledger_of_pool[place.pool_index]
        self.max_time_seconds = place.partition.max_time_seconds
        self.queues = waiting.together[place.index]
        """Those with jobs that its devices can help."""
        self.siblings = execution.places_of_pool[place.pool_index]
        self.plain = not (
            self.pool.by_node
            or place.device.thermal is not None
            or place.pool.host_busy_watts > place.pool.host_idle_watts
            or execution.world.launch_seconds > 0.0
            or execution.expected_ends is not None
        )
        """Whether a start is no more than devices taken and power changed."""
        self.plain_without_limit = self.plain and self.max_time_seconds == inf
