"""The lower levels: devices of a node, nodes of a group with their switch, and the queue.

With the first embedding of vertices, and the bounded attention by which many members add up to one.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DeviceBlock, FabricBlock, QueueBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import WEIGHT_BOUND, Contributions, Devices, Fabric, Queue, floats, indices
from slurm_energy.policy.gnn.pooling import NodePooling
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of, scaled_laplacian

LINK, RUNS, IN = 0, 1, 2
"""Types of the edges that end at a device."""
_EDGE_COLUMNS = max(schema.width(schema.LINK), schema.width(schema.RUNS))
_BANDWIDTH = schema.column(schema.LINK, "bandwidth_gb_per_second")
MIN_LINK_WEIGHT = 0.05
"""Of a link whose bandwidth is not known."""
UP, DOWN = 0, 1
_CAPACITY = schema.column(schema.UPLINK, "capacity_gb_per_second")
_CONGESTION = schema.column(schema.SWITCH, "congestion")
FORWARD, BACKWARD = 0, 1
"""From a job to the one that waits for it, and back."""


class VertexEncoder(nn.Module):
    r"""Bring the features of one vertex type to the width of the network.

    .. math::
        \mathbf{h} = \mathrm{LayerNorm}(\mathbf{W}_2\,\mathrm{ReLU}(\mathbf{W}_1\mathbf{x} + \mathbf{b}_1)
            + \mathbf{b}_2)

    Each vertex type has an encoder of its own, since their features share neither number nor meaning.

    Args:
        features: Columns of the vertex type in `graph/schema.py`, at least 1.
        hidden: Width of the embedding, at least 1.

    Shapes:
        - **input:** features [vertices, features]; no vertices is allowed
        - **output:** embeddings [vertices, hidden]

    Raises:
        ValueRangeError: there are no features or no channels, or the input has another number of columns.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        if features < 1 or hidden < 1:
            raise ValueRangeError(f"encoder of {features} features to {hidden} channels: both must be at least 1")
        self.features = features
        self.hidden = hidden
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        )

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for layer in self.layers:
            if isinstance(layer, nn.Linear | nn.LayerNorm):
                layer.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings."""
        if x.shape[-1] != self.features:
            raise ValueRangeError(f"vertices have {x.shape[-1]} features, this encoder takes {self.features}")
        embedding: Tensor = self.layers(x)  # [vertices, hidden]
        return embedding

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.features}, {self.hidden})"


class AttentionSum(nn.Module):
    r"""Return what each member adds to the sums of its owners.

    .. math:: w_i = \exp(3 \tanh(A x_i)), \quad v_i = w_i \odot (V x_i)

    The paper weighs by attention (section 3.3); a bounded score is our departure: sums of exponentials that cannot
    overflow may be built up and taken apart in any order, which is what makes the cached answer equal the full one.

    Shapes: x [members, channels] -> weight [members, heads], value [members, hidden].
    """

    def __init__(self, channels: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.width = hidden // heads
        self.score = nn.Linear(channels, heads)
        self.value = nn.Linear(channels, hidden)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        self.score.reset_parameters()
        self.value.reset_parameters()

    def forward(self, x: Tensor, member_weight: Tensor | None = None) -> Contributions:
        """Return the contributions; `member_weight` is 1 / probability of being in the sample, [members]."""
        weight = torch.exp(WEIGHT_BOUND * torch.tanh(self.score(x)))  # [members, heads]
        if member_weight is not None:
            weight = weight * member_weight[:, None]
        by_head: Tensor = self.value(x).view(x.shape[0], self.heads, self.width) * weight[:, :, None]
        return Contributions(weight, by_head.flatten(1))  # [members, hidden]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value.in_features}, {self.value.out_features}, heads={self.heads})"


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
        link_weight = floats(block.link_x)[:, _BANDWIDTH].clamp(MIN_LINK_WEIGHT, 1.0)  # [links]
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
        self.offering = AttentionSum(hidden, hidden, config.heads)

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
        capacity = edge_x[:, _CAPACITY].clamp(min=MIN_LINK_WEIGHT)
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


class QueueLevel(nn.Module):
    """Message passing over the task graph (section 3.2 of the paper), both ways along a dependency.

    Shapes: QueueBlock of t jobs and w waits -> task [t, hidden], asked [w].
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.spectral = config.propagation != "spatial"
        self.task = VertexEncoder(schema.width(schema.TASK), hidden)
        self.layers = nn.ModuleList(
            propagation_of(config, schema.width(schema.DEPENDS), 2) for _ in range(config.task_layers)
        )
        self.offering = AttentionSum(hidden + schema.width(schema.OPTION), hidden, config.heads)

    def forward(self, block: QueueBlock, task_weight: Tensor | None = None) -> Queue:
        """Return jobs and what each pending one asks of each partition.

        Args:
            block: Whole connected parts of the task graph.
            task_weight: Where jobs were sampled, 1 / probability of each, [tasks].
        """
        task = self.task(floats(block.task_x))  # [tasks, hidden]
        after = indices(block.depends_index)
        count = after.shape[1]
        depends_x = floats(block.depends_x)
        edge_index = torch.cat([after, after.flip(0)], dim=1)  # [2, 2 dependencies]
        edge_x = torch.cat([depends_x, depends_x])
        edge_type = torch.repeat_interleave(torch.tensor([FORWARD, BACKWARD], device=after.device), count)
        weight = edge_x.new_ones(2 * count)
        edges = TypedEdges(
            edge_index=edge_index,
            edge_x=edge_x,
            edge_type=edge_type,
            laplacian=scaled_laplacian(edge_index, weight, task.shape[0]) if self.spectral else None,
        )
        for layer in self.layers:
            task = layer(task, edges)
        waits = indices(block.wait_task)
        x = torch.cat([task[waits], floats(block.wait_x)], dim=1)  # [waits, hidden + OPTION]
        return Queue(task, self.offering(x, None if task_weight is None else task_weight[waits]))
