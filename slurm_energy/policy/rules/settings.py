"""Settings of a rule as people write them after its name: `price:V=20,wake=0`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from slurm_energy.errors import ConfigError, ValueRangeError

HIGHEST = 2.0
"""A relative clock above every grid: the default clock."""
CAP_INTERVAL_SECONDS = 20.0
"""Between two looks of the rules under a power budget."""
CAP_MARGIN = 0.02
"""Share of the budget that must be left before they raise clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One number that a rule takes."""

    name: str
    default: float
    low: float
    """Least value allowed."""
    high: float
    """Greatest value allowed."""
    meaning: str
    """A phrase with its unit, for people."""
    whole: bool = False
    """Only whole numbers."""

    def checked(self, rule: str, text: str) -> float:
        """Return the number that the text says.

        Raises:
            ConfigError: it is no number.
            ValueRangeError: it is outside the bounds.
        """
        return checked_number(f"{rule}:{self.name}", text, low=self.low, high=self.high, whole=self.whole)


def checked_number(thing: str, text: str, *, low: float, high: float, whole: bool = False) -> float:
    """Return the number that a setting's text says.

    Raises:
        ConfigError: it is no number.
        ValueRangeError: it is outside the bounds.
    """
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{thing}={text[:40]} is not a number") from None
    if not isfinite(value) or not low <= value <= high or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise ValueRangeError(f"{thing}={text[:40]} is not a {kind} from {low:g} to {high:g}")
    return value


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """Return a rule's name and its settings from `name[:key=value,...]`.

    Raises:
        ConfigError: a setting has no name or no value, or is given twice.
    """
    name, colon, rest = text.strip().partition(":")
    pairs: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise ConfigError(f"rule {text[:80]!r}: {part[:40]!r} is not of the form key=value")
        if key in pairs:
            raise ConfigError(f"rule {text[:80]!r}: setting {key!r} is given twice")
        pairs[key] = value
    return name.strip(), pairs


def read_settings(rule: str, settings: Sequence[Setting], given: Mapping[str, str]) -> dict[str, float]:
    """Return every setting of a rule: what was given, else its default.

    Raises:
        ConfigError: a name is unknown or a value is no number.
        ValueRangeError: a value is outside its bounds.
    """
    known = {setting.name: setting for setting in settings}
    for name in given:
        if name not in known:
            options = ", ".join(known) or "none"
            raise ConfigError(f"rule {rule} has no setting {name[:40]!r}; it has: {options}")
    return {
        setting.name: setting.checked(rule, given[setting.name]) if setting.name in given else setting.default
        for setting in settings
    }
