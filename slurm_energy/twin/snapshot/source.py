"""The twin as `ClusterSnapshot`s, one after the other, at the cost of what changed; its jobs as squeue shows them."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from math import ceil, inf

from slurm_energy.domain.cluster import (
    ClusterSnapshot,
    ClusterState,
    JobDependency,
    JobState,
    NodeState,
    PartitionState,
    SwitchState,
)
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName
from slurm_energy.twin.adapters.view import TwinView, regional_series, value_at
from slurm_energy.twin.engine.job import COMPUTING, ENDED, HELD, STARTING, JobRun
from slurm_energy.twin.snapshot.nodes import MEBIBYTES_PER_GIBIBYTE, PoolNodes, switch_name
from slurm_energy.twin.world import Partition, Series

CLUSTER = ClusterName("twin")
_DECIMALS = 6
"""Of the offset between the two times: what a sum in floating point leaves must not get into every job's times."""


class SnapshotSource:
    """Snapshots of a run of the twin, one after the other; with another run's view it begins again.

    What did not change since the last one is the same object (`is`): nodes, jobs, partitions, switches, and their
    tuples where nothing in them changed. In a world of several regions each is a cluster.
    """

    def __init__(self) -> None:
        self._run: _RunSnapshots | None = None

    def snapshot(self, view: TwinView, taken_at_seconds: float, *, without: int | None = None) -> ClusterSnapshot:
        """Return the cluster as it stands.

        Args:
            view: The run, as it stands now.
            taken_at_seconds: The twin's present time as a Unix time; all snapshots of a run are as far from the twin's.
            without: Id of a job that is being decided: Slurm's queue does not have it yet.
        """
        if self._run is None or self._run.view is not view:
            self._run = _RunSnapshots(view, round(taken_at_seconds - view.now_seconds, _DECIMALS))
        return self._run.snapshot(taken_at_seconds, without)


