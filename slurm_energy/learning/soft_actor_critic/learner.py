"""The learner: takes in steps, and trains critics, actor, temperature and multipliers from a replay of them.

Critics and actor are trained on soft targets over all next options, and on the exact expectation over options.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import isfinite, log
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.learning.experience import Averaging, DecisionStep, Weights, alone, reward_per_start
from slurm_energy.learning.ranks import agreed
from slurm_energy.learning.soft_actor_critic.critics import (
    Judged,
    TransitionBatch,
    TwinCritics,
    answers,
    batch_of,
    policy_of,
    tie_loss,
)
from slurm_energy.learning.soft_actor_critic.multipliers import CONSTRAINTS, Multipliers, Temperature, mean_costs
from slurm_energy.learning.soft_actor_critic.replay import Replay
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.learning.training_state import restore_adam
from slurm_energy.policy.gnn.heads import OptionDistribution
from slurm_energy.policy.gnn.network import HierarchicalNetwork


class CriticFigures(NamedTuple):
    """What an update tells."""

    critic_loss: float
    actor_loss: float
    entropy: float
    entropy_target: float
    mean_q: float
    """Lower mean of the critics over the options that were taken."""


class SoftActorCritic:
    """Algorithm 1 of CHSAC-AF, lines 8 to 15; collectors do the rest.

    Departures from the paper, beside those described at the losses below, in `multipliers` and in `replay`: the encoder
    is the hierarchical network and is trained by the critics, never by the actor; targets come from copies of encoder
    and critics; critics begin at the return that the round which ends the warm-up would have if it never ended, instead
    of 0, from where the bounded gradient of the Huber loss would need long.

    On one CPU thread the same seed and the same steps give the same weights.
    """

    def __init__(
        self,
        network: HierarchicalNetwork,
        settings: SoftActorCriticSettings,
        *,
        seed: int = 0,
        averaging: Averaging = alone,
    ) -> None:
        """Take a network to train.

        Args:
            network: With the weights to begin from, random or learned by imitation, on the device to learn on; its own
                weights are changed.
            settings: How it learns.
            seed: Of the second critic and of what is drawn from the replay.
            averaging: Of gradients over ranks; called equally often on all.

        Raises:
            ConfigError: the network has no policy over options.
        """
        if network.config.policy != "options":
            raise ConfigError(f'network setting policy="{network.config.policy}": a soft actor-critic needs "options"')
        self._settings = settings
        self._averaging = averaging
        self._critics = TwinCritics(network, seed)
        self._targets = self._critics.copied()
        self._network = network.train()
        self._actor = list(network.decision.policy.parameters())
        self._encoder_and_critics = self._critics.learned()
        self._critic_optimiser = Adam(self._encoder_and_critics, lr=settings.critic_learning_rate, fused=True)
        self._actor_optimiser = Adam(self._actor, lr=settings.actor_learning_rate, fused=True)
        self._device = network.torch_device
        self._temperature = Temperature(settings.temperature, self._device)
        self._multipliers = Multipliers(settings.constraints, self._device)
        self._replay = Replay(settings.capacity, seed)
        self._updates = 0
        self._owed = 0.0
        """Updates that new transitions have earned and that are not a whole one yet."""

    @property
    def acting(self) -> Weights:
        """The network's weights."""
        return {name: tensor.detach().clone() for name, tensor in self._network.state_dict().items()}

    def absorb(self, experience: Sequence[Any]) -> Mapping[str, float]:
        """Learn from one round's steps and return figures of the round, losses as means over its updates.

        `score` is the reward for each started job, under the weights that acted, less what broken constraints cost at
        the multipliers' ceiling. There is none before the first update: nothing has been learned that could be best.

        Raises:
            TrainingError: a step cannot be, or a loss is not finite.
        """
        steps: Sequence[DecisionStep] = experience
        costs = mean_costs(steps).to(self._device)
        new = self._replay.add(steps)
        is_warm = float(len(self._replay) >= self._settings.warm_up_transitions)
        agreed_new, share_warm = agreed([float(new), is_warm], self._averaging)
        updates: list[CriticFigures] = []
        if share_warm == 1.0:
            if self._updates == 0:
                self._begin_critics(steps)
            self._multipliers.move(costs, self._averaging)
            self._owed += agreed_new * self._settings.updates_per_transition
            while self._owed >= 1.0:
                updates.append(self._update())
                self._owed -= 1.0
        return self._figures(steps, costs, updates)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to resume."""
        return {
            "critics": deepcopy(self._critics.state_dict()),
            "targets": deepcopy(self._targets.state_dict()),
            "critic_optimiser": deepcopy(self._critic_optimiser.state_dict()),
            "actor_optimiser": deepcopy(self._actor_optimiser.state_dict()),
            "temperature": self._temperature.state(),
            "multipliers": self._multipliers.state(),
            "replay": self._replay.state(),
            "updates": self._updates,
            "owed": self._owed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from such a state; `restore_learner` tells what is wrong with one.

        Raises:
            TrainingError: its replay is none.
            ValueError: what it counts cannot be.
        """
        updates, owed = int(state["updates"]), float(state["owed"])
        if updates < 0 or not 0.0 <= owed < 1.0:
            raise ValueError(f"{updates} updates are done and {owed} are owed: at least 0, and less than 1")
        self._replay.restore(state["replay"])
        self._critics.load_state_dict(state["critics"])
        self._targets.load_state_dict(state["targets"])
        restore_adam(self._critic_optimiser, state["critic_optimiser"])
        restore_adam(self._actor_optimiser, state["actor_optimiser"])
        self._temperature.restore(state["temperature"])
        self._multipliers.restore(state["multipliers"])
        self._updates, self._owed = updates, owed

    def _update(self) -> CriticFigures:
        """Draw a batch and take one step of critics, actor, temperature and targets."""
        drawn = self._replay.sample(self._settings.batch_size)
        batch = batch_of(drawn, self._device, links=self._network.vector is None)
        target = self._target(batch)
        judged: Judged = self._critics(batch.now)
        first, second = judged.first[batch.taken], judged.second[batch.taken]
        of_critics = critic_loss(first, second, target)
        value = judged.lower().detach().mean(1)  # [options]
        self._step(
            self._critic_optimiser,
            self._encoder_and_critics,
            of_critics + tie_loss(self._network, self._settings, judged, batch),
        )
        policy = policy_of(self._network, batch.now, judged.context.detach())
        of_actor = actor_loss(policy, value, self._temperature.value)
        entropy = policy.entropy.detach().mean()
        entropy_target = self._temperature.target(policy, batch.now.option_open)
        if self._updates >= self._settings.critic_first_updates:
            self._step(self._actor_optimiser, self._actor, of_actor)
            self._temperature.update(entropy, entropy_target, self._averaging)
        self._targets.follow(self._critics, self._settings.target_rate)
        self._updates += 1
        return CriticFigures(
            critic_loss=float(of_critics.detach()),
            actor_loss=float(of_actor.detach()),
            entropy=float(entropy),
            entropy_target=float(entropy_target),
            mean_q=float(value[batch.taken].mean()),
        )

    @torch.no_grad()
    def _target(self, batch: TransitionBatch) -> Tensor:
        """Return what the critics should say of the options that were taken, [batch, quantiles]."""
        durations = batch.elapsed_seconds / self._settings.reference_seconds
        reward = self._multipliers.effective_reward(batch.reward, batch.costs, durations, batch.starts)
        next_value = None
        if batch.following is not None:
            _, decisions = answers(self._network, batch.following, critics=False)
            quantiles = self._targets(batch.following).lower()
            next_value = soft_value(decisions.options, quantiles, self._temperature.value)
        discount = self._settings.discount**durations
        return bootstrapped(reward, discount, batch.continues, next_value, self._network.config.quantiles)

    def _step(self, optimiser: Adam, parameters: Sequence[Parameter], loss: Tensor) -> None:
        if not bool(torch.isfinite(loss)):
            raise TrainingError(f"a loss is {float(loss)} in update {self._updates}: lower the learning rate")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._averaging(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, self._settings.gradient_norm)
        optimiser.step()

    def _begin_critics(self, steps: Sequence[DecisionStep]) -> None:
        """Set the critics' level to the return of a round's mean reward per time, were it never to end."""
        elapsed = sum(step.elapsed_seconds for step in steps)
        rate = sum(step.reward for step in steps) / elapsed if elapsed > 0.0 else 0.0  # per second
        horizon_seconds = self._settings.reference_seconds / -log(self._settings.discount)
        (level,) = agreed([rate * horizon_seconds], self._averaging)
        self._critics.begin_at(level)
        self._targets.begin_at(level)

    def _figures(
        self, steps: Sequence[DecisionStep], costs: Tensor, updates: Sequence[CriticFigures]
    ) -> dict[str, float]:
        """Return what is known of the round; what nothing tells of is left out."""
        figures = {
            "alpha": self._temperature.value,
            "replay": float(len(self._replay)),
            "updates": float(self._updates),
        }
        if updates:
            means = torch.tensor(updates, dtype=torch.float64).mean(0)
            figures |= dict(zip(CriticFigures._fields, means.tolist(), strict=True))
        multipliers = self._multipliers.values.tolist()
        figures |= {f"lambda_{name}": value for name, value in zip(CONSTRAINTS, multipliers, strict=True)}
        latency, waiting, watts = costs.tolist()
        figures |= {"mean_latency_seconds": latency, "mean_waiting_jobs": waiting, "mean_watts": watts}
        figures["reward_per_start"] = reward_per_start(steps)
        if self._updates > 0:
            figures["score"] = figures["reward_per_start"] - self._multipliers.penalty(costs)
        return {name: value for name, value in figures.items() if isfinite(value)}


