"""What all generators share: settings and bounds, random streams, arrival times and time limits drawn from them."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import ceil, exp, inf, log
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ConfigError
from slurm_energy.settings import SettingBound, filled, from_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FloatArray = NDArray[np.float64]
_BRANCH = 0x776B
"""Keeps a workload's streams apart from those that others spawn from the same seed."""


def workload_streams(seed: int, count: int) -> list[np.random.SeedSequence]:
    """Return independent seeds of a workload's streams: arrivals first, then sizes, then what a generator needs.

    The first streams are the same however many are asked for.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"workload seed {seed} is not 0 or more")
    return np.random.SeedSequence(seed, spawn_key=(_BRANCH,)).spawn(count)


def poisson_times(rate_per_second: float, horizon_seconds: float, random: np.random.Generator) -> FloatArray:
    """Return ascending arrival times [s] in (0, horizon] of a Poisson process; empty for a rate of 0.

    The same stream at another rate gives the same times, stretched.
    """
    horizon_gaps = rate_per_second * horizon_seconds
    block = int(horizon_gaps + 4.0 * horizon_gaps**0.5 + 16.0)
    parts: list[FloatArray] = []
    reached = 0.0
    while reached <= horizon_gaps and horizon_gaps > 0.0:
        parts.append(reached + np.cumsum(random.standard_exponential(block)))
        reached = float(parts[-1][-1])
    if not parts:
        return np.empty(0)
    gaps = np.concatenate(parts)
    return np.minimum(horizon_seconds, gaps[gaps <= horizon_gaps] / rate_per_second)


def thinned_times(
    peak_per_second: float,
    rate_per_second: Callable[[FloatArray], FloatArray],
    horizon_seconds: float,
    random: np.random.Generator,
) -> FloatArray:
    """Return arrival times [s] of a Poisson process whose rate changes, by thinning one at the peak rate.

    Lewis and Shedler (1979), "Simulation of nonhomogeneous Poisson processes by thinning".

    Args:
        peak_per_second: Bound of the rate, never passed by it.
        rate_per_second: Rate at given times, [num_times] to [num_times].
        horizon_seconds: Length of the workload.
        random: Stream of the arrivals.
    """
    candidates = poisson_times(peak_per_second, horizon_seconds, random)
    kept = random.random(len(candidates)) * peak_per_second < rate_per_second(candidates)
    return candidates[kept]


Setting = float | int | str
_Settings = TypeVar("_Settings", bound="DataclassInstance")
MAX_JOBS = 10_000_000
"""More expected jobs than that are refused: they would not fit into memory."""


def filled_settings(settings_class: type[_Settings], given: Mapping[str, Setting], workload: str) -> _Settings:
    """Return the settings with given values in the place of the defaults; texts of numbers count as numbers.

    Args:
        settings_class: Frozen dataclass whose fields are float, int or str.
        given: Values by field name.
        workload: Name for messages.

    Raises:
        ConfigError: a name is unknown, a value cannot be one of the field, or the dataclass refuses it.
    """
    types = {field.name: field.type for field in fields(settings_class)}
    values = {name: from_text(str(value), types.get(name, str)) for name, value in given.items()}
    return filled(settings_class, values, workload, where=f"workload {workload}")


def setting_names(settings_class: type["DataclassInstance"]) -> dict[str, Setting]:
    """Return the names of the settings with their defaults."""
    return {field.name: cast(Setting, field.default) for field in fields(settings_class)}


def check_range(name: str, value: float, low: float, high: float = inf, *, above: bool = False) -> None:
    """Raise ConfigError unless the value is finite and low <= value <= high; with `above`, low < value."""
    bound = SettingBound(low=low, high=high, above=above)
    if not bound.holds(value):
        raise ConfigError(f"workload setting {name}={value:g} is out of its bound: {bound}")


def check_expected_jobs(expected: float) -> None:
    """Raise ConfigError when so many jobs are expected that they would not fit into memory."""
    if not expected <= MAX_JOBS:
        raise ConfigError(
            f"the workload's rate and hours make about {expected:.3g} jobs, more than {MAX_JOBS}: lower one of them"
        )


def comma_list(name: str, text: str) -> tuple[str, ...]:
    """Return the items of a comma list.

    Raises:
        ConfigError: there is none, or one is empty.
    """
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise ConfigError(f"workload setting {name}={text[:64]!r} has an empty item")
    return items


def weights(name: str, text: str, form: str = "NAME:WEIGHT") -> dict[str, float]:
    """Return the weights of `A:0.4,B:0.6` by word, none for an empty text; `form` is what a message asks for.

    Raises:
        ConfigError: a part has another form, or a weight is not above 0.
    """
    found: dict[str, float] = {}
    for item in comma_list(name, text) if text else ():
        word, _, weight = item.partition(":")
        try:
            found[word.strip()] = float(weight)
        except ValueError:
            raise ConfigError(f"workload setting {name} has {item[:64]!r}, not {form}") from None
        check_range(name, float(weight), 0.0, above=True)
    return found


ROUND_SECONDS = tuple(
    value * 60.0
    for value in (15, 30, 60, 120, 240, 480, 720, 1440, 2880, 4320, 7200, 10_080, 20_160, 43_200)  # minutes
)
"""Limits that users write: 15 minutes to 30 days; users prefer few round values (Tsafrir et al., 2007)."""
MIN_MARGIN, MAX_MARGIN = 1.1, 5.0


def round_limit_seconds(run_seconds: float, draw: float) -> float:
    """Return a limit for a run: a margin of 1.1 to 5, uniform in its logarithm, rounded up to a round value.

    Args:
        run_seconds: At the default clock of the reference device.
        draw: In [0, 1).
    """
    return round_up_limit(run_seconds * MIN_MARGIN * exp(draw * log(MAX_MARGIN / MIN_MARGIN)))


def round_up_limit(seconds: float) -> float:
    """Return the next round limit; above 30 days the next multiple of it."""
    days_30 = ROUND_SECONDS[-1]
    return next((value for value in ROUND_SECONDS if value >= seconds), ceil(seconds / days_30) * days_30)
