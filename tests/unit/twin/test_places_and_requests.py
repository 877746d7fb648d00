"""Which jobs run where: GPU types, malleable requests, pools and partitions that overlap, CPUs, whole nodes."""

from typing import Any, Literal

import pytest
from small_worlds import (
    Answers,
    FirstFit,
    ended,
    joules,
    make_device,
    make_engine,
    make_job,
    make_load,
    make_pool,
    make_world,
    run_jobs,
    started,
    states,
)

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Discipline, Placement
from slurm_energy.twin.engine.job import plain_job
from slurm_energy.twin.engine.places import OptionTables, places_of
from slurm_energy.twin.world import Partition, World
from slurm_energy.twin.world.device_model import Scaling

SLOW = make_device("slow", loads={"training": make_load(seconds_per_unit=(12.0, 6.0, 3.0))}, free_watts=5.0)
NONE = Discipline(backfill="none")


def mixed(**changes: Any) -> World:
    """Return one partition over a pool of fast and a pool of slow devices."""
    pools = (make_pool("fast", gpus_per_node=2), make_pool("slow", device="slow", gpus_per_node=2))
    values = {"partitions": (Partition(name="all", pools=("fast", "slow")),), "devices": [make_device(), SLOW]}
    return make_world(*pools, **{**values, **changes})


def test_places_are_the_pools_of_each_partition_in_order() -> None:
    world = mixed(
        partitions=(Partition(name="all", pools=("fast", "slow")), Partition(name="cheap", pools=("slow",))),
    )
    assert run_jobs(world, []).places == ("all/fast", "all/slow", "cheap")


def test_a_job_gets_the_device_type_that_it_asks_for() -> None:
    outcome = run_jobs(mixed(), [make_job(1, units=10.0, devices=("slow",)), make_job(2, units=10.0)])
    assert outcome.place.tolist() == [1, 0]
    assert ended(outcome) == {1: 30.0, 2: 10.0}


def test_a_job_moves_on_to_the_next_pool_of_its_partition_when_the_first_is_full() -> None:
    outcome = run_jobs(mixed(), [make_job(number, units=10.0, gpus=2) for number in (1, 2, 3)])
    assert outcome.place.tolist() == [0, 1, 0]
    assert started(outcome) == {1: 0.0, 2: 0.0, 3: 5.0}


def test_a_job_does_not_span_two_pools() -> None:
    assert states(run_jobs(mixed(), [make_job(1, gpus=3)])) == {1: "REJECTED"}


def test_a_kind_runs_only_where_a_device_has_it() -> None:
    loads = {"training": make_load(), "graph": make_load()}
    world = mixed(devices=[make_device(), make_device("slow", loads=loads)])
    assert run_jobs(world, [make_job(1, kind="graph")]).place.tolist() == [1]


def test_work_that_needs_more_memory_than_a_device_has_does_not_run_there() -> None:
    small = make_device(memory_gib=16.0, loads={"training": make_load(memory_gib=24.0)})
    large = make_device("slow", memory_gib=80.0, loads={"training": make_load(memory_gib=24.0)})
    assert run_jobs(mixed(devices=[small, large]), [make_job(1)]).place.tolist() == [1]


def test_a_malleable_job_takes_what_is_free_and_a_rigid_one_waits() -> None:
    world = make_world(make_pool(gpus_per_node=8), discipline=NONE)
    jobs = [
        make_job(1, units=30.0, gpus=3),
        make_job(2, units=50.0, gpus=tuple(range(2, 9))),
        make_job(3, units=8.0, gpus=8),
    ]
    outcome = run_jobs(world, jobs)
    assert outcome.gpus.tolist() == [3, 5, 8]
    assert ended(outcome) == {1: 10.0, 2: 10.0, 3: 11.0}


def test_a_malleable_job_waits_for_its_least_count() -> None:
    jobs = [make_job(1, units=30.0, gpus=3), make_job(2, units=50.0, gpus=(2, 4))]
    outcome = run_jobs(make_world(discipline=NONE), jobs)
    assert started(outcome) == {1: 0.0, 2: 10.0}
    assert outcome.gpus.tolist() == [3, 4]


