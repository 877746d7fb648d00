"""The decision: a job among the few vertices at the top, and what follows for partition, device count and clock.

Critics say what a situation is worth and what an option would bring; they are the learner's.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import BatchIndex, Published, flags, floats, indices
from slurm_energy.policy.gnn.heads import ClockHead, OptionDistribution, PolicyHead
from slurm_energy.policy.gnn.levels import VertexEncoder
from slurm_energy.policy.gnn.top_level import OBJECTIVES, ObjectiveAttention, Reasoning

STRUCTURE = 3
"""Size, pressure and critical path of a vertex."""
CONTEXT_PARTS = 5
"""Job, partition, queue, cluster, and what the partition's nodes offer."""


class Decisions(NamedTuple):
    """The network's answer for each job of a block."""

    options: OptionDistribution
    clock_log_prob: Tensor
    """Of each clock of each option, [clocks]."""
    values: Tensor | None
    """Value of time, energy and fairness, [jobs, 3]; None where no critic was asked for."""
    objectives: Tensor
    """What the tied heads say of log time, log energy and fairness, [jobs, 3]; zeros where no heads are tied."""
    quantiles: Tensor | None
    """Of each option's return, [options, quantiles]; None as above."""
    job: Tensor
    """Embeddings, [jobs, hidden]."""
    attention: tuple[Tensor, ...]
    """Of each layer, [jobs, heads, 1 + places, 1 + places]; place 0 is the job."""
    context: Tensor
    """What the heads look at beside each option's own features, [options, 5 hidden]."""


class DecisionLevel(nn.Module):
    """Cluster-level reasoning (section 3.3) and the policy over the embeddings of all levels (section 3.4).

    Its cost depends on the number of partitions, not on that of nodes.

    Shapes: Published of one or several moments, DecisionBlock of j jobs, o options, k clocks -> Decisions.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden, options = config.hidden, schema.width(schema.OPTION)
        self.heads = config.heads
        self.job = VertexEncoder(schema.width(schema.TASK), hidden)
        self.assignment = nn.Linear(options, config.heads) if config.attention != "none" else None
        self.reasoning = nn.ModuleList(
            ObjectiveAttention(hidden, config.heads, STRUCTURE, config.attention) for _ in range(config.top_layers)
        )
        context = CONTEXT_PARTS * hidden
        self.policy = PolicyHead(context, hidden)
        self.clocks = ClockHead(context, hidden)
        self.value = ValueHead(hidden, hidden)
        self.quantile = QuantileHead(context, config.quantiles, hidden)

    def forward(
        self, published: Published, moments: BatchIndex, block: DecisionBlock, *, critics: bool = True
    ) -> Decisions:
        """Return the answers.

        Args:
            published: The state.
            moments: Which of its vertices belong together.
            block: Jobs with their options.
            critics: Whether values and quantiles are wanted; who only decides does without.
        """
        job_cluster = indices(block.job_cluster)
        moment = moments.of_cluster[job_cluster]  # [jobs]
        option_job, option_partition = indices(block.option_job), indices(block.option_partition)
        option_x = floats(block.option_x)
        job = self.job(floats(block.job_x))  # [jobs, hidden]
        x = torch.cat([job[:, None], published.x[moments.vertex[moment]]], dim=1)  # [jobs, 1 + places, hidden]
        structure = torch.nn.functional.pad(published.structure[moments.vertex[moment]], (0, 0, 1, 0))
        allowed = moments.allowed[moment]
        bias = self._assignment_bias(option_x, option_job, option_partition, moments, x.shape[:2])
        attention, objectives = [], x.new_zeros(len(job), len(OBJECTIVES))
        for layer in self.reasoning:
            step: Reasoning = layer(x, allowed, structure, bias)
            x = step.x
            attention.append(step.attention)
            assert isinstance(layer, ObjectiveAttention)
            tied = layer.objective_values(step.head_x[:, 0])
            objectives = objectives if tied is None else objectives + tied / len(self.reasoning)
        cluster = published.cluster[moments.partition_vertex][option_partition]
        places = moments.place[
            torch.stack(
                [
                    moments.partition_vertex[option_partition],
                    moments.queue_vertex[option_partition],
                    moments.cluster_vertex[cluster],
                ]
            )
        ]  # [3, options]
        seen = x[option_job, places]  # [3, options, hidden]
        context = torch.cat(
            [x[option_job, 0], seen[0], seen[1], seen[2], published.pooled[option_partition]], dim=1
        )  # [options, 5 hidden]
        open_options = flags(block.option_open)
        return Decisions(
            options=self.policy(context, option_x, option_job, option_partition, open_options, len(job)),
            clock_log_prob=self.clocks(
                context,
                floats(block.clock_x),
                indices(block.clock_option),
                flags(block.clock_open),
                published.heat[option_partition],
                published.power[option_partition],
            ),
            values=self.value(x[:, 0], present_mean(x[:, 1:], moments.present[moment])) if critics else None,
            objectives=objectives,
            quantiles=self.quantile(context, option_x) if critics else None,
            job=x[:, 0],
            attention=tuple(attention),
            context=context,
        )

    def _assignment_bias(
        self, option_x: Tensor, option_job: Tensor, option_partition: Tensor, moments: BatchIndex, shape: torch.Size
    ) -> Tensor | None:
        """Return what the assignment edges add to the scores between a job and its partitions.

        The edge from a job to a partition, and to its queue, carries the mean over its options there.
        """
        if self.assignment is None:
            return None
        jobs, places = shape
        bias = option_x.new_zeros(jobs, places, places, self.heads)
        if not len(option_x):
            return bias
        key = option_job * len(moments.partition_vertex) + option_partition
        pairs, inverse, counts = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
        total = option_x.new_zeros(len(pairs), option_x.shape[1]).index_add_(0, inverse, option_x)
        edge = self.assignment(total / counts[:, None])  # [pairs, heads]
        job, partition = pairs // len(moments.partition_vertex), pairs % len(moments.partition_vertex)
        for vertex in (moments.partition_vertex, moments.queue_vertex):
            place = moments.place[vertex[partition]]
            bias = bias.index_put((job, torch.zeros_like(job), place), edge)
            bias = bias.index_put((job, place, torch.zeros_like(job)), edge)
        return bias


class ValueHead(nn.Module):
    r"""Value of the situation in which a job is submitted, for each objective.

    .. math::
        V(s) = \mathrm{MLP} \big( [x_j, \operatorname{mean}_{v \in \text{cluster}} x_v] \big)

    Args:
        channels: Width of the embeddings.
        hidden: Width of the fully connected layer.

    Shapes:
        job [J, H], cluster [J, H].
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.channels = channels
        self.hidden = hidden
        self.first = nn.Linear(2 * channels, hidden)
        self.last = nn.Linear(hidden, len(OBJECTIVES))

    def reset_parameters(self) -> None:
        """Draw new weights."""
        self.first.reset_parameters()
        self.last.reset_parameters()

    def forward(self, job: Tensor, cluster: Tensor) -> Tensor:
        """Return the values for time, energy and fairness, [J, 3].

        Args:
            job: Each job's vertex at the top, [J, H].
            cluster: Mean of the other vertices of its top, [J, H]; see `present_mean`.
        """
        value: Tensor = self.last(torch.relu(self.first(torch.cat((job, cluster), 1))))
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"


