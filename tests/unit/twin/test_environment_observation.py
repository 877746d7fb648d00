"""What an agent sees: shapes, scales, meanings, and the graph form."""

import sys
from typing import Any

import numpy as np
import pytest
from small_worlds import make_device, make_job, make_load, make_pool, make_world, steps_of

from slurm_energy.errors import ConfigError
from slurm_energy.policy.placement import Placement
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.environment import ClusterEnvironment
from slurm_energy.twin.environment.observation import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
    OPTION_FEATURES,
    PLACE_FEATURES,
)
from slurm_energy.twin.world import SuspendSettings, World
from slurm_energy.twin.world.file import shipped_world, world_names

HOUR = 3600.0
NAMES = {"places": PLACE_FEATURES, "options": OPTION_FEATURES, "job": JOB_FEATURES, "cluster": CLUSTER_FEATURES}


def make_environment(world: World, *jobs: Job, **options: Any) -> ClusterEnvironment:
    return ClusterEnvironment(world, workload=Workload(name="small", jobs=jobs), **options)


def seen(observation: dict[str, Any], array: str, feature: str) -> Any:
    """Return one feature, by row where the array has rows."""
    return observation[array][..., NAMES[array].index(feature)].tolist()


@pytest.mark.parametrize("clocks", ["oracle", "free"])
@pytest.mark.parametrize("name", world_names())
def test_every_observation_of_a_shipped_world_is_in_the_space(name: str, clocks: Any) -> None:
    world = shipped_world(name)
    kind = next(iter(next(iter(world.devices.values())).loads))
    jobs = [make_job(number, submitted=20_000.0 * number, units=1e5, kind=kind, gpus=(1, 2)) for number in range(6)]
    environment = make_environment(world, *jobs, clocks=clocks)
    observation, state = environment.reset(seed=1)
    steps, is_over = 0, False
    while not is_over:
        assert environment.observation_space.contains(observation)
        action = int(np.argmax(state["action_mask"]))
        observation, _, terminated, truncated, state = environment.step(action)
        is_over = terminated or truncated
        steps += 1
    assert steps == 6
    assert environment.observation_space.contains(observation)


def test_places_show_what_is_free_and_what_the_job_costs_there() -> None:
    costly = make_device("costly", loads={"training": make_load(watts=(240.0, 400.0, 800.0))}, free_watts=20.0)
    world = make_world(make_pool("cheap"), make_pool("dear", device="costly"), devices=(make_device(), costly))
    environment = make_environment(world, make_job(1, gpus=3), make_job(2, gpus=(1, 2)), may_wait=False)
    environment.reset(seed=0)
    observation, *_ = environment.step(environment.action_of(Placement(0, 3, -1)))
    assert seen(observation, "places", "free_share") == [0.25, 1.0]
    assert seen(observation, "places", "room_share") == [0.5, 1.0]
    assert seen(observation, "places", "joules_per_unit") == [0.0, 2.0 / 8.0]  # 4 times the energy, of 2^8
    assert seen(observation, "places", "seconds_per_unit") == [0.0, 0.0]
    assert seen(observation, "places", "free_watts") == [0.5, 1.0]
    assert seen(observation, "places", "can_run") == [1.0, 1.0]
    assert seen(observation, "places", "waiting_jobs") == pytest.approx([np.log10(2.0) / 4.0] * 2)
    assert seen(observation, "options", "is_legal") == [1.0, 0.0, 1.0, 1.0]
    assert seen(observation, "options", "devices") == pytest.approx([0.0, 0.1, 0.0, 0.1])
    assert seen(observation, "options", "joules_per_unit") == [0.0, 0.0, 0.25, 0.25]
    assert seen(observation, "options", "seconds_per_unit") == pytest.approx([2 / 8, 1 / 8, 2 / 8, 1 / 8])
    assert seen(observation, "options", "relative_clock") == [0.5] * 4
    assert seen(observation, "cluster", "occupancy") == pytest.approx(3 / 8)


