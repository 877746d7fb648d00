"""An algorithm that learns in milliseconds: the network's value head moves towards numbers that episodes draw."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from slurm_energy.errors import ConfigError
from slurm_energy.learning.algorithms import Algorithm, CollectorParts, LearnerParts
from slurm_energy.learning.experience import Averaging, Weights
from slurm_energy.policy.gnn.network import HierarchicalNetwork

NETWORK = {
    "hidden": 12,
    "heads": 3,
    "device_layers": 1,
    "task_layers": 1,
    "top_layers": 1,
    "chebyshev_order": 2,
    "pooled_vertices": 1,
    "quantiles": 4,
}
_MOVED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyEpisodes:
    world: str
    length: int = 4
    fault: Literal["none", "raises", "dies", "hangs"] = "none"
    faulty_seed: int = -1
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySettings:
    learning_rate: float = 0.01
    noise: float = 0.1
    updates: int = 2
    per_step: bool = False
    """As many updates as steps, which differ by rank."""
    breaks_at: int = 0
    """Round in which the weights become NaN."""

    def __post_init__(self) -> None:
        if not 0.0 < self.learning_rate < 1.0:
            raise ConfigError(f"learning rate {self.learning_rate} is not between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyCollector:
    episodes: TinyEpisodes

    def __call__(self, weights: Weights, *, seed: int) -> Sequence[float]:
        """Return numbers that depend on the weights and the seed, more of them for odd seeds."""
        time.sleep(self.episodes.pause_seconds)
        if self.episodes.faulty_seed in {-1, seed}:
            self._fail(seed)
        generator = torch.Generator().manual_seed(seed)
        level = float(sum(tensor.double().sum() for tensor in weights.values() if tensor.is_floating_point()))
        drawn = torch.rand(self.episodes.length + seed % 2, generator=generator).tolist()
        return [value + 1e-3 * level for value in drawn]

    def _fail(self, seed: int) -> None:
        if self.episodes.fault == "raises":
            raise ValueError(f"nothing comes of {seed}")
        if self.episodes.fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.episodes.fault == "hangs":
            time.sleep(600.0)


class TinyLearner:
    def __init__(self, network: HierarchicalNetwork, settings: TinySettings, seed: int, averaging: Averaging) -> None:
        self._network = network
        self._settings = settings
        self._averaging = averaging
        self._moved = list(network.parameters())[:_MOVED]
        self._optimiser = torch.optim.Adam(self._moved, lr=settings.learning_rate)
        self._generator = torch.Generator().manual_seed(seed)
        self._rounds = 0

    @property
    def acting(self) -> Weights:
        return self._network.state_dict()

    def absorb(self, experience: Sequence[Any]) -> Mapping[str, float]:
        goal = sum(experience) / len(experience)
        loss = 0.0
        for _ in range(len(experience) if self._settings.per_step else self._settings.updates):
            noise = float(torch.randn(1, generator=self._generator)) * self._settings.noise
            self._optimiser.zero_grad(set_to_none=True)
            distance = sum(((parameter - goal - noise) ** 2).mean() for parameter in self._moved[:-1])
            assert isinstance(distance, torch.Tensor)
            distance.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._averaging(self._moved)
            self._optimiser.step()
            loss = float(distance.detach())
        self._rounds += 1
        if self._rounds == self._settings.breaks_at:
            with torch.no_grad():
                self._moved[0].fill_(float("nan"))
        figures = {"loss": loss, "goal": goal, "score": -abs(self._rounds - 3.0)}
        return figures if self._rounds < 2 else {**figures, "late": float(self._rounds)}

    def state(self) -> dict[str, Any]:
        return {
            "network": self._network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "generator": self._generator.get_state(),
            "rounds": self._rounds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._generator.set_state(state["generator"])
        self._rounds = state["rounds"]


def _collector(parts: CollectorParts) -> TinyCollector:
    return TinyCollector(episodes=parts.episodes)


def _learner(parts: LearnerParts) -> TinyLearner:
    return TinyLearner(parts.network, parts.settings, parts.seed, parts.averaging)


ALGORITHM = Algorithm(
    name="tiny",
    episode_settings=TinyEpisodes,
    learner_settings=TinySettings,
    collector=_collector,
    learner=_learner,
)
