"""What the vertices of the top are numbered by, a snapshot's partitions and clusters, and what an update changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName, PartitionName
from slurm_energy.graph.blocks import Indices


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
    """Also jobs that run now and that nobody waits for: no longer in the queue, though they are still vertices."""
    top: bool = False
    """Whether anything of the top is different."""
    rebuilt: bool = False
    """Whether every slot and every number is new: partitions or clusters came, went or changed places."""

    def __bool__(self) -> bool:
        return self != _NOTHING


_NOTHING = Changes()
