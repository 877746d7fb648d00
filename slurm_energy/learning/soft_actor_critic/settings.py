"""Settings of the soft actor-critic."""

from dataclasses import dataclass, field
from math import inf

from slurm_energy.errors import ConfigError
from slurm_energy.learning.soft_actor_critic.multipliers import ConstraintSettings
from slurm_energy.learning.soft_actor_critic.temperature import TemperatureSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftActorCriticSettings:
    """How the network learns; capacity and batch size are the paper's (table I), rates those of its published code."""

    capacity: int = 200_000
    """Transitions that the replay keeps."""
    batch_size: int = 256
    warm_up_transitions: int = 1_000
    """Before there are so many in the replay, nothing is learned."""
    updates_per_transition: float = 1.0
    """Updates for each new transition."""
    critic_first_updates: int = 0
    """Updates before the actor begins to move: critics have to know something of a policy that begins well."""
    discount: float = 0.99
    """Of what comes one reference time later."""
    reference_seconds: float = 60.0
    """Reference time; with the discount it sets how far ahead the learner looks: 6,000 s by default."""
    target_rate: float = 0.005
    """Share of the way that targets go in an update."""
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    gradient_norm: float = 5.0
    """Longer gradients are cut to it."""
    objective_weight: float = 0.1
    """Of the loss that ties attention heads to time, energy and fairness, beside the critics'."""
    pooling_weight: float = 0.05
    """Of the link and entropy terms of differentiable pooling."""
    temperature: TemperatureSettings = field(default_factory=TemperatureSettings)
    constraints: ConstraintSettings = field(default_factory=ConstraintSettings)

    def __post_init__(self) -> None:
        for name, least in (
            ("capacity", 1),
            ("batch_size", 1),
            ("warm_up_transitions", 1),
            ("critic_first_updates", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"setting {name}={getattr(self, name)} of the learner must be at least {least}")
        if self.warm_up_transitions > self.capacity:
            raise ConfigError(
                f"warm_up_transitions {self.warm_up_transitions} never fit into a replay of {self.capacity}"
            )
        for name in ("updates_per_transition", "reference_seconds", "gradient_norm"):
            if not 0.0 < getattr(self, name) < inf:
                raise ConfigError(f"setting {name}={getattr(self, name)} of the learner is not finite and above 0")
        for name in ("discount", "actor_learning_rate", "critic_learning_rate"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigError(f"setting {name}={getattr(self, name)} of the learner is not between 0 and 1")
        if not 0.0 < self.target_rate <= 1.0:
            raise ConfigError(f"setting target_rate={self.target_rate} of the learner is not above 0 and at most 1")
        for name in ("objective_weight", "pooling_weight"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ConfigError(f"setting {name}={getattr(self, name)} of the learner is not finite and from 0 up")
