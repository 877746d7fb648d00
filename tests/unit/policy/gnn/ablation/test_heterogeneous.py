import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import HeteroConv, SAGEConv

from slurm_energy.evaluation.decision_speed.synthetic_cluster import ClusterSize, synthetic_cluster
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.schema import VERTICES
from slurm_energy.policy.gnn.ablation.heterogeneous import HeteroPeer, hetero_data, time_peer


@pytest.fixture(scope="module")
def graph() -> ClusterGraph:
    graph = ClusterGraph()
    graph.update(synthetic_cluster(ClusterSize(nodes=4, gpus_per_node=2, pending=6), 1, 1_800_000_000.0))
    return graph


def by_hand(
    layer: HeteroConv, x_dict: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]
) -> dict[str, Tensor]:
    """Mean over sources by a dense matrix, for each edge type; sums by target."""
    found: dict[str, Tensor] = {}
    for edge_type, index in edges.items():
        source, _, target = edge_type
        conv = layer.convs[edge_type]
        assert isinstance(conv, SAGEConv)
        dense = torch.zeros(len(x_dict[target]), len(x_dict[source]))
        dense.index_put_((index[1], index[0]), torch.ones(index.shape[1]), accumulate=True)
        mean = dense / dense.sum(1, keepdim=True).clamp(min=1.0)
        out = conv.lin_l(mean @ x_dict[source]) + conv.lin_r(x_dict[target])
        found[target] = found[target] + out if target in found else out
    return found


def test_the_plain_network_is_the_mean_over_neighbours_of_each_type(graph: ClusterGraph) -> None:
    data = hetero_data(graph)
    torch.manual_seed(3)
    network = HeteroPeer(data.edge_types, hidden=8).eval()
    hidden = {name: x.relu() for name, x in by_hand(network.first, data.x_dict, data.edge_index_dict).items()}
    last = by_hand(network.second, hidden, data.edge_index_dict)
    expected = network.score(last["partition"]).squeeze(-1)
    torch.testing.assert_close(network(data.x_dict, data.edge_index_dict), expected)


def test_messages_reach_every_kind_of_vertex_and_every_relation_goes_both_ways(graph: ClusterGraph) -> None:
    data = hetero_data(graph)
    assert {edge_type[2] for edge_type in data.edge_types} == set(VERTICES)
    for source, relation, target in data.edge_types:
        if relation not in {"link"} and not relation.startswith("rev_"):
            backwards = data[target, f"rev_{relation}", source].edge_index
            assert torch.equal(backwards.flip(0), data[source, relation, target].edge_index)


@pytest.mark.slow
def test_the_times_are_those_of_so_many_passes_over_the_whole_graph(graph: ClusterGraph) -> None:
    times = time_peer(graph, runs=4, limit_seconds=60.0)
    assert len(times.seconds) == 4
    assert min(times.seconds) > 0.0
    assert times.vertices == hetero_data(graph).num_nodes
    assert times.edges == hetero_data(graph).num_edges
    assert len(time_peer(graph, runs=50, limit_seconds=0.0).seconds) == 3


def test_measuring_draws_from_no_other_stream(graph: ClusterGraph) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    time_peer(graph, runs=1, limit_seconds=0.0)
    assert np.array_equal(torch.rand(3).numpy(), expected.numpy())
