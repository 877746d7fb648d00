"""Curves of a site's own boards: from a sweep to the file, and from the file into every table."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.calibration.clocks import SweepPoint
from slurm_energy.energy_model.calibration.site_fit import type_entry
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.curves import curve_source
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.energy_model.site_curves import FORMAT, use_site_curves
from slurm_energy.errors import ConfigError, DataFileError, ValueRangeError
from slurm_energy.policy.site.settings import site_board_limits

T4 = GpuTypeName("t4")
CLOCKS = tuple(range(800, 1591, 79))


@pytest.fixture(autouse=True)
def package_alone() -> Iterator[None]:
    """Put the package's curves back."""
    yield
    use_site_curves(None)


def points(compute_share: float = 0.6) -> list[SweepPoint]:
    return [
        SweepPoint(
            sm_clock_mhz=clock,
            watts=20.0 + 45.0 * (clock / CLOCKS[-1]) ** 3,
            seconds=compute_share * CLOCKS[-1] / clock + 1.0 - compute_share,
        )
        for clock in CLOCKS
    ]


def site_file(folder: Path, **changes: object) -> Path:
    entry = type_entry({"matmul": points(), "copy": points(0.1)}, CLOCKS, 70.0, {"node": "n1"})
    document = {"format": FORMAT, "gpu_types": {"t4": {**entry, **changes}}}
    path = folder / "site.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_type_without_curves_has_a_clock_table_once_its_own_boards_were_measured(tmp_path: Path) -> None:
    assert (curve_source(T4), clock_table_of(T4)) == ("none", None)
    use_site_curves(site_file(tmp_path))
    table = clock_table_of(T4)
    assert curve_source(T4) == "measured here" and table is not None
    best = table.best(0.05)
    assert best is not None and best.source == "measured" and best.energy_change < -0.05
    assert best.slowdown <= 0.05
    use_site_curves(None)
    assert (curve_source(T4), clock_table_of(T4), CATALOG[T4].sm_clocks_mhz) == ("none", None, ())


def test_the_setting_names_the_file(tmp_path: Path) -> None:
    config = Config()
    config = replace(config, policy=replace(config.policy, curves_file=str(site_file(tmp_path))))
    site_board_limits(config)
    assert curve_source(T4) == "measured here"
    site_board_limits(Config())
    assert curve_source(T4) == "none"
    missing = replace(config, policy=replace(config.policy, curves_file=str(tmp_path / "none.json")))
    with pytest.raises(ConfigError, match=r"policy\.curves_file: .*cannot be read"):
        site_board_limits(missing)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is no file of the site's curves"),
        (json.dumps({"format": FORMAT, "gpu_types": []}), "no table gpu_types"),
        (json.dumps({"format": FORMAT, "gpu_types": {"x": {}}}), "not in the catalogue"),
        (json.dumps({"format": FORMAT, "gpu_types": {"t4": {}}}), "bad or missing value"),
    ],
)
def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "site.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataFileError, match=message):
        use_site_curves(path)
    assert curve_source(T4) == "none"


def test_a_sweep_that_no_curve_fits_is_refused() -> None:
    wild = [replace(point, watts=point.watts * (3.0 if index % 2 else 1.0)) for index, point in enumerate(points())]
    with pytest.raises(ValueRangeError, match="the fit is"):
        type_entry({"wild": wild}, CLOCKS, 1000.0, {})
    with pytest.raises(ValueRangeError, match="no load was measured"):
        type_entry({}, CLOCKS, None, {})


def test_how_curves_are_known_is_told_apart() -> None:
    found = {name: curve_source(name) for name in CATALOG}
    assert set(found.values()) == {"measured", "assumed", "none"}
    assert found[GpuTypeName("a40")] == "measured"
