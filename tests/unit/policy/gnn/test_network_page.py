"""The page of the network's settings says what the code accepts."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.configuration import NetworkConfig

PAGE = (Path(__file__).parents[4] / "docs/reference/network.md").read_text(encoding="utf-8")
ROWS = {
    key: (values, default)
    for key, values, default in re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
}
SETTINGS = {setting.name: setting for setting in fields(NetworkConfig)}
BOUNDED = [name for name, setting in SETTINGS.items() if not get_args(setting.type)]


def made(name: str, value: float) -> NetworkConfig:
    """Return settings with one of another value, and with sizes that go with it."""
    values: dict[str, Any] = {name: value}
    if name == "heads":
        values["hidden"] = max(6, value)
    if name == "hidden":
        values["heads"] = 3 if value % 3 == 0 else 6
    return NetworkConfig.parse(values)


def test_every_setting_has_its_row_in_the_order_of_the_code() -> None:
    assert list(ROWS) == list(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_default_is_the_codes(name: str) -> None:
    assert ROWS[name][1].strip("`") == f"{SETTINGS[name].default}"


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in BOUNDED])
def test_every_choice_is_named(name: str) -> None:
    assert tuple(re.findall(r"`(\w+)`", ROWS[name][0])) == get_args(SETTINGS[name].type)


@pytest.mark.parametrize("name", BOUNDED)
def test_the_bounds_are_the_last_values_that_are_accepted(name: str) -> None:
    kind: Any = SETTINGS[name].type
    low, high = (kind(word) for word in ROWS[name][0].split(" to "))
    step = 1 if kind is int else 0.001
    if name == "hidden":
        # 1024 itself is no multiple of any allowed number of heads.
        assert (made(name, low).hidden, made(name, high - high % 3).hidden) == (low, high - high % 3)
    else:
        assert (getattr(made(name, low), name), getattr(made(name, high), name)) == (low, high)
    for outside in (low - step, high + step):
        with pytest.raises(ConfigError, match=f"{name} is {outside}, it must be between"):
            made(name, outside)


def test_every_key_of_a_checkpoints_document_is_named() -> None:
    section = PAGE.split("**`checkpoint.json`**")[1].split("**`weights.safetensors`**")[0]
    named = set(re.findall(r"`(\w{3,})`", section))
    assert named == {"format", "document_sha256", *(item.name for item in fields(CheckpointMetadata))}
