"""Which actions are legal, and what they stand for."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import make_job, make_pool, make_world

from slurm_energy.policy.placement import Placement
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.places import option_table
from slurm_energy.twin.engine.scheduler import guarded_placement
from slurm_energy.twin.environment import ClusterEnvironment
from slurm_energy.twin.environment.choices import ChoiceCosts, allowed_clocks
from slurm_energy.twin.world import Partition, World

LIMITED = make_world(
    make_pool("short"),
    make_pool("long"),
    partitions=(
        Partition(name="short", pools=("short",), max_time_seconds=150.0),
        Partition(name="long", pools=("long",)),
    ),
)
COUNTS = (1, 2, 4)


def make_environment(world: World, *jobs: Job, **options: Any) -> ClusterEnvironment:
    return ClusterEnvironment(world, workload=Workload(name="small", jobs=jobs), **options)


def legal_placements(environment: ClusterEnvironment) -> list[tuple[int, int, int]]:
    """Return (place, devices, clock) of every legal placement."""
    choices = environment.choices
    assert choices is not None
    placements = [choices.placement(int(action)) for action in np.flatnonzero(choices.mask()[:-1])]
    return [placement[:3] for placement in placements if placement is not None]


@given(
    units=st.floats(0.0, 1000.0),
    limit=st.one_of(st.just(inf), st.floats(1.0, 1000.0)),
    deadline=st.one_of(st.just(inf), st.floats(0.0, 1000.0)),
    slowdown=st.one_of(st.just(inf), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.floats(0.0, 4.0)),
    now=st.floats(0.0, 500.0),
)
def test_a_clock_is_allowed_exactly_when_the_guard_leaves_it(
    units: float, limit: float, deadline: float, slowdown: float, now: float
) -> None:
    job = make_job(
        1, units=units, gpus=COUNTS, time_limit_seconds=limit, deadline_seconds=deadline, max_slowdown=slowdown
    )
    table = option_table(LIMITED, "training", COUNTS)
    column = {gpus: index for index, gpus in enumerate(COUNTS)}
    limits = [partition.max_time_seconds for partition in LIMITED.partitions]
    guarded = np.array(
        [
            [
                [
                    guarded_placement(
                        Placement(place, gpus, clock), job, 4, table.seconds_per_unit[place].tolist(), column, now, most
                    )
                    == (Placement(place, gpus, clock), False)
                    for clock in range(3)
                ]
                for gpus in COUNTS
            ]
            for place, most in enumerate(limits)
        ]
    )
    costs = ChoiceCosts(table, len(COUNTS))
    allowed = allowed_clocks(costs, job, now, np.array(limits)[:, None])
    assert np.array_equal(allowed, guarded)
    careful = allowed_clocks(costs, job, now, np.array(limits)[:, None], margin=0.05)
    assert not (careful & ~allowed).any()
    assert careful[:, :, -1].all()


def test_only_what_fits_is_legal() -> None:
    environment = make_environment(make_world(), make_job(1, gpus=3), make_job(2, gpus=(1, 2)), clocks="free")
    environment.reset(seed=0)
    assert legal_placements(environment) == [(0, 3, 0), (0, 3, 1), (0, 3, 2)]
    environment.step(environment.action_of(Placement(0, 3, 2)))
    assert legal_placements(environment) == [(0, 1, 0), (0, 1, 1), (0, 1, 2)]


def test_actions_are_numbered_by_place_then_count_then_clock() -> None:
    world = make_world(make_pool("first"), make_pool("second"))
    environment = make_environment(world, make_job(1, gpus=(1, 2)), clocks="free")
    environment.reset(seed=0)
    assert environment.action_space.n == 2 * 2 * 3 + 1  # type: ignore[attr-defined]  # a Discrete space
    assert environment.action_of(Placement(1, 2, 0)) == (1 * 2 + 1) * 3
    assert environment.action_of(Placement(0, 2, -1)) == 5
    assert environment.action_of(None) == 12
    assert legal_placements(environment) == [(p, g, c) for p in (0, 1) for g in (1, 2) for c in (0, 1, 2)]


def test_the_oracle_takes_the_clock_of_least_energy() -> None:
    environment = make_environment(make_world(), make_job(1, gpus=(1, 4)))
    environment.reset(seed=0)
    assert legal_placements(environment) == [(0, 1, 1), (0, 4, 1)]


@pytest.mark.parametrize(
    ("bound", "clock"),
    [
        ({"max_slowdown": 0.5}, 2),
        ({"time_limit_seconds": 211.0}, 1),
        ({"time_limit_seconds": 205.0}, 2),  # half the clock takes 200 s: inside, but not with 5 % to spare
        ({"deadline_seconds": 90.0}, 1),  # out of reach at any clock: it binds no more
        ({"deadline_seconds": 101.0}, 2),
    ],
)
def test_the_oracle_keeps_the_bounds_of_the_job(bound: dict[str, Any], clock: int) -> None:
    environment = make_environment(make_world(), make_job(1, units=100.0, **bound))
    environment.reset(seed=0)
    assert legal_placements(environment) == [(0, 1, clock)]


def test_sizes_come_from_the_job_with_the_most_counts_and_can_be_given() -> None:
    jobs = [make_job(1), make_job(2, gpus=(1, 2, 4))]
    assert make_environment(make_world(), *jobs).sizes == (1, 3, 1)
    assert make_environment(make_world(), *jobs, clocks="free", max_counts=5).sizes == (1, 5, 3)


def test_a_job_that_can_only_share_a_gpu_is_no_decision() -> None:
    world = make_world(make_pool(jobs_per_gpu=2, gpus_per_node=1))
    environment = make_environment(world, make_job(1, units=10.0, shareable=True), make_job(2, shareable=True))
    environment.reset(seed=0)
    environment.step(0)
    assert environment.view.now_seconds == pytest.approx(20.0)
    assert legal_placements(environment) == [(0, 1, 1)]
