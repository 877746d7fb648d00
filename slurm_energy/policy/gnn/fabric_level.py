"""The middle level: nodes of a group and their switch."""

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import FabricBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.encoders import VertexEncoder
from slurm_energy.policy.gnn.levels import Fabric, floats, indices
from slurm_energy.policy.gnn.offering import Offering
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of
from slurm_energy.policy.gnn.spectral import scaled_laplacian

UP, DOWN = 0, 1
_CAPACITY = schema.column(schema.UPLINK, "capacity_gb_per_second")
_CONGESTION = schema.column(schema.SWITCH, "congestion")
_LEAST_WEIGHT = 0.05


class FabricLevel(nn.Module):
    """Convolutions after the pooling, between nodes and their leaf switch (section 3.3 of the paper).

    The star of one switch is a component of its own here, so that a change in one group leaves the others as they are;
    what lies above the leaves is the top level's. With an order of 3 the spectral part reaches from node to node.

    Shapes: FabricBlock of n nodes in s groups, node [n, hidden] -> node [n, hidden], switch [s, hidden].
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.spectral = config.propagation != "spatial"
        self.switch = VertexEncoder(schema.width(schema.SWITCH), hidden)
        self.layers = nn.ModuleList(
            propagation_of(config, schema.width(schema.UPLINK), 2) for _ in range(config.fabric_layers)
        )
        self.offering = Offering(hidden, hidden, config.heads)

    def forward(self, block: FabricBlock, node: Tensor, node_weight: Tensor | None = None) -> Fabric:
        """Return nodes, switches and what each node offers to its partitions.

        Args:
            block: Whole groups.
            node: Embeddings of its nodes from the device level, [nodes, hidden].
            node_weight: Where nodes were sampled, 1 / probability of each, [nodes].
        """
        nodes = node.shape[0]
        uplink_x, group = floats(block.uplink_x), indices(block.node_group)
        x = torch.cat([node, self.switch(floats(block.switch_x))])  # [nodes + groups, hidden]
        up = torch.stack([torch.arange(nodes, device=group.device), nodes + group])
        edge_index = torch.cat([up, up.flip(0)], dim=1)  # [2, 2 nodes]
        edge_x = torch.cat([uplink_x, uplink_x])
        edge_type = torch.repeat_interleave(torch.tensor([UP, DOWN], device=group.device), nodes)
        capacity = edge_x[:, _CAPACITY].clamp(min=_LEAST_WEIGHT)
        weight = None if node_weight is None else torch.cat([node_weight, torch.ones_like(node_weight)])
        edges = TypedEdges(
            edge_index=edge_index,
            edge_x=edge_x,
            edge_type=edge_type,
            edge_weight=weight,
            laplacian=self._laplacian(edge_index, capacity, weight, x.shape[0]) if self.spectral else None,
        )
        for layer in self.layers:
            x = layer(x, edges)
        return Fabric(
            x[:nodes], x[nodes:], floats(block.switch_x)[:, _CONGESTION], self.offering(x[:nodes], node_weight)
        )

    def _laplacian(self, edge_index: Tensor, capacity: Tensor, weight: Tensor | None, vertices: int) -> Tensor:
        """Return the scaled Laplacian; a link that stands for several counts as often, so as to estimate the whole."""
        return scaled_laplacian(edge_index, capacity if weight is None else capacity * weight, vertices)