def test_a_count_that_the_job_may_not_have_becomes_the_next_smaller() -> None:
    rule = Answers(place=lambda job, view: Placement(0, 3, -1))
    outcome = run_jobs(make_world(), [make_job(1, gpus=(1, 2, 4))], rule)
    assert (outcome.gpus.tolist(), outcome.clamped) == ([2], 1)


def test_two_partitions_over_one_pool_share_its_devices() -> None:
    world = make_world(
        make_pool(), partitions=(Partition(name="a", pools=("pool",)), Partition(name="b", pools=("pool",)))
    )
    seen: list[list[int]] = []

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen.append(list(view.free_gpus))
        return FirstFit().place(job, view)

    jobs = [make_job(1, units=30.0, gpus=3, partitions=("a",)), make_job(2, units=20.0, gpus=2, partitions=("b",))]
    outcome = run_jobs(world, jobs, Answers(place=place))
    assert started(outcome) == {1: 0.0, 2: 10.0}
    assert seen == [[4, 4], [4, 4]]
    assert outcome.total_gpus == 4
    assert outcome.total_joules == pytest.approx(3 * 200 * 10 + 10 * 10 + 2 * 200 * 10 + 2 * 10 * 10)


def test_a_place_of_cpus_runs_jobs_on_its_sockets() -> None:
    cpu = make_device(
        "cpu",
        is_cpu=True,
        loads={"training": make_load(watts=(90.0, 100.0, 150.0), seconds_per_unit=(40.0, 20.0, 10.0))},
        free_watts=40.0,
        context_watts=40.0,
    )
    pools = (make_pool("gpus"), make_pool("cpus", device="cpu", gpus_per_node=2))
    outcome = run_jobs(
        make_world(*pools, devices=[make_device(), cpu]), [make_job(1, units=10.0, partitions=("cpus",))]
    )
    assert ended(outcome) == {1: 100.0}
    assert joules(outcome) == {1: pytest.approx(15_000.0)}
    assert (outcome.total_gpus, outcome.total_cpu_sockets) == (4, 2)
    assert outcome.place_is_cpu == (False, True)


def test_an_exclusive_job_keeps_others_off_and_its_unused_devices_stay_idle() -> None:
    world = make_world(make_pool(nodes=2, host_idle_watts=100.0, host_busy_watts=180.0), discipline=NONE)
    jobs = [make_job(1, units=10.0, exclusive=True), make_job(2, units=8.0, gpus=4), make_job(3, units=1.0)]
    outcome = run_jobs(world, jobs)
    assert started(outcome) == {1: 0.0, 2: 0.0, 3: 2.0}
    assert joules(outcome)[1] == pytest.approx(2_000.0)
    idle = 10.0 * (3 * 10.0 + 4 * 8.0 - 1.0)
    assert outcome.joules_by_component["idle"] == pytest.approx(idle)
    host = 200.0 * 10.0 + 20.0 * 10.0 + 80.0 * 2.0 + 20.0 * 1.0
    assert outcome.joules_by_component["host"] == pytest.approx(host)


def test_jobs_share_a_node_while_its_cpus_last() -> None:
    world = make_world(make_pool(cpus_per_node=10), discipline=NONE)
    jobs = [make_job(number, units=10.0, cpus=4) for number in (1, 2, 3)]
    outcome = run_jobs(world, jobs)
    assert started(outcome) == {1: 0.0, 2: 0.0, 3: 10.0}
    assert outcome.cpu_seconds.tolist() == [40.0] * 3


def test_jobs_share_a_node_while_its_memory_lasts() -> None:
    world = make_world(make_pool(memory_gib_per_node=100.0), discipline=NONE)
    jobs = [make_job(number, units=10.0, memory_gib=50.0) for number in (1, 2, 3)]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 0.0, 3: 10.0}


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({"cpus": 11}, "REJECTED"),
        ({"memory_gib": 101.0}, "REJECTED"),
        ({"cpus": 10, "memory_gib": 100.0}, "COMPLETED"),
        ({"gpus": 8, "cpus": 20, "memory_gib": 200.0}, "COMPLETED"),
        ({"gpus": 5, "cpus": 13}, "REJECTED"),
        ({"gpus": 5, "cpus": 12}, "COMPLETED"),
        ({"gpus": 5, "memory_gib": 126.0}, "REJECTED"),
        ({"gpus": 4, "cpus": 20, "spread": True}, "COMPLETED"),
        ({"gpus": 4, "cpus": 21, "spread": True}, "REJECTED"),
        ({"gpus": 1, "cpus": 10, "exclusive": True}, "COMPLETED"),
    ],
)
def test_a_job_is_rejected_exactly_when_empty_nodes_would_not_hold_it(job: dict[str, Any], state: str) -> None:
    world = make_world(make_pool(nodes=2, cpus_per_node=10, memory_gib_per_node=100.0))
    assert run_jobs(world, [make_job(1, **job)]).state == [state]


