"""The rule to beat, in the engine: the price of time finds a run time by itself, and stays near the least energy."""

import numpy as np
import pytest

from slurm_energy.evaluation.bounds import StationaryLoad, energy_latency_frontier
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world.file import shipped_world

HOURS = 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "seconds"), [("adaptive-price:run=800", 800.0), ("adaptive-price:run=2500,V=500", 2_500.0)]
)
def test_the_price_of_time_finds_the_wanted_run_time_at_little_more_than_the_least_energy(
    text: str, seconds: float
) -> None:
    world = shipped_world("chsac")
    workload = create_workload(world.workload, {**world.workload_settings, "hours": HOURS}, 5)
    outcome = run(world, workload, create_rule(text), seed=5, horizon_seconds=HOURS * 3600.0)
    settled = np.isfinite(outcome.ended_seconds) & (outcome.submitted_seconds > HOURS * 1800.0)
    assert np.mean(outcome.run_seconds[settled]) == pytest.approx(seconds, rel=0.04)
    units = outcome.true_units
    load = StationaryLoad(
        units_per_second_by_kind={"training": float(units.sum()) / (HOURS * 3600.0)},
        mean_units_by_kind={"training": float(units.mean())},
        gpu_counts_by_kind={"training": tuple(range(1, 9))},
    )
    (point,) = energy_latency_frontier(world, load, [seconds])
    late = outcome.sample_seconds[1:] > HOURS * 1800.0
    watts = np.average(outcome.sample_watts[late], weights=np.diff(outcome.sample_seconds)[late])
    assert watts / load.units_per_second_by_kind["training"] < 1.02 * point.bound.joules_per_unit
