import numpy as np
import pytest
from small_clusters import make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, NodeGpus, SwitchState
from slurm_energy.domain.ids import ClusterName, PartitionName
from slurm_energy.graph.blocks import Floats, TopBlock
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.schema import CLUSTER, CONSTRAINT, PARTITION, SWITCH, UPLINK, Feature, column


def graph_of(snapshot: ClusterSnapshot) -> ClusterGraph:
    graph = ClusterGraph()
    graph.update(snapshot)
    return graph


def top_of(snapshot: ClusterSnapshot) -> TopBlock:
    return graph_of(snapshot).top_block()


def assert_column(rows: Floats, features: tuple[Feature, ...], name: str, *values: float) -> None:
    index = column(features, name)
    np.testing.assert_allclose(rows[:, index], [features[index].scaled(value) for value in values], rtol=1e-6)


def test_partitions_add_up_their_nodes_and_jobs() -> None:
    half = (NodeGpus(slurm_type="a100", count=4, allocated=2),)
    nodes = (
        make_node("n1", gpus=half),
        make_node("n2", gpus=half, partitions=(PartitionName("p"), PartitionName("q"))),
        make_node("n3", available=False, states=("IDLE", "POWERED_DOWN")),
        make_node("n4", count=0, partition="cpu"),
    )
    jobs = (
        make_job(1, gpus=3, partitions=tuple(map(PartitionName, "pq"))),
        make_job(2, gpus=2),
        make_job(3, running_on="n1"),
    )
    partitions = (make_partition("p"), make_partition("q"), make_partition("cpu"))
    graph = graph_of(make_snapshot(nodes, jobs, partitions))
    rows = graph.top_block().partition_x
    assert_column(rows, PARTITION, "nodes", 3, 1, 1)
    assert_column(rows, PARTITION, "gpus", 12, 4, 0)
    assert_column(rows, PARTITION, "gpus_free", 4 / 12, 2 / 4, 0)
    assert_column(rows, PARTITION, "waiting_gpus", 5, 3, 0)
    assert_column(rows, PARTITION, "waiting_jobs", 2, 1, 0)
    assert_column(rows, PARTITION, "claimed_gpus", 0, 0, 0)
    assert_column(rows, PARTITION, "nodes_suspended", 1 / 3, 0, 0)
    assert_column(rows, PARTITION, "is_cpu", 0, 0, 1)


def test_each_cluster_has_its_own_partitions_groups_and_constraints() -> None:
    far = ClusterState(name=ClusterName("far"), power_watts=500.0, power_budget_watts=1000.0)
    partitions = (make_partition("p"), make_partition("q", cluster=far.name))
    nodes = (make_node("n1"), make_node("n2", partition="q"), make_node("n3", partition="q"))
    jobs = (make_job(1), make_job(2, partitions=(PartitionName("q"),)), make_job(3, running_on="n2"))
    top = top_of(make_snapshot(nodes, jobs, partitions, clusters=(far,)))
    assert top.partition_cluster.tolist() == [1, 0]
    assert sorted(top.group_cluster.tolist()) == [0, 1]
    assert top.constraint_cluster.tolist() == [0] * 4 + [1] * 4
    assert_column(top.cluster_x, CLUSTER, "nodes", 2, 1)
    assert_column(top.cluster_x, CLUSTER, "pending_jobs", 1, 1)
    assert_column(top.cluster_x, CLUSTER, "running_jobs", 0, 1)
    assert_column(top.cluster_x, CLUSTER, "power_watts", 500, 0)
    assert_column(top.constraint_x, CONSTRAINT, "usage", 0.5, 0, 0, 0, 0, 0, 0, 0)


def test_a_group_is_linked_to_every_switch_above_it() -> None:
    switches = (
        SwitchState(name="leaf1", parent="spine", capacity_gb_per_second=100.0),
        SwitchState(name="leaf2", parent="spine"),
        SwitchState(name="spine", parent="core", capacity_gb_per_second=80.0, congestion=0.2),
        SwitchState(name="core", capacity_gb_per_second=30.0, congestion=0.1),
    )
    nodes = (make_node("n1", switch="leaf1"), make_node("n2", switch="leaf2", available=False), make_node("n3"))
    graph = graph_of(make_snapshot(nodes, switches=switches))
    top = graph.top_block()
    place = {
        graph.group_slots.tolist().index(*graph.groups_of([graph.node_index[node.name]])): node.switch for node in nodes
    }
    links = sorted((str(place[group]), spine) for group, spine in top.trunk_index.T.tolist())
    assert links == [("leaf1", 0), ("leaf1", 1), ("leaf2", 0), ("leaf2", 1)]
    assert_column(top.spine_x, SWITCH, "nodes", 2, 2)
    assert_column(top.spine_x, SWITCH, "nodes_available", 0.5, 0.5)
    assert_column(top.spine_x, SWITCH, "capacity_gb_per_second", 30.0, 80.0)
    core, spine = top.trunk_x[top.trunk_index[1] == 0], top.trunk_x[top.trunk_index[1] == 1]
    assert_column(core, UPLINK, "capacity_gb_per_second", 30.0, 30.0)
    assert_column(core, UPLINK, "congestion", 0.2, 0.2)
    assert_column(spine, UPLINK, "capacity_gb_per_second", 40.0, 40.0)


@pytest.mark.parametrize("parent", ["leaf1", "spine", "unheard-of"])
def test_switches_that_go_in_circles_end(parent: str) -> None:
    switches = (SwitchState(name="leaf1", parent="spine"), SwitchState(name="spine", parent=parent))
    top = top_of(make_snapshot((make_node("n1", switch="leaf1"),), switches=switches))
    assert top.trunk_index.shape[1] == len(top.trunk_x) == (2 if parent == "unheard-of" else 1)


def test_an_empty_snapshot_has_one_cluster_and_its_constraints() -> None:
    top = top_of(make_snapshot(partitions=()))
    assert top.partition_x.shape == (0, len(PARTITION))
    assert top.cluster_x.shape == (1, len(CLUSTER))
    assert len(top.constraint_x) == 4
    assert top.trunk_index.shape == (2, 0)
    assert top.trunk_x.shape == (0, len(UPLINK))


def test_a_switch_above_several_clusters_counts_in_the_first() -> None:
    switches = (
        SwitchState(name="a", parent="root"),
        SwitchState(name="b", parent="root"),
        SwitchState(name="x", parent="y"),
    )
    partitions = (make_partition("p", cluster=ClusterName("near")), make_partition("q", cluster=ClusterName("far")))
    nodes = (make_node("n1", switch="a", partition="q"), make_node("n2", switch="b", partition="p"))
    for order in (nodes, nodes[::-1], nodes[:1]):
        top = top_of(make_snapshot(order, (), partitions, switches=switches))
        assert top.spine_cluster.tolist() == [min(top.group_cluster), 0]
