"""What decisions need of a cluster beside the network's own numbers."""

from collections.abc import Mapping
from typing import NamedTuple

from slurm_energy.domain.ids import PartitionName
from slurm_energy.graph.job_features import QueueFacts
from slurm_energy.graph.memberships import PlaceSums


class Shown(NamedTuple):
    """What is known beside the published embeddings, as of the same moment."""

    partition_index: Mapping[PartitionName, int]
    """Numbers of the partitions."""
    facts: QueueFacts
    sums: PlaceSums
    """Over the nodes of each partition."""
