"""Weights that are learned beside the policy: Lagrange multipliers of its constraints, and the entropy temperature."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from slurm_energy.errors import ConfigError
from slurm_energy.learning.experience import Averaging, DecisionStep, alone
from slurm_energy.learning.ranks import agreed
from slurm_energy.learning.settings_file import Bounds, check_bounds
from slurm_energy.learning.training_state import restore_adam, same_form
from slurm_energy.policy.gnn.heads import OptionDistribution

CONSTRAINTS = ("latency", "waiting", "power")
"""In the order of `Costs`."""
_BOUNDS: Bounds = {
    "latency_target_seconds": (1e-6, 1e12),
    "waiting_target_jobs": (1e-6, 1e12),
    "power_target_watts": (1e-6, 1e12),
    "rate": (1e-6, 1000.0),
    "ceiling": (1e-6, 1e6),
}
_TEMPERATURE_BOUNDS: Bounds = {
    "entropy_share": (1e-6, 0.98),
    "first": (1e-9, 1e6),
    "least": (1e-9, 1e6),
    "most": (1e-9, 1e6),
    "learning_rate": (1e-9, 0.5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSettings:
    """What must be kept on average; a constraint without a target is off."""

    latency_target_seconds: float | None = None
    """Mean over started jobs of wait and expected run time."""
    waiting_target_jobs: float | None = None
    """Mean over time of the jobs that wait."""
    power_target_watts: float | None = None
    """Mean over time of the cluster's power."""
    rate: float = 0.1
    """Change of a multiplier in a round in which its cost is twice its target."""
    ceiling: float = 10.0
    """Of each multiplier."""

    def __post_init__(self) -> None:
        check_bounds(self, "learner.constraints", _BOUNDS)

    @property
    def targets(self) -> tuple[float, float, float]:
        """The targets in the order of `CONSTRAINTS`, infinite where one is off."""
        given = (self.latency_target_seconds, self.waiting_target_jobs, self.power_target_watts)
        first, second, third = (inf if value is None else value for value in given)
        return first, second, third


def mean_costs(steps: Sequence[DecisionStep]) -> Tensor:
    """Return the mean of each cost over a round, [constraints]; NaN where nothing tells of it.

    Latency is a mean over started jobs; queue and power are means over time, so that a step counts by its length.
    """
    latency = [step.costs.latency_seconds for step in steps if step.granted >= 0]
    elapsed = sum(step.elapsed_seconds for step in steps)
    waiting = sum(step.costs.waiting_jobs * step.elapsed_seconds for step in steps)
    watts = sum(step.costs.watts * step.elapsed_seconds for step in steps)
    return torch.tensor(
        [
            sum(latency) / len(latency) if latency else torch.nan,
            waiting / elapsed if elapsed > 0.0 else torch.nan,
            watts / elapsed if elapsed > 0.0 else torch.nan,
        ]
    )


