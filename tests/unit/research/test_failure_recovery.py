"""How soon jobs run again that failed devices took off, on clusters that can be followed by hand."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from results_samples import make_case, world_in
from small_worlds import Answers, FirstFit, RandomRule, make_job, make_pool, make_world, run_jobs, same, states

from research.results.cases import plan_of
from research.results.failure_recovery import WatchedRule, can_fail, recovery_figures
from research.results.measuring import measured_run
from slurm_energy.evaluation.arena.run import finished_run
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Discipline, Placement, PlacementRule, Postponement
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import FailureRates, Outage, World

Answer = Placement | Postponement | None
FAILURE = Outage(pool="pool", at_seconds=30.0, until_seconds=50.0, nodes=1)
OUTAGE = """
[[outages]]
pool = "one"
at_seconds = 900
until_seconds = 1200
nodes = 2
"""


def answers(*first: Callable[[float], Answer], after_seconds: float = 0.0) -> Answers:
    """Return a rule that gives these answers, each once, to what is asked after a time; else first fit."""
    left = list(first)

    def place(job: WaitingJob, view: ClusterView) -> Answer:
        if left and view.now_seconds > after_seconds:
            return left.pop(0)(view.now_seconds)
        return FirstFit().place(job, view)

    return Answers(place)


def later(now: float) -> Answer:
    return Postponement(now + 5.0)


def no_such_place(now: float) -> Answer:
    return Placement(7, 1, -1)


def watched(world: World, jobs: list[Job], rule: PlacementRule) -> tuple[dict[str, float], Outcome]:
    watch = WatchedRule(rule)
    outcome = run_jobs(world, jobs, watch)
    return recovery_figures(watch, outcome), outcome


def test_a_job_that_is_put_off_twice_is_back_with_the_third_decision() -> None:
    world = make_world(outages=(FAILURE,))
    found, outcome = watched(world, [make_job(1)], answers(later, later, after_seconds=30.0))
    assert found == {"max_decisions_until_restart": 3.0, "interrupted_jobs_not_restarted": 0.0}
    assert outcome.last_started_seconds.tolist() == [60.0]


def test_a_job_that_waits_and_one_that_is_refused_are_asked_about_at_the_next_change() -> None:
    """The node is back at 50; devices are freed or jobs come at 60 and 70."""
    world = make_world(outages=(FAILURE,))
    jobs = [make_job(1), make_job(2, submitted=60.0), make_job(3, submitted=70.0)]
    found, outcome = watched(world, jobs, answers(lambda _: None, no_such_place, after_seconds=30.0))
    assert found == {"max_decisions_until_restart": 3.0, "interrupted_jobs_not_restarted": 0.0}
    assert outcome.last_started_seconds.tolist()[0] == 70.0


def test_what_was_refused_before_the_first_start_does_not_count() -> None:
    world = make_world(outages=(FAILURE,))
    jobs = [make_job(1), make_job(2, submitted=20.0)]
    found, outcome = watched(world, jobs, answers(later, later, no_such_place, after_seconds=-1.0))
    assert (outcome.started_seconds.tolist(), outcome.restarts.tolist()) == ([20.0, 20.0], [1, 1])
    assert found == {"max_decisions_until_restart": 1.0, "interrupted_jobs_not_restarted": 0.0}


def test_starts_that_backfill_refuses_count() -> None:
    """Job 1 keeps a node until 100 s, then job 3 goes first and needs both: job 2 would fit at 50 s and delay it."""
    world = make_world(make_pool(nodes=2), outages=(FAILURE,))
    jobs = [
        make_job(1, units=400.0, gpus=4, priority=2.0),
        make_job(2, units=400.0, gpus=2),
        make_job(3, submitted=10.0, units=400.0, gpus=8, priority=1.0),
    ]
    found, outcome = watched(world, jobs, FirstFit())
    assert outcome.restarts.tolist() == [0, 1, 0]
    assert outcome.last_started_seconds.tolist() == [0.0, 150.0, 100.0]
    assert found == {"max_decisions_until_restart": 2.0, "interrupted_jobs_not_restarted": 0.0}


def test_the_most_of_all_times_that_a_job_was_taken_off_is_told() -> None:
    again = replace(FAILURE, at_seconds=80.0, until_seconds=90.0)
    world = make_world(outages=(FAILURE, again))
    found, outcome = watched(world, [make_job(1)], answers(later, later, after_seconds=80.0))
    assert outcome.restarts.tolist() == [2]
    assert found["max_decisions_until_restart"] == 3.0, "not 1 + 3, and not the first time's 1"


def test_a_job_that_is_never_started_again_is_lost() -> None:
    forever = replace(FAILURE, until_seconds=inf)
    found, outcome = watched(make_world(outages=(forever,)), [make_job(1)], FirstFit())
    assert (states(outcome), found) == (
        {1: "PENDING"},
        {"max_decisions_until_restart": 0.0, "interrupted_jobs_not_restarted": 1.0},
    )
    ended, outcome = watched(make_world(outages=(FAILURE,), requeue=False), [make_job(1)], FirstFit())
    assert (states(outcome), ended["interrupted_jobs_not_restarted"]) == ({1: "NODE_FAIL"}, 1.0)


def test_where_no_job_was_hit_nothing_is_told() -> None:
    found, _ = watched(make_world(outages=(FAILURE,)), [make_job(1, units=10.0)], FirstFit())
    assert found == {}


@pytest.mark.parametrize("backfill", ["none", "easy"])
@pytest.mark.parametrize("routes", [False, True])
def test_a_watched_rule_makes_the_same_run(backfill: str, routes: bool) -> None:
    world = make_world(
        make_pool(nodes=2),
        make_pool("other"),
        make_pool("third"),
        outages=(FAILURE,),
        discipline=Discipline(backfill="easy" if backfill == "easy" else "none"),
        failures=FailureRates(gpu_mtbf_seconds=2_000.0, mean_repair_seconds=100.0),
    )

    def outcome(watch: Callable[[PlacementRule], PlacementRule]) -> Outcome:
        jobs = [make_job(number, 3.0 * number, 40.0 + number, (1, 2, 4)) for number in range(60)]
        rule = RandomRule(routes=routes, control_interval_seconds=20.0)
        return run_jobs(world, jobs, watch(rule), seed=3)

    plain, observed = outcome(lambda rule: rule), outcome(WatchedRule)
    assert plain.restarts.sum() > 0
    assert same(plain, observed)


@pytest.mark.parametrize("text", ["fcfs", "total-cost:V=20", "adaptive-price", "daemon/oracle", "masked-random"])
def test_a_watched_contender_makes_the_same_run(tmp_path: Path, text: str) -> None:
    world = Path(world_in(tmp_path))
    world.write_text(world.read_text() + OUTAGE)
    plan = plan_of(str(world), hours=0.5, drain=True)
    plain = finished_run(plan, text, text, 1)
    observed = finished_run(plan, text, text, 1, rule=WatchedRule(create_contender(text)))
    assert plain.outcome.restarts.sum() > 0
    assert same(plain.outcome, observed.outcome)


def test_a_watched_rule_looks_like_the_rule() -> None:
    rule = create_contender("adaptive-price")
    watch = WatchedRule(rule)
    names = [name for name, value in vars(PlacementRule).items() if not name.startswith("_") and not callable(value)]
    assert "discipline" in names and "observes_ends" in names
    assert {name: getattr(watch, name) for name in names} == {name: getattr(rule, name) for name in names}


def test_only_a_disturbed_case_whose_devices_fail_tells_of_hit_jobs(tmp_path: Path) -> None:
    calm = world_in(tmp_path)
    failing = tmp_path / "failing.toml"
    failing.write_text(Path(calm).read_text() + OUTAGE)
    plan = plan_of(str(failing), hours=0.5, drain=True)
    case = make_case(plan=plan, undisturbed="calm", merit=None)
    found = measured_run(case, "fcfs", "fcfs", 1)
    assert found["max_decisions_until_restart"] >= 1.0
    assert found["interrupted_jobs_not_restarted"] == 0.0
    others = (replace(case, undisturbed=""), replace(case, plan=replace(plan, world=calm)))
    for other in others:
        assert (
            not {"max_decisions_until_restart", "interrupted_jobs_not_restarted"}
            & measured_run(other, "fcfs", "fcfs", 1).keys()
        )


def test_failures_are_planned_or_random() -> None:
    assert not can_fail(make_world())
    assert can_fail(make_world(outages=(FAILURE,)))
    assert can_fail(make_world(failures=FailureRates(node_mtbf_seconds=1e6)))
    assert can_fail(make_world(failures=FailureRates(gpu_mtbf_seconds=1e6)))