class _RunSnapshots:
    """Snapshots of one run; the offset makes Unix times of the twin's, which begin at 0."""

    def __init__(self, view: TwinView, time_offset_seconds: float) -> None:
        self.view = self._view = view
        self._pools = [PoolNodes(view, index) for index in range(len(view.world.pools))]
        self._jobs = LiveJobs(view, self._pools, time_offset_seconds)
        self._regions = tuple(dict.fromkeys(pool.region for pool in view.world.pools))
        self._region_by_pool = {pool.name: pool.region for pool in view.world.pools}
        self._parts: list[tuple[NodeState, ...]] = []
        self._nodes: tuple[NodeState, ...] = ()
        self._partitions: tuple[PartitionState, ...] = ()
        self._partition_numbers: list[tuple[float | None, float | None]] = []
        self._switches: tuple[SwitchState, ...] = ()
        self._congestion: float | None = None
        self._clusters: tuple[ClusterState, ...] = ()

    def snapshot(self, taken_at_seconds: float, without: int | None) -> ClusterSnapshot:
        """Return the cluster as it stands, without a job that is being decided."""
        parts = [pool.update() for pool in self._pools]
        if len(parts) != len(self._parts) or any(new is not old for new, old in zip(parts, self._parts, strict=True)):
            self._parts = parts
            self._nodes = tuple(node for part in parts for node in part)
        return ClusterSnapshot(
            cluster=CLUSTER,
            taken_at_seconds=taken_at_seconds,
            partitions=self._partition_states(),
            nodes=self._nodes,
            jobs=self._jobs.update(without),
            switches=self._switch_states(),
            clusters=self._cluster_states(),
        )

    def _partition_states(self) -> tuple[PartitionState, ...]:
        world = self._view.world
        regions = [self._region_of(partition) for partition in world.partitions]
        numbers = [
            (self._present(world.carbon_grams_per_kwh, region), self._present(world.price_per_kwh, region))
            for region in regions
        ]
        if numbers != self._partition_numbers:
            has_default = any(partition.is_default for partition in world.partitions)
            several = len(self._regions) > 1
            self._partitions = tuple(
                PartitionState(
                    name=PartitionName(partition.name),
                    is_default=partition.is_default or (not has_default and index == 0),
                    up=True,
                    max_time_minutes=partition.max_time_seconds / 60.0 if partition.max_time_seconds < inf else None,
                    cluster=ClusterName(region) if several and region is not None else None,
                    carbon_grams_per_kwh=carbon,
                    price_per_kwh=price,
                )
                for index, (partition, region, (carbon, price)) in enumerate(
                    zip(world.partitions, regions, numbers, strict=True)
                )
            )
            self._partition_numbers = numbers
        return self._partitions

    def _region_of(self, partition: Partition) -> str | None:
        """Return the region of a partition's pools, None when they lie in several."""
        regions = {self._region_by_pool[name] for name in partition.pools}
        return regions.pop() if len(regions) == 1 else None

    def _present(self, series_by_region: Mapping[str, Series], region: str | None) -> float | None:
        series = None if region is None else regional_series(series_by_region, region)
        return None if series is None else value_at(series, self._view.now_seconds)

    def _switch_states(self) -> tuple[SwitchState, ...]:
        """Return a switch for each pool whose nodes have links to each other; nothing is known above it."""
        congestion = self._view.link_congestion
        if congestion != self._congestion:
            self._switches = tuple(
                SwitchState(
                    name=switch_name(pool.name),
                    capacity_gb_per_second=pool.nodes * pool.link_gigabytes_per_second,
                    congestion=congestion,
                )
                for pool in self._view.world.pools
                if pool.link_gigabytes_per_second < inf
            )
            self._congestion = congestion
        return self._switches

    def _cluster_states(self) -> tuple[ClusterState, ...]:
        several = len(self._regions) > 1
        clusters = tuple(self._cluster_state(region, several=several) for region in self._regions)
        if clusters != self._clusters:
            self._clusters = clusters
        return self._clusters

    def _cluster_state(self, region: str, *, several: bool) -> ClusterState:
        """Return readings and limits of a region; a budget that several share is no region's own."""
        view = self._view
        pools = [pool for pool in self._pools if pool.region == region]
        cooled = [pool for pool in pools if pool.cooling_watts is not None]
        budget = view.power_budget_watts
        return ClusterState(
            name=ClusterName(region) if several else CLUSTER,
            power_watts=sum(pool.watts for pool in pools) if several else view.power_watts,
            power_budget_watts=budget if budget < inf and not several else None,
            cooling_watts=sum(pool.cooling_watts or 0.0 for pool in cooled) if cooled else None,
            heat_watts=sum(pool.device_watts for pool in cooled) if cooled else None,
            carbon_grams_per_kwh=self._present(view.world.carbon_grams_per_kwh, region),
            price_per_kwh=self._present(view.world.price_per_kwh, region),
            quality_violations=self._jobs.violations,
        )


USER_ID = 1000
RECENT_JOBS = 100
"""Ended jobs with a deadline over which violations are counted."""
_GIBIBYTES_PER_GIGABYTE = 1e9 / 2**30


class _Known:
    """A job that has not ended, and its state at the last snapshot."""

    __slots__ = ("parents_left", "phase", "run", "started_seconds", "state")

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.phase = -1
        self.started_seconds = inf
        self.parents_left = 0
        self.state: JobState | None = None


