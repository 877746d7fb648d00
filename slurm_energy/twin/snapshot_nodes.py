"""The nodes of a pool of the twin as a daemon would read them; what did not change stays the same object."""

from itertools import islice
from math import inf

from slurm_energy.domain.cluster import NodeGpus, NodeState
from slurm_energy.domain.ids import NodeName, PartitionName
from slurm_energy.twin.engine.job import COMPUTING, Allocation, JobRun
from slurm_energy.twin.engine.pool_state import AWAKE, DOWN, SUSPENDED, WAKING, PoolState
from slurm_energy.twin.snapshot_devices import JOB_MARK, DeviceReadings, watts_per_device
from slurm_energy.twin.view import TwinView

MEBIBYTES_PER_GIBIBYTE = 1024.0
_STATES = {AWAKE: (), DOWN: ("DOWN",), SUSPENDED: ("IDLE", "POWERED_DOWN"), WAKING: ("IDLE", "POWERING_UP")}


class PoolNodes:
    """States of a pool's nodes, kept from one snapshot to the next.

    The pool's own lists are compared as wholes, which costs microseconds; only nodes that differ are made anew. Slurm
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
