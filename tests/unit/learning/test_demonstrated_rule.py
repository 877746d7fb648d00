"""What is written down of a teacher: the option and the clock that it took, as the run carries them out."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from small_worlds import (
    Answers,
    make_device,
    make_job,
    make_load,
    make_pool,
    make_world,
    run_jobs,
    same,
    steps_of,
)

from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.graph import schema
from slurm_energy.learning.imitation import DemonstratedRule, Demonstration
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import Partition, World
from slurm_energy.twin.world.device_model import PairSpeed
from slurm_energy.twin.world.file import shipped_world

WORLD = make_world(make_pool("left", nodes=2), make_pool("right"))
DEFAULT = 2


def some_jobs(count: int = 20, **changes: float) -> list[Job]:
    random = Random(7)
    return [
        make_job(
            number,
            submitted=30.0 * number,
            units=random.uniform(20.0, 400.0),
            gpus=random.choice([(1,), (1, 2, 4)]),
            **changes,
        )
        for number in range(1, count + 1)
    ]


def watched(
    teacher: PlacementRule, *, world: World = WORLD, jobs: list[Job] | None = None, every: int = 1, most: int = 1000
) -> tuple[list[Demonstration], Outcome]:
    rule = DemonstratedRule(teacher, every=every, most=most)
    outcome = run_jobs(world, some_jobs() if jobs is None else jobs, rule)
    return rule.demonstrations, outcome


def placing(clock: int = -1) -> Callable[[WaitingJob, ClusterView], Placement | None]:
    """Return answers that take the last place with room."""

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        found = [Placement(place, gpus, clock) for place, gpus in enumerate(view.room(job)) if gpus]
        return found[-1] if found else None

    return place


def test_each_start_is_written_down_with_the_option_and_the_clock_that_the_run_gave_it() -> None:
    random = Random(1)

    def place(job: WaitingJob, view: ClusterView) -> Placement:
        room = view.room(job)
        chosen = random.choice([place for place, most in enumerate(room) if most])
        return Placement(chosen, random.choice([n for n in job.gpu_counts if n <= room[chosen]]), random.randrange(3))

    found, outcome = watched(Answers(place))
    order = np.argsort(outcome.started_seconds, kind="stable")
    assert len(found) == len(order) == 20
    for one, row in zip(found, order, strict=True):
        option = one.options[one.chosen]
        assert (option.partition, option.gpus) == (outcome.place[row], outcome.gpus[row])
        assert one.clock == outcome.clock[row]
    assert {one.clock for one in found} == {0, 1, 2}
    assert {one.chosen for one in found} > {0, 1, 2}


def test_the_state_is_the_one_before_the_start_without_the_job() -> None:
    found, _ = watched(Answers(placing()), jobs=[make_job(1), make_job(2, submitted=5.0), make_job(3, submitted=500.0)])
    allocated = schema.column(schema.GPU, "is_allocated")
    assert [float(one.state.devices.gpu_x[:, allocated].sum()) for one in found] == [0.0, 1.0, 0.0]
    assert [len(one.state.devices.task_x) for one in found] == [0, 1, 0]
    assert [len(one.state.queue.task_x) for one in found] == [0, 0, 0]
    assert [one.state.devices.node_x.shape[0] for one in found] == [3, 3, 3]


def test_a_demonstration_holds_every_option_of_its_decision_block() -> None:
    found, _ = watched(create_rule("greedy"))
    for one in found:
        assert one.decision.option_x.shape[0] == len(one.options) > one.chosen
        assert one.decision.clock_x.shape[0] == sum(len(option.clocks) for option in one.options)
        gpus = one.decision.option_x[:, schema.column(schema.OPTION, "gpus")]
        assert np.all(np.diff(gpus[: len({option.gpus for option in one.options})]) >= 0.0)


@pytest.mark.parametrize(
    ("every", "most", "expected"), [(1, 100, 20), (3, 100, 6), (20, 100, 1), (21, 100, 0), (1, 7, 7)]
)
def test_one_start_in_so_many_is_written_down_up_to_a_number(every: int, most: int, expected: int) -> None:
    everything, _ = watched(create_rule("masked-random"))
    found, _ = watched(create_rule("masked-random"), every=every, most=most)
    assert len(found) == expected
    taken = everything[every - 1 :: every][:most]
    assert [(one.chosen, one.clock) for one in found] == [(one.chosen, one.clock) for one in taken]


@pytest.mark.parametrize(
    "teacher", ["masked-random", "slurm-default", "dp", "ucb1", "cap-greedy", "adaptive-price:run=90"]
)
def test_watching_leaves_every_figure_of_the_run_as_it_is(teacher: str) -> None:
    world = make_world(
        make_pool("left", nodes=2), make_pool("right"), power_budget_watts=steps_of(1500.0, 900.0, every=400.0)
    )
    alone = run_jobs(world, some_jobs(), create_rule(teacher), seed=3)
    rule = DemonstratedRule(create_rule(teacher))
    assert same(run_jobs(world, some_jobs(), rule, seed=3), alone)
    assert rule.demonstrations


def test_a_watched_rule_has_its_teacher_s_ways() -> None:
    for text in ("fcfs", "sjf-backfill", "dp", "cap-uniform", "ucb1", "daemon/oracle"):
        teacher = create_contender(text)
        rule = DemonstratedRule(teacher)
        for name in ("name", "version", "routes", "discipline", "control_interval_seconds", "observes_ends"):
            assert getattr(rule, name) == getattr(teacher, name), (text, name)


def test_what_the_teacher_learns_at_an_end_reaches_it() -> None:
    class Counting(Answers):
        observes_ends = True
        ended_jobs = 0

        def ended(self, job: EndedJob) -> None:
            self.ended_jobs += 1

    alone, teacher = Counting(placing()), Counting(placing())
    run_jobs(WORLD, some_jobs(), alone)
    watched(teacher)
    assert teacher.ended_jobs == alone.ended_jobs > 10


def test_a_job_that_waits_is_no_decision() -> None:
    answers = iter([None, Placement(0, 1, 0), Placement(1, 1, 1)])
    found, outcome = watched(Answers(lambda job, view: next(answers)), jobs=[make_job(1), make_job(2, submitted=9.0)])
    assert outcome.declined == 1
    assert [(one.options[one.chosen].partition, one.clock) for one in found] == [(0, 0), (1, 1)]


def test_a_clock_that_the_guard_raises_is_written_down_as_it_is_carried_out() -> None:
    jobs = some_jobs(max_slowdown=1.0)
    found, outcome = watched(Answers(placing(clock=0)), jobs=jobs)
    assert outcome.clamped == len(jobs)
    assert [one.clock for one in found] == outcome.clock.tolist() == [1] * len(jobs)


@pytest.mark.parametrize(("asked", "carried_out"), [(-1, DEFAULT), (DEFAULT, DEFAULT), (77, DEFAULT), (-9, 0), (0, 0)])
def test_a_clock_off_the_grid_is_the_nearest_on_it(asked: int, carried_out: int) -> None:
    (one,), outcome = watched(Answers(placing(clock=asked)), jobs=[make_job(1)])
    assert one.clock == outcome.clock[0] == carried_out


def test_a_partition_s_limit_raises_the_clock_that_is_written_down() -> None:
    limited = make_world(partitions=(Partition(name="pool", pools=("pool",), max_time_seconds=300.0),))
    (one,), outcome = watched(Answers(placing(clock=0)), world=limited, jobs=[make_job(1)])
    assert one.clock == outcome.clock[0] == 1
    assert one.options[one.chosen].clocks[one.clock].open


def test_a_job_beside_another_on_one_gpu_is_no_option_and_not_written_down() -> None:
    pair = PairSpeed(speed=0.7, partner_speed=0.7, watts=240.0)
    world = make_world(
        make_pool(gpus_per_node=2, jobs_per_gpu=2),
        devices=(make_device(loads={"training": make_load()}, pairs={("training", "training"): pair}),),
    )
    jobs = [make_job(1, shareable=True), make_job(2, submitted=5.0, shareable=True)]
    answers = {1: Placement(0, 1, -1), 2: Placement(0, 1, -1, partner=1)}
    found, outcome = watched(Answers(lambda job, view: answers[job.job_id]), world=world, jobs=jobs)
    assert outcome.started_seconds.tolist() == [0.0, 5.0]
    assert outcome.ended_seconds[0] > 100.0, "it did not share"
    assert len(found) == 1


def test_an_answer_that_cannot_be_is_not_written_down() -> None:
    answers = iter([Placement(0, 3, -1), Placement(7, 1, -1), Placement(0, 1, -1)])
    found, outcome = watched(Answers(lambda job, view: next(answers)), jobs=[make_job(1), make_job(2, submitted=9.0)])
    assert outcome.clamped == 2
    assert len(found) == 1


@pytest.mark.parametrize("teacher", ["price:V=20", "greedy", "masked-random", "clairvoyant"])
def test_what_is_learned_from_is_always_open_to_choice(teacher: str) -> None:
    """A closed clock or option has no probability: the loss on it teaches nothing."""
    world = shipped_world("tum128")
    workload = create_workload(world.workload, {**world.workload_settings, "hours": 0.2}, 1)
    rule = DemonstratedRule(create_rule(teacher))
    outcome = run(world, Workload(name="some", jobs=workload.jobs), rule, seed=1, horizon_seconds=900.0)
    assert len(rule.demonstrations) == np.count_nonzero(np.isfinite(outcome.started_seconds)) > 40
    for one in rule.demonstrations:
        assert one.options[one.chosen].open and one.options[one.chosen].clocks[one.clock].open


def test_what_was_written_down_stays_when_another_run_begins() -> None:
    rule = DemonstratedRule(create_rule("greedy"))
    for _ in range(2):
        run_jobs(WORLD, some_jobs(), rule)
    half = len(rule.demonstrations) // 2
    assert half == 20
    for one, again in zip(rule.demonstrations[:half], rule.demonstrations[half:], strict=True):
        assert (one.chosen, one.clock) == (again.chosen, again.clock)
        assert np.array_equal(one.state.devices.gpu_x, again.state.devices.gpu_x)
        assert np.array_equal(one.decision.job_x, again.decision.job_x)
