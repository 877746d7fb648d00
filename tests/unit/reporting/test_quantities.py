import pytest

from slurm_energy.domain.report import EnergySum
from slurm_energy.reporting.quantities import (
    duration_text,
    energy_text,
    error_text,
    signed_percent_text,
    sum_text,
)


@pytest.mark.parametrize(
    ("joules", "share", "expected"),
    [
        (12_345.0, 0.01, "12.3 kJ ± 1 %"),
        (12_345.0, None, "12.3 kJ"),
        (0.0, None, "0 J"),
        (0.05, None, "0.05 J"),
        (999.4, None, "999 J"),
        (999.6, None, "1.00 kJ"),
        (999_950.0, None, "1.00 MJ"),
        (1.5e6, 0.0005, "1.50 MJ ± 0.1 %"),
        (3.6e9, 0.002, "3.60 GJ ± 0.2 %"),
        (-1200.0, None, "-1.20 kJ"),
        (None, None, "unknown"),
        (None, 0.1, "unknown"),
    ],
)
def test_energy_has_three_digits_unit_and_error(joules: float | None, share: float | None, expected: str) -> None:
    assert energy_text(joules, share) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.0101, "2 %"), (0.01, "1 %"), (0.0021, "0.3 %"), (1.0, "100 %")])
def test_error_is_rounded_up(share: float, expected: str) -> None:
    assert error_text(share) == expected


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        (EnergySum(joules=None), "no reading"),
        (EnergySum(joules=None, readings=2, unknown_readings=2), "unknown"),
        (EnergySum(joules=5000.0, readings=4, unknown_readings=1), "5.00 kJ + 1 of 4 unknown"),
        (EnergySum(joules=5000.0, readings=4, error_share=0.01), "5.00 kJ ± 1 %"),
        (EnergySum(joules=0.0, readings=1), "0 J"),
    ],
)
def test_sum_says_how_much_of_it_is_unknown(energy: EnergySum, expected: str) -> None:
    assert sum_text(energy) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (0.0, "0.0 s"),
        (9.96, "10 s"),
        (45.2, "45 s"),
        (725.0, "12:05"),
        (11_525.0, "3:12:05"),
        (184_325.0, "2-03:12:05"),
    ],
)
def test_duration(seconds: float | None, expected: str) -> None:
    assert duration_text(seconds) == expected


def test_signed_percent() -> None:
    assert [signed_percent_text(share) for share in (-0.13, 0.05, None)] == ["-13.0 %", "+5.0 %", "-"]
