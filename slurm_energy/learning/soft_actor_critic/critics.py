"""Transitions side by side, and twin quantile critics over the network's embeddings of them."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DecisionBlock, batch_decisions
from slurm_energy.learning.soft_actor_critic.records import PackedMoment, Unpacked
from slurm_energy.learning.soft_actor_critic.replay import KeptTransition
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.learning.torch_device import CPU, batched_states, on_device, state_of_cluster
from slurm_energy.policy.gnn.decision_level import CONTEXT_PARTS, Decisions, QuantileHead
from slurm_energy.policy.gnn.embeddings import batch_index, flags, floats, indices
from slurm_energy.policy.gnn.heads import OptionDistribution
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, State

_NOT_CRITICS = (
    "network.decision.policy.",
    "network.decision.clocks.",
    "network.decision.value.",
    "network.assignment.",
)
"""Heads that the critics' loss does not reach."""

_OPTION_COLUMNS = [schema.column(schema.OPTION, "seconds"), schema.column(schema.OPTION, "joules")]

_WAITED = schema.column(schema.TASK, "waited_seconds")


class Scene(NamedTuple):
    """Some moments side by side, with one job each."""

    blocks: Blocks
    moment_of_cluster: Tensor
    """[clusters]."""
    decision: DecisionBlock
    option_open: Tensor
    """Mask of decision time, [options], bool."""
    option_job: Tensor
    """Row of the moment of each option, [options]."""

    @property
    def num_jobs(self) -> int:
        """How many moments there are."""
        return len(self.decision.job_x)


class TransitionBatch(NamedTuple):
    """Transitions to learn from."""

    now: Scene
    taken: Tensor
    """Row of the option that is learned about among all options of `now`, [batch]."""
    starts: Tensor
    """Whether the job was started in it, [batch], bool."""
    reward: Tensor
    """[batch]."""
    costs: Tensor
    """[batch, constraints]."""
    elapsed_seconds: Tensor
    """[batch]."""
    following: Scene | None
    """The next decisions of those that have one; None where none has."""
    continues: Tensor
    """Rows of the batch that `following` belongs to, [moments of following]."""


def scene(moments: Sequence[PackedMoment], device: torch.device = CPU, *, links: bool = True) -> Scene:
    """Return moments side by side, on a device; without links between devices for a network that reads none."""
    unpacked: Unpacked = {}
    states = [moment.blocks(unpacked, links=links) for moment in moments]
    blocks = [moment.block() for moment in moments]
    decision = on_device(batch_decisions(blocks, [state.top for state in states]), device)
    return Scene(
        blocks=batched_states(states, device),
        moment_of_cluster=state_of_cluster(states, device),
        decision=decision,
        option_open=flags(decision.option_open),
        option_job=indices(decision.option_job),
    )


def batch_of(
    transitions: Sequence[KeptTransition], device: torch.device = CPU, *, links: bool = True
) -> TransitionBatch:
    """Return transitions side by side, on a device; see `scene`."""
    now = scene([one.moment for one in transitions], device, links=links)
    counts = torch.bincount(now.option_job, minlength=now.num_jobs)
    first = counts.cumsum(0) - counts
    following = [(row, one.following) for row, one in enumerate(transitions) if one.following is not None]
    return TransitionBatch(
        now=now,
        taken=first + torch.tensor([one.taken for one in transitions], device=device),
        starts=torch.tensor([one.is_start for one in transitions], device=device),
        reward=torch.tensor([one.reward for one in transitions], device=device),
        costs=torch.tensor([tuple(one.costs) for one in transitions], device=device),
        elapsed_seconds=torch.tensor([one.elapsed_seconds for one in transitions], device=device),
        following=scene([moment for _, moment in following], device, links=links) if following else None,
        continues=torch.tensor([row for row, _ in following], dtype=torch.int64, device=device),
    )


def answers(network: HierarchicalNetwork, given: Scene, *, critics: bool) -> tuple[State, Decisions]:
    """Return a network's embeddings of the states, and its answers for the jobs."""
    state = network.state(given.blocks)
    moments = batch_index(state.published, given.moment_of_cluster)
    return state, network.decide(state.published, moments, given.decision, critics=critics)


