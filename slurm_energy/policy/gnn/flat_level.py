"""The ablation without hierarchy: devices, nodes, switches and jobs as one graph, no pooling."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DeviceBlock, FabricBlock, QueueBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.encoders import VertexEncoder
from slurm_energy.policy.gnn.levels import Devices, Fabric, Queue, floats, indices
from slurm_energy.policy.gnn.offering import Offering
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of
from slurm_energy.policy.gnn.spectral import scaled_laplacian

_LINK, _RUNS, _IN, _UPLINK, _DEPENDS = range(5)
_EDGE_COLUMNS = max(schema.width(one) for one in (schema.LINK, schema.RUNS, schema.UPLINK, schema.DEPENDS))
_CONGESTION = schema.column(schema.SWITCH, "congestion")


class FlatLevel(nn.Module):
    """The flat structure that the paper compares with (section 4.3): every vertex in one graph, edges both ways.

    As many layers as the device level has, over all vertices at once. A change anywhere reaches everything, so nothing
    can be kept between decisions.

    Shapes: the blocks of a state -> the same results as the three lower levels together.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.spectral = config.propagation != "spatial"
        self.gpu = VertexEncoder(schema.width(schema.GPU), hidden)
        self.node = VertexEncoder(schema.width(schema.NODE), hidden)
        self.switch = VertexEncoder(schema.width(schema.SWITCH), hidden)
        self.running = VertexEncoder(schema.width(schema.TASK), hidden)
        self.pending = VertexEncoder(schema.width(schema.TASK), hidden)
        self.layers = nn.ModuleList(propagation_of(config, _EDGE_COLUMNS, 5) for _ in range(config.device_layers))
        self.offered = Offering(hidden, hidden, config.heads)
        self.asked = Offering(hidden + schema.width(schema.OPTION), hidden, config.heads)

    def forward(
        self, devices: DeviceBlock, fabric: FabricBlock, queue: QueueBlock, node_weight: Tensor | None = None
    ) -> tuple[Devices, Fabric, Queue]:
        """Return what device, fabric and queue level return, from one graph."""
        parts = [
            self.gpu(floats(devices.gpu_x)),
            self.node(floats(devices.node_x)),
            self.switch(floats(fabric.switch_x)),
            self.running(floats(devices.task_x)),
            self.pending(floats(queue.task_x)),
        ]
        sizes = [len(part) for part in parts]
        first = [sum(sizes[:number]) for number in range(len(sizes))]
        edge_index, edge_x, edge_type = _edges(devices, fabric, queue, first)
        x = torch.cat(parts)
        weight = edge_x.new_ones(len(edge_type))
        edges = TypedEdges(
            edge_index=edge_index,
            edge_x=edge_x,
            edge_type=edge_type,
            laplacian=scaled_laplacian(edge_index, weight, x.shape[0]) if self.spectral else None,
        )
        for layer in self.layers:
            x = layer(x, edges)
        gpu, node, switch, _, task = torch.split(x, sizes)
        waits = torch.cat([task[indices(queue.wait_task)], floats(queue.wait_x)], dim=1)
        congestion = floats(fabric.switch_x)[:, _CONGESTION]
        return (
            Devices(gpu, node, x.new_zeros(()), x.new_zeros(())),
            Fabric(node, switch, congestion, self.offered(node, node_weight)),
            Queue(task, self.asked(waits)),
        )


def _edges(
    devices: DeviceBlock, fabric: FabricBlock, queue: QueueBlock, first: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return all edges, each in both directions, with vertices numbered from `first` of their kind."""
    gpus, nodes, switches, running, pending = first
    gpu_node, group = indices(devices.gpu_node), indices(fabric.node_group)
    device = gpu_node.device
    link, run, depends = indices(devices.link_index), indices(devices.run_index), indices(queue.depends_index)
    inside = torch.stack([gpus + torch.arange(len(gpu_node), device=device), nodes + gpu_node])
    uplink = torch.stack([nodes + torch.arange(len(group), device=device), switches + group])
    empty = torch.zeros(len(gpu_node), _EDGE_COLUMNS, device=device)
    both_ways = (
        (torch.stack([running + run[0], gpus + run[1]]), floats(devices.run_x), _RUNS),
        (inside, empty, _IN),
        (uplink, floats(fabric.uplink_x), _UPLINK),
        (pending + depends, floats(queue.depends_x), _DEPENDS),
    )
    index, x = [gpus + link], [_padded(floats(devices.link_x))]
    kinds = [torch.full((link.shape[1],), _LINK, device=device)]
    for edge_index, edge_x, kind in both_ways:
        index += [edge_index, edge_index.flip(0)]
        x += [_padded(edge_x), _padded(edge_x)]
        kinds.append(torch.full((2 * edge_index.shape[1],), kind, device=device))
    return torch.cat(index, dim=1), torch.cat(x), torch.cat(kinds)


def _padded(edge_x: Tensor) -> Tensor:
    return functional.pad(edge_x, (0, _EDGE_COLUMNS - edge_x.shape[1]))
