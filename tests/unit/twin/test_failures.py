"""Nodes and GPUs that fail and come back, and what becomes of the jobs on them."""

from typing import Any

import pytest
from small_worlds import (
    Answers,
    FirstFit,
    drive,
    ended,
    joules,
    make_device,
    make_engine,
    make_job,
    make_pool,
    make_world,
    run_jobs,
    started,
    states,
)

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Discipline, Placement
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.world import FailureRates, Outage, World

NONE = Discipline(backfill="none")


def node_outage(at: float, until: float = float("inf"), nodes: int = 1, **changes: Any) -> Outage:
    return Outage(pool="pool", at_seconds=at, until_seconds=until, nodes=nodes, **changes)


def test_a_job_on_a_failed_node_starts_over_when_the_node_is_back() -> None:
    outcome = run_jobs(make_world(outages=(node_outage(30.0, 50.0),)), [make_job(1, units=100.0)])
    assert (started(outcome), ended(outcome)) == ({1: 0.0}, {1: 150.0})
    assert outcome.last_started_seconds.tolist() == [50.0]
    assert outcome.restarts.tolist() == [1]
    assert outcome.units_lost.tolist() == [pytest.approx(30.0)]
    assert outcome.units.tolist() == [100.0]
    assert outcome.run_seconds.tolist() == [pytest.approx(130.0)]
    assert outcome.gpu_seconds.tolist() == [pytest.approx(130.0)]
    assert joules(outcome) == {1: pytest.approx(130.0 * 200.0)}
    assert outcome.joules_by_component["idle"] == pytest.approx(3 * 10.0 * 130.0)
    assert outcome.disruptions == 1


def test_a_job_of_a_failed_node_moves_to_another_that_is_free() -> None:
    outcome = run_jobs(make_world(make_pool(nodes=2), outages=(node_outage(30.0),)), [make_job(1, units=400.0, gpus=4)])
    assert ended(outcome)[1] in {100.0, 130.0}
    assert outcome.balance_error < 1e-12


def test_a_node_that_is_down_draws_nothing() -> None:
    world = make_world(make_pool(host_idle_watts=100.0, host_busy_watts=100.0), outages=(node_outage(10.0, 60.0),))
    outcome = run_jobs(world, [], horizon_seconds=100.0)
    assert outcome.joules_by_component["idle"] == pytest.approx(40.0 * 50.0)
    assert outcome.joules_by_component["host"] == pytest.approx(100.0 * 50.0)


@pytest.mark.parametrize(("world_requeues", "job_requeues"), [(False, True), (True, False)])
def test_without_requeue_the_job_ends_node_fail(world_requeues: bool, job_requeues: bool) -> None:
    world = make_world(requeue=world_requeues, outages=(node_outage(30.0, 50.0),))
    jobs = [
        make_job(1, units=100.0, requeue=job_requeues),
        make_job(2, units=5.0, after_any=(1,)),
        make_job(3, after_ok=(1,)),
    ]
    outcome = run_jobs(world, jobs)
    assert states(outcome) == {1: "NODE_FAIL", 2: "COMPLETED", 3: "CANCELLED"}
    assert ended(outcome)[1] == 30.0
    assert outcome.units.tolist()[0] == pytest.approx(30.0)
    assert started(outcome)[2] == 50.0


@pytest.mark.parametrize(("checkpoint", "kept"), [(20.0, 20.0), (30.0, 30.0), (31.0, 0.0), (7.0, 28.0)])
def test_a_job_repeats_what_no_checkpoint_holds(checkpoint: float, kept: float) -> None:
    world = make_world(outages=(node_outage(30.0, 50.0),))
    outcome = run_jobs(world, [make_job(1, units=100.0, checkpoint_units=checkpoint)])
    assert ended(outcome) == {1: pytest.approx(50.0 + 100.0 - kept)}
    assert outcome.units_lost.tolist() == [pytest.approx(30.0 - kept)]