class Judged(NamedTuple):
    """What critics say of some options."""

    state: State
    context: Tensor
    """What the heads look at, [options, channels]."""
    objectives: Tensor
    """Of the tied heads, [jobs, 3]."""
    first: Tensor
    """Quantiles of each option's return, [options, quantiles]."""
    second: Tensor
    """The same of the other critic."""

    def lower(self) -> Tensor:
        """Return, for each option, the quantiles of the critic with the lower mean, [options, quantiles]."""
        is_first = self.first.mean(1, keepdim=True) <= self.second.mean(1, keepdim=True)
        return torch.where(is_first, self.first, self.second)


class TwinCritics(nn.Module):
    """The network's own quantile head and a second one on the same embeddings.

    The encoder belongs to the critics: their loss alone trains it, and the actor sees it detached. The second head is
    the learner's and in no checkpoint.
    """

    def __init__(self, network: HierarchicalNetwork, seed: int) -> None:
        """Take a network, whose weights are the learner's from now on.

        Args:
            network: Encoder, policy and first critic.
            seed: Of the second critic's weights.
        """
        super().__init__()
        self.network = network
        config = network.config
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            second = QuantileHead(CONTEXT_PARTS * config.hidden, config.quantiles, config.hidden)
        self.second = second.to(network.torch_device)

    @property
    def heads(self) -> tuple[QuantileHead, QuantileHead]:
        """Both critics."""
        return self.network.decision.quantile, self.second

    def forward(self, given: Scene) -> Judged:
        """Return what both critics say of every option."""
        state, decisions = answers(self.network, given, critics=True)
        assert decisions.quantiles is not None
        second = self.second(decisions.context, floats(given.decision.option_x))
        return Judged(state, decisions.context, decisions.objectives, decisions.quantiles, second)

    def learned(self) -> list[Parameter]:
        """Return what the critics' loss trains: the encoder and both heads."""
        return [one for name, one in self.named_parameters() if not name.startswith(_NOT_CRITICS)]

    def copied(self) -> "TwinCritics":
        """Return a copy for targets, which no gradient reaches."""
        return deepcopy(self).requires_grad_(requires_grad=False)

    @torch.no_grad()
    def follow(self, other: "TwinCritics", rate: float) -> None:
        """Bring every weight a share of the way to another's: the soft update of targets."""
        for mine, theirs in zip(self.learned(), other.learned(), strict=True):
            mine.lerp_(theirs, rate)

    @torch.no_grad()
    def begin_at(self, value: float) -> None:
        """Set the level of all quantiles, which otherwise begin at 0: a start nearer to what they have to learn."""
        for head in self.heads:
            head.last.bias.fill_(value)


def policy_of(network: HierarchicalNetwork, given: Scene, context: Tensor) -> OptionDistribution:
    """Return the policy for some moments by its head alone, under the masks of decision time.

    Args:
        network: Whose head.
        given: The moments.
        context: What the head looks at; detached, no gradient goes beyond the head.
    """
    block = given.decision
    distribution: OptionDistribution = network.decision.policy(
        context,
        floats(block.option_x),
        given.option_job,
        indices(block.option_partition),
        given.option_open,
        given.num_jobs,
    )
    return distribution


def tie_loss(
    network: HierarchicalNetwork, settings: SoftActorCriticSettings, judged: Judged, batch: TransitionBatch
) -> Tensor:
    """Return the weighted losses beside the critics': of tied attention heads and of differentiable pooling.

    Tied heads tell the log time and log energy of the option that was taken and how long the job has waited, as in
    training by imitation.
    """
    loss = judged.first.new_zeros(())
    if network.config.attention == "objectives":
        option_x, job_x = floats(batch.now.decision.option_x), floats(batch.now.decision.job_x)
        goals = torch.cat([option_x[batch.taken][:, _OPTION_COLUMNS], job_x[:, [_WAITED]]], dim=1)  # [batch, 3]
        loss = loss + settings.objective_weight * torch.nn.functional.mse_loss(judged.objectives, goals)
    if network.config.pooling in {"mixed", "differentiable"}:
        devices = judged.state.devices
        loss = loss + settings.pooling_weight * (devices.link_loss + 0.1 * devices.entropy_loss)
    return loss
