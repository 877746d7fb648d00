from typing import Any

import pytest
from small_clusters import make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterState, PartitionState
from slurm_energy.domain.ids import ClusterName, PartitionName
from slurm_energy.graph.partitions import Frame

P, Q = make_partition("p"), make_partition("q", cluster=ClusterName("far"))


def frame_of(*partitions: PartitionState, **changes: Any) -> Frame:
    return Frame(make_snapshot(partitions=partitions, **changes))


def test_described_clusters_come_first_then_those_of_partitions() -> None:
    frame = frame_of(P, Q, clusters=(ClusterState(name=ClusterName("near")),))
    assert frame.cluster_index == {"near": 0, "c": 1, "far": 2}
    assert frame.partition_cluster.tolist() == [1, 2]
    assert frame_of().cluster_index == {"c": 0}


def test_names_become_numbers_and_unknown_ones_nothing() -> None:
    frame = frame_of(P, Q)
    assert frame.places(map(PartitionName, ("q", "gone", "q", "p"))) == (1, 0)
    assert frame.cluster_of([PartitionName("gone"), PartitionName("q")]) == 1
    assert frame.cluster_of([]) == 0


@pytest.mark.parametrize(
    ("partitions", "numbers", "values"),
    [
        ((P, Q), True, True),
        ((Q, P), False, True),
        ((P,), False, False),
        ((make_partition("p", up=False), Q), True, False),
        ((P, make_partition("q")), False, False),
    ],
)
def test_numbers_and_values_are_compared_apart(
    partitions: tuple[PartitionState, ...], numbers: bool, values: bool
) -> None:
    other = frame_of(*partitions)
    assert frame_of(P, Q).same_numbers(other) is numbers
    assert frame_of(P, Q).same_values(other) is values
