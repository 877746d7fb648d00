"""The environment's contract with agents: steps, reward, ends, seeds, and gymnasium's own checks."""

import pickle
import warnings
from math import inf
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from small_worlds import BUSY_WATTS, FREE_WATTS, make_job, make_pool, make_world, same

from slurm_energy.errors import ConfigError, ValueRangeError
from slurm_energy.policy.placement import Discipline, Placement, Postponement
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.environment import ENVIRONMENT_ID, ClusterEnvironment
from slurm_energy.twin.episode import RewardWeights
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import FailureRates, SuspendSettings, World
from slurm_energy.twin.world.file import shipped_world

HOUR = 3600.0


def workload_of(*jobs: Job) -> Workload:
    return Workload(name="small", jobs=jobs)


def make_environment(*jobs: Job, world: World | None = None, **options: Any) -> ClusterEnvironment:
    return ClusterEnvironment(world or make_world(), workload=workload_of(*jobs), **options)


def random_jobs(seed: int) -> Workload:
    """Return 60 jobs with limits, deadlines and bounds; more than four devices can take at once."""
    random = np.random.default_rng(seed)
    jobs, time = [], 0.0
    for number in range(60):
        time += float(random.exponential(20.0))
        units = float(random.uniform(1.0, 200.0))
        jobs.append(
            make_job(
                number,
                submitted=time,
                units=units,
                gpus=[(1,), (1, 2), (1, 2, 4), (2,)][int(random.integers(4))],
                time_limit_seconds=units * 3.0 if random.random() < 0.3 else inf,
                deadline_seconds=time + units * 4.0 if random.random() < 0.3 else inf,
                max_slowdown=0.5 if random.random() < 0.3 else inf,
            )
        )
    return Workload(name="random", jobs=tuple(jobs))


def play_randomly(
    environment: ClusterEnvironment, choices: int = 0, **reset: Any
) -> tuple[float, list[dict[str, Any]]]:
    """Return the return and every info of a run with legal random actions."""
    _, state = environment.reset(**reset)
    random = np.random.default_rng(choices)
    total, states, is_over = 0.0, [], False
    while not is_over:
        action = int(random.choice(np.flatnonzero(state["action_mask"])))
        _, reward, terminated, truncated, state = environment.step(action)
        total += reward
        states.append(state)
        is_over = terminated or truncated
    return total, states


def follow_rule(environment: ClusterEnvironment, name: str, seed: int) -> Outcome:
    """Return the outcome of a run in which a placement rule answers."""
    environment.reset(seed=seed)
    rule = create_rule(name)
    while environment.job is not None:
        answer = rule.place(environment.job, environment.view)
        assert not isinstance(answer, Postponement)
        environment.step(environment.action_of(answer))
    return environment.outcome(rule.name)


def suspending_world() -> World:
    pool = make_pool(
        nodes=3,
        host_idle_watts=40.0,
        host_busy_watts=90.0,
        suspend=SuspendSettings(idle_seconds=30.0, resume_seconds=20.0, suspended_watts=5.0, resume_watts=120.0),
    )
    return make_world(
        pool, make_pool("other", nodes=2), failures=FailureRates(node_mtbf_seconds=4000.0, mean_repair_seconds=300.0)
    )


def test_one_job_costs_its_energy_and_what_the_free_devices_draw() -> None:
    environment = make_environment(make_job(1, submitted=50.0, units=100.0), weights=RewardWeights(scale_joules=1.0))
    environment.reset(seed=0)
    _, reward, terminated, truncated, state = environment.step(environment.action_of(Placement(0, 1, -1)))
    # The oracle takes half the clock: 100 W for 200 s beats 200 W for 100 s and 60 W for 400 s; free devices draw 10 W.
    expected = 100.0 * 200.0 + FREE_WATTS * (4 * 50.0 + 3 * 200.0)
    assert reward == pytest.approx(-expected)
    assert (terminated, truncated) == (True, False)
    assert state["joules"] == pytest.approx(expected)
    assert state["elapsed_seconds"] == pytest.approx(200.0)
    assert state["granted"].tolist() == [0, 1, 1]
    assert state["expected_joules"] == pytest.approx((100.0 - FREE_WATTS) * 200.0)
    assert state["ended_jobs"] == 1


