"""The network as a whole: levels from device to decision; the same modules train and serve."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DecisionBlock, DeviceBlock, FabricBlock, QueueBlock, TopBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.decision_level import DecisionLevel, Decisions
from slurm_energy.policy.gnn.embeddings import (
    BatchIndex,
    Devices,
    Fabric,
    PartitionSums,
    Published,
    Queue,
    add_up,
    floats,
    indices,
    largest_by,
)
from slurm_energy.policy.gnn.heads import AssignmentHead
from slurm_energy.policy.gnn.levels import DeviceLevel, FabricLevel, QueueLevel
from slurm_energy.policy.gnn.price_head import PriceHead
from slurm_energy.policy.gnn.top_level import TopLevel

_HOTTEST = schema.column(schema.NODE, "hottest")
_CRITICAL = schema.column(schema.TASK, "critical_path_seconds")


class Blocks(NamedTuple):
    """A whole state of the graph."""

    devices: DeviceBlock
    fabric: FabricBlock
    """Of the same nodes in the same order."""
    queue: QueueBlock
    top: TopBlock


class Extremes(NamedTuple):
    """What is a maximum over members and not a sum."""

    heat: Tensor
    """Highest temperature of each partition's nodes, as in the feature, [partitions]."""
    critical: Tensor
    """Longest critical path among each partition's pending jobs, as in the feature, [partitions]."""


class SampleWeights(NamedTuple):
    """1 / probability of being in the sample, where only a part of the state is given."""

    node: Tensor | None = None
    """[nodes]."""
    link: Tensor | None = None
    """[links]."""
    task: Tensor | None = None
    """[tasks]."""
    extremes: Extremes | None = None
    """Of the whole state: the largest of a sample would be too small."""


class State(NamedTuple):
    """The embeddings of a state."""

    devices: Devices
    fabric: Fabric
    queue: Queue
    published: Published


class HierarchicalNetwork(nn.Module):
    """The multi-level network of sections 3.3 and 3.4 of the paper.

    Bottom up: devices -> nodes -> groups of nodes and their switch -> partitions, queues, constraints. A decision then
    looks at the top alone. The state's part does not know the job that is asked about: that is what lets it be kept
    between decisions. Our departure from the paper is that the job reaches devices through its predicted time and
    energy on each option, not through edges of its own into every device.

    With `hierarchy = "flat"` one graph of all vertices takes the place of the three lower levels, with "vector" one
    vector without any graph that of all levels below the decision.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.flat = self.vector = None
        if config.hierarchy != "hierarchical":
            from slurm_energy.policy.gnn.ablation import levels  # noqa: PLC0415  # not served

            self.flat = levels.FlatLevel(config) if config.hierarchy == "flat" else None
            self.vector = levels.VectorLevel(config) if config.hierarchy == "vector" else None
        else:
            self.device = DeviceLevel(config)
            self.fabric = FabricLevel(config)
            self.queue = QueueLevel(config)
        if self.vector is None:
            self.top = TopLevel(config)
        self.prices = PriceHead(config.hidden, config.hidden) if config.policy == "prices" else None
        if config.policy == "options":
            self.decision = DecisionLevel(config)
            self.assignment = AssignmentHead(config.hidden, config.hidden)

    @property
    def torch_device(self) -> torch.device:
        """Where the weights are, and where whatever they are applied to has to be."""
        return next(self.parameters()).device

    def state(self, blocks: Blocks, weights: SampleWeights | None = None) -> State:
        """Return the embeddings of a whole state, worked out from nothing.

        Args:
            blocks: The state, or a sample of it.
            weights: Where it is a sample.
        """
        given = weights or SampleWeights()
        if self.vector is not None:
            devices, fabric, queue = self.vector.unread(blocks.devices, blocks.fabric, blocks.queue)
        elif self.flat is not None:
            devices, fabric, queue = self.flat(blocks.devices, blocks.fabric, blocks.queue, given.node)
        else:
            devices = self.device(blocks.devices, given.link)
            fabric = self.fabric(blocks.fabric, devices.node, given.node)
            queue = self.queue(blocks.queue, given.task)
        sums = partition_sums(blocks, fabric, queue, given.extremes or extremes_of(blocks))
        if self.vector is not None:
            return State(devices, fabric, queue, self.vector(blocks.devices, blocks.fabric, blocks.top, sums, fabric))
        return State(devices, fabric, queue, self.top(blocks.top, sums, fabric))

    def decide(
        self, published: Published, moments: BatchIndex, block: DecisionBlock, *, critics: bool = True
    ) -> Decisions:
        """Return the answers for the jobs of a block.

        Args:
            published: The state at the top.
            moments: Which of its vertices belong together, from `batch_index`.
            block: Jobs with their options.
            critics: Whether values and quantiles are wanted.
        """
        answers: Decisions = self.decision(published, moments, block, critics=critics)
        return answers


def extremes_of(blocks: Blocks) -> Extremes:
    """Return the maxima by partition of a whole state."""
    partitions = blocks.top.partition_x.shape[0]
    hottest = floats(blocks.devices.node_x)[:, _HOTTEST][indices(blocks.fabric.member_node)]
    critical = floats(blocks.queue.task_x)[:, _CRITICAL][indices(blocks.queue.wait_task)]
    return Extremes(
        heat=largest_by(hottest, indices(blocks.fabric.member_partition), partitions),
        critical=largest_by(critical, indices(blocks.queue.wait_partition), partitions),
    )


def partition_sums(blocks: Blocks, fabric: Fabric, queue: Queue, extremes: Extremes) -> PartitionSums:
    """Return what nodes offer and pending jobs ask, by partition."""
    partitions = blocks.top.partition_x.shape[0]
    member, owner = indices(blocks.fabric.member_node), indices(blocks.fabric.member_partition)
    return PartitionSums(
        offered=add_up(fabric.offered, owner, partitions, member),
        asked=add_up(queue.asked, indices(blocks.queue.wait_partition), partitions),
        heat=extremes.heat,
        critical=extremes.critical,
    )


def create_network(config: NetworkConfig, seed: int) -> HierarchicalNetwork:
    """Return a network with random weights; the same seed gives the same weights, and no other stream is touched."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return HierarchicalNetwork(config)
