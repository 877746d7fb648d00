"""Money and CO2 of joules: steps of unequal length, and nothing beyond what a file says."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.config import FacilityConfig
from slurm_energy.energy_model.facility import Facility, StepSeries, read_intensity, read_price, site_facility
from slurm_energy.errors import ConfigError, ValueRangeError

PRICES = """starts_at,EUR_per_kwh,source
2026-10-25T00:00:00+02:00,0.10,spot
2026-10-25T02:00:00+02:00,0.20,spot
2026-10-25T02:00:00+01:00,0.40,spot
2026-10-25T06:00:00+01:00,0.10,contract
"""
MARCH = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


def test_the_hour_that_occurs_twice_has_two_prices_and_is_counted_once() -> None:
    series, currency, sources = read_price(PRICES, "tariff.csv")
    assert (currency, sources) == ("EUR", ("spot", "contract"))
    begin = datetime.fromisoformat("2026-10-25T02:00:00+02:00").timestamp()
    assert series.mean(begin, begin + 3600.0) == pytest.approx(0.20)
    assert series.mean(begin + 3600.0, begin + 7200.0) == pytest.approx(0.40)
    assert series.mean(begin, begin + 7200.0) == pytest.approx(0.30)


def test_the_last_row_holds_as_long_as_the_one_before_it() -> None:
    series, _ = read_intensity("starts_at,grams_per_kwh\n2026-03-01T00:00Z,300\n2026-03-01T02:00Z,100\n", "x")
    assert series.mean(MARCH, MARCH + 4 * 3600.0) == pytest.approx(200.0)
    assert series.mean(MARCH, MARCH + 4 * 3600.0 + 1.0) is None
    assert series.mean(MARCH - 1.0, MARCH + 10.0) is None


def test_a_single_row_holds_always() -> None:
    series, sources = read_intensity("starts_at,grams_per_kwh\n2026-03-01T00:00Z,350\n", "co2.csv")
    assert series.is_constant and series.mean(0.0, 1e10) == 350.0
    assert sources == ("co2.csv",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "needs a head with starts_at"),
        ("starts_at,grams_per_kwh\n", "at least one row"),
        ("starts_at,grams\n2026-03-01T00:00Z,1\n", "needs a column grams_per_kwh, it has starts_at, grams"),
        ("starts_at,grams_per_kwh\n2026-03-01T00:00,1\n", "line 2: starts_at '2026-03-01T00:00' has no offset"),
        ("starts_at,grams_per_kwh\nyesterday,1\n", "line 2: starts_at 'yesterday' is not such as"),
        ("starts_at,grams_per_kwh\n2026-03-01T00:00Z,\n", "line 2: grams_per_kwh '' is not a number"),
        ("starts_at,grams_per_kwh\n2026-03-01T00:00Z,nan\n", "is not a number"),
        ("starts_at,grams_per_kwh\n2026-03-01T00:00Z,424000\n", "is not between 0 and 2500"),
        (
            "starts_at,grams_per_kwh\n2026-03-01T00:00Z,1\n2026-03-01T00:00Z,2\n",
            "line 3: starts_at is not after that of the line before",
        ),
        ("<html>503 Service Unavailable</html>", "needs a head with starts_at"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("(", r"\(")):
        read_intensity(text, "co2.csv")


def test_a_tariff_names_its_currency() -> None:
    with pytest.raises(ConfigError, match="needs a column such as EUR_per_kwh"):
        read_price("starts_at,price\n2026-03-01T00:00Z,1\n", "tariff.csv")


def test_the_building_is_in_money_and_co2(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("starts_at,CHF_per_kwh\n2026-03-01T00:00Z,0.25\n")
    facility = site_facility(FacilityConfig(pue=1.2, tariff_file=str(tmp_path / "t.csv")))
    assert facility.currency == "CHF" and facility.is_constant
    assert facility.cost(3.6e6, 0.0, 10.0) == pytest.approx(0.30)
    assert facility.co2_grams(3.6e6, 0.0, 10.0) is None
    with pytest.raises(ConfigError, match="cannot be read"):
        site_facility(FacilityConfig(intensity_file=str(tmp_path / "nosuch.csv")))


def test_without_files_nothing_has_a_price() -> None:
    assert site_facility(FacilityConfig()) == Facility()


def test_a_series_needs_a_value_for_each_start() -> None:
    with pytest.raises(ValueRangeError, match="2 starts for 1 values"):
        StepSeries((0.0, 1.0), (1.0,), 2.0)


lengths = st.lists(st.floats(1.0, 1e5), min_size=1, max_size=12)
values = st.floats(0.0, 1000.0)


@given(data=st.data(), steps=lengths)
def test_splitting_a_time_changes_nothing_and_no_mean_is_outside_its_steps(
    data: st.DataObject, steps: list[float]
) -> None:
    starts = [MARCH]
    for length in steps:
        starts.append(starts[-1] + length)
    series = StepSeries(
        tuple(starts[:-1]), tuple(data.draw(st.lists(values, min_size=len(steps), max_size=len(steps)))), starts[-1]
    )
    cuts = sorted(data.draw(st.lists(st.floats(starts[0], starts[-1]), min_size=3, max_size=8)))
    whole = Facility(intensity=series)
    span = cuts[-1] - cuts[0]
    if span < 1.0:
        return
    joules = 1e7
    parts = [whole.co2_grams(joules * (later - earlier) / span, earlier, later) for earlier, later in pairwise(cuts)]
    total = whole.co2_grams(joules, cuts[0], cuts[-1])
    assert total is not None and all(part is not None and part >= 0.0 for part in parts)
    assert sum(part or 0.0 for part in parts) == pytest.approx(total, rel=1e-3, abs=1e-3)
    mean = series.mean(cuts[0], cuts[-1])
    assert mean is not None and min(series.values) <= mean <= max(series.values)
