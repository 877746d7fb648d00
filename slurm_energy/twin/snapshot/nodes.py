"""The nodes of a pool of the twin as a daemon would read them; what did not change stays the same object."""

from itertools import islice
from math import inf
from operator import attrgetter

from slurm_energy.domain.cluster import GpuReading, NodeGpus, NodeState
from slurm_energy.domain.ids import NodeName, PartitionName
from slurm_energy.energy_model.catalog import gpu_type, gpu_type_from_slurm_type
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import COMPUTING, STARTING, Allocation, JobRun
from slurm_energy.twin.engine.pool_state import AWAKE, DOWN, SUSPENDED, WAKING, PoolState
from slurm_energy.twin.world import Pool
from slurm_energy.twin.world.device_model import (
    DeviceModel,
    Thermal,
    steady_celsius,
    sustainable_watts,
    temperature_after,
)

MEBIBYTES_PER_GIBIBYTE = 1024.0
_STATES = {AWAKE: (), DOWN: ("DOWN",), SUSPENDED: ("IDLE", "POWERED_DOWN"), WAKING: ("IDLE", "POWERING_UP")}


class PoolNodes:
    """States of a pool's nodes, kept from one snapshot to the next.

    The pool's own lists are compared as wholes, which costs microseconds; only nodes that differ are built again. Slurm
    numbers the devices that a job holds and the twin only counts them, so that the numbers are given here: the lowest
    free ones when the job is first seen, kept until it leaves.
    """

    def __init__(self, view: TwinView, index: int) -> None:
        self.moved: set[int] = set()
        """Jobs whose devices got other numbers in the last update, because devices of their node broke."""
        self.watts = self.device_watts = 0.0
        """Of all nodes of the pool, and of all its devices, at the last update."""
        self._view = view
        self._pool: PoolState = view.pools[index]
        self._device = view.world.devices[self._pool.pool.device]
        self._readings = DeviceReadings(view, self._device, self._pool.pool)
        self._partitions = tuple(
            dict.fromkeys(
                PartitionName(place.partition.name) for place in view.twin_places if place.pool_index == index
            )
        )
        self._nodes: list[NodeState] = []
        self._shown: tuple[NodeState, ...] = ()
        self._lists: list[list[float]] = []
        self._marks: list[tuple[int, int, int, float, JobRun | None]] = []
        self._around: tuple[float | None, float | None] = (None, None)
        self._degrees: dict[int, float | None] = {}
        self._positions: list[dict[int, tuple[int, ...]]] = [{} for _ in range(self._pool.pool.nodes)]
        self._watts = [0.0] * self._pool.pool.nodes

    @property
    def region(self) -> str:
        """The pool's region."""
        return self._pool.pool.region

    @property
    def cooling_watts(self) -> float | None:
        """Power of all devices together at which their temperature limit is just held, None without a heat model."""
        each = self._readings.cooling_watts
        return None if each is None else self._pool.total * each

    def update(self) -> tuple[NodeState, ...]:
        """Return the nodes as they stand; the same tuple when none changed."""
        self.moved.clear()
        if not self._nodes:
            self._changed()
            self._nodes = [self._state(node) for node in range(self._pool.pool.nodes)]
            differs = True
        else:
            differs = False
            for node in self._changed():
                state = self._state(node)
                if state != self._nodes[node]:  # a job may have come and gone, or a clock been set to what it was
                    self._nodes[node] = state
                    differs = True
        if differs:
            self._shown = tuple(self._nodes)
            self.device_watts = sum(self._watts)
            self.watts = sum(node.power_watts or 0.0 for node in self._nodes)
        return self._shown

    def positions(self, run: JobRun) -> list[tuple[int, tuple[int, ...]]]:
        """Return the nodes of a job that holds devices, each with the numbers of the devices held."""
        holder = _holder(run)
        return [(node, self._positions[node].get(holder.job_id, ())) for node, _, _ in self._allocation(holder)]

    def _changed(self) -> set[int]:
        pool = self._pool
        changed: set[int] = set()
        lists = self._pool_lists()
        if lists != self._lists:
            if self._lists:
                now, before = zip(*lists, strict=True), zip(*self._lists, strict=True)
                changed.update(node for node, (new, old) in enumerate(zip(now, before, strict=True)) if new != old)
            else:
                changed.update(range(pool.pool.nodes))
            self._lists = [list(each) for each in lists]
        marks = list(map(JOB_MARK, pool.runs.values()))
        if marks != self._marks:
            self._add_nodes(changed, {mark[0] for mark in set(marks).symmetric_difference(self._marks)})
            self._marks = marks
        around = (self._view.link_congestion, self._view.ambient_celsius)
        if around != self._around:
            changed.update(range(pool.pool.nodes))
            self._around = around
        if self._device.thermal is not None:
            degrees = {run.job_id: self._readings.celsius(run) for run in pool.runs.values() if run.phase == COMPUTING}
            if degrees != self._degrees:
                self._add_nodes(changed, {job for job in degrees if degrees[job] != self._degrees.get(job)})
                self._degrees = degrees
        return changed

    def _add_nodes(self, changed: set[int], jobs: set[int]) -> None:
        """Add the nodes of these jobs; those of a job that left show it in the pool's lists."""
        for job_id in jobs:
            run = self._pool.runs.get(job_id)
            if run is not None:
                changed.update(node for node, _, _ in self._allocation(_holder(run)))

    def _pool_lists(self) -> list[list[float]]:
        pool = self._pool
        if not pool.by_node:
            return [[pool.free_total]]
        return [pool.free, pool.power, pool.broken, pool.idle_version, pool.cpus_free, pool.memory_free]  # type: ignore[list-item]  # lists of int are read as float only

    def _allocation(self, run: JobRun) -> Allocation:
        """Return (node, devices used, devices held); a pool that does not tell nodes apart is one node."""
        return run.allocation if self._pool.by_node else [(0, run.gpus, self._pool.held(run.job, run.gpus))]

    def _state(self, node: int) -> NodeState:
        pool, settings = self._pool, self._pool.pool
        power = pool.power[node] if pool.by_node else AWAKE
        free = pool.free[node] if pool.by_node else pool.free_total
        count = settings.gpus_per_node - (pool.broken[node] if pool.by_node else 0)
        cpus = settings.cpus_per_node or 4 * settings.gpus_per_node
        memory = None if settings.memory_gib_per_node == inf else settings.memory_gib_per_node * MEBIBYTES_PER_GIBIBYTE
        runs = self._runs_on(node)
        self._number_devices(node, count, runs)
        self._watts[node] = self._devices_watts(count, power, runs)
        has_link = settings.link_gigabytes_per_second < inf
        return NodeState(
            name=NodeName(f"{settings.name}-{node}"),
            partitions=self._partitions,
            states=_STATES[power] or (("IDLE",) if free == count else ("MIXED",) if free else ("ALLOCATED",)),
            available=power != DOWN,
            cpus=cpus,
            cpus_allocated=cpus - pool.cpus_free[node] if pool.by_node and settings.cpus_per_node else 0,
            memory_mib=memory,
            memory_allocated_mib=memory - pool.memory_free[node] * MEBIBYTES_PER_GIBIBYTE
            if memory is not None and pool.by_node
            else None,
            gpus=()
            if self._device.is_cpu
            else (NodeGpus(slurm_type=self._device.name, count=count, allocated=count - free),),
            gpu_readings=self._readings.of_node(
                node, count, [(run, self._positions[node][run.job_id][:used]) for run, used, _ in runs]
            )
            if power == AWAKE and not self._device.is_cpu
            else (),
            switch=switch_name(settings.name) if has_link else None,
            uplink_gb_per_second=settings.link_gigabytes_per_second if has_link else None,
            uplink_congestion=self._view.link_congestion if has_link else None,
            power_watts=self._node_watts(node, power, runs),
            wake_seconds=None if settings.suspend is None else settings.suspend.resume_seconds,
        )

    def _runs_on(self, node: int) -> list[tuple[JobRun, int, int]]:
        """Return the jobs that hold devices of a node, with the devices used and held; no neighbours on a GPU."""
        pool = self._pool
        found = []
        for run in (pool.runs_on[node] if pool.by_node else pool.runs).values():
            found += [(run, used, held) for at, used, held in self._allocation(run) if at == node]
        return found

    def _number_devices(self, node: int, count: int, runs: list[tuple[JobRun, int, int]]) -> None:
        """Bring the device numbers of each job on a node up to date."""
        before = self._positions[node]
        kept: dict[int, tuple[int, ...]] = {}
        for run, _, held in runs:
            numbers = before.get(run.job_id, ())
            if len(numbers) == held and numbers[-1] < count:
                kept[run.job_id] = numbers
        taken = {number for numbers in kept.values() for number in numbers}
        free = (number for number in range(count) if number not in taken)
        for run, _, held in runs:
            if run.job_id not in kept:
                kept[run.job_id] = tuple(islice(free, held))
                if run.job_id in before:
                    self.moved.add(run.job_id)
        self._positions[node] = kept

    def _devices_watts(self, count: int, power: int, runs: list[tuple[JobRun, int, int]]) -> float:
        if power != AWAKE:
            return 0.0
        free = count - sum(used for _, used, _ in runs)
        return free * self._device.free_watts + sum(used * watts_per_device(run) for run, used, _ in runs)

    def _node_watts(self, node: int, power: int, runs: list[tuple[JobRun, int, int]]) -> float:
        """Return the power of a node with its devices; what a job's data takes on its way counts at its nodes."""
        settings = self._pool.pool
        if power == AWAKE:
            slope = (settings.host_busy_watts - settings.host_idle_watts) / settings.gpus_per_node
            return self._watts[node] + settings.host_idle_watts + slope * sum(used for _, used, _ in runs)
        if settings.suspend is None or power == DOWN:
            return 0.0
        return settings.suspend.suspended_watts if power == SUSPENDED else settings.suspend.resume_watts


