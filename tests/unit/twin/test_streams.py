"""One seed, separate random streams: a rule that places otherwise meets the same arrivals and failures."""

from random import Random
from typing import Any

import pytest
from small_worlds import Answers, FirstFit, RandomRule, make_job, make_pool, make_world, run_jobs, steps_of

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.twin.engine.disruptions import Disruptions
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import policy_stream, run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import FailureRates, Outage, World

Failure = tuple[str, float, int, int, float]


def failing_world(**changes: Any) -> World:
    return make_world(
        make_pool("a", nodes=3),
        make_pool("b", nodes=2),
        failures=FailureRates(node_mtbf_seconds=4_000.0, gpu_mtbf_seconds=6_000.0, mean_repair_seconds=300.0),
        outages=(Outage(pool="a", at_seconds=500.0, until_seconds=900.0, nodes=1, gpus=2),),
        **changes,
    )


def failures_under(
    rule: PlacementRule, seed: int, monkeypatch: pytest.MonkeyPatch, world: World | None = None
) -> list[Failure]:
    """Return every failure of a run: kind, time, pool, node, repair."""
    found: list[Failure] = []
    fail_node, fail_gpu = Disruptions.fail_node, Disruptions.fail_gpu

    def see_node(self: Disruptions, pool: int, node: int, now: float, until: float) -> None:
        found.append(("node", now, pool, node, until))
        fail_node(self, pool, node, now, until)

    def see_gpu(self: Disruptions, pool: int, node: int, index: int, now: float, until: float) -> None:
        found.append((f"gpu {index}", now, pool, node, until))
        fail_gpu(self, pool, node, index, now, until)

    monkeypatch.setattr(Disruptions, "fail_node", see_node)
    monkeypatch.setattr(Disruptions, "fail_gpu", see_gpu)
    jobs = [
        make_job(number, 20.0 * number, 90.0 + number, number % 4 + 1, exclusive=number % 5 == 0)
        for number in range(60)
    ]
    run_jobs(world or failing_world(), jobs, rule, seed=seed, horizon_seconds=3_000.0)
    monkeypatch.undo()
    return found


@pytest.mark.parametrize(
    "rule",
    [
        FirstFit(clock=0),
        RandomRule(routes=True, control_interval_seconds=7.0),
        Answers(place=lambda job, view: None),
        Answers(place=lambda job, view: Placement(1, 1, 1)),
    ],
)
def test_failures_are_the_same_under_every_rule(rule: PlacementRule, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = failures_under(FirstFit(), 5, monkeypatch)
    assert len(expected) > 10
    assert failures_under(rule, 5, monkeypatch) == expected
    assert failures_under(rule, 6, monkeypatch) != expected


def test_failures_of_one_pool_do_not_depend_on_the_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    priced = failing_world(price_per_kwh={"": steps_of(*([0.1, 0.2] * 20), every=50.0)})
    assert failures_under(FirstFit(), 5, monkeypatch, priced) == failures_under(FirstFit(), 5, monkeypatch)


def arrivals_of(outcome: Outcome) -> list[tuple[int, float, float]]:
    return list(
        zip(outcome.job_id.tolist(), outcome.submitted_seconds.tolist(), outcome.true_units.tolist(), strict=True)
    )


def test_arrivals_and_sizes_are_the_same_under_every_rule_and_failure() -> None:
    settings = {"rate_per_second": 0.01, "hours": 1.0, "ingresses": 2, "median_units": 100.0, "max_gpus": 4}
    workload = create_workload("poisson", settings, 9)
    calm = make_world(make_pool(nodes=4))
    broken = make_world(make_pool(nodes=4), failures=FailureRates(node_mtbf_seconds=2_000.0, mean_repair_seconds=100.0))
    expected = [(job.job_id, job.submitted_seconds, job.true_units) for job in workload.jobs]
    for world in (calm, broken):
        for rule in (FirstFit(), RandomRule()):
            again = create_workload("poisson", settings, 9)
            assert arrivals_of(run(world, again, rule, seed=9, horizon_seconds=5_000.0)) == expected


class Drawing(FirstFit):
    """Draws from its stream and keeps the numbers."""

    def begin(self, view: ClusterView, random: Random) -> None:
        self.drawn: list[float] = []
        self._random = random

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        self.drawn.append(self._random.random())
        return super().place(job, view)


def test_the_rule_s_stream_is_a_matter_of_the_seed_alone() -> None:
    jobs = tuple(make_job(number, submitted=500.0 * number, units=1.0) for number in range(10))
    drawn = []
    for world in (make_world(make_pool(nodes=3)), failing_world()):
        rule = Drawing()
        run(world, Workload(name="small", jobs=jobs), rule, seed=4)
        drawn.append(rule.drawn[:10])
    stream = policy_stream(4)
    assert drawn[0] == drawn[1] == [stream.random() for _ in range(10)]
    assert policy_stream(5).random() != policy_stream(4).random()


def test_a_stream_that_is_handed_in_replaces_the_seed_s() -> None:
    rule = Drawing()
    run(make_world(), Workload(name="small", jobs=(make_job(1),)), rule, seed=4, random=Random(123))
    assert rule.drawn == [Random(123).random()]


def test_a_run_leaves_the_workload_as_it_was() -> None:
    """The same jobs serve run after run: what one run writes on them means nothing to the next."""
    world = failing_world()
    jobs = tuple(make_job(number, 10.0 * number, 50.0) for number in range(20))
    workload = Workload(name="small", jobs=jobs)
    first = run(world, workload, FirstFit(), seed=1)
    run(world, workload, RandomRule(routes=True), seed=2)
    again = run(world, workload, FirstFit(), seed=1)
    assert first.started_seconds.tolist() == again.started_seconds.tolist()
    assert first.place.tolist() == again.place.tolist()