def test_a_routed_job_waits_in_its_place_only() -> None:
    world = make_world(make_pool("a", gpus_per_node=1), make_pool("b", gpus_per_node=1), discipline=NONE)
    seen: list[list[int]] = []

    def route(job: WaitingJob, view: ClusterView) -> int:
        seen.append(list(view.waiting_jobs))
        return 0

    outcome = run_jobs(world, [make_job(number, units=10.0) for number in (1, 2, 3)], Answers(route=route))
    assert outcome.place.tolist() == [0, 0, 0]
    assert started(outcome) == {1: 0.0, 2: 10.0, 3: 20.0}
    assert seen == [[0, 0], [1, 0], [2, 0]]


def test_a_job_may_be_routed_to_several_places_also_beyond_the_default_partition() -> None:
    pools = (make_pool("a", gpus_per_node=1), make_pool("b", gpus_per_node=1), make_pool("c", gpus_per_node=1))
    partitions = tuple(Partition(name=name, pools=(name,), is_default=name == "a") for name in ("a", "b", "c"))
    world = make_world(*pools, partitions=partitions, discipline=NONE)
    jobs = [make_job(number, units=10.0) for number in (1, 2, 3)]
    assert run_jobs(world, jobs, Answers(route=lambda job, view: None)).place.tolist() == [0, 0, 0]
    outcome = run_jobs(world, jobs, Answers(route=lambda job, view: (2, 0)))
    assert outcome.place.tolist() == [0, 2, 0]
    assert started(outcome) == {1: 0.0, 2: 0.0, 3: 10.0}
    asked = [make_job(1, units=10.0, partitions=("b",))]
    assert run_jobs(world, asked, Answers(route=lambda job, view: (0, 2))).place.tolist() == [1]


def test_a_route_to_where_the_job_may_not_run_is_left_aside() -> None:
    world = make_world(make_pool("a"), make_pool("b"))
    outcome = run_jobs(world, [make_job(1, partitions=("b",))], Answers(route=lambda job, view: 0))
    assert outcome.place.tolist() == [1]


def test_a_routed_job_is_under_way_for_the_latency_of_its_link() -> None:
    world = make_world(
        make_pool("near", region="near"),
        make_pool("far", region="far"),
        ingresses=("door",),
        latency_seconds={("door", "near"): 0.25, ("door", "far"): 2.0},
    )
    outcome = run_jobs(
        world, [make_job(1, 10.0, 5.0), make_job(2, 10.0, 5.0)], Answers(route=lambda job, _: job.job_id - 1)
    )
    assert started(outcome) == {1: 10.25, 2: 12.0}


def test_a_job_that_is_not_routed_is_under_way_on_its_devices() -> None:
    world = make_world(make_pool(region="far"), ingresses=("door",), latency_seconds={("door", "far"): 2.0})
    outcome = run_jobs(world, [make_job(1, submitted=10.0, units=5.0)])
    assert (started(outcome), ended(outcome)) == ({1: 10.0}, {1: 17.0})
    assert joules(outcome)[1] == pytest.approx(2.0 * 30.0 + 5.0 * 200.0)


def test_a_routed_child_whose_parents_end_at_once_is_still_under_way() -> None:
    world = make_world(make_pool(region="far"), ingresses=("door",), latency_seconds={("door", "far"): 20.0})
    jobs = [make_job(1, units=1.0), make_job(2, submitted=19.0, units=1.0, after_ok=(1,))]
    assert started(run_jobs(world, jobs, Answers(route=lambda job, view: 0))) == {1: 20.0, 2: 39.0}


