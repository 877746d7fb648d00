"""Prices that depend on the state: what the exact optimiser of `policy/rules/cost_table.py` is to pay for what."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.embeddings import BatchIndex, Published
from slurm_energy.policy.gnn.priced_answers import SLOPE
from slurm_energy.policy.prices import JOB_PRICES, LARGEST

WITH_JOB = ("criticality", "relative_joules")
"""What is known of a job beside its TASK columns: the share of its delay that reaches the end of its task graph, and
ln(its least energy over the mean of all jobs) / 4."""
PRICED_JOB = schema.width(schema.TASK) + len(WITH_JOB)
_STATE_PARTS, _PARTITION_PARTS = 2, 3
_MIN_SPREAD = 0.05
"""Of a channel, of which the mean size is about 1: what differs by less is noise and is not blown up."""
_MAX_DEVIATIONS = 5.0


class PriceContext(NamedTuple):
    """What prices depend on beside the job: changes with the cluster's state alone."""

    job: Tensor
    """What the state adds to the first layer, [moments, hidden]."""
    devices: Tensor
    """Raw price of devices, [partitions]."""


class Usual(nn.Module):
    """Takes from each channel its mean over states and divides by its spread; both are followed, not learned.

    Shapes: [rows, channels] -> the same, cut to [-5, 5].
    """

    mean: Tensor
    square: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("square", torch.ones(channels))

    @property
    def spread(self) -> Tensor:
        """[channels]."""
        return (self.square - self.mean.square()).clamp(min=_MIN_SPREAD**2).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        """Return how unusual the channels are."""
        return ((x - self.mean) / self.spread).clamp(-_MAX_DEVIATIONS, _MAX_DEVIATIONS)


class PriceHead(nn.Module):
    r"""Logarithms of the factors by which prices differ from those of the rule `total-cost`.

    .. math::
        u_{j} = W_3 \, \sigma\big(W_2 \, \sigma(W_s \, N[\bar x, \bar x_{\text{cluster}}] + W_t \, N t_j) \big), \qquad
        u_p = w^\top \sigma(W_p \, N[x_p, x_{q(p)}, z_p]), \qquad
        \text{price} = \text{price}_0 \, e^{3 \tanh(u / 3)}

    with the mean :math:`\bar x` over the vertices at the top, the job's columns :math:`t_j`, and partition, queue and
    pooled embedding of each partition. :math:`N` takes from each channel what it is in all states alike, and scales
    the rest to a spread of 1 (`follow`): what differs from state to state is some hundredths of an embedding, and a
    head that has to dig for it learns a constant first. :math:`\sigma` is leaky, so that no unit falls silent (see
    `SLOPE`). The last layers begin at 0: an untrained head pays what the rule pays. There is no such head in the
    papers: it is how a policy over (partition, count, clock) is kept within the exact optimum of a stated cost.

    Args:
        channels: Width of the embeddings.
        hidden: Width of the fully connected layers.
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.channels, self.hidden = channels, hidden
        self.state = nn.Linear(_STATE_PARTS * channels, hidden)
        self.job = nn.Linear(PRICED_JOB, hidden, bias=False)
        self.between = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, len(JOB_PRICES))
        self.partition = nn.Linear(_PARTITION_PARTS * channels, hidden)
        self.scarcity = nn.Linear(hidden, 1)
        self.usual, self.usual_partition = Usual(_STATE_PARTS * channels), Usual(_PARTITION_PARTS * channels)
        self.usual_job = Usual(PRICED_JOB)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; the last layers are 0."""
        for module in (self.state, self.job, self.between, self.partition):
            module.reset_parameters()
        for last in (self.last, self.scarcity):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def context(self, published: Published, moments: BatchIndex) -> PriceContext:
        """Return what the state alone decides, for each moment."""
        state, partitions = self._parts(published, moments)
        hidden = _leaky(self.partition(self.usual_partition(partitions)))  # [partitions, hidden]
        return PriceContext(job=self.state(self.usual(state)), devices=self.scarcity(hidden).squeeze(1))

    def seen(self, published: Published, moments: BatchIndex, job_x: Tensor) -> tuple[Tensor, ...]:
        """Return mean and mean square of the channels in some states and of some jobs' columns, each [2, width]."""
        with torch.no_grad():
            parts = (*self._parts(published, moments), job_x)
            return tuple(torch.stack([part.mean(0), part.square().mean(0)]) for part in parts)

    def follow(self, seen: Sequence[Tensor], share: float) -> None:
        """Move what is taken for usual by a share towards what `seen` returned, or a mean of such."""
        for usual, part in zip((self.usual, self.usual_partition, self.usual_job), seen, strict=True):
            usual.mean += share * (part[0] - usual.mean)
            usual.square += share * (part[1] - usual.square)

    def _parts(self, published: Published, moments: BatchIndex) -> tuple[Tensor, Tensor]:
        """Return the embeddings that prices depend on: of each moment, and of each partition."""
        x = published.x[moments.vertex] * moments.present[:, :, None]  # [moments, places, channels]
        everything = x.sum(1) / moments.present.sum(1, keepdim=True).clamp(min=1)
        moment = moments.of_cluster
        cluster = published.x[moments.cluster_vertex]
        mean = cluster.new_zeros(len(x), self.channels).index_add(0, moment, cluster)
        counts = torch.bincount(moment, minlength=len(x)).clamp(min=1)[:, None]
        parts = [published.x[moments.partition_vertex], published.x[moments.queue_vertex], published.pooled]
        return torch.cat([everything, mean / counts], 1), torch.cat(parts, 1)

    def forward(self, context: PriceContext, job_x: Tensor, moment: Tensor) -> Tensor:
        """Return the raw prices of jobs, [jobs, prices].

        Args:
            context: From `context`.
            job_x: Columns of the jobs with what is known beside them, [jobs, PRICED_JOB].
            moment: Moment of each job, [jobs].
        """
        first = _leaky(context.job[moment] + self.job(self.usual_job(job_x)))
        raw: Tensor = self.last(_leaky(self.between(first)))
        return raw

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"


def _leaky(x: Tensor) -> Tensor:
    return nn.functional.leaky_relu(x, SLOPE)


def factors(raw: Tensor) -> Tensor:
    """Return by what prices are multiplied, of the same shape: `price_factors` with gradients."""
    return torch.exp(LARGEST * torch.tanh(raw / LARGEST))