class Multipliers:
    r"""One multiplier for each constraint, never negative.

    .. math::
        \lambda_k \leftarrow \operatorname{clip} \big( \lambda_k + \eta \, (\bar c_k / \tau_k - 1), 0,
        \lambda_\text{ceiling} \big)

    Departures from eq. 7 of CHSAC-AF: costs are relative to their target, so that one rate fits seconds, jobs and
    watts; the mean is over the last round, which the present policy made, and not over the replay, which holds the past
    of all policies; there is a ceiling. The paper's code adds the positive part alone and cannot fall.
    """

    def __init__(self, settings: ConstraintSettings, device: torch.device | None = None) -> None:
        self._settings = settings
        self._targets = torch.tensor(settings.targets, device=device)
        self._values = Parameter(torch.zeros(len(CONSTRAINTS), device=device))

    @property
    def values(self) -> Tensor:
        """The multipliers, [constraints]."""
        return self._values.detach().clone()

    def excess(self, costs: Tensor) -> Tensor:
        """Return cost / target - 1, and 0 for constraints that are off.

        Args:
            costs: In the order of `CONSTRAINTS`, [..., constraints].
        """
        return torch.where(torch.isfinite(self._targets), costs / self._targets - 1.0, 0.0)

    def move(self, costs: Tensor, averaging: Averaging = alone) -> None:
        """Follow the mean costs of a round; a cost that is not known leaves its multiplier where it is.

        Args:
            costs: [constraints].
            averaging: Over ranks, so that all keep the same multipliers; who does not know a cost has no say in it.
        """
        excess = self.excess(costs)
        is_known = torch.isfinite(excess)
        common = agreed([*excess.where(is_known, 0.0).tolist(), *map(float, is_known.tolist())], averaging)
        change = [
            total / known if known > 0.0 else 0.0
            for total, known in zip(common[: len(CONSTRAINTS)], common[len(CONSTRAINTS) :], strict=True)
        ]
        with torch.no_grad():
            self._values.add_(self._settings.rate * self._values.new_tensor(change))
            self._values.clamp_(0.0, self._settings.ceiling)

    def effective_reward(self, reward: Tensor, costs: Tensor, durations: Tensor, starts: Tensor) -> Tensor:
        r"""Return the reward less the weighted costs, eq. 12 of CHSAC-AF, with the multipliers of now.

        .. math::
            \frac{r - s \, \lambda_\text{latency} \, g_\text{latency} - d \, (\lambda_\text{waiting} \,
            g_\text{waiting} + \lambda_\text{power} \, g_\text{power})}
            {1 + \sum_k \lambda_k}, \qquad g_k = c_k / \tau_k - 1

        Departures from the paper: no positive part, because it is the mean that has a bound and not each step; latency
        counts once for a job that is started (s = 1; a start that was refused has none, s = 0), queue and power for as
        long as they lasted, as their means do; the division keeps returns of one size while multipliers move, and
        changes no order of policies.

        Args:
            reward: [batch].
            costs: [batch, constraints].
            durations: Time until the next decision over the reference time, [batch].
            starts: Whether a job was started, [batch], bool.
        """
        values, excess = self._values.detach(), self.excess(costs)
        weight = torch.stack([starts.to(durations.dtype), durations, durations], dim=1)  # [batch, constraints]
        return (reward - (weight * excess) @ values) / (1.0 + values.sum())

    def penalty(self, costs: Tensor) -> float:
        """Return what broken constraints cost at the ceiling: 0 where all are kept, or nothing is known of them.

        Args:
            costs: Of a round, [constraints].
        """
        return self._settings.ceiling * float(torch.nan_to_num(self.excess(costs), nan=0.0).clamp(min=0.0).sum())

    def state(self) -> dict[str, Any]:
        """Return what is needed to resume."""
        return {"values": self.values}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state.

        Raises:
            ValueError: it is none of these multipliers.
        """
        if not same_form(state["values"], self._values.shape) or bool((state["values"] < 0.0).any()):
            raise ValueError(f"multipliers are not {len(CONSTRAINTS)} finite numbers from 0 up")
        with torch.no_grad():
            self._values.copy_(state["values"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureSettings:
    """How the temperature is tuned."""

    entropy_share: float = 0.3
    """Target entropy over the log of the number of open options."""
    first: float = 0.2
    """Temperature at the start, in rewards per nat."""
    least: float = 1e-4
    most: float = 10.0
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        check_bounds(self, "learner.temperature", _TEMPERATURE_BOUNDS)
        if not self.least <= self.first <= self.most:
            raise ConfigError(
                f"settings learner.temperature: least {self.least}, first {self.first}, most {self.most} do not ascend"
            )


def target_entropy(option_open: Tensor, option_job: Tensor, num_jobs: int, share: float) -> Tensor:
    """Return the entropy that a policy should keep, a share of the log of its open options, mean over jobs.

    A masked categorical policy can reach it whatever its options are. The paper's code asks for -3 nats, the rule for
    continuous actions: no categorical policy has a negative entropy, and the temperature falls for ever.

    Args:
        option_open: Mask of decision time, [options], bool.
        option_job: Job of each option, [options].
        num_jobs: Number of jobs.
        share: Of the logarithm.
    """
    count = option_open.new_zeros(num_jobs, dtype=torch.float32).index_add(0, option_job, option_open.to(torch.float32))
    return share * count.clamp(min=1.0).log().mean()


class Temperature:
    """A learned temperature, kept as its logarithm and inside its bounds."""

    def __init__(self, settings: TemperatureSettings, device: torch.device | None = None) -> None:
        self._settings = settings
        self._log = Parameter(torch.tensor(log(settings.first), device=device))
        self._optimiser = torch.optim.Adam([self._log], lr=settings.learning_rate)

    @property
    def value(self) -> float:
        """The temperature."""
        return exp(float(self._log.detach()))

    def target(self, distribution: OptionDistribution, option_open: Tensor) -> Tensor:
        """Return the target entropy of a batch."""
        num_jobs = distribution.entropy.shape[0]
        return target_entropy(option_open, distribution.option_job, num_jobs, self._settings.entropy_share)

    def update(self, entropy: Tensor, target: Tensor, averaging: Averaging = alone) -> None:
        """Raise the temperature where the policy is more decided than it should be, lower it where it is less.

        Args:
            entropy: Of the policy, mean over the batch.
            target: What it should be.
            averaging: Of gradients over ranks.
        """
        self._log.grad = (entropy - target).detach().reshape(())
        averaging([self._log])
        self._optimiser.step()
        with torch.no_grad():
            self._log.clamp_(log(self._settings.least), log(self._settings.most))

    def state(self) -> dict[str, Any]:
        """Return what is needed to resume."""
        return {"log": self._log.detach().clone(), "optimiser": deepcopy(self._optimiser.state_dict())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state.

        Raises:
            ValueError: it is none of a temperature.
        """
        if not same_form(state["log"], self._log.shape):
            raise ValueError("the temperature's logarithm is no finite number")
        with torch.no_grad():
            self._log.copy_(state["log"])
        restore_adam(self._optimiser, state["optimiser"])