def test_an_answer_that_names_no_place_lets_the_job_wait_and_counts() -> None:
    outcome = run_jobs(make_world(), [make_job(1)], Answers(place=lambda job, view: Placement(7, 1, 0)))
    assert (outcome.state, outcome.clamped) == (["PENDING"], 1)


def test_a_rule_that_declines_is_counted_apart() -> None:
    outcome = run_jobs(make_world(), [make_job(1)], Answers(place=lambda job, view: None))
    assert (outcome.state, outcome.clamped, outcome.declined) == (["PENDING"], 0, 1)


def test_a_world_without_ingresses_takes_jobs_of_any() -> None:
    outcome = run_jobs(make_world(), [make_job(1, units=5.0, ingress=7)])
    assert (started(outcome), ended(outcome)) == ({1: 0.0}, {1: 5.0})


@pytest.mark.parametrize("routed", [True, False])
def test_an_ingress_that_the_world_lacks_is_refused_by_name(routed: bool) -> None:
    world = make_world(ingresses=("door", "gate"))
    rule = Answers(route=lambda job, view: 0) if routed else FirstFit()
    with pytest.raises(ValueRangeError, match=r"job 1.*ingress 2"):
        run_jobs(world, [make_job(1, ingress=2)], rule)


@pytest.mark.parametrize("backfill", ["none", "easy"])
def test_an_exclusive_job_has_the_only_node_to_itself(backfill: Literal["none", "easy"]) -> None:
    jobs = [
        make_job(1, units=10.0, exclusive=True),
        make_job(2, units=5.0, time_limit_seconds=5.0),
        make_job(3, units=10.0, exclusive=True),
        make_job(4, units=5.0, time_limit_seconds=5.0),
    ]
    outcome = run_jobs(make_world(discipline=Discipline(backfill=backfill)), jobs)
    both = {1: 0.0, 2: 10.0, 3: 15.0}
    assert started(outcome) == {**both, 4: 25.0 if backfill == "none" else 10.0}
    assert outcome.joules_by_component["idle"] == pytest.approx(10.0 * (4 * outcome.end_seconds - 30.0))


def test_rows_of_a_table_are_those_of_its_kind_counts_and_conditions() -> None:
    """Asking again is answered from memory: by another kind, other counts and after a change it must not be."""
    load = make_load(scaling=Scaling(traffic_gigabytes_per_unit=1.0))
    device = make_device(loads={"training": load, "other": make_load(seconds_per_unit=(8.0, 4.0, 2.0))})
    world = make_world(make_pool(nodes=2, link_gigabytes_per_second=1.0), devices=[device])
    tables, counts = OptionTables(world, places_of(world)), (1, 8)
    rows = tables.rows("training", counts)
    assert tables.rows("training", counts) is tables.rows("training", (1, 8)) is rows
    assert tables.rows("other", counts).seconds[0][0] == [8.0, 4.0, 2.0]
    assert tables.rows("training", counts) is rows
    assert tables.rows("training", (2,)).column == {2: 0}
    assert tables.rows("training", counts) is rows
    tables.set_congestion(0.5)
    assert tables.rows("training", counts).seconds[0][1][-1] > rows.seconds[0][1][-1]


def test_places_of_plain_jobs_are_those_of_their_kind_and_counts() -> None:
    devices = [make_device("a"), make_device("b", loads={"training": make_load(), "other": make_load()})]
    world = make_world(make_pool("a", device="a"), make_pool("b", device="b", gpus_per_node=8), devices=devices)
    view, small, large = make_engine(world, [], FirstFit()).view, (1, 2), (5, 6)
    asked = [("training", small), ("training", small), ("other", small), ("training", large), ("training", small)]
    found = [view.allowed_places(plain_job(1, 0.0, 1.0, kind, counts, 0)) for kind, counts in asked]
    assert found == [(0, 1), (0, 1), (1,), (1,), (0, 1)]
    assert view.allowed_places(make_job(2, gpus=small, devices=("b",))) == (1,)
    assert view.allowed_places(plain_job(3, 0.0, 1.0, "training", small, 0)) == (0, 1)
