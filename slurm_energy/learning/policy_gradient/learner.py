"""Learning by policy gradient: generalised advantages, a clipped surrogate, several passes over each round.

Schulman et al. 2016 (advantages) and 2017 (surrogate); the reward function of section 3.4 of the hierarchical GNN paper
is what a step's reward holds. One network serves all weights of time and energy: a job's vertex tells its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Adam

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.learning.experience import Averaging, DecisionMoment, DecisionStep, Weights, alone, reward_per_start
from slurm_energy.learning.imitation import answers, objective_loss
from slurm_energy.learning.policy_gradient.losses import (
    FloatArray,
    advantages,
    combined_value,
    divergence,
    surrogate_loss,
    value_loss,
)
from slurm_energy.learning.policy_gradient.settings import PolicyGradientSettings
from slurm_energy.learning.ranks import carried, carrier, mean_and_deviation, shares_of_mean
from slurm_energy.learning.training_state import restore_adam
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.embeddings import floats
from slurm_energy.policy.gnn.network import HierarchicalNetwork, State

_ADAM_EPS = 1e-5
_Rows = NDArray[np.int64]


class Scale(NamedTuple):
    """The unit of values: mean and standard deviation of the first round's returns."""

    mean: float
    deviation: float


class Lesson(NamedTuple):
    """What a round's steps teach."""

    steps: Sequence[DecisionStep]
    advantage: Tensor
    """With mean 0 and deviation 1 over all ranks, [steps]."""
    returns: Tensor
    """In the scale of values, [steps]."""
    old_value: Tensor
    """In the scale of values, [steps]."""
    old_log_prob: Tensor
    """[steps]."""
    known: _Rows
    """Steps that anything can be learned from."""
    shares: Sequence[float]
    """Of each minibatch of a pass: this rank's steps over the mean of all ranks', so that steps count alike, and not
    ranks."""


class GradientFigures(NamedTuple):
    """What an update came to, means over its steps."""

    policy_loss: float
    value_loss: float
    entropy: float
    divergence: float
    clipped: float
    """Share of the steps whose ratio is beyond the clip."""


