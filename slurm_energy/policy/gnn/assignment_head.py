"""Which nodes a job should go to, and how that is told to Slurm."""

import re
from collections.abc import Collection, Sequence
from math import fsum, isfinite

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.policy_head import segment_log_softmax

_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
"""Names that mean only themselves in `--prefer`; others have its operators, or are too long to be one name."""


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
        """Draw the weights anew."""
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


def preferred_feature(
    probabilities: Sequence[float],
    features: Sequence[Collection[str]],
    *,
    least_mass: float = 0.5,
    least_lift: float = 1.2,
) -> str | None:
    """Return the one Slurm feature whose nodes hold the most probability for their number, as a hint for `--prefer`.

    That is the largest lift: share of the probability over share of the nodes. Of equal lifts the larger share of the
    probability wins, then the name that sorts first. A probability that is not finite or negative counts as 0; nodes
    for which either argument is too short are left out.

    Args:
        probabilities: Probability of each node; they need not add up to 1.
        features: Slurm features of each node.
        least_mass: Share of the probability that the feature's nodes must hold: a hint speaks for most of it.
        least_lift: Least lift; below it the feature tells nothing that all nodes do not have as well.

    Returns:
        None when no feature is far enough ahead, or its name would not be taken as one name by Slurm.
    """
    pairs = zip(probabilities, features, strict=False)
    nodes = [(p if isfinite(p) and p > 0.0 else 0.0, set(names)) for p, names in pairs]
    highest = max((p for p, _ in nodes), default=0.0)
    if highest <= 0.0:
        return None
    weights: dict[str, list[float]] = {}
    for probability, names in nodes:
        for name in names:
            # Over the highest one, so that even absurdly large numbers add up.
            weights.setdefault(name, []).append(probability / highest)
    total = fsum(probability / highest for probability, _ in nodes)
    ranked = []
    for name, parts in weights.items():
        mass = fsum(parts) / total
        lift = mass * len(nodes) / len(parts)
        if mass >= least_mass and lift >= least_lift and _FEATURE.fullmatch(name):
            ranked.append((-lift, -mass, name))
    return min(ranked)[2] if ranked else None
