"""What a plain graph network would cost: torch_geometric's `HeteroConv` over the whole graph at every decision.

Not a policy: it is never trained. It is measured beside the hierarchical network, over the same vertices and edges.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.export import EdgeType, edge_arrays, vertex_arrays
from slurm_energy.graph.schema import EDGES, VERTICES, width

PEER_HIDDEN = 64
_BOTH_WAYS = ("gpu", "link", "gpu")
"""The schema has these edges in both directions already."""


class HeteroPeer(nn.Module):
    """Two layers of GraphSAGE's mean aggregation for each edge type, summed by target, and a score of each partition.

    The layers take no edge features, as `SAGEConv` does not; attention would cost more.

    Args:
        edge_types: Edge types of the graph.
        hidden: Width of both layers.
    """

    def __init__(self, edge_types: list[EdgeType], hidden: int = PEER_HIDDEN) -> None:
        super().__init__()
        widths = {name: width(features) for name, features in VERTICES.items()}
        self.first = HeteroConv(
            {one: SAGEConv((widths[one[0]], widths[one[2]]), hidden) for one in edge_types}, aggr="sum"
        )
        self.second = HeteroConv({one: SAGEConv((hidden, hidden), hidden) for one in edge_types}, aggr="sum")
        self.score = nn.Linear(hidden, 1)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> Tensor:
        """Return a score of each partition, [partitions].

        Args:
            x_dict: Features by vertex type, [vertices, width].
            edge_index_dict: By edge type, [2, edges].
        """
        x_dict = {name: x.relu() for name, x in self.first(x_dict, edge_index_dict).items()}
        x_dict = self.second(x_dict, edge_index_dict)
        scores: Tensor = self.score(x_dict["partition"]).squeeze(-1)  # [partitions]
        return scores


def hetero_data(graph: ClusterGraph) -> HeteroData:
    """Return the whole graph; every relation is there in both directions, so that messages reach every vertex."""
    data = HeteroData()
    for name, x in vertex_arrays(graph).items():
        data[name].x = torch.from_numpy(x)
    for edge_type, edges in edge_arrays(graph).items():
        source, relation, target = edge_type
        index = torch.from_numpy(edges.index.copy())
        data[edge_type].edge_index = index
        if EDGES.get(edge_type) and edge_type != _BOTH_WAYS:
            data[target, f"rev_{relation}", source].edge_index = index.flip(0)
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimes:
    """What the plain network needed."""

    seconds: tuple[float, ...]
    """Of each forward pass."""
    vertices: int
    edges: int


def time_peer(graph: ClusterGraph, *, runs: int, limit_seconds: float, seed: int = 0) -> PeerTimes:
    """Return the times of forward passes over a graph, one for each decision.

    Making the tensors of a changed graph is not counted, in the plain network's favour.

    Args:
        graph: The graph.
        runs: Passes that are timed at most.
        limit_seconds: No pass is begun after it, but the first three.
        seed: Of the weights.
    """
    data = hetero_data(graph)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network = HeteroPeer(data.edge_types).eval()
    x_dict, edge_index_dict = data.x_dict, data.edge_index_dict
    seconds: list[float] = []
    with torch.inference_mode():
        network(x_dict, edge_index_dict)
        begun = time.perf_counter()
        while len(seconds) < runs and (len(seconds) < 3 or time.perf_counter() - begun < limit_seconds):
            before = time.perf_counter()
            network(x_dict, edge_index_dict)
            seconds.append(time.perf_counter() - before)
    return PeerTimes(seconds=tuple(seconds), vertices=data.num_nodes or 0, edges=data.num_edges)