def switch_name(pool: str) -> str:
    """Return the name of the switch that joins the nodes of a pool."""
    return f"{pool}-switch"


def _holder(run: JobRun) -> JobRun:
    """Return the job in whose name the devices are held: a neighbour on a GPU has none of its own."""
    return run if run.allocation or run.partner is None else run.partner


JOB_MARK = attrgetter("job_id", "version", "phase", "watts", "partner")
"""What a reading of a job's devices hangs on: a change of clock raises the version, a node that wakes the power."""
_Kept = tuple[tuple[object, ...], list[GpuReading]]


class DeviceReadings:
    """Readings of one pool's devices; those of a job that did not change stay the same objects."""

    def __init__(self, view: TwinView, device: DeviceModel, pool: Pool) -> None:
        self._view = view
        self._device = device
        self._memory_gib = device.memory_gib if device.memory_gib < inf else None
        self._clocks_mhz = clocks_in_mhz(device)
        self._gpus_per_node = pool.gpus_per_node
        self._free: list[GpuReading] = []
        """Of devices that no job holds, by number."""
        self._kept: list[dict[int, _Kept]] = [{} for _ in range(pool.nodes)]
        """By node and job: what the readings hang on, and they."""

    @property
    def cooling_watts(self) -> float | None:
        """Power of one device at which its temperature limit is just held, None without a heat model."""
        thermal = self._device.thermal
        return None if thermal is None else sustainable_watts(thermal, self._ambient(thermal))

    def of_node(self, node: int, count: int, used: list[tuple[JobRun, tuple[int, ...]]]) -> tuple[GpuReading, ...]:
        """Return the readings of a node of so many devices, given which numbers each job uses."""
        idle = self._idle_celsius()
        if not self._free or self._free[0].temperature_celsius != idle:
            self._free = [self._free_reading(number, idle) for number in range(self._gpus_per_node)]
        readings = self._free[:count]
        before, kept = self._kept[node], {}
        for run, numbers in used:
            celsius = self.celsius(run)
            basis = (numbers, celsius, JOB_MARK(run), None if run.partner is None else JOB_MARK(run.partner))
            known = before.get(run.job_id)
            if known is None or known[0] != basis:
                known = (basis, [self._reading(run, number, celsius) for number in numbers])
            kept[run.job_id] = known
            for number, reading in zip(numbers, known[1], strict=True):
                readings[number] = reading
        self._kept[node] = kept
        return tuple(readings)

    def celsius(self, run: JobRun) -> float | None:
        """Return the temperature of a job's devices in whole degrees, as sensors tell it; None without a heat model."""
        thermal = self._device.thermal
        if thermal is None:
            return None
        partner = run.partner
        if run.phase != COMPUTING:
            return self.celsius(partner) if partner is not None and partner.phase == COMPUTING else self._idle_celsius()
        watts = run.watts / run.gpus
        watts += partner.watts if partner is not None and partner.phase == COMPUTING else 0.0
        steady = steady_celsius(thermal, self._ambient(thermal), watts)
        seconds = self._view.now_seconds - run.updated_seconds
        return float(round(temperature_after(thermal, run.temperature_celsius, steady, seconds)))

    def _reading(self, run: JobRun, number: int, celsius: float | None) -> GpuReading:
        """Return what a device shows whose job holds it; a job that stages or starts does not compute yet."""
        both = [run] if run.partner is None else [run, run.partner]
        computing = [each for each in both if each.phase == COMPUTING]
        clock = computing[0].clock if computing else None
        return GpuReading(
            index=number,
            slurm_type=self._device.name,
            utilisation=1.0 if computing else 0.0,
            memory_used_gib=sum((self._device.loads[each.kind].memory_gib for each in computing), 0.0),
            memory_gib=self._memory_gib,
            sm_clock_mhz=self._clocks_mhz[clock] if clock is not None and self._clocks_mhz else None,
            power_watts=watts_per_device(run),
            temperature_celsius=celsius,
            is_slowed=-1 < run.set_clock < len(self._device.relative_clocks) - 1,
        )

    def _free_reading(self, number: int, celsius: float | None) -> GpuReading:
        return GpuReading(
            index=number,
            slurm_type=self._device.name,
            utilisation=0.0,
            memory_used_gib=0.0,
            memory_gib=self._memory_gib,
            power_watts=self._device.free_watts,
            temperature_celsius=celsius,
        )

    def _idle_celsius(self) -> float | None:
        """Return what a free device tends to; what its last job left cools within minutes and is not followed."""
        thermal = self._device.thermal
        if thermal is None:
            return None
        return float(round(steady_celsius(thermal, self._ambient(thermal), self._device.free_watts)))

    def _ambient(self, thermal: Thermal) -> float:
        ambient = self._view.ambient_celsius
        return thermal.ambient_celsius if ambient is None else ambient


def clocks_in_mhz(device: DeviceModel) -> tuple[float, ...]:
    """Return a device's clocks; a world that has only relative ones takes the catalogue's highest as the last."""
    if device.clocks_mhz:
        return tuple(float(clock) for clock in device.clocks_mhz)
    name = gpu_type_from_slurm_type(device.name)
    row = None if name is None else gpu_type(name)
    if row is None or row.max_sm_clock_mhz is None:
        return ()
    highest, last = row.max_sm_clock_mhz, device.relative_clocks[-1]
    return tuple(float(round(highest * clock / last)) for clock in device.relative_clocks)


def watts_per_device(run: JobRun) -> float:
    """Return the power of each device that a job uses on nodes that are up, a neighbour's on the same GPU with it."""
    if run.phase == STARTING and run.partner is None:
        return run.starting_watts  # its `watts` are of the devices on nodes that are up
    watts = run.watts / run.gpus
    return watts if run.partner is None else watts + run.partner.watts