def test_the_highest_clock_is_an_action_when_clocks_are_free() -> None:
    environment = make_environment(make_job(1, units=100.0), clocks="free", weights=RewardWeights(scale_joules=1.0))
    environment.reset(seed=0)
    _, reward, *_ = environment.step(environment.action_of(Placement(0, 1, -1)))
    assert reward == pytest.approx(-(BUSY_WATTS + 3 * FREE_WATTS) * 100.0)


def test_jobs_that_wait_cost_their_time() -> None:
    weights = RewardWeights(energy=0.0, waiting_watts=3.0, running_watts=0.5, scale_joules=2.0)
    jobs = [make_job(number, units=100.0, gpus=4) for number in (1, 2)]
    environment = make_environment(*jobs, clocks="free", weights=weights)
    environment.reset(seed=0)
    first, second = (environment.step(environment.action_of(Placement(0, 4, 2)))[1] for _ in jobs)
    assert first == pytest.approx(-(3.0 + 0.5) * 25.0 / 2.0)
    assert second == pytest.approx(-0.5 * 25.0 / 2.0)


@pytest.mark.parametrize("clocks", ["oracle", "free"])
@pytest.mark.parametrize("horizon", [None, 700.0])
@pytest.mark.parametrize("world", [make_world(), suspending_world()], ids=["plain", "suspending-and-failing"])
def test_the_return_is_minus_the_energy_and_the_waiting_of_the_run(
    world: World, horizon: float | None, clocks: Any
) -> None:
    weights = RewardWeights(energy=1.0, waiting_watts=7.0, scale_joules=1000.0)
    environment = ClusterEnvironment(
        world, workload=random_jobs, clocks=clocks, horizon_seconds=horizon, weights=weights
    )
    total, states = play_randomly(environment, 1, seed=1)
    outcome = environment.outcome()
    assert sum(state["joules"] for state in states) == pytest.approx(outcome.total_joules, rel=1e-12)
    running = sum(state["running_job_seconds"] for state in states)
    assert running == pytest.approx(float(np.sum(outcome.run_seconds)), rel=1e-9)
    waiting = sum(state["waiting_job_seconds"] for state in states)
    if not outcome.restarts.any():
        until = np.minimum(outcome.started_seconds, outcome.end_seconds)
        assert waiting == pytest.approx(float(np.sum(until - outcome.eligible_seconds)), rel=1e-9)
    assert total == pytest.approx(-(outcome.total_joules + 7.0 * waiting) / 1000.0, rel=1e-12)
    assert outcome.balance_error < 1e-9


@pytest.mark.parametrize("clocks", ["oracle", "free"])
def test_no_legal_action_is_changed_by_the_guard(clocks: Any) -> None:
    environment = ClusterEnvironment(
        suspending_world(), workload=random_jobs, clocks=clocks, discipline=Discipline(backfill="none")
    )
    for seed in range(4):
        _, states = play_randomly(environment, seed, seed=seed)
        assert environment.outcome().clamped == 0
        assert len(states) >= 60
        assert not any(state["is_illegal"] for state in states)


@pytest.mark.parametrize(("clocks", "rule"), [("oracle", "greedy"), ("free", "greedy"), ("free", "price:V=20")])
def test_a_rule_through_the_environment_leaves_the_same_run_as_by_itself(clocks: Any, rule: str) -> None:
    environment = ClusterEnvironment("chsac", horizon_seconds=2 * HOUR, clocks=clocks)
    through = follow_rule(environment, rule, seed=5)
    jobs = create_workload("poisson", {"hours": 2.0}, 5)
    alone = run(shipped_world("chsac"), jobs, create_rule(rule), seed=5, horizon_seconds=2 * HOUR)
    through.decisions = alone.decisions
    assert same(through, alone)


def test_a_seed_gives_one_run_and_another_seed_other_arrivals() -> None:
    environment = ClusterEnvironment("chsac", horizon_seconds=0.2 * HOUR)
    first, again, other = (play_randomly(environment, seed=seed)[1] for seed in (3, 3, 4))
    assert [state["time_seconds"] for state in first] == [state["time_seconds"] for state in again]
    assert [state["time_seconds"] for state in first] != [state["time_seconds"] for state in other]


