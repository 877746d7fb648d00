"""Partitions and clusters of a snapshot by number, the nodes of each partition with their sums, and what changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName, GpuTypeName, PartitionName
from slurm_energy.graph.blocks import Indices
from slurm_energy.graph.columns import ColumnStore
from slurm_energy.graph.job_features import QueueFacts

Types = tuple[GpuTypeName | None, ...]
"""GPU types by catalogue name, each once; None stands for those that are not known."""


class Frame:
    """Partitions, clusters and switches of one snapshot; of several with one name, the last counts."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.own = snapshot.cluster
        self.partitions: Mapping[PartitionName, PartitionState] = {item.name: item for item in snapshot.partitions}
        self.clusters: Mapping[ClusterName, ClusterState] = {item.name: item for item in snapshot.clusters}
        self.switches: Mapping[str, SwitchState] = {item.name: item for item in snapshot.switches}
        self.partition_index: dict[PartitionName, int] = {name: place for place, name in enumerate(self.partitions)}
        used = [item.cluster or self.own for item in self.partitions.values()]
        names = tuple(dict.fromkeys((*self.clusters, *used))) or (self.own,)
        self.cluster_index: dict[ClusterName, int] = {name: place for place, name in enumerate(names)}
        self.partition_cluster: Indices = np.array([self.cluster_index[name] for name in used], dtype=np.int64)

    def same_numbers(self, other: "Frame") -> bool:
        """Return whether partitions and clusters have the same numbers in both, and belong together alike."""
        return (
            self.own == other.own
            and list(self.partition_index) == list(other.partition_index)
            and list(self.cluster_index) == list(other.cluster_index)
            and np.array_equal(self.partition_cluster, other.partition_cluster)
        )

    def same_values(self, other: "Frame") -> bool:
        """Return whether nothing that a partition, cluster or switch has differs."""
        return (
            self.partitions == other.partitions and self.clusters == other.clusters and self.switches == other.switches
        )

    def places(self, names: Iterable[PartitionName]) -> tuple[int, ...]:
        """Return the numbers of those partitions that exist, each once."""
        index = self.partition_index
        return tuple(dict.fromkeys(index[name] for name in names if name in index))

    def cluster_of(self, names: Iterable[PartitionName]) -> int:
        """Return the number of the cluster that the first known of some partitions is in, 0 when none is known."""
        places = self.places(names)
        return int(self.partition_cluster[places[0]]) if places else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What an update changed, by slots: what the network has to work out again."""

    nodes: frozenset[int] = frozenset()
    """Nodes of which something inside is different: columns, devices, links, running jobs."""
    groups: frozenset[int] = frozenset()
    """Groups with a changed node, other members, another link or switch, or other partitions of a node."""
    tasks: frozenset[int] = frozenset()
    """Jobs of the queue in whose part of the dependency graph something is different: whole parts."""
    gone_nodes: frozenset[int] = frozenset()
    """Slots that are no longer in use, here and below; one that was given out again counts as changed."""
    gone_groups: frozenset[int] = frozenset()
    gone_tasks: frozenset[int] = frozenset()
    """Also jobs that run now and that no job waits for: no longer in the queue, though they are still vertices."""
    top: bool = False
    """Whether anything of the top is different."""
    rebuilt: bool = False
    """Whether every slot and every number is new: partitions or clusters came, went or changed places."""

    def __bool__(self) -> bool:
        return self != _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlaceSums:
    """Sums over the nodes of each partition, [partitions]."""

    nodes: Indices
    suspended: Indices
    gpus: Indices
    devices: Indices
    """GPUs, and one for each node without."""
    free: Indices
    """Devices that a job could have now."""
    gpus_free: Indices


class Memberships:
    """Partitions of each node by its slot, also as two flat arrays."""

    def __init__(self, num_partitions: int) -> None:
        self.num_partitions = num_partitions
        self._places: dict[int, tuple[int, ...]] = {}
        self._kinds: dict[int, Types] = {}
        self._flat: tuple[Indices, Indices] | None = None
        self._types: tuple[Types, ...] | None = None

    def __getitem__(self, slot: int) -> tuple[int, ...]:
        return self._places[slot]

    def set_node(self, slot: int, places: tuple[int, ...], kinds: Types) -> None:
        """Say where a node belongs, and which types of GPUs it has."""
        if self._places.get(slot) != places:
            self._places[slot] = places
            self._flat = self._types = None
        if self._kinds.get(slot) != kinds:
            self._kinds[slot] = kinds
            self._types = None

    def remove_node(self, slot: int) -> None:
        """Take a node out of all its partitions."""
        del self._places[slot], self._kinds[slot]
        self._flat = self._types = None

    def flat(self) -> tuple[Indices, Indices]:
        """Return node slot and partition of every membership, nodes ascending."""
        if self._flat is None:
            self._flat = self.of(np.array(sorted(self._places), dtype=np.int64))
        return self._flat

    def of(self, slots: Indices) -> tuple[Indices, Indices]:
        """Return node slot and partition of every membership of some nodes, in their order."""
        places = [self._places[slot] for slot in slots.tolist()]
        counts = np.array([len(found) for found in places], dtype=np.int64)
        return np.repeat(slots, counts), np.array([place for found in places for place in found], dtype=np.int64)

    def types(self) -> tuple[Types, ...]:
        """Return the GPU types of each partition by name, None last; the same object while they are the same."""
        if self._types is None:
            found: list[set[GpuTypeName | None]] = [set() for _ in range(self.num_partitions)]
            for slot, kinds in self._kinds.items():
                for place in self._places[slot]:
                    found[place].update(kinds)
            self._types = tuple(tuple(sorted(types, key=lambda name: (name is None, name or ""))) for types in found)
        return self._types

    def sums(self, nodes: ColumnStore) -> PlaceSums:
        """Return what the nodes of each partition add up to."""
        slots, places = self.flat()

        def total(values: Indices) -> Indices:
            return np.bincount(places, weights=values[slots], minlength=self.num_partitions).astype(np.int64)

        gpus, free = nodes["gpus"], nodes["free"]
        return PlaceSums(
            nodes=np.bincount(places, minlength=self.num_partitions),
            suspended=total(nodes["suspended"]),
            gpus=total(gpus),
            devices=total(nodes["devices"]),
            free=total(free),
            gpus_free=total(np.where(gpus > 0, free, 0)),
        )


_NOTHING = Changes()


class ClusterFacts(NamedTuple):
    """What is known beside the published embeddings, as of the same moment."""

    partition_index: Mapping[PartitionName, int]
    """Numbers of the partitions."""
    facts: QueueFacts
    sums: PlaceSums
    """Over the nodes of each partition."""
