"""One learner of each algorithm that takes some updates on a device, with experience that reaches every operation."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from random_blocks import random_decision, random_state
from torch import Tensor
from torch.nn import Parameter

from slurm_energy.graph.options import ClockOption, RunOption
from slurm_energy.learning.experience import Averaging, Costs, DecisionMoment, DecisionStep, Learner, Weights, alone
from slurm_energy.learning.imitation import Demonstration, ImitationSettings, imitation_loss, train_by_imitation
from slurm_energy.learning.policy_gradient.learner import PolicyGradientLearner
from slurm_energy.learning.policy_gradient.settings import PolicyGradientSettings
from slurm_energy.learning.prices.collector import PricedEpisode, PricedStep
from slurm_energy.learning.prices.learner import PriceLearner
from slurm_energy.learning.prices.settings import PriceLearnerSettings
from slurm_energy.learning.soft_actor_critic.learner import SoftActorCritic
from slurm_energy.learning.soft_actor_critic.multipliers import ConstraintSettings
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.learning.training_state import on_host
from slurm_energy.policy.gnn.configuration import NetworkConfig, Policy
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.price_head import PRICED_JOB
from slurm_energy.policy.prices import JOB_PRICES

CPU = torch.device("cpu")
_SMALL = NetworkConfig(hidden=12, heads=3, quantiles=4, device_layers=1, task_layers=1, top_layers=1)
NETWORKS = {
    "hierarchical": _SMALL,
    "spectral": replace(_SMALL, propagation="spectral", pooling="edge", attention="plain"),
    "flat": replace(_SMALL, hierarchy="flat"),
    "vector": replace(_SMALL, hierarchy="vector", attention="none"),
}
"""Together they have every propagation, pooling and attention."""
_ACTOR_CRITIC = SoftActorCriticSettings(
    batch_size=6,
    warm_up_transitions=1,
    updates_per_transition=0.25,
    constraints=ConstraintSettings(latency_target_seconds=10.0, power_target_watts=100.0),
)
_GRADIENT = PolicyGradientSettings(epochs=1, minibatches=2, max_moments=3, value_clip=0.5, target_divergence=1000.0)
_PRICES = PriceLearnerSettings(states_per_batch=3, head_steps=1)
_IMITATION = ImitationSettings(epochs=1, batch_size=4)
_STEPS = 9
_PARTITIONS = 3
_OPEN_OPTIONS = 5


def _steps(seed: int) -> list[DecisionStep]:
    random = np.random.default_rng(seed)
    moments = [
        DecisionMoment(
            state=random_state(seed + number), decision=random_decision(seed + number, jobs=1), seconds=60.0 * number
        )
        for number in range(_STEPS)
    ]
    return [
        DecisionStep(
            moment=moment,
            asked=int(random.integers(_OPEN_OPTIONS)),
            granted=int(random.integers(_OPEN_OPTIONS)),
            log_prob=-1.5,
            elapsed_seconds=60.0,
            reward=float(random.normal()),
            costs=Costs(20.0, 2.0, 300.0),
            following=following,
            is_terminal=following is None,
        )
        for moment, following in zip(moments, [*moments[1:], None], strict=True)
    ]


def _episodes(seed: int) -> list[PricedEpisode]:
    random = np.random.default_rng(seed)

    def drawn(count: int) -> Any:
        return random.normal(size=count).astype(np.float32)

    steps = tuple(
        PricedStep(
            state=number % 4,
            job_x=drawn(PRICED_JOB),
            job_raw=drawn(len(JOB_PRICES)),
            device_raw=drawn(_PARTITIONS),
            job_mean=drawn(len(JOB_PRICES)),
            device_mean=drawn(_PARTITIONS),
            cost=float(random.exponential()),
            waiting=float(random.exponential()),
        )
        for number in range(_STEPS)
    )
    return [
        PricedEpisode(states=tuple(random_state(seed + state) for state in range(4)), steps=steps, cost_per_job=1.0)
    ]


def _demonstrations() -> list[Demonstration]:
    clocks = tuple(ClockOption(relative_clock=clock, open=clock < 1.0) for clock in (0.5, 0.75, 1.0))
    options = tuple(RunOption(partition=partition, gpus=1, clocks=clocks) for partition in (0, 0, 0, 1, 1, 2))
    return [
        Demonstration(
            state=random_state(number),
            decision=random_decision(number, jobs=1),
            options=options,
            chosen=number % _OPEN_OPTIONS,
            clock=number % 2,
        )
        for number in range(_STEPS)
    ]


def soft_actor_critic(network: HierarchicalNetwork, averaging: Averaging) -> Learner:
    return SoftActorCritic(network, _ACTOR_CRITIC, seed=0, averaging=averaging)


def policy_gradient(network: HierarchicalNetwork, averaging: Averaging) -> Learner:
    return PolicyGradientLearner(network, _GRADIENT, seed=0, averaging=averaging)


def prices(network: HierarchicalNetwork, averaging: Averaging) -> Learner:
    return PriceLearner(network, _PRICES, noise=0.3, seed=0, average=averaging)


_Making = Callable[[HierarchicalNetwork, Averaging], Learner]
LEARNERS: Mapping[str, tuple[_Making, Callable[[int], Sequence[Any]]]] = {
    "chsac": (soft_actor_critic, _steps),
    "policy-gradient": (policy_gradient, _steps),
    "prices": (prices, _episodes),
}
ALGORITHMS = (*LEARNERS, "imitation")
IS_LONG = os.environ.get("SLURM_ENERGY_TRIAL") == "long"
_SHORT = (("chsac", "vector"), ("policy-gradient", "hierarchical"), ("prices", "spectral"), ("imitation", "flat"))
CASES = tuple(product(ALGORITHMS, NETWORKS)) if IS_LONG else _SHORT
"""Algorithms and networks that learn on a pretended device: each once in the short form, every pair in the long one."""
_AVERAGED_FIRST = {"chsac": 5, "policy-gradient": 2, "prices": 2}
"""How often gradients and figures are averaged in a later round before anything is changed by what they were."""


def _network(algorithm: str, network: str, seed: int, device: torch.device) -> HierarchicalNetwork:
    policy: Policy = "prices" if algorithm == "prices" else "options"
    return create_network(replace(NETWORKS[network], policy=policy), seed).to(device)


def learned(
    algorithm: str, network: str, devices: tuple[torch.device, torch.device], averaging: Averaging = alone
) -> Weights:
    """Return the weights after two rounds, the second by a learner that goes on from the first one's state.

    Args:
        algorithm: Of `ALGORITHMS`.
        network: Of `NETWORKS`.
        devices: Where each round is learned.
        averaging: Of gradients.
    """
    own = _network(algorithm, network, 0, devices[0])
    before = deepcopy(on_host(own.state_dict()))
    if algorithm == "imitation":
        train_by_imitation(own, _demonstrations(), _IMITATION)
        after = on_host(own.state_dict())
    else:
        making, experience = LEARNERS[algorithm]
        learner = making(own, averaging)
        learner.absorb(experience(0))
        check_where(learner, devices[0])
        state = on_host(learner.state())
        learner = making(_network(algorithm, network, 1, devices[1]), averaging)
        learner.restore(state)
        learner.absorb(experience(100))
        check_where(learner, devices[1])
        after = on_host(learner.acting)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items()), "nothing was learned"
    return dict(after)


def first_gradients(algorithm: str, network: str, device: torch.device) -> list[Tensor]:
    """Return the gradients of an update on a device, all that are averaged at once as one row.

    The learner goes on from a round on the CPU: so they do not depend on how an optimiser took the ones before them,
    which makes a whole step of the smallest difference around 0.
    """
    if algorithm == "imitation":
        own = _network(algorithm, network, 0, device)
        imitation_loss(own, _demonstrations(), _IMITATION)[0].backward()  # type: ignore[no-untyped-call]  # torch's own
        return [_row(own.parameters())]
    making, experience = LEARNERS[algorithm]
    first = making(_network(algorithm, network, 0, CPU), alone)
    first.absorb(experience(0))
    found: list[Tensor] = []
    learner = making(_network(algorithm, network, 1, device), lambda parameters: found.append(_row(parameters)))
    learner.restore(on_host(first.state()))
    learner.absorb(experience(100))
    return found[: _AVERAGED_FIRST[algorithm]]


def state_of(algorithm: str, network: str, device: torch.device, state: Any = None) -> Any:
    """Return a learner's state for the disk: after a round, or of one that has just taken up another state."""
    making, experience = LEARNERS[algorithm]
    learner = making(_network(algorithm, network, 0, device), alone)
    if state is None:
        learner.absorb(experience(0))
    else:
        learner.restore(state)
    return on_host(learner.state())


def same(one: Any, other: Any) -> bool:
    """Return whether two states are the same to the last digit."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def check_where(learner: Learner, device: torch.device) -> None:
    """Raise AssertionError where a learner has a weight, or an optimiser's mean of one, elsewhere."""
    state = learner.state()
    state.pop("replay", None)
    strange = [name for name, tensor in _tensors(state, "state") if tensor.device.type != device.type and tensor.dim()]
    assert not strange, f"not on {device}: {', '.join(strange)}"
    assert any(tensor.dim() for _, tensor in _tensors(state, "state"))
    at_home = [name for name, tensor in _tensors(on_host(state), "state") if tensor.device != CPU]
    assert not at_home, f"on a device in a state for the disk: {', '.join(at_home)}"


def _row(parameters: Iterable[Parameter]) -> Tensor:
    return torch.cat([on_host(one.grad).double().reshape(-1) for one in parameters if one.grad is not None])


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from _tensors(item, f"{name}[{key}]")
