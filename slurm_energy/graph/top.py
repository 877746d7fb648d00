"""The top of the graph: partitions, clusters, their constraints, and the switches above the groups."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_energy.domain.cluster import SwitchState
from slurm_energy.domain.ids import PartitionName
from slurm_energy.graph.blocks import Floats, Indices, TopBlock
from slurm_energy.graph.columns import ColumnStore
from slurm_energy.graph.groups import GroupTable, switch_of
from slurm_energy.graph.job_relations import Demand
from slurm_energy.graph.partitions import Frame, Memberships, PlaceSums
from slurm_energy.graph.place_features import (
    CLUSTER_SCALER,
    CONSTRAINT_SCALER,
    CONSTRAINTS_PER_CLUSTER,
    PARTITION_SCALER,
    SWITCH_SCALER,
    UPLINK_SCALER,
    PlaceCounts,
    Row,
    cluster_row,
    constraint_rows,
    link_row,
    partition_row,
    switch_row,
)

Demands = Mapping[tuple[PartitionName, ...], Demand]
_MAX_LEVELS = 16
"""Switches above a leaf that are looked at; a circle of parents ends here."""


def partition_counts(frame: Frame, sums: PlaceSums, demands: Demands) -> list[PlaceCounts]:
    """Return what the nodes and jobs of each partition add up to; a job waits in each partition that it names."""
    waiting_gpus, waiting_jobs = [0] * len(frame.partitions), [0] * len(frame.partitions)
    for names, demand in demands.items():
        for place in frame.places(names):
            waiting_gpus[place] += demand.waiting_gpus
            waiting_jobs[place] += demand.waiting_jobs
    return [
        PlaceCounts(
            nodes=int(sums.nodes[place]),
            suspended=int(sums.suspended[place]),
            gpus=int(sums.gpus[place]),
            gpus_free=int(sums.gpus_free[place]),
            waiting_gpus=waiting_gpus[place],
            waiting_jobs=waiting_jobs[place],
        )
        for place in range(len(frame.partitions))
    ]


def cluster_counts(frame: Frame, nodes: ColumnStore, demands: Demands) -> list[PlaceCounts]:
    """Return what the nodes and jobs of each cluster add up to; a job counts in the cluster of its first partition."""
    number, slots = len(frame.cluster_index), nodes.slots
    waiting, running = [0] * number, [0] * number
    for names, demand in demands.items():
        place = frame.cluster_of(names)
        waiting[place] += demand.waiting_jobs
        running[place] += demand.running_jobs
    cluster, gpus = nodes["cluster"][slots], nodes["gpus"][slots]
    counted = np.bincount(cluster, minlength=number)
    all_gpus = np.bincount(cluster, weights=gpus, minlength=number)
    free_gpus = np.bincount(cluster, weights=np.where(gpus > 0, nodes["free"][slots], 0), minlength=number)
    return [
        PlaceCounts(
            nodes=int(counted[place]),
            gpus=int(all_gpus[place]),
            gpus_free=int(free_gpus[place]),
            waiting_jobs=waiting[place],
            running_jobs=running[place],
        )
        for place in range(number)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What the top stands on."""

    frame: Frame
    nodes: ColumnStore
    groups: GroupTable
    members: Memberships


class Spines:
    """Switches above the groups, with the way from each group to each switch above it."""

    def __init__(self, where: Places) -> None:
        frame, groups = where.frame, where.groups
        available = where.nodes["available"]
        self._frame = frame
        self._children: dict[str, int] = {}
        for switch in frame.switches.values():
            if switch.parent is not None:
                self._children[switch.parent] = self._children.get(switch.parent, 0) + 1
        self.names = sorted(self._children)
        index = {name: place for place, name in enumerate(self.names)}
        # Above groups of several clusters, a switch counts in the first of them.
        cluster = [len(frame.cluster_index)] * len(self.names)
        nodes, up = [0] * len(self.names), [0] * len(self.names)
        trunks: list[tuple[int, int]] = []
        rows: list[Row] = []
        for place, group in enumerate(groups.store.slots.tolist()):
            name = switch_of(groups.bucket_of_group[group])
            members = list(groups.members[group])
            for spine, row in () if name is None else self._above(name):
                above = index[spine]
                nodes[above] += len(members)
                up[above] += int(available[members].sum())
                cluster[above] = min(cluster[above], int(groups.store["cluster"][group]))
                trunks.append((place, above))
                rows.append(row)
        self.cluster: Indices = np.array(cluster, dtype=np.int64) % len(frame.cluster_index)
        states = [frame.switches.get(name, SwitchState(name=name)) for name in self.names]
        self.x: Floats = SWITCH_SCALER.scaled(
            [
                switch_row(state, nodes=nodes[place], available=up[place], is_leaf=False)
                for place, state in enumerate(states)
            ]
        )
        order = sorted(range(len(trunks)), key=trunks.__getitem__)
        self.trunk_index: Indices = np.array([trunks[i] for i in order], dtype=np.int64).reshape(-1, 2).T
        self.trunk_x: Floats = UPLINK_SCALER.scaled([rows[i] for i in order])

    def _above(self, name: str) -> Iterator[tuple[str, Row]]:
        """Yield each switch above one, with the narrowest capacity and the worst congestion on the way.

        A switch's capacity is shared evenly by those below it.
        """
        seen = {name}
        capacity, congestion = None, None
        for _ in range(_MAX_LEVELS):
            switch = self._frame.switches.get(name)
            parent = None if switch is None else switch.parent
            if parent is None or parent in seen:
                return
            seen.add(parent)
            state = self._frame.switches.get(parent)
            if state is not None and state.capacity_gb_per_second is not None:
                share = state.capacity_gb_per_second / self._children[parent]
                capacity = share if capacity is None else min(capacity, share)
            if state is not None and state.congestion is not None:
                congestion = state.congestion if congestion is None else max(congestion, state.congestion)
            yield parent, link_row(capacity, congestion)
            name = parent


def top_block(where: Places, demands: Demands) -> TopBlock:
    """Return the vertices of the top.

    Args:
        where: Nodes, groups and partitions.
        demands: Jobs by the partitions that they name.
    """
    frame, groups = where.frame, where.groups
    partitions = partition_counts(frame, where.members.sums(where.nodes), demands)
    clusters = cluster_counts(frame, where.nodes, demands)
    spines = Spines(where)
    names = list(frame.cluster_index)
    sites = [frame.clusters.get(name) for name in names]
    return TopBlock(
        partition_x=PARTITION_SCALER.scaled(
            [
                partition_row(state, counts, sites[cluster])
                for state, counts, cluster in zip(
                    frame.partitions.values(), partitions, frame.partition_cluster, strict=True
                )
            ]
        ),
        partition_cluster=frame.partition_cluster,
        cluster_x=CLUSTER_SCALER.scaled(
            [cluster_row(site, counts) for site, counts in zip(sites, clusters, strict=True)]
        ),
        constraint_x=CONSTRAINT_SCALER.scaled([row for site in sites for row in constraint_rows(site)]),
        constraint_cluster=np.repeat(np.arange(len(names)), CONSTRAINTS_PER_CLUSTER),
        group_cluster=groups.store["cluster"][groups.store.slots],
        spine_x=spines.x,
        spine_cluster=spines.cluster,
        trunk_index=spines.trunk_index,
        trunk_x=spines.trunk_x,
    )