class PolicyGradientLearner:
    """Trains a network on rounds of steps, in place; the same seed and rounds on one thread give the same weights."""

    def __init__(
        self,
        network: HierarchicalNetwork,
        settings: PolicyGradientSettings,
        *,
        seed: int,
        averaging: Averaging = alone,
    ) -> None:
        """Store what is needed.

        Args:
            network: With the weights to begin from, on the device to learn on.
            settings: How it learns.
            seed: Of the order in which steps are taken.
            averaging: Of gradients over ranks; called equally often on all.

        Raises:
            ConfigError: the network has no policy over options.
        """
        if network.config.policy != "options":
            raise ConfigError(f'network setting policy="{network.config.policy}": a policy gradient needs "options"')
        self._network = network.train()
        self._device = network.torch_device
        self._settings = settings
        self._seed = seed
        self._averaging = averaging
        self._parameters = list(network.parameters())
        self._optimiser = Adam(self._parameters, lr=settings.learning_rate, eps=_ADAM_EPS)
        self._rounds = 0
        self._scale: Scale | None = None

    @property
    def acting(self) -> Weights:
        """The network's weights."""
        return {name: tensor.detach().clone() for name, tensor in self._network.state_dict().items()}

    def absorb(self, experience: Sequence[DecisionStep]) -> Mapping[str, float]:
        """Learn from one round's steps, whole episodes one behind the other, and return figures of it.

        `score` is the reward for each started job under the weights that acted, before anything is learned; there is
        none where no job was started.

        Raises:
            TrainingError: there are no steps, or a loss is not finite.
        """
        if not experience:
            raise TrainingError("a round without a decision teaches nothing: give its episodes more time")
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.learning_rate_after(self._rounds)
        if self._scale is None:
            self._scale = self._first_scale(experience)
        lesson = self._lesson(experience, self._scale)
        updates = self._updates(lesson)
        self._rounds += 1
        return self._summary(lesson, updates)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to resume."""
        return {
            "network": {name: tensor.detach().clone() for name, tensor in self._network.state_dict().items()},
            "optimiser": _copied(self._optimiser.state_dict()),
            "rounds": self._rounds,
            "scale": None if self._scale is None else list(self._scale),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from such a state; `restore_learner` tells what is wrong with one.

        Raises:
            ValueError: the scale of values is none.
        """
        scale = None if state["scale"] is None else Scale(*map(float, state["scale"]))
        if scale is not None and not (isfinite(scale.mean) and 0.0 < scale.deviation < inf):
            raise ValueError(f"the scale of values has mean {scale.mean} and deviation {scale.deviation}")
        self._network.load_state_dict(state["network"])
        restore_adam(self._optimiser, state["optimiser"])
        self._rounds, self._scale = int(state["rounds"]), scale

    def _first_scale(self, steps: Sequence[DecisionStep]) -> Scale:
        """Return the scale of the returns that were seen, without any value."""
        seen = advantages(
            steps, np.zeros(len(steps)), horizon_seconds=self._settings.horizon_seconds, trace_decay=1.0
        ).returns
        return Scale(*mean_and_deviation(seen, self._averaging))

    def _lesson(self, steps: Sequence[DecisionStep], scale: Scale) -> Lesson:
        old_value = self._values([step.moment for step in steps])
        found = advantages(
            steps,
            scale.mean + scale.deviation * old_value,
            horizon_seconds=self._settings.horizon_seconds,
            trace_decay=self._settings.trace_decay,
        )
        known = np.nonzero(found.is_known)[0]
        mean, deviation = mean_and_deviation(found.advantage[known], self._averaging)
        counts = [float(len(rows)) for rows in np.array_split(known, self._settings.minibatches)]
        return Lesson(
            steps=steps,
            advantage=self._tensor((found.advantage - mean) / deviation),
            returns=self._tensor((found.returns - scale.mean) / scale.deviation),
            old_value=self._tensor(old_value),
            old_log_prob=self._tensor(np.array([step.log_prob for step in steps])),
            known=known,
            shares=shares_of_mean(counts, self._averaging),
        )

    @torch.no_grad()
    def _values(self, moments: Sequence[DecisionMoment]) -> FloatArray:
        """Return the present value of each moment, in the scale of values, [moments]."""
        most = self._settings.max_moments
        parts = [moments[begin : begin + most] for begin in range(0, len(moments), most)]
        found = [_value(answers(self._network, part)[1], part) for part in parts]
        return torch.cat(found).cpu().numpy().astype(np.float64)

    def _tensor(self, values: FloatArray) -> Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(self._device)

    def _updates(self, lesson: Lesson) -> list[GradientFigures]:
        """Take the round's updates; they end early where the policy has gone too far from the one that acted."""
        updates: list[GradientFigures] = []
        limit = self._settings.target_divergence
        generator = np.random.default_rng([self._seed, self._rounds])
        for _ in range(self._settings.epochs):
            order = lesson.known[generator.permutation(len(lesson.known))]
            for rows, share in zip(np.array_split(order, self._settings.minibatches), lesson.shares, strict=True):
                figures = self._gradients(lesson, rows, share)
                shared_divergence = carrier([share * figures.divergence])
                self._averaging([*self._parameters, shared_divergence])
                if limit is not None and carried(shared_divergence)[0] > limit:
                    return updates
                torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.gradient_norm)
                self._optimiser.step()
                updates.append(figures)
        return updates

    def _gradients(self, lesson: Lesson, rows: _Rows, share_of_rank: float) -> GradientFigures:
        """Work out the gradients of a minibatch, part by part; none where it has no steps.

        Args:
            lesson: What it is of.
            rows: Its steps.
            share_of_rank: What the gradients are multiplied by; figures are not.
        """
        self._optimiser.zero_grad(set_to_none=True)
        sums = np.zeros(len(GradientFigures._fields))
        for part in _parts(rows, self._settings.max_moments):
            loss, figures = self._loss(lesson, part)
            share = len(part) / len(rows)
            if not bool(torch.isfinite(loss)):
                raise TrainingError(f"a loss is {loss.item()} in round {self._rounds}: lower the learning rate")
            (share_of_rank * share * loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            sums += share * np.array(figures)
        return GradientFigures(*sums.tolist())

    def _loss(self, lesson: Lesson, rows: _Rows) -> tuple[Tensor, GradientFigures]:
        settings, at = self._settings, torch.from_numpy(rows).to(self._device)
        steps = [lesson.steps[row] for row in rows]
        moments = [step.moment for step in steps]
        state, decisions = answers(self._network, moments)
        log_prob = decisions.options.log_prob[_asked_rows(steps).to(self._device)]
        old_log_prob, advantage = lesson.old_log_prob[at], lesson.advantage[at]
        policy = surrogate_loss(log_prob, old_log_prob, advantage, settings.clip).mean()
        value = value_loss(
            _value(decisions, moments), lesson.old_value[at], lesson.returns[at], settings.value_clip
        ).mean()
        entropy = decisions.options.entropy.mean()
        loss = policy + settings.value_weight * value - settings.entropy_weight_after(self._rounds) * entropy
        loss = loss + self._tie_loss(state, decisions, steps)
        with torch.no_grad():
            ratio = (log_prob - old_log_prob).exp()
            figures = GradientFigures(
                policy_loss=float(policy),
                value_loss=float(value),
                entropy=float(entropy),
                divergence=float(divergence(log_prob, old_log_prob)),
                clipped=float(((ratio - 1.0).abs() > settings.clip).float().mean()),
            )
        return loss, figures

    def _tie_loss(self, state: State, decisions: Decisions, steps: Sequence[DecisionStep]) -> Tensor:
        """Return the weighted losses of tied attention heads and of differentiable pooling, as in imitation."""
        config, loss = self._network.config, decisions.job.new_zeros(())
        if config.attention == "objectives" and self._settings.objective_weight:
            tied = objective_loss(decisions, [step.moment for step in steps], [step.asked for step in steps])
            loss = loss + self._settings.objective_weight * tied
        if config.pooling in {"mixed", "differentiable"} and self._settings.pooling_weight:
            devices = state.devices
            loss = loss + self._settings.pooling_weight * (devices.link_loss + 0.1 * devices.entropy_loss)
        return loss

    def _summary(self, lesson: Lesson, updates: Sequence[GradientFigures]) -> dict[str, float]:
        means = (
            np.array(updates).reshape(-1, len(GradientFigures._fields)).mean(0)
            if updates
            else np.zeros(len(GradientFigures._fields))
        )
        returns, values = (tensor.cpu().numpy()[lesson.known] for tensor in (lesson.returns, lesson.old_value))
        spread = float(returns.var()) if len(returns) else 0.0
        score = reward_per_start(lesson.steps)
        return {
            **({"score": score} if isfinite(score) else {}),
            "steps": float(len(lesson.steps)),
            **dict(zip(GradientFigures._fields, means.tolist(), strict=True)),
            "updates": float(len(updates)),
            "explained_variance": 1.0 - float((returns - values).var()) / spread if spread > 0.0 else 0.0,
            "learning_rate": self._settings.learning_rate_after(self._rounds - 1),
        }


def _value(decisions: Decisions, moments: Sequence[DecisionMoment]) -> Tensor:
    assert decisions.values is not None
    job_x = floats(np.concatenate([moment.decision.job_x for moment in moments]))
    return combined_value(decisions.values, job_x.to(decisions.values.device))


def _asked_rows(steps: Sequence[DecisionStep]) -> Tensor:
    """Return the row of what was asked for among the options of all steps."""
    ends = accumulate(len(step.moment.decision.option_open) for step in steps)
    return torch.tensor(
        [end - len(step.moment.decision.option_open) + step.asked for end, step in zip(ends, steps, strict=True)]
    )


def _parts(rows: _Rows, most: int) -> Iterator[_Rows]:
    for begin in range(0, len(rows), most):
        yield rows[begin : begin + most]


def _copied(value: Any) -> Any:
    """Return a state whose tensors do not change with the learner."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value
