"""The published world, 7 days, seed 123: what simple rules reach on the published stream of arrivals, and the bound.

Figures from an independent simulator of the same world; blind baselines are in `test_arena_command.py`.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from slurm_energy.evaluation.bounds import StationaryLoad, energy_latency_frontier
from slurm_energy.evaluation.metrics import published_figures
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload, shared_stream_source
from slurm_energy.twin.world.file import shipped_world

WORLD = shipped_world("chsac")
WEEK_SECONDS = 604_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a rule reached."""

    completed: int
    published_joules_per_unit: float
    joules_per_unit: float
    mean_run_seconds: float
    waiting: int


def reached(outcome: Outcome) -> Reached:
    return Reached(
        completed=outcome.state.count("COMPLETED"),
        published_joules_per_unit=published_figures(outcome, 20.0).joules_per_unit,
        joules_per_unit=outcome.total_joules / float(outcome.units.sum()),
        mean_run_seconds=float(np.mean(outcome.run_seconds[np.isfinite(outcome.ended_seconds)])),
        waiting=outcome.waiting_at_day_end[-1],
    )


def week(rule: str) -> Reached:
    """The published stream's arrivals; the rule draws from its own stream, as the published agent does."""
    source = shared_stream_source(WORLD.workload_settings, 123)
    return reached(run(WORLD, source, create_rule(rule), seed=123, horizon_seconds=WEEK_SECONDS))


def test_a_masked_random_choice_gives_the_published_agents_result() -> None:
    found = week("masked-random")
    assert 96_370 <= found.completed <= 96_415
    assert 9.78 <= found.published_joules_per_unit <= 9.80
    assert found.waiting == 0


def test_greedy_is_close_to_the_least_energy() -> None:
    found = week("greedy")
    assert found.joules_per_unit == pytest.approx(8.50, abs=0.02)
    assert found.completed == 96_006


def test_a_price_on_time_is_close_to_the_frontier() -> None:
    found = week("price:V=20")
    assert found.joules_per_unit == pytest.approx(9.07, abs=0.02)
    assert found.mean_run_seconds == pytest.approx(1_451, abs=30)


@pytest.mark.parametrize(
    ("rate", "most_excess"),
    [
        (0.05, 0.0102),
        *(
            pytest.param(rate, most, marks=pytest.mark.long)
            for rate, most in ((0.02, 0.0032), (0.045, 0.0064), (0.055, 0.0147), (0.06, 0.0085))
        ),
    ],
)
def test_the_adaptive_price_is_no_worse_than_its_table(rate: float, most_excess: float) -> None:
    """Three days from empty: the excess over the frontier at its own mean turnaround."""
    seconds = 259_200.0
    settings = {**WORLD.workload_settings, "hours": 72, "rate_per_second": rate}
    workload = create_workload(WORLD.workload, settings, 123)
    outcome = run(WORLD, workload, create_rule("adaptive-price"), seed=123, horizon_seconds=seconds)
    ended = np.isfinite(outcome.ended_seconds)
    turnaround = float(np.mean((outcome.ended_seconds - outcome.submitted_seconds)[ended]))
    load = StationaryLoad(
        units_per_second_by_kind={"training": float(outcome.true_units.sum()) / seconds},
        mean_units_by_kind={"training": float(outcome.true_units.mean())},
        gpu_counts_by_kind={"training": tuple(range(1, 9))},
    )
    (point,) = energy_latency_frontier(WORLD, load, [turnaround])
    assert reached(outcome).joules_per_unit / point.bound.joules_per_unit - 1.0 <= most_excess
    assert reached(outcome).waiting < 50
