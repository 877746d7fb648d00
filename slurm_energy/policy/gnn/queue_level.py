"""The queue: jobs along their dependencies, and what they ask of the partitions they wait for."""

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import QueueBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.encoders import VertexEncoder
from slurm_energy.policy.gnn.levels import Queue, floats, indices
from slurm_energy.policy.gnn.offering import Offering
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of
from slurm_energy.policy.gnn.spectral import scaled_laplacian

FORWARD, BACKWARD = 0, 1
"""From a job to the one that waits for it, and back."""


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
        self.offering = Offering(hidden + schema.width(schema.OPTION), hidden, config.heads)

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
