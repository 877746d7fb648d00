"""Made programs and sensors: what the examination of the detector and of the trials rests on."""

import numpy as np
import pytest

from research.measuring import programs
from research.measuring.detector import Case, summary
from research.measuring.ladder import runs_of_a_name
from research.measuring.sensors import draw_sensor, observe
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.estimation.iterations.slowdown import Slowdown, Unknown

PERIODIC = (*programs.TUNING_PERIODIC, *programs.HELD_OUT_PERIODIC)
OTHERS = (*programs.TUNING_APERIODIC, *programs.HELD_OUT_APERIODIC, programs.timer, programs.two_programs)


@pytest.mark.parametrize("maker", [*PERIODIC, *OTHERS], ids=lambda maker: maker.__name__)
def test_a_program_has_power_and_a_slowdown_that_its_clock_can_make(maker: object) -> None:
    program = maker(np.random.default_rng(3))  # type: ignore[operator]
    trace = observe(program, draw_sensor(np.random.default_rng(4)), 0.8, 8.0, np.random.default_rng(5))

    assert 0.0 <= program.slowdown(0.8) <= 0.25 + 1e-9
    assert program.slowdown(1.0) == pytest.approx(0.0)
    assert np.nanmedian(trace.watts) > 0.0
    assert set(trace.work_rates) == {"pcie", "memory_utilisation"}


@pytest.mark.parametrize("maker", [programs.training, programs.inference])
def test_counters_of_work_fall_as_the_program_slows_down(maker: object) -> None:
    program = maker(np.random.default_rng(8))  # type: ignore[operator]
    work = [programs.render(program, clock, 300.0, np.random.default_rng(9))[1].mean() for clock in (1.0, 0.75)]

    assert work[0] / work[1] - 1.0 == pytest.approx(program.slowdown(0.75), abs=0.06)


def test_the_table_counts_answers_errors_and_dangerous_ones() -> None:
    good = Slowdown(value=0.05, error=0.005, period_seconds=1.0, repetitions=50)
    cases = [
        Case(family="a", truth=0.055, answer=good, possible=True),
        Case(family="a", truth=0.08, answer=good, possible=True),
        Case(family="a", truth=0.08, answer=Unknown(reason="why"), possible=True),
        Case(family="a", truth=0.08, answer=Unknown(reason="why"), possible=False),
    ]

    row = summary(cases)

    assert (row["answered"], row["possible"], row["beyond_2_points"], row["dangerous"]) == (0.5, 0.75, 0.5, 0.25)
    assert row["median_error_points"] == pytest.approx(1.75)


def test_a_run_with_trials_does_its_work_within_the_bound_and_costs_little() -> None:
    curve = curves_of("v100-pcie-16gb")[0]  # type: ignore[arg-type]
    for run in runs_of_a_name(curve, "V100", np.random.default_rng(1)):
        assert 4 * 3600.0 <= run.seconds <= 4 * 3600.0 * 1.055
        assert run.harm <= 0.01
        assert run.joules < run.default_joules