def test_runs_without_a_seed_differ_and_follow_from_the_last_seed() -> None:
    environment = ClusterEnvironment("chsac", horizon_seconds=0.1 * HOUR)
    seeds = []
    for _ in range(2):
        environment.reset(seed=9)
        environment.reset()
        seeds.append(environment.workload_seed)
        environment.reset()
        seeds.append(environment.workload_seed)
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]


def test_a_run_that_is_cut_off_is_truncated_and_one_without_jobs_left_terminated() -> None:
    environment = make_environment(make_job(1, units=100.0))
    environment.reset(seed=0, options={"horizon_seconds": 20.0})
    *_, terminated, truncated, state = environment.step(0)
    assert (terminated, truncated, state["time_seconds"]) == (False, True, 20.0)
    assert state["action_mask"].tolist() == [0, 1]
    environment.reset(seed=0)
    *_, terminated, truncated, _ = environment.step(0)
    assert (terminated, truncated) == (True, False)


def test_a_run_without_a_decision_ends_with_the_first_step() -> None:
    environment = make_environment(make_job(1), weights=RewardWeights(scale_joules=1.0))
    observation, state = environment.reset(seed=0, options={"workload": workload_of(), "horizon_seconds": 10.0})
    assert state["action_mask"].tolist() == [0, 1]
    assert observation["job"].tolist() == [0.0] * 12
    _, reward, terminated, truncated, _ = environment.step(1)
    assert reward == pytest.approx(-4 * FREE_WATTS * 10.0)
    assert (terminated, truncated) == (False, True)


def test_a_step_before_reset_or_after_the_end_is_refused() -> None:
    environment = make_environment(make_job(1))
    with pytest.raises(ResetNeeded, match="no run has begun"):
        environment.step(0)
    environment.reset(seed=0)
    with pytest.raises(ResetNeeded, match="not over"):
        environment.outcome()
    environment.step(0)
    with pytest.raises(ResetNeeded, match="the run is over"):
        environment.step(0)
    with pytest.raises(ResetNeeded, match="no job is asked about"):
        environment.action_of(None)


def test_an_illegal_action_is_an_error_that_says_why() -> None:
    environment = make_environment(make_job(1, gpus=4), make_job(2, gpus=(1, 2)), max_counts=2)
    environment.reset(seed=0)
    with pytest.raises(ValueRangeError, match="action 2 is not legal for job 1: to wait"):
        environment.step(2)
    with pytest.raises(ValueRangeError, match=r"action 1 .* the job has 1 device counts"):
        environment.step(1)
    with pytest.raises(ValueRangeError, match="action 3 is not one of 0 to 2"):
        environment.step(3)


def test_an_illegal_action_says_what_fits_and_which_clock_breaks_a_bound() -> None:
    jobs = [make_job(1, gpus=3), make_job(2, gpus=(1, 2), max_slowdown=0.1)]
    environment = make_environment(*jobs, clocks="free")
    environment.reset(seed=0)
    environment.step(environment.action_of(Placement(0, 3, 2)))
    with pytest.raises(ValueRangeError, match="place pool, 2 devices: at most 1 fit now"):
        environment.step(environment.action_of(Placement(0, 2, 2)))
    with pytest.raises(ValueRangeError, match=r"place pool, 1 devices, clock 0: .*slowdown bound"):
        environment.step(environment.action_of(Placement(0, 1, 0)))


def test_an_illegal_action_can_be_taken_as_waiting() -> None:
    environment = make_environment(make_job(1, gpus=4), make_job(2, gpus=(1, 2)), illegal_action="wait")
    environment.reset(seed=0)
    *_, state = environment.step(2)  # nothing runs: waiting would never end, so the job starts
    assert state["is_illegal"]
    assert state["granted"].tolist() == [0, 4, 1]


