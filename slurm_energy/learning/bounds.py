"""Bounds of settings: each kind of settings has a table of them, and what is outside is refused in one way."""

from collections.abc import Mapping

from slurm_energy.errors import ConfigError

Bounds = Mapping[str, tuple[float, float]]
"""Least and greatest allowed value by the setting's name."""
HOURS = (0.01, 100_000.0)
"""Simulated hours of an episode or of a teacher's run; `train --hours` has the same."""
RUN_BOUNDS: Bounds = {
    "seed": (0, 1_000_000),
    "rounds": (1, 10_000_000),
    "collectors": (1, 1009),
    "save_every_rounds": (1, 1_000_000),
    "threads": (1, 1024),
}
"""Of [training], whatever the algorithm; `experience.episode_seed` tells no more collectors apart."""


def check_bounds(settings: object, table: str, bounds: Bounds) -> None:
    """Refuse the first number outside its bounds, and every NaN; None is a number that was left out.

    Raises:
        ConfigError: its text names table, key, value and bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"setting {table}.{name} is {value}, it must be between {_shown(low)} and {_shown(high)}")


def _shown(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
