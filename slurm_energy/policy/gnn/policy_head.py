"""The policy: a probability for every way of running a job, partition first, then the number of devices."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema

_CLOSED_LOGIT = -1e30


def segment_log_softmax(logit: Tensor, is_open: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Return log-probabilities within each segment; minus infinity for what is closed, also for whole segments.

    Neither the value nor the gradient is ever NaN through the mask: the arithmetic is done on finite numbers.

    Args:
        logit: [rows].
        is_open: [rows], bool.
        segment: Segment of each row, in any order, [rows].
        num_segments: Number of segments.
    """
    logit = torch.where(is_open, logit, _CLOSED_LOGIT)
    highest = logit.new_full((num_segments,), _CLOSED_LOGIT)
    highest = highest.scatter_reduce(0, segment, logit.detach(), "amax")  # [segments]
    shifted = logit - highest[segment]  # [rows]
    # The highest row has the mass 1 and, beside it, closed ones have 0: the bound touches segments without rows alone.
    total = logit.new_zeros(num_segments).index_add(0, segment, shifted.exp()).clamp(min=1.0)
    return torch.where(is_open, shifted - total.log()[segment], -torch.inf)


def segment_entropy(log_prob: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Return the entropy of each segment in nats, [segments]; 0 where nothing is open."""
    finite = torch.where(log_prob > -torch.inf, log_prob, 0.0)  # a closed row adds exp(0) * 0
    return -log_prob.new_zeros(num_segments).index_add(0, segment, finite.exp() * finite)


def segment_best(log_prob: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Return the row of the highest log-probability in each segment, the first of equals; -1 where nothing is open."""
    rows = log_prob.shape[0]
    highest = log_prob.new_full((num_segments,), -torch.inf).scatter_reduce(0, segment, log_prob, "amax")
    is_best = (log_prob == highest[segment]) & (log_prob > -torch.inf)
    row = torch.arange(rows, device=segment.device).where(is_best, rows)
    first = row.new_full((num_segments,), rows).scatter_reduce(0, segment, row, "amin")
    return first.where(first < rows, -1)


def segment_sample(log_prob: Tensor, segment: Tensor, num_segments: int, generator: torch.Generator) -> Tensor:
    """Return one row of each segment, drawn by its probability (the Gumbel-max trick); -1 where nothing is open."""
    noise = torch.empty_like(log_prob).exponential_(generator=generator)
    tiny = torch.finfo(noise.dtype).tiny
    return segment_best(log_prob.detach() - noise.clamp(min=tiny).log(), segment, num_segments)


class OptionDistribution(NamedTuple):
    """Probabilities of the options of several jobs."""

    partition_log_prob: Tensor
    """Of the option's partition: equal for all options of one job and partition, [options]."""
    count_log_prob: Tensor
    """Of the option, given its partition, [options]."""
    log_prob: Tensor
    """Of the option: the sum of both, [options]."""
    entropy: Tensor
    """Over the options of each job, nats, [jobs]."""
    partition_entropy: Tensor
    """Over the partitions of each job, nats, [jobs]."""
    option_job: Tensor
    """Job of each option, [options]."""


def sample(distribution: OptionDistribution, generator: torch.Generator) -> Tensor:
    """Return an option for each job, drawn by its probability, [jobs]; -1 for a job without an open option."""
    num_jobs = distribution.entropy.shape[0]
    return segment_sample(distribution.log_prob, distribution.option_job, num_jobs, generator)


def best(distribution: OptionDistribution) -> Tensor:
    """Return the most probable option of each job, the first of equals, [jobs]; -1 for a job without an open option."""
    return segment_best(distribution.log_prob, distribution.option_job, distribution.entropy.shape[0])


class PolicyHead(nn.Module):
    r"""Masked categorical distribution over (partition, device count), section 3.4 of the hierarchical GNN paper.

    .. math::
        \pi(p, n) = \operatorname{softmax}_p \mathrm{MLP}_1 \big( \operatorname{mean}_{n \in \text{open}(p)}
        z_{pn} \big) \cdot \operatorname{softmax}_{n \in \text{open}(p)} \mathrm{MLP}_2(z_{pn})

    :math:`z` is the option's context with its own features. Logits are masked before the softmax, so that a closed
    option has probability 0 and a partition is open as long as one of its options is. The paper gives one softmax over
    resources; it is split in two here, so that a partition is not the likelier for allowing more counts.

    Args:
        context_channels: Width of the concatenated embeddings of all levels.
        hidden: Width of the fully connected layers.
        option_channels: Width of the options' own features.

    Shapes:
        context [O, C], option_x [O, F], option_job [O], option_partition [O], option_open [O].
    """

    def __init__(
        self, context_channels: int, hidden: int, *, option_channels: int = schema.width(schema.OPTION)
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.channels = context_channels + option_channels
        self.partition = self._perceptron()
        self.count = self._perceptron()

    def _perceptron(self) -> nn.Sequential:
        # The last layer has no bias: the softmax would take it out.
        return nn.Sequential(
            nn.Linear(self.channels, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, 1, bias=False),
        )

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for module in (*self.partition, *self.count):
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    def forward(
        self,
        context: Tensor,
        option_x: Tensor,
        option_job: Tensor,
        option_partition: Tensor,
        option_open: Tensor,
        num_jobs: int,
    ) -> OptionDistribution:
        """Return the distribution of each job; the order of the options does not matter.

        Args:
            context: Concatenated embeddings of all levels for each option, [O, C].
            option_x: Features of the options, [O, F].
            option_job: Job of each option, [O].
            option_partition: Partition of each option, [O].
            option_open: Whether the option may be chosen, [O], bool.
            num_jobs: Number of jobs; some may have no option, or none that is open.
        """
        partitions = int(option_partition.max()) + 1 if len(option_partition) else 1
        pairs, option_pair = torch.unique(option_job * partitions + option_partition, return_inverse=True)
        pair_job = pairs // partitions  # [pairs], a pair being a job and one of its partitions
        features = torch.cat((context, option_x), 1)  # [O, C + F]
        is_open = option_open.to(features.dtype).unsqueeze(1)
        open_counts = features.new_zeros(len(pairs), 1).index_add(0, option_pair, is_open)
        mean = features.new_zeros(len(pairs), self.channels).index_add(0, option_pair, features * is_open)
        mean = mean / open_counts.clamp(min=1.0)  # [pairs, C + F]
        pair_open = open_counts.squeeze(1) > 0
        pair_log_prob = segment_log_softmax(self.partition(mean).squeeze(1), pair_open, pair_job, num_jobs)
        count_log_prob = segment_log_softmax(self.count(features).squeeze(1), option_open, option_pair, len(pairs))
        partition_log_prob = pair_log_prob[option_pair]  # [O]
        log_prob = partition_log_prob + count_log_prob
        return OptionDistribution(
            partition_log_prob=partition_log_prob,
            count_log_prob=count_log_prob,
            log_prob=log_prob,
            entropy=segment_entropy(log_prob, option_job, num_jobs),
            partition_entropy=segment_entropy(pair_log_prob, pair_job, num_jobs),
            option_job=option_job,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"
