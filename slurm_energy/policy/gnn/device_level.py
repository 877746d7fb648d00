"""The lowest level: devices hear of each other, of the jobs on them and of their node, and become the node."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DeviceBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.encoders import VertexEncoder
from slurm_energy.policy.gnn.levels import Devices, floats, indices
from slurm_energy.policy.gnn.pooling import NodePooling
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of
from slurm_energy.policy.gnn.spectral import scaled_laplacian

LINK, RUNS, IN = 0, 1, 2
"""Types of the edges that end at a device."""
_EDGE_COLUMNS = max(schema.width(schema.LINK), schema.width(schema.RUNS))
_BANDWIDTH = schema.column(schema.LINK, "bandwidth_gb_per_second")
_LEAST_WEIGHT = 0.05
"""Of a link whose bandwidth nobody knows."""


class DeviceLevel(nn.Module):
    """Device-level propagation and node-level pooling (section 3.3 of the paper).

    A node's result depends on what is inside the node alone.

    Shapes: DeviceBlock of n nodes and g devices -> gpu [g, hidden], node [n, hidden].
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.spatial = config.propagation != "spectral"
        self.spectral = config.propagation != "spatial"
        self.gpu = VertexEncoder(schema.width(schema.GPU), hidden)
        self.task = VertexEncoder(schema.width(schema.TASK), hidden)
        self.parent = VertexEncoder(schema.width(schema.NODE), hidden)
        self.layers = nn.ModuleList(propagation_of(config, _EDGE_COLUMNS, 3) for _ in range(config.device_layers))
        self.pooling = NodePooling(hidden, config.pooling, config.pooled_vertices)
        self.node = VertexEncoder(schema.width(schema.NODE), hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, block: DeviceBlock, link_rate_weight: Tensor | None = None) -> Devices:
        """Return the embeddings of all devices and nodes of a block.

        Args:
            block: Whole nodes.
            link_rate_weight: Where links were sampled, 1 / probability of each, [links].
        """
        gpu = self.gpu(floats(block.gpu_x))  # [gpus, hidden]
        gpus = gpu.shape[0]
        node_x, gpu_node = floats(block.node_x), indices(block.gpu_node)
        task, run_index = self.task(floats(block.task_x)), indices(block.run_index)  # [tasks, hidden]
        if not self.spatial:
            copies, run_index = _apart(block)
            task = task[copies]  # [copies, hidden]
        sources = torch.cat([task, self.parent(node_x)])  # [tasks + nodes, hidden]
        link_index = indices(block.link_index)
        link_weight = floats(block.link_x)[:, _BANDWIDTH].clamp(_LEAST_WEIGHT, 1.0)  # [links]
        edges = self._edges(block, run_index, task.shape[0], link_weight, link_rate_weight)
        for layer in self.layers:
            x = layer(torch.cat([gpu, sources]), edges)
            gpu, sources = x[:gpus], sources if self.spatial else x[gpus:]
        pooled = self.pooling(gpu, gpu_node, node_x.shape[0], link_index, link_weight)
        node = self.norm(self.node(node_x) + pooled.x)  # [nodes, hidden]
        return Devices(gpu, node, pooled.link_loss, pooled.entropy_loss)

    def _edges(
        self,
        block: DeviceBlock,
        run_index: Tensor,
        tasks: int,
        link_weight: Tensor,
        link_rate_weight: Tensor | None,
    ) -> TypedEdges:
        """Return what ends at devices: links, jobs, nodes.

        The spectral part looks at the links among the devices. Where there is no other part, it is given jobs and nodes
        as well, since it would not hear of them otherwise.
        """
        link_index, gpu_node, gpus = indices(block.link_index), indices(block.gpu_node), block.gpu_x.shape[0]
        inside = torch.stack([gpus + tasks + gpu_node, torch.arange(gpus, device=gpu_node.device)])  # [2, gpus]
        others = torch.cat([torch.stack([run_index[0] + gpus, run_index[1]]), inside], dim=1)
        edge_x, edge_type = _edge_features(block, gpus)
        weight = link_rate_weight
        if weight is not None:
            weight = torch.cat([weight, weight.new_ones(others.shape[1])])
        if not self.spatial:
            everything = torch.cat([link_index, others, others.flip(0)], dim=1)
            all_weights = torch.cat([link_weight, link_weight.new_ones(2 * others.shape[1])])
            vertices = gpus + tasks + block.node_x.shape[0]
            return TypedEdges(
                edge_index=link_index, edge_x=edge_x, laplacian=scaled_laplacian(everything, all_weights, vertices)
            )
        return TypedEdges(
            edge_index=torch.cat([link_index, others], dim=1),
            edge_x=edge_x,
            edge_type=edge_type,
            edge_weight=weight,
            num_targets=gpus,
            laplacian=scaled_laplacian(link_index, link_weight, gpus) if self.spectral else None,
        )


def _apart(block: DeviceBlock) -> tuple[Tensor, Tensor]:
    """Return jobs once for each node that they run on, [copies], and the runs of these, [2, runs].

    Where jobs receive as well, one of several nodes would carry news from node to node.
    """
    task, device = indices(block.run_index)
    nodes = block.node_x.shape[0]
    pairs, copy = torch.unique(task * nodes + indices(block.gpu_node)[device], return_inverse=True)
    return pairs // max(1, nodes), torch.stack([copy, device])


def _edge_features(block: DeviceBlock, gpus: int) -> tuple[Tensor, Tensor]:
    """Return features and type of all edges: links, runs, then one from each device's node."""
    link_x, run_x = floats(block.link_x), floats(block.run_x)
    widths = [functional.pad(one, (0, _EDGE_COLUMNS - one.shape[1])) for one in (link_x, run_x)]
    edge_x = torch.cat([*widths, link_x.new_zeros(gpus, _EDGE_COLUMNS)])  # [edges, columns]
    counts = torch.tensor([link_x.shape[0], run_x.shape[0], gpus], device=link_x.device)
    return edge_x, torch.repeat_interleave(torch.tensor([LINK, RUNS, IN], device=link_x.device), counts)