def expected(distribution: OptionDistribution, values: Tensor) -> Tensor:
    """Return the mean of a value over each job's options by their probability, [jobs, ...].

    A closed option has no part in it, whatever its value is, also where that is not finite.

    Args:
        distribution: Of the options, masked.
        values: [options, ...].
    """
    is_open = distribution.log_prob > -float("inf")
    share = distribution.log_prob.exp().where(is_open, 0.0)  # [options]
    wide = (slice(None), *(None,) * (values.dim() - 1))
    weighted = share[wide] * values.where(is_open[wide], 0.0)
    total = values.new_zeros(distribution.entropy.shape[0], *values.shape[1:])
    return total.index_add(0, distribution.option_job, weighted)


def soft_value(distribution: OptionDistribution, quantiles: Tensor, temperature: float) -> Tensor:
    r"""Return the soft value of each moment as quantiles, [jobs, quantiles].

    .. math::
        V_\tau(s) = \sum_a \pi(a|s) \, Z_\tau(s, a) + \alpha \, \mathcal{H}(\pi(\cdot|s))

    Each quantile is the mean of the options' own: exact in the mean; the spread between the options, which the policy
    chooses and chance does not, is left out.

    Args:
        distribution: Of the next options by the present actor, under the masks of that decision.
        quantiles: Of the options' return by the target critics, [options, quantiles].
        temperature: In rewards per nat.
    """
    return expected(distribution, quantiles) + temperature * distribution.entropy[:, None]