def test_checkpoints_of_several_starts_add_up() -> None:
    world = make_world(outages=(node_outage(25.0, 30.0), node_outage(55.0, 60.0)))
    outcome = run_jobs(world, [make_job(1, units=100.0, checkpoint_units=10.0)])
    assert ended(outcome) == {1: pytest.approx(60.0 + 100.0 - 40.0)}
    assert outcome.units_lost.tolist() == [pytest.approx(10.0)]
    assert outcome.restarts.tolist() == [2]


def test_a_time_limit_counts_anew_after_a_requeue() -> None:
    world = make_world(outages=(node_outage(30.0, 50.0),))
    outcome = run_jobs(world, [make_job(1, units=100.0, time_limit_seconds=100.0)])
    assert (states(outcome), ended(outcome)) == ({1: "COMPLETED"}, {1: 150.0})


def test_a_requeued_job_is_in_front_of_jobs_that_came_after_it() -> None:
    world = make_world(make_pool(gpus_per_node=1), outages=(node_outage(5.0, 8.0),), discipline=NONE)
    jobs = [make_job(1, units=10.0), make_job(2, submitted=1.0, units=10.0)]
    assert ended(run_jobs(world, jobs)) == {1: 18.0, 2: 28.0}


def test_a_failed_gpu_takes_its_job_and_leaves_the_node() -> None:
    outage = Outage(pool="pool", at_seconds=10.0, until_seconds=110.0, gpus=1)
    jobs = [make_job(1, units=400.0, gpus=4), make_job(2, submitted=20.0, units=9.0, gpus=3)]
    outcome = run_jobs(make_world(outages=(outage,), discipline=Discipline(backfill="easy")), jobs)
    assert outcome.restarts.tolist() == [1, 0]
    assert started(outcome)[2] == 20.0
    assert ended(outcome) == {1: 210.0, 2: 23.0}
    assert outcome.joules_by_component["idle"] == pytest.approx(10.0 * (3 * 10.0 + 3 * (110.0 - 23.0)))


def test_a_failed_gpu_that_nobody_uses_takes_no_job() -> None:
    outages = (Outage(pool="pool", at_seconds=10.0, until_seconds=20.0, gpus=4),)
    world = make_world(make_pool(), outages=outages)
    outcome = run_jobs(world, [make_job(1, submitted=15.0, units=1.0)])
    assert started(outcome) == {1: 20.0}
    assert outcome.disruptions == 4


def test_a_gpu_of_an_exclusive_job_that_it_does_not_compute_on_takes_it_too() -> None:
    world = make_world(outages=(Outage(pool="pool", at_seconds=10.0, until_seconds=20.0, gpus=4),))
    outcome = run_jobs(world, [make_job(1, units=30.0, exclusive=True)])
    assert (ended(outcome), outcome.disruptions) == ({1: 50.0}, 4)


def test_a_job_over_two_nodes_dies_with_one_of_them_and_frees_the_other() -> None:
    world = make_world(make_pool(nodes=2), outages=(node_outage(10.0, 100.0),), discipline=Discipline(backfill="easy"))
    jobs = [make_job(1, units=400.0, gpus=8), make_job(2, submitted=1.0, units=40.0, gpus=4)]
    outcome = run_jobs(world, jobs)
    assert started(outcome)[2] == 10.0
    assert ended(outcome) == {1: 150.0, 2: 20.0}


def test_a_node_that_fails_with_a_broken_gpu_comes_back_whole_after_both_repairs() -> None:
    outages = (
        Outage(pool="pool", at_seconds=10.0, until_seconds=50.0, gpus=1),
        node_outage(20.0, 30.0),
    )
    outcome = run_jobs(make_world(outages=outages), [make_job(1, submitted=25.0, units=40.0, gpus=4)])
    assert started(outcome) == {1: 50.0}
    assert outcome.joules_by_component["idle"] == pytest.approx(10.0 * (4 * 10.0 + 3 * 10.0 + 3 * 20.0))


