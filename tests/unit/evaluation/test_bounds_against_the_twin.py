"""No run of the twin on a random world, under a rule that does anything it may, is below the bounds of its work."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from random import Random

import pytest
from bounds_worlds import random_world
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.evaluation.bounds import TraceOptions, assert_not_below, bound_of_run, clairvoyant_bound
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world import FailureRates, World


class AnythingRule(PlacementRule):
    """Places, shares and changes clocks at random, or takes the least energy above the base."""

    name = "anything"
    control_interval_seconds = 13.0

    def __init__(self, *, thrifty: bool) -> None:
        self._thrifty = thrifty

    def begin(self, view: ClusterView, random: Random) -> None:
        self._random = random

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        table, room = view.options(job), view.room(job)
        running = [other for other in view.running_jobs() if other.gpus == 1]
        if running and 1 in job.gpu_counts and self._random.random() < 0.5:
            other = self._random.choice(running)
            return Placement(other.place, 1, other.clock, other.job_id)
        choices = [
            (place, column, clock)
            for place, most in enumerate(room)
            for column, gpus in enumerate(job.gpu_counts)
            for clock in range(table.seconds_per_unit.shape[2])
            if gpus <= most and table.seconds_per_unit[place, column, clock] < inf
        ]
        if not choices:
            return None
        extra = (table.watts - table.free_watts) * table.seconds_per_unit
        place, column, clock = min(choices, key=lambda c: extra[c]) if self._thrifty else self._random.choice(choices)
        return Placement(place, job.gpu_counts[column], clock)

    def control(self, view: ClusterView) -> Mapping[int, int]:
        if self._thrifty:
            return {}
        return {each.job_id: self._random.randrange(4) for each in view.running_jobs() if self._random.random() < 0.3}


def random_workload(random: Random) -> Workload:
    jobs, now = [], 0.0
    for number in range(random.randint(1, 25)):
        now += random.expovariate(1.0 / random.choice((1.0, 10.0, 60.0)))
        jobs.append(
            Job(
                job_id=number,
                submitted_seconds=now,
                true_units=random.uniform(1.0, 3000.0),
                kind=random.choice(("a", "b")),
                gpu_counts=random.choice(((1,), (1, 2), (2,), (1, 2, 3, 4), (4,))),
                shareable=random.random() < 0.7,
                checkpoint_units=random.choice((inf, 50.0)),
                time_limit_seconds=random.choice((inf, inf, 100.0)),
            )
        )
    return Workload(name="random", jobs=tuple(jobs))


def disturbed(world: World, random: Random) -> World:
    failures = FailureRates(gpu_mtbf_seconds=random.choice((inf, inf, 500.0)), mean_repair_seconds=50.0)
    return replace(world, failures=failures, launch_seconds=random.choice((0.0, 0.0, 5.0)))


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
def test_no_run_is_below_its_bounds(seed: int) -> None:
    random = Random(seed)
    world, workload = disturbed(random_world(random), random), random_workload(random)
    rule = AnythingRule(thrifty=random.random() < 0.5)
    outcome = run(world, workload, rule, seed=seed, horizon_seconds=random.uniform(5.0, 2000.0))
    arrived = workload.jobs[: len(outcome.job_id)]
    units = outcome.units.tolist()
    if sum(units) == 0.0:
        return
    assert_not_below(outcome.total_joules, bound_of_run(world, arrived, units, outcome.end_seconds))
    for stretches in (0, 8):
        options = TraceOptions(stretches=stretches, processed_units=units)
        trace = clairvoyant_bound(world, replace(workload, jobs=arrived), outcome.end_seconds, options)
        assert_not_below(outcome.total_joules, trace)
