"""Conversion at the doors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain import units
from slurm_energy.errors import ValueRangeError


@pytest.mark.parametrize("mark", [0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF, -1, -2, None])
def test_slurms_marks_are_never_numbers(mark: int | None) -> None:
    assert units.slurm_number(mark) is None
    assert units.slurm_joules(mark) is None


def test_a_real_energy_figure_of_slurm_is_joules() -> None:
    assert units.slurm_joules(12345) == 12345.0
    assert units.slurm_joules(0) == 0.0


@given(st.floats(min_value=0.001, max_value=1e6), st.floats(min_value=0.001, max_value=1e6))
def test_one_watt_for_one_second_is_one_joule_through_every_backend(watts: float, seconds: float) -> None:
    milliwatts = round(watts * 1000.0)
    joules = units.watts_from_milliwatts(milliwatts) * seconds
    assert math.isclose(joules, units.joules_from_millijoules(round(milliwatts * seconds)), rel_tol=1e-3, abs_tol=1e-3)
    assert math.isclose(
        joules, units.joules_from_microjoules(round(milliwatts * 1000 * seconds)), rel_tol=1e-6, abs_tol=1e-5
    )


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90.0),
        ("1:30", 1.5),
        ("1-00", 1440.0),
        ("1-2:30", 1590.0),
        ("2-3:4:30", 3064.5),
        ("12:00:00", 720.0),
        ("UNLIMITED", None),
        ("infinite", None),
        ("Partition_Limit", None),
        ("0", None),
        (" 15 ", 15.0),
    ],
)
def test_slurm_time_texts_are_minutes(text: str, minutes: float | None) -> None:
    assert units.minutes_from_slurm_time(text) == minutes


@pytest.mark.parametrize("text", ["", "soon", "-5", "1:2:3:4", "+5", "1_000", "1-2-3", "1:-2", "5 0", "٣", "1.5"])
def test_other_time_texts_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueRangeError, match="is not minutes"):
        units.minutes_from_slurm_time(text)