def test_a_gpu_that_is_repaired_while_its_node_is_down_comes_back_with_it() -> None:
    outages = (Outage(pool="pool", at_seconds=10.0, until_seconds=40.0, gpus=1), node_outage(20.0, 60.0))
    outcome = run_jobs(make_world(outages=outages), [make_job(1, submitted=25.0, units=40.0, gpus=4)])
    assert started(outcome) == {1: 60.0}
    assert outcome.balance_error < 1e-12


def test_an_outage_hits_only_nodes_that_are_up() -> None:
    world = make_world(make_pool(nodes=3), outages=(node_outage(10.0, nodes=2), node_outage(20.0, nodes=2)))
    seen: dict[float, int] = {}

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen[view.now_seconds] = view.free_gpus[0]
        return FirstFit().place(job, view)

    outcome = run_jobs(
        world, [make_job(1, submitted=15.0, units=1.0), make_job(2, submitted=25.0)], Answers(place=place)
    )
    assert seen == {15.0: 4}
    assert outcome.disruptions == 3


def test_mean_time_between_failures_is_per_node() -> None:
    world = make_world(
        make_pool(nodes=50), failures=FailureRates(node_mtbf_seconds=100_000.0, mean_repair_seconds=10.0)
    )
    counts = [run_jobs(world, [], seed=seed, horizon_seconds=100_000.0).disruptions for seed in range(8)]
    assert sum(counts) == pytest.approx(8 * 50, rel=0.15)


def test_mean_time_between_failures_is_per_gpu_and_sockets_have_none() -> None:
    pools = (make_pool(nodes=10), make_pool("cpus", device="cpu", nodes=100))
    world = make_world(
        *pools,
        devices=[make_device(), make_device("cpu", is_cpu=True)],
        failures=FailureRates(gpu_mtbf_seconds=100_000.0, mean_repair_seconds=10.0),
    )
    counts = [run_jobs(world, [], seed=seed, horizon_seconds=100_000.0).disruptions for seed in range(8)]
    assert sum(counts) == pytest.approx(8 * 40, rel=0.15)


def broken_and_down(world: World, seed: int) -> list[tuple[float, int, tuple[int, ...], tuple[int, ...]]]:
    """Return (time, place's free devices, broken, power) as they are seen at a fixed rhythm."""
    found = []

    def look(engine: Engine) -> None:
        pool = engine._execution.pools[0]
        found.append((engine.now, engine.view.free_gpus[0], tuple(pool.broken), tuple(pool.power)))

    rule = Answers(control=lambda view: {}, control_interval_seconds=500.0)
    drive(make_engine(world, [], rule, seed=seed, horizon=20_000.0), rule, look)
    return found


def test_random_failures_are_a_matter_of_the_seed() -> None:
    rates = FailureRates(node_mtbf_seconds=20_000.0, gpu_mtbf_seconds=40_000.0, mean_repair_seconds=3_000.0)
    world = make_world(make_pool(nodes=4), failures=rates)
    assert broken_and_down(world, 1) == broken_and_down(world, 1)
    assert broken_and_down(world, 1) != broken_and_down(world, 2)
    assert any(any(broken) for _, _, broken, _ in broken_and_down(world, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"at_seconds": -1.0},
        {"at_seconds": float("nan")},
        {"at_seconds": 10.0, "until_seconds": 10.0},
        {"at_seconds": 10.0, "until_seconds": 5.0},
        {"at_seconds": 10.0, "nodes": -1},
        {"at_seconds": 10.0, "gpus": -1},
    ],
)
def test_an_outage_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueRangeError, match="outage of pool pool"):
        Outage(pool="pool", **changes)


@pytest.mark.parametrize("name", ["node_mtbf_seconds", "gpu_mtbf_seconds", "mean_repair_seconds"])
@pytest.mark.parametrize("value", [0.0, -5.0, float("nan")])
def test_a_failure_rate_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueRangeError, match=name):
        FailureRates(**{name: value})
