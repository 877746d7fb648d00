"""Settings of the soft actor-critic."""

from dataclasses import dataclass, field

from slurm_energy.errors import ConfigError
from slurm_energy.learning.settings_file import Bounds, check_bounds
from slurm_energy.learning.soft_actor_critic.multipliers import ConstraintSettings, TemperatureSettings

_BOUNDS: Bounds = {
    "capacity": (1, 100_000_000),
    "batch_size": (1, 100_000),
    "warm_up_transitions": (1, 100_000_000),
    "updates_per_transition": (1e-6, 1000.0),
    "critic_first_updates": (0, 1_000_000_000),
    "discount": (0.001, 0.999999),
    "reference_seconds": (0.001, 1e9),
    "target_rate": (1e-9, 1.0),
    "actor_learning_rate": (1e-9, 0.5),
    "critic_learning_rate": (1e-9, 0.5),
    "gradient_norm": (1e-6, 1e6),
    "objective_weight": (0.0, 1000.0),
    "pooling_weight": (0.0, 1000.0),
}


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
        check_bounds(self, "learner", _BOUNDS)
        if self.warm_up_transitions > self.capacity:
            raise ConfigError(
                f"setting learner.warm_up_transitions is {self.warm_up_transitions}: so many never fit into a replay "
                f"of {self.capacity}"
            )
