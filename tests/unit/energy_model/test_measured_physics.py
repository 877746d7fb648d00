"""The numbers that the physics must hold against the measured data sets, each curve by itself."""

import json
import math
from itertools import pairwise

import pytest
from measured_data import MEASURED
from operating_points import best_operating_point

pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.calibration.clocks import Stage, SweepPoint, read_perseus_stages  # needs scipy
from slurm_energy.energy_model.calibration.files import differences, silent, text_of
from slurm_energy.energy_model.calibration.parts import PACKAGED_PARTS, TOLERANCE, Part, packaged
from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.energy_model.operating_point import ClockCost, clock_table

SWEEP = MEASURED / "perseus_dvfs" / "stage_clock_sweep.csv"
STAGES: dict[Stage, tuple[SweepPoint, ...]] = read_perseus_stages(SWEEP)
BOUNDS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.15, 0.20, 0.30, math.inf)
FAST_PARTS = [part for part in PACKAGED_PARTS if part.name != "curves"]
"""The curves take ten seconds to fit; test_calibration compares them."""


def shipped_curve(stage: Stage) -> WorkloadCurve:
    gpu, model, instruction, number = stage
    for curve in curves_of(GpuTypeName(gpu)):
        name, _, span = curve.workload.rpartition("-stage")
        first, _, last = span.strip("s-").partition("-")
        if name == f"{model}-{instruction}" and int(first) <= number <= int(last or first):
            return curve
    raise AssertionError(f"no shipped curve stands for {stage}")


def test_all_sixty_four_stages_are_measured() -> None:
    assert len(STAGES) == 2 * 2 * 2 * 8
    assert {len(points) for (gpu, *_), points in STAGES.items() if gpu == "a40"} == {60}
    assert {len(points) for (gpu, *_), points in STAGES.items() if gpu != "a40"} == {38}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: "-".join(map(str, stage)))
def test_power_is_within_four_and_time_within_three_percent_on_every_stage(stage: Stage) -> None:
    curve, points = shipped_curve(stage), STAGES[stage]
    power = sum(abs(curve.watts(one.sm_clock_mhz) / one.watts - 1.0) for one in points) / len(points)
    time = sum(abs(curve.seconds(one.sm_clock_mhz) / one.seconds - 1.0) for one in points) / len(points)
    assert power <= 0.04
    assert time <= 0.03


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: "-".join(map(str, stage)))
def test_oracle_equals_the_exhaustive_optimum_of_the_measured_grid(stage: Stage) -> None:
    points = STAGES[stage]
    default = points[-1]
    costs = [
        ClockCost(
            sm_clock_mhz=one.sm_clock_mhz, slowdown=one.seconds / default.seconds - 1.0, joules=one.watts * one.seconds
        )
        for one in points
    ]
    table = clock_table([costs])
    for bound in BOUNDS:
        least = min(cost.joules for cost in costs if cost.slowdown <= bound + 1e-9)
        best = table.best(bound)
        assert best is not None
        assert (1.0 + best.energy_change) * default.watts * default.seconds == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: "-".join(map(str, stage)))
def test_oracle_of_the_shipped_curve_equals_the_exhaustive_optimum_of_that_curve(stage: Stage) -> None:
    curve, gpu = shipped_curve(stage), GpuTypeName(stage[0])
    clocks = [one.sm_clock_mhz for one in STAGES[stage]]
    changes: list[float] = []
    for bound in BOUNDS:
        inside = [curve.joules(mhz) for mhz in clocks if curve.slowdown(mhz) <= bound + 1e-9]
        point = best_operating_point(gpu, bound, curve.workload, math.inf)
        assert point is not None
        assert curve.joules(point.sm_clock_mhz) == pytest.approx(min(inside), rel=1e-8)
        changes.append(point.energy_change)
    assert all(after <= before for before, after in pairwise(changes))


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage[0] != "a40"], ids=lambda s: "-".join(map(str, s)))
def test_clock_chosen_on_the_a100_costs_at_most_four_percent_more_than_the_best_single_reading(stage: Stage) -> None:
    """Single readings scatter, the shipped ones are medians; no choice is 0.3 points slower than promised."""
    joules = {one.sm_clock_mhz: one.watts * one.seconds for one in STAGES[stage]}
    slowdown = {one.sm_clock_mhz: one.seconds / STAGES[stage][-1].seconds - 1.0 for one in STAGES[stage]}
    for bound in BOUNDS:
        least = min(joules[mhz] for mhz in joules if slowdown[mhz] <= bound)
        point = best_operating_point(GpuTypeName(stage[0]), bound, shipped_curve(stage).workload, math.inf)
        assert point is not None
        assert joules[point.sm_clock_mhz] <= 1.04 * least
        assert slowdown[point.sm_clock_mhz] <= bound + 0.003


@pytest.mark.parametrize("part", FAST_PARTS, ids=lambda part: part.name)
def test_packaged_coefficients_equal_a_fresh_fit(part: Part) -> None:
    fresh = json.loads(text_of(part.fit(MEASURED, silent)))
    assert list(differences(packaged(part), fresh, TOLERANCE)) == []
