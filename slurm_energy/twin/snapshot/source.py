"""The twin as `ClusterSnapshot`s, one after the other, at the cost of what changed between them."""

from collections.abc import Mapping
from math import inf

from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName, PartitionName
from slurm_energy.twin.adapters.view import TwinView, regional_series, value_at
from slurm_energy.twin.snapshot.jobs import LiveJobs
from slurm_energy.twin.snapshot.nodes import PoolNodes, switch_name
from slurm_energy.twin.world import Partition, Series

CLUSTER = ClusterName("twin")
_DECIMALS = 6
"""Of the offset between the two times: what a sum in floating point leaves must not get into every job's times."""


class SnapshotSource:
    """Snapshots of a run of the twin, one after the other; with another run's view it begins anew.

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
        """Return readings and limits of a region; a budget that several share is nobody's own."""
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
