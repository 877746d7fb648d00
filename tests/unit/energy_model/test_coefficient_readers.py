"""The coefficients that ship: what their readers answer, and what they refuse."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.energy_model import coefficients as store
from slurm_energy.energy_model.coefficients import coefficients, errors_of
from slurm_energy.energy_model.mig import slice_curves, slice_watts
from slurm_energy.energy_model.saturation import Rise, processors, saturation
from slurm_energy.errors import ConfigError, ValueRangeError

PARTS = ("curves", "saturation", "mig")


@pytest.mark.parametrize("part", PARTS)
def test_every_part_names_its_source_and_its_errors(part: str) -> None:
    assert len(coefficients(part)["source"]) > 30
    errors = errors_of(coefficients(part))
    assert errors
    for error in errors:
        assert 0.0 <= error.mean_relative_error < 0.3
        assert error.num_points >= 15
        assert error.bound is None or error.mean_relative_error <= error.bound


def test_bounds_that_were_set_are_those_that_must_hold() -> None:
    bounds = [
        (error.bound, error.method)
        for part in PARTS
        for error in errors_of(coefficients(part))
        if error.bound is not None
    ]
    assert bounds == [(0.04, "fit"), (0.03, "fit"), (0.04, "fit"), (0.03, "fit")]


def test_missing_and_foreign_files_are_refused_by_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"nothing\.json cannot be read"):
        coefficients("nothing")
    (tmp_path / "strange.json").write_text('{"format": 2}')
    with pytest.raises(ConfigError, match="format 2, this version reads 1"):
        coefficients("strange")


@given(slices=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_bigger_slice_is_never_slower_by_the_law(slices: tuple[int, int]) -> None:
    for curve in slice_curves():
        assert curve.law(min(slices)) <= curve.law(max(slices))


def test_slices_that_fill_a_gpu_stand_for_all_its_power() -> None:
    assert slice_watts(7, 1.0, 240.0, 40.0) == 240.0
    assert slice_watts(1, 0.0, 240.0, 40.0) == pytest.approx(40.0 / 7)
    assert slice_watts(3, 0.5, 240.0, 40.0) + slice_watts(4, 0.5, 240.0, 40.0) == pytest.approx(240.0)
    with pytest.raises(ValueRangeError, match=r"idle power 300\.0 W is not between 0 and the 240\.0 W"):
        slice_watts(1, 0.5, 240.0, 300.0)


def test_measured_slice_speed_comes_before_the_law() -> None:
    curve = next(curve for curve in slice_curves() if (curve.model, curve.batch_size) == ("resnet", 512))
    assert (curve.speed(1), curve.speed(7), curve.speed(5)) == (0.2236, 1.0, curve.law(5))
    with pytest.raises(ValueRangeError, match="8 compute slices are not between 1 and 7"):
        curve.speed(8)


@given(sizes=st.tuples(st.floats(16.0, 20_000.0), st.floats(16.0, 20_000.0)))
def test_larger_product_is_never_less_efficient_and_never_draws_less(sizes: tuple[float, float]) -> None:
    small, large = sorted(sizes)
    for processor in processors().values():
        for shape in (saturation("fp32"), saturation("bf16")):
            assert processor.efficiency(shape, small) <= processor.efficiency(shape, large) < 1.0
            assert processor.watts(shape, small) <= processor.watts(shape, large)
            assert processor.watts(shape, large) <= 1.02 * processor.limit_watts


def test_product_takes_two_n_cubed_operations_at_the_reached_rate() -> None:
    k40c, shape = processors()["k40c"], saturation("fp32")
    rate = 2.0 * 1800**3 / k40c.seconds(shape, 1800) / 1e9
    assert rate == pytest.approx(k40c.peak_gflops * k40c.efficiency(shape, 1800))
    with pytest.raises(ValueRangeError, match="matrix size 0 is not a number above 0"):
        k40c.seconds(shape, 0)


def test_half_of_the_span_is_reached_at_the_half_size() -> None:
    rise = Rise(base=0.2, span=0.6, half_size=500.0, exponent=3.0)
    assert rise.at(500.0) == pytest.approx(0.5)
    assert rise.at(250.0, half_scale=0.5) == pytest.approx(0.5)
