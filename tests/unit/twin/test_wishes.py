"""What a rule may wish beyond place, width and clock: a node, and a later start. Each node has 4 GPUs."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_worlds import Features, features, random_jobs, random_world
from small_worlds import Answers, RandomRule, ended, make_job, make_pool, make_world, run_jobs, same, started

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Discipline, Placement, PlacementRule, PlaceNode, Postponement
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import SuspendSettings, World

SLEEP = SuspendSettings(idle_seconds=60.0, resume_seconds=0.0, suspended_watts=0.0, resume_watts=0.0)


def two_nodes(**changes: Any) -> World:
    return make_world(make_pool(nodes=2, **changes))


def nodes_of(answers: dict[int, int | None], jobs: list[Any], world: World) -> dict[int, list[int]]:
    """Return free devices by node after each job's start, where each job names a node."""
    free: dict[int, list[int]] = {}

    def place(job: WaitingJob, view: ClusterView) -> Placement:
        free[job.job_id] = [state.free_gpus for state in view.nodes(0)]
        return Placement(0, job.gpu_counts[0], -1, node=answers.get(job.job_id))

    run_jobs(world, [*jobs, make_job(99, submitted=5.0, units=1.0)], Answers(place))
    return free


def test_a_job_takes_the_node_that_a_rule_names() -> None:
    jobs = [make_job(1, units=50.0), make_job(2, submitted=1.0, units=50.0)]
    assert nodes_of({}, jobs, two_nodes())[99] == [2, 4]
    assert nodes_of({2: 1}, jobs, two_nodes())[99] == [3, 3]


@pytest.mark.parametrize("node", [7, -1, 0])
def test_a_node_that_cannot_be_leaves_the_choice_to_the_scheduler(node: int) -> None:
    jobs = [make_job(1, units=50.0, gpus=3), make_job(2, submitted=1.0, units=50.0, gpus=2)]
    assert nodes_of({2: node}, jobs, two_nodes())[99] == [1, 2]


def test_nodes_are_seen_with_the_ends_that_their_jobs_are_expected_to_have() -> None:
    seen: list[list[PlaceNode]] = []

    def place(job: WaitingJob, view: ClusterView) -> Placement:
        seen.append(list(view.nodes(0)))
        return Placement(0, job.gpu_counts[0], -1)

    jobs = [
        make_job(1, units=30.0, gpus=2),
        make_job(2, submitted=1.0, units=10.0),
        make_job(3, submitted=100.0, units=1.0),
    ]
    run_jobs(two_nodes(suspend=SLEEP), jobs, Answers(place))
    assert seen[1] == [PlaceNode(0, 2, True, ((15.0, 2),)), PlaceNode(1, 4, True, ())]
    assert seen[2] == [PlaceNode(0, 4, False, ()), PlaceNode(1, 4, False, ())]


def test_a_job_that_is_put_off_lets_others_go_ahead_and_has_waited() -> None:
    def place(job: WaitingJob, view: ClusterView) -> Placement | Postponement:
        if job.job_id == 1 and view.now_seconds < 30.0:
            return Postponement(30.0)
        return Placement(0, 1, -1)

    jobs = [make_job(1, units=10.0), make_job(2, submitted=1.0, units=10.0)]
    for discipline in (Discipline(backfill="none"), Discipline(backfill="easy")):
        rule = Answers(place)
        rule.discipline = discipline
        outcome = run_jobs(two_nodes(), jobs, rule)
        assert started(outcome) == {1: 30.0, 2: 1.0}
        assert ended(outcome) == {1: 40.0, 2: 11.0}
        assert outcome.eligible_seconds.tolist() == [0.0, 1.0]  # the wait is the job's own


def test_a_job_that_is_put_off_counts_as_waiting_at_the_end() -> None:
    outcome = run_jobs(
        two_nodes(), [make_job(1)], Answers(lambda job, view: Postponement(500.0)), horizon_seconds=100.0
    )
    assert outcome.state == ["PENDING"]
    assert int(outcome.sample_waiting[-1]) == 1


@pytest.mark.parametrize("until", [0.0, -5.0, float("inf"), float("nan")])
def test_a_time_that_cannot_be_leaves_the_job_in_its_queue(until: float) -> None:
    asked: list[float] = []

    def place(job: WaitingJob, view: ClusterView) -> Placement | Postponement:
        asked.append(view.now_seconds)
        return Postponement(until) if len(asked) == 1 else Placement(0, 1, -1)

    outcome = run_jobs(two_nodes(), [make_job(1), make_job(2, submitted=7.0)], Answers(place))
    assert asked[0] == 0.0 and started(outcome)[1] == 7.0


def packed(jobs: list[Any], **given: float) -> Outcome:
    """Return a run on two nodes whose hosts draw 1,000 W while they are awake, and nothing asleep."""
    world = two_nodes(suspend=SLEEP, host_idle_watts=1000.0, host_busy_watts=1000.0)
    text = ",".join(f"{name}={value:g}" for name, value in {"V": 0, "scarcity": 0, "correct": 0, **given}.items())
    return run_jobs(world, jobs, create_rule(f"total-cost:{text}"), horizon_seconds=10_000.0)