def bootstrapped(
    reward: Tensor, discount: Tensor, continues: Tensor, next_value: Tensor | None, quantiles: int
) -> Tensor:
    r"""Return the targets of the critics, [batch, quantiles].

    .. math::
        y_\tau = r + \gamma^{\Delta t / t_\text{ref}} \, V_\tau(s')

    Decisions come at any time: the discount is by what passed between them (a semi-Markov decision process), where the
    paper discounts each decision alike. Nothing is added where nothing follows for ever.

    Args:
        reward: [batch].
        discount: Of what follows, [batch].
        continues: Rows that something follows, [continuing].
        next_value: Value of what follows, [going on, quantiles]; None where nothing does in the whole batch.
        quantiles: How many there are.
    """
    target = reward[:, None].expand(-1, quantiles)
    if next_value is None:
        return target
    return target.index_add(0, continues, discount[continues, None] * next_value)


def critic_loss(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Return the loss of both critics, eq. 10 of CHSAC-AF.

    Args:
        first: Quantiles of the options that were taken by the first critic, [batch, quantiles].
        second: By the second.
        target: [batch, quantiles].
    """
    return quantile_huber_loss(first, target) + quantile_huber_loss(second, target)


def actor_loss(distribution: OptionDistribution, value: Tensor, temperature: float) -> Tensor:
    r"""Return the loss of the actor, eq. 11 of CHSAC-AF as an exact expectation over all options.

    .. math::
        \mathcal{L}_\pi = \operatorname{mean}_s \sum_a \pi(a|s) \, (\alpha \log \pi(a|s) - q(s, a))

    Its gradient is the direction of better options. The paper's code draws one option and takes its value as constant,
    which leaves no such gradient.

    Args:
        distribution: Of the actor.
        value: Lower mean of the two critics for each option, [options]; taken as constant.
        temperature: In rewards per nat.
    """
    return -(expected(distribution, value.detach()) + temperature * distribution.entropy).mean()


_KAPPA = 1.0
"""Where the Huber loss turns from a square to a line."""


def quantile_huber_loss(predicted: Tensor, target: Tensor) -> Tensor:
    r"""Return the quantile Huber loss, eq. 10 of Dabney et al. 2018 with kappa 1, mean over the batch.

    .. math::
        \sum_i \operatorname{mean}_j \; |\hat\tau_i - 1[u_{ij} < 0]| \; L_1(u_{ij}), \qquad
        u_{ij} = \text{target}_j - \text{predicted}_i

    The weight belongs to the quantile that is predicted: where it lies on the target's axis, every quantile is drawn to
    the same value.

    Args:
        predicted: Quantiles at the midpoints (2 i + 1) / 2 N, [batch, N].
        target: Samples or quantiles of the return, taken as constant, [batch, M].
    """
    quantiles = predicted.shape[1]
    midpoint = (torch.arange(quantiles, dtype=predicted.dtype, device=predicted.device) + 0.5) / quantiles  # [N]
    error = target.detach()[:, None, :] - predicted[:, :, None]  # [batch, N, M]
    size = error.abs()
    huber = torch.where(size <= _KAPPA, 0.5 * error.square(), _KAPPA * (size - 0.5 * _KAPPA))
    weight = (midpoint[None, :, None] - (error.detach() < 0.0).to(error.dtype)).abs()
    return (weight * huber).mean(2).sum(1).mean()
