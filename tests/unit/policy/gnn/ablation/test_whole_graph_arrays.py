import numpy as np
import pytest
from small_clusters import after, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, SwitchState
from slurm_energy.domain.ids import PartitionName
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.schema import EDGES, VERTICES
from slurm_energy.policy.gnn.ablation.heterogeneous import edge_arrays, vertex_arrays

SNAPSHOT = make_snapshot(
    (
        make_node("n1", switch="a", gpus=(NodeGpus(slurm_type="a100", count=2, allocated=1),)),
        make_node("n2", switch="b", count=1, partitions=(PartitionName("p"), PartitionName("q"))),
        make_node("n3", count=0, partition="q"),
    ),
    (
        make_job(1, running_on="n1"),
        make_job(2, partitions=(PartitionName("p"), PartitionName("q"))),
        make_job(3, dependencies=after(1, 2), priority=999),
    ),
    (make_partition("p"), make_partition("q")),
    switches=(SwitchState(name="a", parent="root"), SwitchState(name="b", parent="root")),
)


def graph_of(snapshot: ClusterSnapshot) -> ClusterGraph:
    graph = ClusterGraph()
    graph.update(snapshot)
    return graph


@pytest.mark.parametrize("snapshot", [SNAPSHOT, make_snapshot(), make_snapshot(partitions=())])
def test_every_type_is_there_and_every_edge_ends_at_a_vertex(snapshot: ClusterSnapshot) -> None:
    graph = graph_of(snapshot)
    vertices, edges = vertex_arrays(graph), edge_arrays(graph)
    assert {name: x.shape[1] for name, x in vertices.items()} == {name: len(row) for name, row in VERTICES.items()}
    backwards = {(target, f"rev_{relation}", source) for (source, relation, target), row in EDGES.items() if not row}
    assert edges.keys() == EDGES.keys() | backwards
    for (source, relation, target), edge in edges.items():
        assert edge.x.shape == (edge.index.shape[1], len(EDGES.get((source, relation, target), ())))
        for name, ends in ((source, edge.index[0]), (target, edge.index[1])):
            assert ((ends >= 0) & (ends < len(vertices[name]))).all()


def test_a_small_cluster_has_the_edges_that_one_counts_by_hand() -> None:
    edges = edge_arrays(graph_of(SNAPSHOT))
    counts = {relation: edges[relation].index.shape[1] for relation in EDGES}
    assert counts == {
        ("gpu", "link", "gpu"): 2,
        ("node", "uplink", "switch"): 3,
        ("switch", "trunk", "switch"): 2,
        ("task", "depends", "task"): 2,
        ("task", "runs", "gpu"): 1,
        ("task", "option", "partition"): 3,
        ("task", "device_option", "gpu"): 4 + 3,
        ("gpu", "in", "node"): 4,
        ("node", "in", "partition"): 4,
        ("switch", "in", "cluster"): 4,
        ("partition", "in", "cluster"): 2,
        ("constraint", "bounds", "cluster"): 4,
    }


def test_a_running_job_is_no_neighbour_of_a_device_that_it_could_have() -> None:
    graph = graph_of(SNAPSHOT)
    edges = edge_arrays(graph)
    numbers = graph.jobs.store["job"][graph.task_slots]
    assert set(numbers[edges["task", "device_option", "gpu"].index[0]]) == {2, 3}
    assert numbers[edges["task", "runs", "gpu"].index[0]].tolist() == [1]
    held = edges["task", "runs", "gpu"].index[1, 0]
    options = edges["task", "device_option", "gpu"]
    np.testing.assert_array_equal(options.x[:, 3], options.index[1] != held)


def test_the_first_of_the_queue_have_their_device_options_first() -> None:
    graph = graph_of(SNAPSHOT)
    index = edge_arrays(graph, max_device_options=2)["task", "device_option", "gpu"].index
    numbers = graph.jobs.store["job"][graph.task_slots]
    assert numbers[index[0]].tolist() == [3, 3]


def test_containment_goes_both_ways() -> None:
    edges = edge_arrays(graph_of(SNAPSHOT))
    np.testing.assert_array_equal(edges["gpu", "in", "node"].index[::-1], edges["node", "rev_in", "gpu"].index)
