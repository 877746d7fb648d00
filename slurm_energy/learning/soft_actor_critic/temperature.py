"""The entropy temperature: what the policy is paid for staying undecided, so that it keeps a share of its choices."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import exp, log
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from slurm_energy.errors import ConfigError
from slurm_energy.learning.bounds import Bounds, check_bounds
from slurm_energy.learning.experience import Averaging, alone
from slurm_energy.learning.training_state import restore_adam, same_form
from slurm_energy.policy.gnn.policy_head import OptionDistribution

_BOUNDS: Bounds = {
    "entropy_share": (1e-6, 0.98),
    "first": (1e-9, 1e6),
    "least": (1e-9, 1e6),
    "most": (1e-9, 1e6),
    "learning_rate": (1e-9, 0.5),
}


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
        check_bounds(self, "learner.temperature", _BOUNDS)
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
        """Return what is needed to go on."""
        return {"log": self._log.detach().clone(), "optimiser": deepcopy(self._optimiser.state_dict())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: it is none of a temperature.
        """
        if not same_form(state["log"], self._log.shape):
            raise ValueError("the temperature's logarithm is no finite number")
        with torch.no_grad():
            self._log.copy_(state["log"])
        restore_adam(self._optimiser, state["optimiser"])