def test_the_job_shows_size_bounds_and_waiting() -> None:
    jobs = [
        make_job(1, gpus=4, units=396.0),
        make_job(2, submitted=9.0, units=99.0, gpus=(2, 4), deadline_seconds=374.25, time_limit_seconds=24.75),
    ]
    environment = make_environment(make_world(), *jobs, clocks="free", max_counts=4)
    environment.reset(seed=0)
    observation, *_ = environment.step(environment.action_of(Placement(0, 4, 2)))
    assert environment.view.now_seconds == 99.0
    # The second job has waited 90 s and takes 24.75 s at the fastest; its deadline is 275.25 s away.
    assert seen(observation, "job", "is_present") == 1.0
    assert seen(observation, "job", "run_seconds") == pytest.approx(np.log10(25.75) / 6.0)
    assert seen(observation, "job", "waited_seconds") == pytest.approx(np.log10(91.0) / 6.0)
    assert seen(observation, "job", "least_devices") == pytest.approx(0.1)
    assert seen(observation, "job", "most_devices") == pytest.approx(0.2)
    assert seen(observation, "job", "counts") == 0.5
    assert seen(observation, "job", "deadline_slack") == pytest.approx((275.25 - 24.75) / 300.0)
    assert seen(observation, "job", "limit_slack") == 0.0
    assert (seen(observation, "job", "has_deadline"), seen(observation, "job", "has_limit")) == (1.0, 1.0)
    assert seen(observation, "job", "max_slowdown") == 1.0


def test_the_hour_comes_back_every_day_and_nothing_else_tells_the_time() -> None:
    world = make_world()
    days = [
        make_environment(world, make_job(1, submitted=submitted)).reset(seed=0)[0]
        for submitted in (21_600.0, 86_400.0 + 21_600.0)
    ]
    assert seen(days[0], "cluster", "hour_sine") == pytest.approx(1.0)
    assert seen(days[0], "cluster", "hour_cosine") == pytest.approx(0.0, abs=1e-6)
    assert all(np.allclose(days[0][name], days[1][name], atol=1e-6) for name in NAMES)


def test_budget_carbon_and_price_are_seen() -> None:
    world = make_world(
        power_budget_watts=steps_of(120.0, every=HOUR),
        carbon_grams_per_kwh={"": steps_of(100.0, 400.0, every=HOUR)},
        price_per_kwh={"": steps_of(0.3, 0.15, every=HOUR)},
    )
    before = make_environment(world, make_job(1, submitted=10.0)).reset(seed=0)[0]
    after = make_environment(world, make_job(1, submitted=HOUR + 10.0)).reset(seed=0)[0]
    assert seen(before, "cluster", "power") == pytest.approx(40.0 / 800.0)
    assert seen(before, "cluster", "has_budget") == 1.0
    assert seen(before, "cluster", "power_of_budget") == pytest.approx((120.0 - 40.0) / 160.0)
    assert (seen(before, "cluster", "carbon"), seen(after, "cluster", "carbon")) == (0.25, 1.0)
    assert (seen(before, "places", "price"), seen(after, "places", "price")) == ([1.0], [0.5])


def test_suspended_nodes_and_the_energy_of_waking_them_are_seen() -> None:
    suspend = SuspendSettings(idle_seconds=30.0, resume_seconds=20.0, suspended_watts=5.0, resume_watts=100.0)
    world = make_world(make_pool(nodes=2, suspend=suspend))
    observation, _ = make_environment(world, make_job(1, submitted=100.0, units=10.0)).reset(seed=0)
    assert seen(observation, "places", "suspended_share") == [1.0]
    assert seen(observation, "places", "wake_joules") == pytest.approx([2000.0 / (2000.0 + 2000.0)])


def test_a_graph_needs_torch_geometric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(ConfigError, match='observation="graph" needs torch and torch_geometric'):
        make_environment(make_world(), make_job(1), observation="graph")


@pytest.mark.slow
def test_a_graph_has_a_vertex_for_every_legal_placement() -> None:
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    world = make_world(make_pool("first"), make_pool("second"))
    jobs = [make_job(1, gpus=3), make_job(2, gpus=(1, 2))]
    environment = make_environment(world, *jobs, observation="graph")
    plain = make_environment(world, *jobs)
    for each in (environment, plain):
        each.reset(seed=0)
    graph, *_, state = environment.step(0)
    arrays, *_ = plain.step(0)
    assert environment.observation_space.contains(graph)
    assert graph["option"].action.tolist() == np.flatnonzero(state["action_mask"][:-1]).tolist() == [0, 2, 3]
    assert np.array_equal(graph["option"].x.numpy(), arrays["options"][[0, 2, 3]])
    assert np.array_equal(graph["place"].x.numpy(), arrays["places"])
    assert graph["job", "may_take", "option"].edge_index.tolist() == [[0, 0, 0], [0, 1, 2]]
    assert graph["option", "uses", "place"].edge_index.tolist() == [[0, 1, 2], [0, 1, 1]]
    assert graph["place", "rev_uses", "option"].edge_index.tolist() == [[0, 1, 1], [0, 1, 2]]
    assert graph["place", "belongs_to", "cluster"].edge_index.tolist() == [[0, 1], [0, 0]]
    assert graph.may_wait is True
    assert graph.validate()
