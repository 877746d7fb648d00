"""Transitions side by side, as networks are given them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from slurm_energy.graph.batch import batch_decisions
from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.learning.batched_states import batched_states, state_of_cluster
from slurm_energy.learning.soft_actor_critic.records import PackedMoment, Unpacked
from slurm_energy.learning.soft_actor_critic.replay import Transition
from slurm_energy.learning.torch_device import CPU
from slurm_energy.policy.gnn.block_tensors import on_device
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.levels import flags, indices
from slurm_energy.policy.gnn.moments import moments_of
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, State


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


class Batch(NamedTuple):
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
    goes_on: Tensor
    """Rows of the batch that `following` belongs to, [moments of following]."""


def scene(moments: Sequence[PackedMoment], device: torch.device = CPU) -> Scene:
    """Return moments side by side, on a device."""
    unpacked: Unpacked = {}
    states = [moment.blocks(unpacked) for moment in moments]
    blocks = [moment.block() for moment in moments]
    decision = on_device(batch_decisions(blocks, [state.top for state in states]), device)
    return Scene(
        blocks=batched_states(states, device),
        moment_of_cluster=state_of_cluster(states, device),
        decision=decision,
        option_open=flags(decision.option_open),
        option_job=indices(decision.option_job),
    )


def batch_of(transitions: Sequence[Transition], device: torch.device = CPU) -> Batch:
    """Return transitions side by side, on a device."""
    now = scene([one.moment for one in transitions], device)
    counts = torch.bincount(now.option_job, minlength=now.num_jobs)
    first = counts.cumsum(0) - counts
    following = [(row, one.following) for row, one in enumerate(transitions) if one.following is not None]
    return Batch(
        now=now,
        taken=first + torch.tensor([one.taken for one in transitions], device=device),
        starts=torch.tensor([one.is_start for one in transitions], device=device),
        reward=torch.tensor([one.reward for one in transitions], device=device),
        costs=torch.tensor([tuple(one.costs) for one in transitions], device=device),
        elapsed_seconds=torch.tensor([one.elapsed_seconds for one in transitions], device=device),
        following=scene([moment for _, moment in following], device) if following else None,
        goes_on=torch.tensor([row for row, _ in following], dtype=torch.int64, device=device),
    )


def answers(network: HierarchicalNetwork, given: Scene, *, critics: bool) -> tuple[State, Decisions]:
    """Return a network's embeddings of the states, and its answers for the jobs."""
    state = network.state(given.blocks)
    moments = moments_of(state.published, given.moment_of_cluster)
    return state, network.decide(state.published, moments, given.decision, critics=critics)
