"""Wrong estimates: what rules are told is off, what happens is not."""

from dataclasses import replace
from math import exp
from random import Random

import numpy as np
import pytest
from small_worlds import Answers, FirstFit, make_device, make_job, make_load, make_pool, make_world, run_jobs

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, OptionTable, Placement, PlacementRule
from slurm_energy.twin.engine.places import estimate_factors, option_table
from slurm_energy.twin.world import EstimateErrors, World


def misled_world(watts_sigma: float = 0.5, seconds_sigma: float = 0.25) -> World:
    devices = (make_device("gpu"), make_device("other", loads={"training": make_load(), "inference": make_load()}))
    world = make_world(make_pool("one"), make_pool("two", device="other"), devices=devices)
    return replace(world, estimate_errors=EstimateErrors(watts_sigma=watts_sigma, seconds_sigma=seconds_sigma))


def told(world: World, seed: int) -> OptionTable:
    """The table that a rule sees."""
    seen: list[OptionTable] = []

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen.append(view.options(job))
        return FirstFit().place(job, view)

    run_jobs(world, [make_job(1, gpus=(1, 2))], Answers(place=place), seed=seed)
    return seen[0]


def test_a_rule_sees_one_factor_for_each_device_on_all_counts_and_clocks() -> None:
    world = misled_world()
    table, true = told(world, 7), option_table(world, "training", (1, 2))
    factors = estimate_factors(world, EstimateErrors(watts_sigma=0.5, seconds_sigma=0.25), 7)
    for place, device in enumerate(("gpu", "other")):
        watts, seconds = factors[device, "training"]
        np.testing.assert_allclose(table.watts[place], watts * true.watts[place])
        np.testing.assert_allclose(table.seconds_per_unit[place], seconds * true.seconds_per_unit[place])
    np.testing.assert_allclose(table.joules_per_unit, table.watts * table.seconds_per_unit)
    np.testing.assert_array_equal(table.free_watts, true.free_watts)


def test_seeds_have_errors_of_their_own_and_every_rule_of_a_seed_the_same() -> None:
    world = misled_world()
    np.testing.assert_array_equal(told(world, 7).watts, told(world, 7).watts)
    assert not np.allclose(told(world, 7).watts, told(world, 8).watts)


def test_jobs_run_by_the_truth_and_show_it_when_they_end() -> None:
    ended: list[EndedJob] = []

    class Watching(PlacementRule):
        observes_ends = True

        def begin(self, view: ClusterView, random: Random) -> None:
            ended.clear()

        def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
            return FirstFit().place(job, view)

        def ended(self, job: EndedJob) -> None:
            ended.append(job)

    world = misled_world()
    jobs = [make_job(n, 5.0 * n, 100.0 + n) for n in range(1, 12)]
    misled, true = (
        run_jobs(world, jobs, Watching(), seed=7),
        run_jobs(replace(world, estimate_errors=None), jobs, seed=7),
    )
    np.testing.assert_array_equal(misled.ended_seconds, true.ended_seconds)
    assert misled.total_joules == true.total_joules
    assert [job.run_seconds for job in ended[:2]] == pytest.approx([101.0, 102.0])
    assert [job.energy_joules for job in ended[:2]] == pytest.approx([20_200.0, 20_400.0])


def test_factors_are_log_normal_with_median_one() -> None:
    kinds = {f"kind-{n}": make_load() for n in range(3000)}
    world = make_world(devices=(make_device(loads=kinds),))
    draws = np.log(list(estimate_factors(world, EstimateErrors(watts_sigma=0.25, seconds_sigma=0.5), 1).values()))
    assert draws.mean(axis=0) == pytest.approx([0.0, 0.0], abs=0.03)
    assert draws.std(axis=0) == pytest.approx([0.25, 0.5], rel=0.05)
    assert np.corrcoef(draws.T)[0, 1] == pytest.approx(0.0, abs=0.06)


def test_without_spread_the_truth_is_told_and_a_spread_out_of_bounds_is_refused() -> None:
    world = misled_world(0.0, 0.0)
    np.testing.assert_array_equal(told(world, 3).watts, option_table(world, "training", (1, 2)).watts)
    assert estimate_factors(world, EstimateErrors(), 3)["gpu", "training"] == (exp(0.0), exp(0.0))
    with pytest.raises(ValueRangeError, match="watts_sigma=-1"):
        EstimateErrors(watts_sigma=-1.0)
