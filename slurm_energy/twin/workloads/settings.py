"""Settings of a workload generator: a frozen dataclass filled from the mapping of a world file or a command line."""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, TypeVar, cast

from slurm_energy.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
    unknown = [name for name in given if name not in types]
    if unknown:
        near = get_close_matches(unknown[0], types, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(types)}"
        raise ConfigError(f"workload {workload} has no setting {unknown[0][:64]!r}{hint}")
    return settings_class(
        **{name: _converted(value, types[name], f"{workload}: {name}") for name, value in given.items()}
    )


def setting_names(settings_class: type["DataclassInstance"]) -> dict[str, Setting]:
    """Return the names of the settings with their defaults."""
    return {field.name: cast(Setting, field.default) for field in fields(settings_class)}


def _converted(value: Setting, wanted: object, name: str) -> Setting:
    kind = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", "")
    if kind == "str":
        return str(value)
    word = {"int": "a whole number", "float": "a number"}[kind]
    try:
        number = float(value)
        if isinstance(value, bool) or isnan(number) or (kind == "int" and number != int(number)):
            raise ValueError
    except (ValueError, OverflowError):
        raise ConfigError(f"workload setting {name}={str(value)[:64]!r} is not {word}") from None
    return int(value if isinstance(value, int) else number) if kind == "int" else number


def check_range(name: str, value: float, low: float, high: float = inf, *, above: bool = False) -> None:
    """Raise ConfigError unless the value is finite and low <= value <= high; with `above`, low < value."""
    if not isfinite(value) or not low <= value <= high or (above and value == low):
        lower = f"above {low:g}" if above else f"{low:g} or more"
        upper = "" if high == inf else f", at most {high:g}"
        raise ConfigError(f"workload setting {name}={value:g} is out of its bound: {lower}{upper}")


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