class LiveJobs:
    """Pending and running jobs, in the order of their submission."""

    def __init__(self, view: TwinView, pools: Sequence[PoolNodes], time_offset_seconds: float) -> None:
        self._view = view
        self._pools = pools
        self._offset = time_offset_seconds
        self._live: list[_Known] = []
        self._seen = 0
        self._shown: tuple[JobState, ...] = ()
        self._missed: deque[bool] = deque(maxlen=RECENT_JOBS)
        """Of the last jobs with a deadline that ended: whether they missed it."""

    @property
    def violations(self) -> float | None:
        """Share of the recent jobs with a deadline that missed it, None before the first has ended."""
        return sum(self._missed) / len(self._missed) if self._missed else None

    def update(self, without: int | None = None) -> tuple[JobState, ...]:
        """Return the jobs as they stand, without one that is being decided; the same tuple when none changed.

        `PoolNodes.update` comes first: it gives the numbers of the devices that jobs hold.
        """
        runs = self._view.runs
        new = len(runs) - self._seen
        if new:
            self._live += [_Known(run) for run in reversed(list(islice(reversed(runs.values()), new)))]  # type: ignore[call-overload]  # a dict's values can be reversed
            self._seen = len(runs)
        moved = set().union(*(pool.moved for pool in self._pools))
        found: list[JobState] = []
        ended = False
        for known in self._live:
            run = known.run
            phase = run.phase
            if phase == ENDED:
                ended = True
                continue
            if run.job_id == without:
                continue
            if (
                phase != known.phase
                or run.started_seconds != known.started_seconds
                or (phase == HELD and run.parents_left != known.parents_left)
                or (moved and run.job_id in moved)
            ):
                self._renew(known)
            found.append(known.state)  # type: ignore[arg-type]  # a phase of -1 has made it
        if ended:
            self._forget_ended()
        shown = tuple(found)
        if shown != self._shown:
            self._shown = shown
        return self._shown

    def _renew(self, known: _Known) -> None:
        run = known.run
        state = self._state(run)
        if state != known.state:  # a job that began to compute is the same to Slurm
            known.state = state
        known.phase, known.started_seconds, known.parents_left = run.phase, run.started_seconds, run.parents_left

    def _forget_ended(self) -> None:
        for known in self._live:
            run = known.run
            if run.phase == ENDED and run.job.deadline_seconds < inf:
                self._missed.append(run.state != "COMPLETED" or run.ended_seconds > run.job.deadline_seconds)
        self._live = [known for known in self._live if known.run.phase != ENDED]

    def _state(self, run: JobRun) -> JobState:
        job, view = run.job, self._view
        runs_now = run.phase in (STARTING, COMPUTING)
        places = (run.place,) if runs_now else run.allowed if job.routed_place is None else (job.routed_place,)
        holds = self._positions(run) if runs_now else ()
        gpus = run.gpus if runs_now else job.gpu_counts[0]
        nodes = len(holds) if runs_now else ceil(gpus / view.places[places[0]].gpus_per_node) if places else 1
        estimate = view.expected_seconds(run)
        on_cpus = all(view.places[place].is_cpu for place in places) and bool(places)
        return JobState(
            job_id=JobId(job.job_id),
            user_name=job.user,
            user_id=USER_ID,
            name=job.name,
            state="RUNNING" if runs_now else "PENDING",
            partitions=tuple(dict.fromkeys(PartitionName(view.places[place].partition) for place in places)),
            submitted_at_seconds=job.submitted_seconds + self._offset,
            started_at_seconds=run.started_seconds + self._offset if runs_now else None,
            account=job.account or None,
            array_job_id=None if job.array_id is None else JobId(job.array_id),
            restart_count=run.restarts,
            time_limit_minutes=job.time_limit_seconds / 60.0 if job.time_limit_seconds < inf else None,
            nodes=",".join(name for name, _ in holds),
            node_count=nodes,
            gpu_count=0 if on_cpus and runs_now else gpus,
            cpus=job.cpus or None,
            priority=round(job.priority),
            dependencies=() if runs_now else self._dependencies(run),
            deadline_seconds=job.deadline_seconds + self._offset if job.deadline_seconds < inf else None,
            memory_per_node_mib=job.memory_gib * MEBIBYTES_PER_GIBIBYTE / nodes if job.memory_gib else None,
            gpu_types=job.devices,
            gpu_max_count=job.gpu_counts[-1] if len(job.gpu_counts) > 1 else None,
            exclusive=job.exclusive,
            estimated_seconds=estimate if estimate < inf and not view.hides_jobs else None,
            gpu_positions=() if on_cpus else holds,
            kind="" if view.hides_jobs else job.kind,
        )

    def _positions(self, run: JobRun) -> tuple[tuple[NodeName, tuple[int, ...]], ...]:
        pool_index = self._view.twin_places[run.place].pool_index
        name = self._view.world.pools[pool_index].name
        return tuple((NodeName(f"{name}-{node}"), numbers) for node, numbers in self._pools[pool_index].positions(run))

    def _dependencies(self, run: JobRun) -> tuple[JobDependency, ...]:
        """Return the parents that have not ended; they hand over equal parts of the job's input."""
        job = run.job
        parents = dict.fromkeys(job.after_any, False) | dict.fromkeys(job.after_ok, True)
        if not parents:
            return ()
        runs = self._view.runs
        volume = job.input_gigabytes * _GIBIBYTES_PER_GIGABYTE / len(parents) if job.input_gigabytes else None
        return tuple(
            JobDependency(job_id=JobId(parent), needs_success=needs_success, data_gib=volume)
            for parent, needs_success in parents.items()
            if parent not in runs or runs[parent].phase != ENDED
        )
