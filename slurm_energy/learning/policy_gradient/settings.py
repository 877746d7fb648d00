"""Settings of the policy gradient."""

from dataclasses import dataclass

from slurm_energy.learning.settings_file import Bounds, check_bounds

_BOUNDS: Bounds = {
    "epochs": (1, 1000),
    "minibatches": (1, 10_000),
    "max_moments": (1, 1_000_000),
    "learning_rate": (1e-9, 0.5),
    "final_learning_rate_share": (0.0, 1.0),
    "decay_rounds": (1, 10_000_000),
    "clip": (0.001, 10.0),
    "value_clip": (0.001, 1000.0),
    "value_weight": (0.0, 1000.0),
    "entropy_weight": (0.0, 1000.0),
    "final_entropy_weight": (0.0, 1000.0),
    "gradient_norm": (1e-6, 1e6),
    "horizon_seconds": (0.001, 1e9),
    "trace_decay": (0.0, 1.0),
    "target_divergence": (1e-6, 1e6),
    "objective_weight": (0.0, 1000.0),
    "pooling_weight": (0.0, 1000.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradientSettings:
    """How the network learns from a round's steps."""

    epochs: int = 4
    """Passes over the round's steps."""
    minibatches: int = 8
    """Updates in a pass: the same number on all ranks, however many steps each has."""
    max_moments: int = 128
    """Moments that are worked out side by side; larger minibatches are worked out in parts, for the memory's sake."""
    learning_rate: float = 1e-3
    final_learning_rate_share: float = 0.1
    """Reached along a line over `decay_rounds`."""
    decay_rounds: int = 100
    """Rounds until learning rate and entropy bonus have their last values."""
    clip: float = 0.2
    """The surrogate does not reward a probability ratio further than this from 1."""
    value_clip: float | None = None
    """The same for values, in units of their scale; None leaves it out."""
    value_weight: float = 0.25
    """Of the value's squared error beside the surrogate."""
    entropy_weight: float = 0.01
    """Of the entropy of the policy, in nats."""
    final_entropy_weight: float = 0.0005
    """Reached along a line over `decay_rounds`."""
    gradient_norm: float = 0.5
    """Longer gradients are cut to it."""
    horizon_seconds: float = 3600.0
    """After so much simulated time a reward counts 1/e."""
    trace_decay: float = 0.95
    """Lambda of generalised advantages."""
    target_divergence: float | None = 0.03
    """When the policy's divergence from the one that acted is larger, the round's updates end; None for no bound."""
    objective_weight: float = 0.05
    """Of the loss that ties attention heads to time, energy and fairness."""
    pooling_weight: float = 0.02
    """Of the link and entropy terms of differentiable pooling."""

    def __post_init__(self) -> None:
        check_bounds(self, "learner", _BOUNDS)

    def share_left(self, rounds: int) -> float:
        """Return how much of the way from first to last values is left after so many rounds."""
        return max(0.0, 1.0 - rounds / self.decay_rounds)

    def learning_rate_after(self, rounds: int) -> float:
        """Return the learning rate after so many rounds."""
        last = self.final_learning_rate_share
        return self.learning_rate * (last + (1.0 - last) * self.share_left(rounds))

    def entropy_weight_after(self, rounds: int) -> float:
        """Return the weight of the entropy after so many rounds."""
        last = self.final_entropy_weight
        return last + (self.entropy_weight - last) * self.share_left(rounds)
