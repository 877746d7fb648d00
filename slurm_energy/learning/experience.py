"""What learners are given and what they must be able to do: moments, steps, and the form of a learner.

A *round* of training: every collector runs one whole episode of the twin with the present weights, and the learner
takes in all their steps and changes the weights. Each round begins new episodes, from a seed that is worked out from
the training's seed, the round and the collector: a training that was broken off resumes as if it had not been.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.nn import Parameter

from slurm_energy.evaluation.arena.plan import FIRST_TRAINING_SEED
from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.policy.gnn.network import Blocks

Weights = Mapping[str, Tensor]
"""A network's parameters and buffers by name."""
Averaging = Callable[[Iterable[Parameter]], None]
"""Replaces the gradients of parameters by their mean over all ranks."""
_SEEDS_OF_A_TRAINING = 1_000_003
_SEEDS_OF_A_ROUND = 1_009


def alone(parameters: Iterable[Parameter]) -> None:
    """Leave gradients as they are: the averaging of a training on one rank."""


def episode_seed(training_seed: int, number_of_round: int, collector: int) -> int:
    """Return the seed of one episode's arrivals; never one that comparisons use."""
    return (
        FIRST_TRAINING_SEED
        + training_seed * _SEEDS_OF_A_TRAINING
        + number_of_round * _SEEDS_OF_A_ROUND
        + collector % _SEEDS_OF_A_ROUND
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionMoment:
    """What a decision about one job saw."""

    state: Blocks
    """The cluster without the job; moments between which nothing changed may share the object."""
    decision: DecisionBlock
    """The job with its options; `option_open` is the mask of decision time, of partitions and of counts."""
    seconds: float
    """Simulated time."""


class Costs(NamedTuple):
    """What the constraints are about, of one step."""

    latency_seconds: float
    """Wait of the job so far and its expected run time in the granted option; 0 where none was granted."""
    waiting_jobs: float
    """Mean over the time until the next decision; the present number where no time passes."""
    watts: float
    """Mean power of the cluster over the time until the next decision; the present power where no time passes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionStep:
    """One decision and what came of it until the next one."""

    moment: DecisionMoment
    asked: int
    """Row of the option that the policy asked for."""
    granted: int
    """Row of the option in which the job was started; -1 when it was not."""
    log_prob: float
    """Of the asked row under the weights that acted."""
    elapsed_seconds: float
    """Until the next decision."""
    reward: float
    """Minus the cost, scaled so that a typical job costs about 1."""
    costs: Costs
    following: DecisionMoment | None
    """The next decision of the episode; None where the episode has no further one."""
    is_terminal: bool
    """Whether nothing follows for ever; an episode that is only cut off at its horizon is not terminal."""


def reward_per_start(steps: Sequence[DecisionStep]) -> float:
    """Return all rewards of a round over the number of jobs that were started in it; NaN where none was.

    What tells good weights from bad ones. A mean over steps would not: a start that the scheduler refuses is one more
    step at next to no cost, and who is refused often would look good.
    """
    started = sum(step.granted >= 0 for step in steps)
    return sum(step.reward for step in steps) / started if started else nan


class Collector(Protocol):
    """Runs episodes; pickled into every process, so that it holds settings alone."""

    def __call__(self, weights: Weights, *, seed: int) -> Sequence[Any]:
        """Return what a learner takes in, from one episode with this seed."""
        ...


class Learner(Protocol):
    """Changes the weights of a network by experience."""

    @property
    def acting(self) -> Weights:
        """What collectors need of the present weights, on the learner's device."""
        ...

    def absorb(self, experience: Sequence[Any]) -> Mapping[str, float]:
        """Learn from one round's experience, in place, and return figures of it by name."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that is needed to resume: nested dicts and lists of tensors, numbers and texts.

        Tensors may be on the learner's device.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from such a state, whose tensors are on the CPU; what was learned in between is dropped."""
        ...