def host_seconds(outcome: Outcome) -> float:
    return outcome.joules_by_component["host"] / 1000.0


def test_packing_leaves_a_node_that_empties_soon_alone() -> None:
    # Node 0: two devices until 1,000 s. Node 1: three until 100 s. The fullest node with room is node 1, which would
    # stay awake until 901 s; node 0 stays awake anyway. Both sleep 60 s after their last job.
    jobs = [
        make_job(1, units=2000.0, gpus=2, max_slowdown=0.0),
        make_job(2, units=300.0, gpus=3, max_slowdown=0.0),
        make_job(3, submitted=1.0, units=900.0, max_slowdown=0.0),
    ]
    for options, seconds in (({}, 1060.0 + 961.0), ({"awake_time": 1.0}, 1060.0 + 160.0)):
        outcome = packed(jobs, **options)
        assert ended(outcome) == {1: 1000.0, 2: 100.0, 3: 901.0}
        assert host_seconds(outcome) == pytest.approx(seconds)
        assert outcome.balance_error < 1e-12


def test_a_job_waits_for_room_on_the_node_that_stays_awake() -> None:
    # Node 0 is full: three jobs for long, one until about 100 s. The fifth would open node 1 for its whole run.
    jobs = [make_job(number, units=3000.0) for number in (1, 2, 3)]
    jobs += [make_job(4, units=50.0), make_job(5, submitted=20.0, units=1000.0)]
    at_once, waits = packed(jobs, awake_time=1.0), packed(jobs, awake_time=1.0, max_node_wait=0.5)
    assert started(at_once)[5] == 20.0
    assert started(waits)[5] == pytest.approx(ended(waits)[4] + 1.0)
    assert host_seconds(waits) < host_seconds(at_once) - 900.0
    assert set(waits.state) == {"COMPLETED"}


def test_a_job_with_a_deadline_waits_no_longer_than_that_allows() -> None:
    jobs = [make_job(number, units=3000.0) for number in (1, 2, 3)]
    jobs += [make_job(4, units=50.0), make_job(5, submitted=20.0, units=1000.0, deadline_seconds=1090.0)]
    outcome = packed(jobs, awake_time=1.0, max_node_wait=0.5)
    assert ended(outcome)[5] <= 1090.0


class WishingRule(PlacementRule):
    """Names nodes by chance, some that are not there, and puts jobs off by chance, not always into the future."""

    name = "wishing"

    def __init__(self, rule: RandomRule) -> None:
        self.routes = rule.routes
        self._rule = rule
        self._random = Random(0)

    def begin(self, view: ClusterView, random: Random) -> None:
        self._random = random
        self._rule.begin(view, random)

    def route(self, job: WaitingJob, view: ClusterView) -> int | tuple[int, ...] | None:
        return self._rule.route(job, view)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        if self._random.random() < 0.2:
            return Postponement(view.now_seconds + self._random.uniform(-5.0, 60.0))
        found = self._rule.place(job, view)
        return found if found is None else found._replace(node=self._random.choice((None, -1, 0, 1, 2, 99)))


@given(features)
def test_whatever_is_wished_energy_adds_up_and_no_device_is_used_twice(chosen: Features) -> None:
    world = random_world(chosen)
    rule = WishingRule(RandomRule(routes=chosen.routes, shares=chosen.shares))
    outcome = run_jobs(world, random_jobs(chosen, world, 16), rule, seed=chosen.seed, horizon_seconds=2_000.0)
    assert outcome.balance_error < 1e-9
    assert outcome.job_id.tolist() == list(range(16))
    assert (outcome.energy_joules >= 0.0).all()
    assert float(outcome.gpu_seconds.sum()) <= 2.0 * outcome.total_gpus * outcome.end_seconds * (1.0 + 1e-9)
    assert (outcome.started_seconds >= outcome.submitted_seconds).all()
    assert (outcome.units <= outcome.true_units * (1.0 + 1e-9) + 1e-9).all()


@given(
    features,
    st.sampled_from(
        (
            "awake_time=1",
            "awake_time=1,max_node_wait=0.5",
            "by_place=1,awake_time=0.1,max_node_wait=0.1,slowdown=0.3",
            "type_headroom=0.2,makespan=1000,awake_time=1,max_node_wait=0.5",
        )
    ),
)
def test_packing_is_safe_and_repeatable_in_every_world(chosen: Features, text: str) -> None:
    world = random_world(chosen)

    def once() -> Outcome:
        rule = create_rule(f"total-cost:{text}")
        return run_jobs(world, random_jobs(chosen, world, 16), rule, seed=chosen.seed, horizon_seconds=2_000.0)

    outcome = once()
    assert outcome.balance_error < 1e-9
    assert same(outcome, once())
    assert np.isfinite(outcome.energy_joules).all()
