"""What prices are learned on, and how."""

from collections.abc import Set
from dataclasses import dataclass, fields, replace

from slurm_energy.errors import ConfigError, ValueRangeError
from slurm_energy.learning.settings_file import FORMER_NAMES, HOURS, with_names
from slurm_energy.policy.prices import JOB_PRICES
from slurm_energy.policy.rules.settings import split_text

_FORMER_PRICES = {"opening": "opened_nodes"}
"""What prices of `JOB_PRICES` were called in earlier releases, and what they are called now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceEpisodeSettings:
    """Worlds to learn in, and what counts there."""

    world: str
    """Name or file."""
    worlds: tuple[str, ...] = ()
    """Worlds that episodes take turns with, in the place of that one: `NAME[:KEY=NUMBER,…]`, with what of this table is
    other there."""
    hours: float = 48.0
    """Simulated time of an episode."""
    time_watts: float = 20.0
    """What a second of a job is worth, W."""
    slowdown: float = 0.3
    """What a slowdown of 1 is worth, in mean job energies."""
    by_mode: bool = False
    """Whether jobs pay by their mode, as the daemon's do, and not the two prices above."""
    refresh_seconds: float = 900.0
    """Between two looks at the cluster."""
    miss: float = 3.0
    """What a missed deadline costs, and a run that its limit cuts off, in what the job's cheapest option promised."""
    noise: float = 0.3
    """Standard deviation of what exploration adds to raw prices: about a factor of e^0.3."""
    fixed: tuple[str, ...] = ()
    """Prices of a job, of `JOB_PRICES`, that are not explored and so not learned: what time is worth is the site's to
    say, and the bills do not show that a job which runs slowly keeps good devices from others."""
    max_jobs: int = 2000
    """Bills of an episode that are learned from at most, spread evenly over it: worlds with many small jobs must not
    outweigh the others."""
    load_from: float = 1.0
    load_to: float = 1.0
    """The world's arrival rate is multiplied by a factor between these, drawn for each episode."""

    def __post_init__(self) -> None:
        bounds = {
            "hours": HOURS,
            "time_watts": (0.0, 1e6),
            "slowdown": (0.0, 1e3),
            "refresh_seconds": (1.0, 1e6),
            "miss": (0.0, 1000.0),
            "noise": (0.01, 2.0),
            "max_jobs": (1, 10_000_000),
            "load_from": (0.01, 100.0),
            "load_to": (0.01, 100.0),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ValueRangeError(f"episodes.{name}={getattr(self, name)} is not from {low:g} to {high:g}")
        odd = [name for name in self.fixed if name not in JOB_PRICES]
        if odd and odd[0] in _FORMER_PRICES:
            raise ValueRangeError(f"episodes.fixed: {odd[0]!r} is called {_FORMER_PRICES[odd[0]]!r} now")
        if odd:
            raise ValueRangeError(f"episodes.fixed: {odd[0]!r:.40} is not one of {', '.join(JOB_PRICES)}")
        if self.load_from > self.load_to:
            raise ValueRangeError(f"episodes.load_from={self.load_from} is above load_to={self.load_to}")
        for turn in range(len(self.worlds)):
            self.in_turn(turn)

    def in_turn(self, turn: int) -> "PriceEpisodeSettings":
        """Return the settings of an episode: one world, with what is its own.

        Raises:
            ConfigError, ValueRangeError: its text names a setting that there is not, or a value out of its bound.
        """
        if not self.worlds:
            return self
        text = self.worlds[turn % len(self.worlds)]
        name, given = split_text(text)
        given = with_names(given, FORMER_NAMES["episodes"], f"episodes.worlds: {name}")
        known = {item.name for item in fields(self)} - {"world", "worlds", "fixed", "by_mode"}
        for key in given:
            if key not in known:
                raise ConfigError(f"episodes.worlds: {name} has {key[:40]!r}; there are {', '.join(sorted(known))}")
        try:
            numbers = {key: int(value) if key == "max_jobs" else float(value) for key, value in given.items()}
        except ValueError as error:
            raise ConfigError(f"episodes.worlds: {text[:80]!r} has a value that is no number") from error
        return replace(self, world=name, worlds=(), **numbers)  # type: ignore[arg-type]  # by name

    def options_first(self, names: Set[str]) -> "PriceEpisodeSettings":
        """Return the settings in which these go for every world, too where a world has its own.

        Raises:
            ConfigError: `world` is one of them, and the episodes have others.
        """
        if not self.worlds or not names:
            return self
        if "world" in names:
            raise ConfigError(
                f"--world {self.world} is no world of an episode: [episodes] worlds names those there are; leave the "
                "option out, or take `worlds` out of the file"
            )
        return replace(self, worlds=tuple(_without(text, names) for text in self.worlds))


def _without(text: str, names: Set[str]) -> str:
    """Return `NAME[:KEY=NUMBER,…]` without some of its keys."""
    name, given = split_text(text)
    if not names & given.keys():
        return text
    left = ",".join(f"{key}={value}" for key, value in given.items() if key not in names)
    return f"{name}:{left}" if left else name


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLearnerSettings:
    """How a network is changed by what jobs cost."""

    epochs: int = 1
    """Passes over a round's jobs through the whole network."""
    head_steps: int = 3
    """Further steps on each batch that change the heads alone: embeddings cost most of the time."""
    states_per_batch: int = 24
    """Looks at the cluster in one step; all jobs priced at them are in it."""
    learning_rate: float = 1e-3
    encoder_rate_share: float = 0.3
    """What is below the heads learns at this share of the rate: heads cannot follow embeddings that run away."""
    final_learning_rate_share: float = 0.1
    """Reached along a line over `decay_rounds`: bills are noisy, and the last steps must not leave noise behind."""
    decay_rounds: int = 100
    clip: float = 0.2
    """Ratio of probabilities beyond which a step earns nothing (Schulman et al. 2017)."""
    gradient_norm: float = 1.0
    value_weight: float = 0.5
    price_decay: float = 0.003
    """Weight of the squared raw prices: without a reason, pay what the rule pays."""
    max_advantage: float = 4.0
    """Normalised advantages are cut to it: costs have long tails."""

    def __post_init__(self) -> None:
        bounds = {
            "epochs": (1, 100),
            "head_steps": (0, 100),
            "states_per_batch": (1, 10_000),
            "learning_rate": (1e-6, 0.1),
            "encoder_rate_share": (0.0, 1.0),
            "final_learning_rate_share": (0.0, 1.0),
            "decay_rounds": (1, 1_000_000),
            "clip": (0.01, 1.0),
            "gradient_norm": (0.01, 100.0),
            "value_weight": (0.0, 10.0),
            "price_decay": (0.0, 10.0),
            "max_advantage": (0.5, 100.0),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ValueRangeError(f"learner.{name}={getattr(self, name)} is not from {low:g} to {high:g}")

    def learning_rate_after(self, rounds: int) -> float:
        """Return the learning rate after so many rounds."""
        left = max(0.0, 1.0 - rounds / self.decay_rounds)
        return self.learning_rate * (self.final_learning_rate_share + (1.0 - self.final_learning_rate_share) * left)
