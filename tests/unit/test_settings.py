"""Settings as TOML: what is written is read back as the same, and what differs is named."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import ConfigError
from slurm_energy.learning.episodes import EpisodeSettings
from slurm_energy.settings import differences, document, filled, read_toml, toml_text


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    count: int = 1
    rate: float = 0.1
    is_on: bool = False
    bound: float | None = None
    mode: Literal["a", "b"] = "a"
    pairs: tuple[tuple[float, float], ...] = ((0.5, 0.5),)
    inner: Inner = field(default_factory=Inner)
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


@given(
    st.builds(
        Outer,
        name=st.text(st.characters(exclude_categories=["Cs"])),
        count=st.integers(-(2**62), 2**62),
        rate=st.floats(allow_nan=False),
        is_on=st.booleans(),
        bound=st.none() | st.floats(allow_nan=False),
        mode=st.sampled_from(["a", "b"]),
        pairs=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1))).map(tuple),
        inner=st.builds(Inner, rate=st.floats(allow_nan=False)),
        numbers=st.dictionaries(st.sampled_from(["x", "y-z", "w_1"]), st.integers(-9, 9) | st.text("abc\"'\\\n")),
    )
)
def test_what_is_written_is_read_back_as_the_same(settings: Outer) -> None:
    read = tomllib.loads(toml_text({"outer": document(settings)}))
    assert filled(Outer, read["outer"], "outer") == settings


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r"\[outer\] lacks name"),
        ({"name": 3}, r"outer\.name is 3, it must be a text"),
        ({"name": "x", "count": True}, r"outer\.count is True, it must be a whole number"),
        ({"name": "x", "count": 1.0}, r"outer\.count is 1\.0, it must be a whole number"),
        ({"name": "x", "is_on": 1}, r"outer\.is_on is 1, it must be true or false"),
        ({"name": "x", "rate": "fast"}, r"outer\.rate is 'fast', it must be a number"),
        ({"name": "x", "bound": "fast"}, r"outer\.bound is 'fast', it must be a number"),
        ({"name": "x", "mode": "c"}, r"outer\.mode is 'c', allowed: a, b"),
        ({"name": "x", "mode": ["a"]}, r"outer\.mode is \['a'\], allowed: a, b"),
        ({"name": "x", "pairs": [[1.0]]}, r"outer\.pairs\[0\] has 1 items, it must have 2"),
        ({"name": "x", "pairs": 1.0}, r"outer\.pairs is 1\.0, it must be a list"),
        ({"name": "x", "inner": {"rat": 1.0}}, r"\[outer\.inner\] has no 'rat'; did you mean rate\?"),
        ({"name": "x", "inner": 3}, r"\[outer\.inner\] is 3, it must be a table"),
        ({"name": "x", "zzz": 3}, r"\[outer\] has no 'zzz'; there are name, count"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        filled(Outer, table, "outer")


def test_whole_numbers_fit_where_a_number_is_needed() -> None:
    found = filled(Outer, {"name": "x", "rate": 2, "bound": 3, "pairs": [[1, 2]]}, "outer")
    assert (found.rate, found.bound, found.pairs) == (2.0, 3.0, ((1.0, 2.0),))
    assert isinstance(found.rate, float)


def test_episodes_are_filled_with_what_a_text_can_say() -> None:
    table = {"world": "lab", "workload": "poisson", "workload_settings": {"rate": 0.1}, "rewards": {"waiting_watts": 5}}
    found = filled(EpisodeSettings, table, "episodes")
    assert (found.world, found.workload, found.workload_settings) == ("lab", "poisson", {"rate": 0.1})
    assert found.rewards.waiting_watts == 5.0
    with pytest.raises(ConfigError, match=r"episodes\.workload is 3"):
        filled(EpisodeSettings, {"world": "lab", "workload": 3}, "episodes")


def test_each_difference_is_a_line() -> None:
    mine = {"a": {"x": 1, "y": [1.0], "z": "t"}, "b": {"c": {"d": True}}}
    theirs = {"a": {"x": 2, "y": [1.0]}, "b": {"c": {"d": False}}, "e": {}}
    assert differences(mine, theirs) == [
        "a.x: 1, was 2",
        'a.z: "t", was not set',
        "b.c.d: true, was false",
        "e: not set, was a table",
    ]
    assert differences(mine, mine) == []


@pytest.mark.parametrize("data", [b"a = ", b"\xff\xfe", b"#" * 1_100_000])
def test_a_file_that_is_no_settings_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"x\.toml (is no TOML|has more than)"):
        read_toml(path, "settings")
