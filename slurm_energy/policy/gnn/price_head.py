"""Prices that depend on the state: what the exact optimiser of `policy/rules/cost_table.py` is to pay for what."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.levels import Published
from slurm_energy.policy.gnn.moments import Moments
from slurm_energy.policy.price_factors import JOB_PRICES, LARGEST

WITH_JOB = ("criticality", "relative_joules")
"""What is known of a job beside its TASK columns: the share of its delay that reaches the end of its task graph, and
ln(its least energy over the mean of all jobs) / 4."""
PRICED_JOB = schema.width(schema.TASK) + len(WITH_JOB)
_PARTITION_PARTS = 3


class PriceContext(NamedTuple):
    """What prices depend on beside the job: changes with the cluster's state alone."""

    job: Tensor
    """What the state adds to the first layer, [moments, hidden]."""
    devices: Tensor
    """Raw price of devices, [partitions]."""


class PriceHead(nn.Module):
    r"""Logarithms of the factors by which prices differ from those of the rule `total-cost`.

    .. math::
        u_{j} = W_3 \, \mathrm{ReLU}\big(W_2 \, \mathrm{ReLU}(W_s \, [\bar x, \bar x_{\text{cluster}}] + W_t \, t_j)
        \big), \qquad u_p = \mathrm{MLP}([x_p, x_{q(p)}, z_p]), \qquad
        \text{price} = \text{price}_0 \, e^{3 \tanh(u / 3)}

    with the mean :math:`\bar x` over the vertices at the top, the job's columns :math:`t_j`, and partition, queue and
    pooled embedding of each partition. The last layers begin at 0: an untrained head pays what the rule pays. There is
    no such head in the papers: it is how a policy over (partition, count, clock) is kept within the exact optimum of a
    stated cost.

    Args:
        channels: Width of the embeddings.
        hidden: Width of the fully connected layers.
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.channels, self.hidden = channels, hidden
        self.state = nn.Linear(2 * channels, hidden)
        self.job = nn.Linear(PRICED_JOB, hidden, bias=False)
        self.between = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, len(JOB_PRICES))
        self.partition = nn.Linear(_PARTITION_PARTS * channels, hidden)
        self.scarcity = nn.Linear(hidden, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew; the last layers are 0."""
        for module in (self.state, self.job, self.between, self.partition):
            module.reset_parameters()
        for last in (self.last, self.scarcity):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def context(self, published: Published, moments: Moments) -> PriceContext:
        """Return what the state alone decides, for each moment."""
        x = published.x[moments.vertex] * moments.present[:, :, None]  # [moments, places, channels]
        everything = x.sum(1) / moments.present.sum(1, keepdim=True).clamp(min=1)
        moment = moments.of_cluster
        cluster = published.x[moments.cluster_vertex]
        mean = cluster.new_zeros(len(x), self.channels).index_add(0, moment, cluster)
        counts = torch.bincount(moment, minlength=len(x)).clamp(min=1)[:, None]
        parts = [published.x[moments.partition_vertex], published.x[moments.queue_vertex], published.pooled]
        hidden = torch.relu(self.partition(torch.cat(parts, 1)))  # [partitions, hidden]
        return PriceContext(
            job=self.state(torch.cat([everything, mean / counts], 1)), devices=self.scarcity(hidden).squeeze(1)
        )

    def forward(self, context: PriceContext, job_x: Tensor, moment: Tensor) -> Tensor:
        """Return the raw prices of jobs, [jobs, prices].

        Args:
            context: From `context`.
            job_x: Columns of the jobs with what is known beside them, [jobs, PRICED_JOB].
            moment: Moment of each job, [jobs].
        """
        first = torch.relu(context.job[moment] + self.job(job_x))
        raw: Tensor = self.last(torch.relu(self.between(first)))
        return raw

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"


def factors(raw: Tensor) -> Tensor:
    """Return by what prices are multiplied, of the same shape: `price_factors` with gradients."""
    return torch.exp(LARGEST * torch.tanh(raw / LARGEST))