class QuantileHead(nn.Module):
    r"""Quantiles of the return of each option, for critics trained by quantile regression.

    .. math::
        Z_\tau(s, a) = \mathrm{MLP} \big( [z_a, e_a] \big)_\tau

    Quantiles may cross: the loss of quantile regression orders them, and a mean does not mind.

    Args:
        context_channels: Width of the concatenated embeddings of all levels.
        quantiles: Number of quantiles.
        hidden: Width of the fully connected layers.
        option_channels: Width of the options' own features.

    Shapes:
        context [O, C], option_x [O, F].
    """

    def __init__(
        self,
        context_channels: int,
        quantiles: int,
        hidden: int,
        *,
        option_channels: int = schema.width(schema.OPTION),
    ) -> None:
        super().__init__()
        self.quantiles = quantiles
        self.hidden = hidden
        self.channels = context_channels + option_channels
        self.first = nn.Linear(self.channels, hidden)
        self.between = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, quantiles)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for module in (self.first, self.between, self.last):
            module.reset_parameters()

    def forward(self, context: Tensor, option_x: Tensor) -> Tensor:
        """Return the quantiles of each option, [O, quantiles].

        Args:
            context: Concatenated embeddings of all levels for each option, [O, C].
            option_x: Features of the options, [O, F].
        """
        hidden = torch.relu(self.first(torch.cat((context, option_x), 1)))  # [O, hidden]
        quantile: Tensor = self.last(torch.relu(self.between(hidden)))  # [O, quantiles]
        return quantile

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, quantiles={self.quantiles}, hidden={self.hidden})"


def present_mean(x: Tensor, is_present: Tensor) -> Tensor:
    """Return the mean of the vertices that are present, [B, H]; zeros where none is.

    Args:
        x: Vertices, [B, V, H].
        is_present: Whether a vertex counts, [B, V], bool.
    """
    weight = is_present.to(x.dtype).unsqueeze(1)  # [B, 1, V]
    return (weight @ x).squeeze(1) / weight.sum(-1).clamp(min=1.0)
