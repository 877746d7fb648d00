"""The heads of a decision: a probability for every way of running a job, for every clock of it, and for every node."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema

_CLOSED_LOGIT = -1e30
WARM = 0.65
"""Temperature from which heat counts, in the scale of the feature `hottest`: 65 degrees C."""
TIGHT = 0.75
"""Share of the power budget from which usage counts."""
_POWER_CHANGE = schema.column(schema.CLOCK, "power_change")


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
        """Draw new weights."""
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


class ClockHead(nn.Module):
    r"""Masked distribution over the clocks of each option, section 3.4 of the hierarchical GNN paper (DVFS).

    .. math::
        \ell_{ok} = \mathrm{MLP}(z_o, c_{ok}) - \big( \alpha \, (\vartheta_o - \vartheta_0)_+
        + \beta \, (u_o - u_0)_+ \big) \, P_{ok}

    with the learned strengths :math:`\alpha = \mathrm{softplus}(a)` and :math:`\beta = \mathrm{softplus}(b)`, the power
    :math:`P` of the clock over that of the highest one, the heat :math:`\vartheta` and the usage :math:`u` of the power
    budget. The paper asks for no thermal hot spots and balanced power without a formula. As the strengths are not
    negative and the first term knows neither heat nor usage, the expected power of the distribution never rises with
    either while the context stays the same: its derivative is minus the variance of the power.

    Args:
        context_channels: Width of the concatenated embeddings of all levels.
        hidden: Width of the fully connected layers.

    Shapes:
        context [O, C], clock_x [K, CLOCK], clock_option [K], clock_open [K], heat [O], power [O].
    """

    def __init__(self, context_channels: int, hidden: int) -> None:
        super().__init__()
        self.channels = context_channels
        self.hidden = hidden
        self.context = nn.Linear(context_channels, hidden)
        self.clock = nn.Linear(schema.width(schema.CLOCK), hidden, bias=False)
        self.between = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.heat_strength = nn.Parameter(torch.empty(()))
        self.power_strength = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; both strengths start at softplus(0) = 0.69."""
        for module in (self.context, self.clock, self.between, self.score):
            module.reset_parameters()
        nn.init.zeros_(self.heat_strength)
        nn.init.zeros_(self.power_strength)

    def forward(
        self, context: Tensor, clock_x: Tensor, clock_option: Tensor, clock_open: Tensor, heat: Tensor, power: Tensor
    ) -> Tensor:
        """Return the log-probability of each clock within its option, [K]; minus infinity where it is closed.

        Args:
            context: Concatenated embeddings of all levels for each option, [O, C].
            clock_x: Features of the clocks, [K, CLOCK].
            clock_option: Option of each clock, in any order, [K]; options without one have nothing.
            clock_open: Whether the clock may be chosen, [K], bool.
            heat: Highest temperature of the nodes to which the option would go, scaled as `hottest`, [O].
            power: Power of the cluster over its budget, 0 where one of them is not known, [O].
        """
        if not len(clock_x):
            return clock_x.new_zeros(0)
        # The first layer is that of the concatenation [context, clock], its first part worked out once per option.
        first = self.context(context)[clock_option] + self.clock(clock_x)  # [K, hidden]
        score = self.score(torch.relu(self.between(torch.relu(first)))).squeeze(1)  # [K]
        strain = nn.functional.softplus(self.heat_strength) * torch.relu(heat - WARM)
        strain = strain + nn.functional.softplus(self.power_strength) * torch.relu(power - TIGHT)  # [O]
        # The power less 1: what all clocks of an option have in common, the softmax takes out.
        score = score - strain[clock_option] * clock_x[:, _POWER_CHANGE]
        return segment_log_softmax(score, clock_open, clock_option, context.shape[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"


class AssignmentHead(nn.Module):
    r"""Masked probability of each node for a job, section 3.4 of the hierarchical GNN paper.

    .. math::
        P(m \mid j) = \operatorname{softmax}_{m \in \text{open}(j)} u \cdot \sigma \big( W_2 \,
        \sigma ( W_j x_j + W_m x_m + W_e e_{jm} ) \big)

    The first layer is that of the concatenation :math:`[x_j, x_m, e_{jm}]`, worked out once for each job and node
    instead of once for each pair. The paper assigns to devices; Slurm picks devices itself, so the choice is of nodes.

    Args:
        channels: Width of the jobs and nodes.
        hidden: Width of the fully connected layers.
        pair_channels: Width of the features of a pair.

    Shapes:
        job [J, H], node [M, H], pair_job [P], pair_node [P], pair_x [P, F], pair_open [P].
    """

    def __init__(self, channels: int, hidden: int, *, pair_channels: int = schema.width(schema.DEVICE_OPTION)) -> None:
        super().__init__()
        self.channels = channels
        self.hidden = hidden
        self.job = nn.Linear(channels, hidden)
        self.node = nn.Linear(channels, hidden, bias=False)
        self.pair = nn.Linear(pair_channels, hidden, bias=False)
        self.between = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for module in (self.job, self.node, self.pair, self.between, self.score):
            module.reset_parameters()

    def forward(
        self, job: Tensor, node: Tensor, pair_job: Tensor, pair_node: Tensor, pair_x: Tensor, pair_open: Tensor
    ) -> Tensor:
        """Return the log-probability of each pair among those of its job, [P]; minus infinity where it is closed.

        Args:
            job: Embedding of each job, [J, H].
            node: Embedding of each node, [M, H].
            pair_job: Job of each pair, in any order, [P].
            pair_node: Node of each pair, [P].
            pair_x: Features of each pair, [P, F].
            pair_open: Whether the job may go there, [P], bool.
        """
        first = self.job(job)[pair_job] + self.node(node)[pair_node] + self.pair(pair_x)  # [P, hidden]
        score = self.score(torch.relu(self.between(torch.relu(first)))).squeeze(1)  # [P]
        return segment_log_softmax(score, pair_open, pair_job, job.shape[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"