def test_a_job_that_waits_is_asked_about_again_when_another_ends() -> None:
    environment = make_environment(make_job(1, units=10.0), make_job(2), clocks="free")
    environment.reset(seed=0)
    environment.step(environment.action_of(Placement(0, 1, 2)))
    *_, state = environment.step(environment.sizes.wait)
    assert state["granted"].tolist() == [-1, -1, -1]
    assert state["time_seconds"] == 10.0
    assert environment.job is not None
    assert environment.job.job_id == 2
    assert state["action_mask"][-1] == 0


def test_waiting_can_be_switched_off() -> None:
    environment = make_environment(make_job(1), make_job(2), may_wait=False)
    environment.reset(seed=0)
    *_, state = environment.step(0)
    assert state["action_mask"].tolist() == [1, 0]


def test_the_environment_passes_the_checker_of_gymnasium() -> None:
    environment = gymnasium.make(ENVIRONMENT_ID, horizon_seconds=0.1 * HOUR, illegal_action="wait", render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment.unwrapped)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vectorised_environments_run_apart(mode: Any) -> None:
    vector = gymnasium.make_vec(ENVIRONMENT_ID, num_envs=2, vectorization_mode=mode, horizon_seconds=0.05 * HOUR)
    try:
        observation, state = vector.reset(seed=1)
        assert observation["places"].shape == (2, 8, 13)
        for _ in range(40):
            actions = np.argmax(state["action_mask"], axis=1)
            observation, rewards, _, _, state = vector.step(actions)
            assert rewards.shape == (2,)
        assert not np.array_equal(observation["cluster"][0], observation["cluster"][1])
    finally:
        vector.close()


def test_a_pickled_environment_is_as_it_was_made() -> None:
    environment = ClusterEnvironment("chsac", horizon_seconds=0.05 * HOUR, clocks="free")
    environment.reset(seed=1)
    copy = pickle.loads(pickle.dumps(environment))
    with pytest.raises(ResetNeeded):
        copy.step(0)
    assert play_randomly(copy, seed=1)[0] == play_randomly(environment, seed=1)[0]


def test_rendering_is_a_few_lines_of_text() -> None:
    environment = make_environment(make_job(1, gpus=3), make_job(2), render_mode="ansi")
    environment.reset(seed=0)
    environment.step(0)
    assert environment.render() == (
        "t=0 s  power=0.3 kW  running=1  waiting=1\n"
        "job 2: training, 100 units, 1 devices, waits 0 s\n"
        "            pool [########  ]     1 of 4 free"
    )
    assert make_environment(make_job(1)).render() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clocks": "best"}, "clocks='best' is not one of 'oracle', 'free'"),
        ({"observation": "pixels"}, "observation='pixels'"),
        ({"illegal_action": "ignore"}, "illegal_action='ignore'"),
        ({"render_mode": "human"}, "render_mode='human'"),
        ({"horizon_seconds": 0.0}, "horizon_seconds=0.0 is not a finite time above 0"),
        ({"max_counts": 0}, "max_counts=0"),
        ({"workload_settings": {"hours": 1}}, "workload settings belong to a generator"),
    ],
)
def test_an_argument_that_cannot_be_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment(make_job(1), **options)


def test_an_unknown_reset_option_and_a_world_without_jobs_are_named() -> None:
    with pytest.raises(ConfigError, match="reset has no option 'hours'"):
        make_environment(make_job(1)).reset(options={"hours": 2})
    with pytest.raises(ConfigError, match="world small has no workload of its own"):
        ClusterEnvironment(make_world())


def test_a_job_with_more_counts_than_there_are_actions_is_refused() -> None:
    environment = make_environment(make_job(1, gpus=(1, 2)), max_counts=1)
    with pytest.raises(ValueRangeError, match="max_counts=2 or more"):
        environment.reset(seed=0)


@pytest.mark.parametrize("name", ["energy", "waiting_watts", "running_watts"])
def test_a_negative_weight_is_refused(name: str) -> None:
    with pytest.raises(ValueRangeError, match=f"reward weight {name}=-1"):
        RewardWeights(**{name: -1.0})
    with pytest.raises(ValueRangeError, match="scale_joules=0"):
        RewardWeights(scale_joules=0.0)
