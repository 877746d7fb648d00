"""Curves of GPU types from clocks that were tried in jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import ClockTrial, NamedTrial
from slurm_energy.energy_model.curves import curve_source, curves_of
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.energy_model.site_curves import FORMAT, use_site_curves
from slurm_energy.estimation.trial_curves import history_of_types

H100 = GpuTypeName("h100-sxm5-80gb")


def tried(name: str, run: int, clock: int, sensitivity: float, **changes: Any) -> NamedTrial:
    relative = clock / 1980
    values: dict[str, Any] = {
        "gpu_type": H100,
        "sm_clock_mhz": clock,
        "default_clock_mhz": 1980,
        "at_seconds": 900.0,
        "watts": 150.0 + 450.0 * relative**3,
        "default_watts": 600.0,
        "slowdown": sensitivity * (1.0 / relative - 1.0),
        "error": 0.003,
        "kept": True,
    }
    trial = ClockTrial(**{**values, **changes})
    return NamedTrial(user_id=1000, name=name, script_key=None, run=run, ended_at_seconds=5.0, trial=trial)


def runs(*sensitivities: float, **changes: Any) -> list[NamedTrial]:
    return [
        tried(f"name{number}x", 10 * number + place, clock, sensitivity, **changes)
        for number, sensitivity in enumerate(sensitivities, start=1)
        for place, clock in enumerate((1920, 1800, 1620))
    ]


def test_names_with_enough_clocks_make_curves_that_the_configuration_reads(tmp_path: Path) -> None:
    (found,) = history_of_types(runs(0.2, 0.5, 0.9), 1e9)
    assert found.entry is not None
    assert (found.jobs, found.names, found.used_names) == (9, 3, 3)
    assert found.entry["measured"]["jobs"] == 9
    assert 0.002 < found.slowdown_error < 0.006
    path = tmp_path / "site-curves.json"
    path.write_text(json.dumps({"format": FORMAT, "gpu_types": {H100: found.entry}}))
    use_site_curves(path)
    try:
        assert curve_source(H100) == "measured here"
        assert all(str(H100) in curve.workload for curve in curves_of(H100))
        table = clock_table_of(H100)
        assert table is not None
        # The table holds for the slowest of them.
        point = table.best(0.06)
        assert point is not None and point.sm_clock_mhz >= 1860
    finally:
        use_site_curves(None)


def test_too_little_says_what_is_missing_and_makes_nothing() -> None:
    (few,) = history_of_types(runs(0.2, 0.5), 1e9)
    (unsure,) = history_of_types(runs(0.2, 0.5, 0.9, error=0.03), 1e9)
    (unanswered,) = history_of_types(runs(0.2, 0.5, 0.9, slowdown=None, error=None, kept=False), 1e9)
    assert [one.entry for one in (few, unsure, unanswered)] == [None, None, None]
    assert "2 of 2 names" in few.lacks and "3 are needed" in few.lacks
    assert "0 of 3 names" in unanswered.lacks
    assert history_of_types((), 1e9) == ()


def test_a_type_that_is_not_in_the_catalogue_or_has_two_default_clocks_makes_none() -> None:
    (unknown,) = history_of_types(runs(0.2, 0.5, 0.9, gpu_type=GpuTypeName("q9000")), 1e9)
    mixed = [
        *runs(0.2, 0.5, 0.9),
        *[tried("other", 90, clock, 0.3, default_clock_mhz=1755) for clock in (1700, 1650, 1500)],
    ]
    (two,) = history_of_types(mixed, 1e9)
    assert (unknown.entry, two.entry) == (None, None)
    assert "catalogue" in unknown.lacks
    assert "default clocks" in two.lacks
