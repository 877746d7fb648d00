"""The fits behind the packaged coefficients find what made the data."""

from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed: the twin extra has it")
pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
from slurm_energy.energy_model.calibration.files import differences, silent, six_digits, text_of  # noqa: E402
from slurm_energy.energy_model.calibration.parts import (  # noqa: E402
    fit_mig,
    fit_rise,
    read_products,
)
from slurm_energy.energy_model.saturation import Rise  # noqa: E402
from slurm_energy.errors import DataFileError  # noqa: E402


def test_rise_is_found_again_with_and_without_a_base() -> None:
    size = np.array([100.0, 200, 400, 600, 800, 1000, 1600, 3200, 8000])
    for base in (0.0, 0.15):
        made = Rise(base=base, span=0.7, half_size=650.0, exponent=2.5)
        found = fit_rise(size, np.array([made.at(n) for n in size]), with_base=base > 0.0)
        assert (found.base, found.span, found.half_size, found.exponent) == pytest.approx(
            (base, 0.7, 650.0, 2.5), rel=1e-4, abs=1e-9
        )


def test_missing_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"mig_iteration_time\.csv cannot be read"):
        fit_mig(tmp_path, silent)


def test_differences_are_found_beyond_the_tolerance_only() -> None:
    packaged = {"a": [1.0, 2.0], "b": {"c": "x"}, "d": 0.0}
    assert list(differences(packaged, {"a": [1.0 + 9e-7, 2.0], "b": {"c": "x"}, "d": 0.0}, 1e-6)) == []
    found = list(differences(packaged, {"a": [1.0 + 2e-6, 2.0], "b": {"c": "y"}, "e": 1}, 1e-6))
    assert [place for place, _, _ in found] == ["/a/0", "/b/c", "/d", "/e"]
    assert list(differences([1], [1, 2], 1e-6)) == [("", [1], [1, 2])]


def test_document_text_keeps_plain_lists_on_one_line_and_six_digits() -> None:
    text = text_of(six_digits({"b": (1.23456789, 2), "a": [["x", 0.1], {"c": None}]}))
    assert text == '{\n "a": [\n  ["x", 0.1],\n  {\n   "c": null\n  }\n ],\n "b": [1.23457, 2]\n}\n'


def test_bad_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    columns = "workload,iterations_per_second,work_per_iteration,seconds,energy_counter_joules"
    path.write_text(f"{columns}\ngemm:fp8x128,1,1,1,1\n")
    message = "bad.csv, line 2, column workload: 'gemm:fp8x128' is wrong: gemm:PRECISIONxSIZE"
    with pytest.raises(DataFileError, match=message):
        read_products(path)
