import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.energy import (
    EnergyError,
    EnergyScope,
    EnergySource,
    energy_error,
    relative_error,
)


@pytest.mark.parametrize(
    ("source", "seconds", "expected"),
    [
        (EnergySource.COUNTER, 20.0, 0.06),
        (EnergySource.COUNTER, 86_400.0, 0.0500023),
        (EnergySource.COUNTER, 0.2, 1.0),
        (EnergySource.COUNTER, 0.005, 1.0),
        (EnergySource.COUNTER, 0.0, 1.0),
        (EnergySource.POLLED, 20.0, 0.11),
        (EnergySource.MODEL, 20.0, None),
        (EnergySource.NONE, 20.0, None),
    ],
)
def test_error_comes_from_update_interval_and_source(
    source: EnergySource, seconds: float, expected: float | None
) -> None:
    found = relative_error(source, EnergyScope.GPU, seconds)
    assert found == (None if expected is None else pytest.approx(expected))


def test_timing_and_calibration_are_told_apart() -> None:
    error = energy_error(EnergySource.COUNTER, EnergyScope.GPU, 20.0)
    assert error == EnergyError(timing=0.01, calibration=0.05)


@pytest.mark.parametrize("scope", [EnergyScope.MIG_ESTIMATE, EnergyScope.SHARED_ESTIMATE])
def test_share_of_a_gpu_has_no_bound(scope: EnergyScope) -> None:
    assert relative_error(EnergySource.COUNTER, scope, 1000.0) is None


@given(st.floats(0.0, 1e8), st.floats(0.0, 1e8))
def test_longer_window_never_has_a_larger_error(one: float, two: float) -> None:
    short, long = sorted((one, two))
    assert (relative_error(EnergySource.COUNTER, EnergyScope.GPU, long) or 0.0) <= (
        relative_error(EnergySource.COUNTER, EnergyScope.GPU, short) or 0.0
    )
