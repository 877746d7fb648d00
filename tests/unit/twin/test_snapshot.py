"""The twin as snapshots: what they show, and that one made from the last is the one made from nothing."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from random_worlds import Features, random_jobs, random_world
from small_worlds import (
    BUSY_WATTS,
    FREE_WATTS,
    FirstFit,
    drive,
    make_device,
    make_engine,
    make_job,
    make_load,
    make_pool,
    make_world,
    steps_of,
)

from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, JobDependency, JobState, NodeState, SwitchState
from slurm_energy.domain.ids import JobId
from slurm_energy.policy.jobs import RunningJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.twin.engine.job import COMPUTING, Job
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.snapshot.nodes import clocks_in_mhz
from slurm_energy.twin.snapshot.source import SnapshotSource
from slurm_energy.twin.world import Partition, SuspendSettings, World
from slurm_energy.twin.world.device_model import PairSpeed, Thermal

OFFSET = 1.0


def engine_of(world: World, *jobs: Job, rule: PlacementRule | None = None, horizon: float | None = None) -> Engine:
    engine = make_engine(world, jobs, rule or FirstFit(), horizon=horizon)
    engine.view.runs = engine.runs
    return engine


def snapshot_at(seconds: float, world: World, *jobs: Job, rule: PlacementRule | None = None) -> ClusterSnapshot:
    """Return the snapshot of a run that is stopped at a time."""
    engine = engine_of(world, *jobs, rule=rule, horizon=seconds)
    drive(engine, rule or FirstFit(), lambda engine: None)
    return SnapshotSource().snapshot(engine.view, seconds + OFFSET)


def taken(source: SnapshotSource, engine: Engine, without: int | None = None) -> ClusterSnapshot:
    return source.snapshot(engine.view, engine.now + OFFSET, without=without)


def keep(source: SnapshotSource) -> Callable[[Engine], None]:
    """Return a look that takes a snapshot, so that the source has seen that moment."""

    def look(engine: Engine) -> None:
        taken(source, engine)

    return look


def node_named(snapshot: ClusterSnapshot, name: str) -> NodeState:
    return next(node for node in snapshot.nodes if node.name == name)


def job_numbered(snapshot: ClusterSnapshot, number: int) -> JobState:
    return next(job for job in snapshot.jobs if job.job_id == number)


def test_each_device_shows_the_job_on_it_and_free_ones_show_nothing() -> None:
    device = make_device(clocks_mhz=(250, 500, 1000), memory_gib=80.0, loads={"training": make_load(memory_gib=30.0)})
    snapshot = snapshot_at(10.0, make_world(devices=(device,)), make_job(1, gpus=3), rule=FirstFit(clock=1))
    (node,) = snapshot.nodes
    assert [reading.index for reading in node.gpu_readings] == [0, 1, 2, 3]
    busy, free = node.gpu_readings[0], node.gpu_readings[3]
    assert (busy.utilisation, busy.sm_clock_mhz, busy.power_watts) == (1.0, 500.0, 100.0)
    assert (busy.memory_used_gib, busy.memory_gib, busy.is_slowed) == (30.0, 80.0, True)
    assert (free.utilisation, free.sm_clock_mhz, free.power_watts) == (0.0, None, FREE_WATTS)
    assert (free.memory_used_gib, free.is_slowed, free.temperature_celsius) == (0.0, False, None)
    assert node.power_watts == pytest.approx(300.0 + FREE_WATTS)
    assert (node.gpu_count, node.gpus_idle) == (4, 1)


def test_a_clock_in_relative_terms_is_told_as_a_share_of_the_catalogue_s_highest() -> None:
    assert clocks_in_mhz(make_device("a100")) == (352.0, 705.0, 1410.0)
    assert clocks_in_mhz(make_device("unheard-of")) == ()


def test_a_job_keeps_its_devices_when_another_leaves() -> None:
    jobs = (make_job(1, units=10.0), make_job(2, units=100.0, gpus=2), make_job(3, submitted=5.0, units=100.0))
    late = snapshot_at(20.0, make_world(), *jobs)
    assert job_numbered(late, 2).gpu_positions == (("pool-0", (0, 1)),)  # a snapshot by itself numbers from 0
    engine = engine_of(make_world(), *jobs, make_job(4, submitted=15.0, units=100.0, gpus=1), horizon=20.0)
    source = SnapshotSource()
    drive(engine, FirstFit(), keep(source))
    kept = taken(source, engine)
    assert {job.job_id: job.gpu_positions[0][1] for job in kept.jobs} == {2: (1, 2), 3: (0,), 4: (3,)}


def test_power_of_nodes_adds_up_to_the_cluster_s() -> None:
    suspend = SuspendSettings(idle_seconds=5.0, resume_seconds=40.0, suspended_watts=4.0, resume_watts=120.0)
    pool = make_pool(nodes=3, host_idle_watts=50.0, host_busy_watts=90.0, suspend=suspend)
    jobs = (make_job(1, units=300.0, gpus=3), make_job(2, submitted=30.0, units=100.0, gpus=4))
    seen: set[str] = set()
    engine = engine_of(make_world(pool), *jobs)
    source = SnapshotSource()

    def look(engine: Engine) -> None:
        snapshot = taken(source, engine)
        assert sum(node.power_watts or 0.0 for node in snapshot.nodes) == pytest.approx(engine.view.power_watts)
        assert [cluster.power_watts for cluster in snapshot.clusters] == [engine.view.power_watts]
        seen.update(state for node in snapshot.nodes for state in node.states)
        for node in snapshot.nodes:
            assert bool(node.gpu_readings) == (not node.is_suspended and not node.is_waking)
            assert node.wake_seconds == 40.0

    drive(engine, FirstFit(), look)
    for seconds in (10.0, 35.0, 80.0):
        stopped = engine_of(make_world(pool), *jobs, horizon=seconds)
        drive(stopped, FirstFit(), lambda engine: None)
        source = SnapshotSource()
        look(stopped)
    assert {"IDLE", "MIXED", "POWERED_DOWN", "POWERING_UP"} <= seen


def test_heat_is_told_in_whole_degrees_against_what_the_cooling_carries() -> None:
    thermal = Thermal(resistance_kelvin_per_watt=0.25, time_constant_seconds=100.0, ambient_celsius=20.0)
    world = make_world(devices=(make_device(thermal=thermal),), ambient_celsius=steps_of(30.0, every=1.0))
    engine = engine_of(world, make_job(1, units=1000.0), make_job(2, submitted=100.0))
    seen = []
    drive(engine, FirstFit(), lambda engine: seen.append(SnapshotSource().snapshot(engine.view, engine.now + OFFSET)))
    snapshot = seen[1]
    idle = 30.0 + 0.25 * FREE_WATTS
    steady = 30.0 + 0.25 * BUSY_WATTS
    readings = snapshot.nodes[0].gpu_readings
    assert readings[0].temperature_celsius == round(steady + (idle - steady) / 2.718281828)
    assert readings[1].temperature_celsius == round(idle)
    (cluster,) = snapshot.clusters
    assert cluster.cooling_watts == pytest.approx(4 * (85.0 - 30.0) / 0.25)
    assert cluster.heat_watts == pytest.approx(BUSY_WATTS + 3 * FREE_WATTS)


def test_links_and_congestion_make_a_switch_of_each_pool() -> None:
    world = make_world(
        make_pool("linked", nodes=2, link_gigabytes_per_second=12.5),
        make_pool("lone"),
        congestion=steps_of(1.0, 0.25, every=50.0),
    )
    snapshot = snapshot_at(60.0, world)
    assert snapshot.switches == (SwitchState(name="linked-switch", capacity_gb_per_second=25.0, congestion=0.75),)
    node, lone = node_named(snapshot, "linked-1"), node_named(snapshot, "lone-0")
    assert (node.switch, node.uplink_gb_per_second, node.uplink_congestion) == ("linked-switch", 12.5, 0.75)
    assert (lone.switch, lone.uplink_gb_per_second, lone.uplink_congestion) == (None, None, None)


def test_one_site_has_budget_carbon_and_price() -> None:
    world = make_world(
        power_budget_watts=steps_of(900.0, 300.0, every=70.0),
        carbon_grams_per_kwh={"": steps_of(100.0, 400.0, every=70.0)},
        price_per_kwh={"": steps_of(0.2, every=1.0)},
    )
    snapshot = snapshot_at(80.0, world)
    assert snapshot.clusters == (
        ClusterState(
            name=snapshot.cluster,
            power_watts=4 * FREE_WATTS,
            power_budget_watts=300.0,
            carbon_grams_per_kwh=400.0,
            price_per_kwh=0.2,
        ),
    )
    (partition,) = snapshot.partitions
    assert (partition.cluster, partition.carbon_grams_per_kwh, partition.price_per_kwh) == (None, 400.0, 0.2)


def test_each_region_is_a_cluster_and_a_partition_over_several_is_in_none() -> None:
    world = make_world(
        make_pool("a", region="north", nodes=2),
        make_pool("b", region="south"),
        partitions=(
            Partition(name="a", pools=("a",)),
            Partition(name="b", pools=("b",)),
            Partition(name="both", pools=("a", "b")),
        ),
        carbon_grams_per_kwh={"south": steps_of(300.0, every=1.0)},
    )
    snapshot = snapshot_at(10.0, world, make_job(1, partitions=("b",)))
    assert [(each.name, each.cluster, each.carbon_grams_per_kwh) for each in snapshot.partitions] == [
        ("a", "north", None),
        ("b", "south", 300.0),
        ("both", None, None),
    ]
    assert [(each.name, each.power_watts, each.carbon_grams_per_kwh) for each in snapshot.clusters] == [
        ("north", 8 * FREE_WATTS, None),
        ("south", BUSY_WATTS + 3 * FREE_WATTS, 300.0),
    ]


def test_jobs_are_told_as_squeue_tells_them() -> None:
    jobs = (
        make_job(1, units=100.0, gpus=(3, 4), user="ann", account="lab", name="train", time_limit_seconds=600.0),
        make_job(2, submitted=5.0, units=50.0, gpus=2, after_ok=(1,), input_gigabytes=2.0, deadline_seconds=500.0),
        make_job(3, submitted=6.0, units=40.0, gpus=4, devices=("gpu",), memory_gib=8.0, exclusive=True),
        make_job(4, submitted=7.0, after_any=(1, 2)),
    )
    snapshot = snapshot_at(8.0, make_world(), *jobs)
    first, second, third, fourth = snapshot.jobs
    assert (first.state, first.nodes, first.node_count, first.gpu_count) == ("RUNNING", "pool-0", 1, 4)
    assert (first.started_at_seconds, first.time_limit_minutes, first.gpu_max_count) == (OFFSET, 10.0, 4)
    assert (first.user_name, first.account, first.name, first.kind) == ("ann", "lab", "train", "training")
    assert (first.gpu_positions, first.estimated_seconds) == ((("pool-0", (0, 1, 2, 3)),), 25.0)
    assert second.dependencies == (JobDependency(job_id=JobId(1), needs_success=True, data_gib=2e9 / 2**30),)
    assert (second.state, second.deadline_seconds, second.estimated_seconds) == ("PENDING", 501.0, 25.0)
    assert (third.memory_per_node_mib, third.exclusive, third.gpu_types) == (8192.0, True, ("gpu",))
    assert [each.needs_success for each in fourth.dependencies] == [False, False]
    assert snapshot.waiting_gpus_by_partition == {"pool": 7.0}


def test_a_parent_that_has_ended_is_no_longer_waited_for() -> None:
    jobs = (make_job(1, units=10.0), make_job(2, units=500.0), make_job(3, after_any=(1, 2)))
    engine = engine_of(make_world(), *jobs, make_job(4, submitted=20.0), horizon=30.0)
    source = SnapshotSource()
    drive(engine, FirstFit(), keep(source))
    assert [each.job_id for each in job_numbered(taken(source, engine), 3).dependencies] == [2]


def test_missed_deadlines_are_a_share_of_those_that_ended() -> None:
    jobs = (
        make_job(1, units=10.0, deadline_seconds=20.0),
        make_job(2, units=30.0, deadline_seconds=20.0),
        make_job(3, units=5.0),
        make_job(4, submitted=50.0),
    )
    engine = engine_of(make_world(), *jobs)
    source = SnapshotSource()
    seen = []

    def look(engine: Engine) -> None:
        seen.append(taken(source, engine).clusters[0].quality_violations)

    drive(engine, FirstFit(), look)
    assert (seen[0], seen[-1]) == (None, 0.5)


def test_a_job_that_is_being_decided_is_not_in_the_queue_yet() -> None:
    class Router(FirstFit):
        routes = True

    engine = engine_of(make_world(), make_job(1), make_job(2, gpus=4), make_job(3), rule=Router())
    source = SnapshotSource()
    steps = engine.steps()
    seen = []
    job = next(steps)
    while job is not None and engine.deciding == "route":
        seen.append([state.job_id for state in taken(source, engine, job.job_id).jobs])
        job = steps.send(None)
    assert seen == [[], [1], [1, 2]]
    assert [state.job_id for state in taken(source, engine).jobs] == [1, 2, 3]


def test_two_jobs_on_one_device_share_its_number_and_its_power() -> None:
    class Sharing(FirstFit):
        def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
            offers = view.partners(job)
            placement = super().place(job, view)
            return placement._replace(partner=offers[0].job_id) if offers and placement else placement

    device = make_device(pairs={("training", "training"): PairSpeed(speed=0.5, partner_speed=0.5, watts=240.0)})
    world = make_world(make_pool(jobs_per_gpu=2), devices=(device,))
    jobs = (make_job(1, shareable=True), make_job(2, submitted=1.0, shareable=True))
    snapshot = snapshot_at(10.0, world, *jobs, rule=Sharing())
    assert [job.gpu_positions for job in snapshot.jobs] == [(("pool-0", (0,)),)] * 2
    assert [reading.power_watts for reading in snapshot.nodes[0].gpu_readings[:2]] == [240.0, FREE_WATTS]


def bare(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return a snapshot without what hangs on its history: device numbers, estimates and violations."""
    return replace(
        snapshot,
        nodes=tuple(
            replace(node, gpu_readings=tuple(sorted((replace(each, index=0) for each in node.gpu_readings), key=repr)))
            for node in snapshot.nodes
        ),
        jobs=tuple(replace(job, gpu_positions=(), estimated_seconds=None) for job in snapshot.jobs),
        clusters=tuple(replace(cluster, quality_violations=None) for cluster in snapshot.clusters),
    )


class Clocks(FirstFit):
    """Changes the clocks of running jobs again and again, and shares devices where it can."""

    control_interval_seconds = 13.0

    def __init__(self) -> None:
        super().__init__()
        self._random = Random(5)

    def control(self, view: ClusterView) -> dict[int, int]:
        running: list[RunningJob] = list(view.running_jobs())
        return {run.job_id: self._random.randrange(3) for run in running}


FEATURES = [
    {},
    {"suspends": True},
    {"fails": True, "suspends": True},
    {"heats": True, "controls": True},
    {"changes": True, "suspends": True, "backfill": "none"},
    {"shares": True, "fails": True, "heats": True, "changes": True, "suspends": True, "routes": True},
]


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_snapshot_made_from_the_last_equals_one_made_anew_and_keeps_what_did_not_change(
    features: dict[str, object], seed: int
) -> None:
    chosen = Features(seed=seed, **features)  # type: ignore[arg-type]  # each case gives fields of the right type
    world = random_world(chosen)
    engine = engine_of(world, *random_jobs(chosen, world, 20), rule=Clocks())
    source = SnapshotSource()
    before = taken(source, engine)

    def look(engine: Engine) -> None:
        nonlocal before
        now = taken(source, engine)
        assert bare(now) == bare(taken(SnapshotSource(), engine))
        last_nodes = {node.name: node for node in before.nodes}
        last_jobs = {job.job_id: job for job in before.jobs}
        assert all(node is last_nodes[node.name] for node in now.nodes if node == last_nodes[node.name])
        assert all(job is last_jobs[job.job_id] for job in now.jobs if job == last_jobs.get(job.job_id))
        assert now.nodes is before.nodes or now.nodes != before.nodes
        assert now.jobs is before.jobs or now.jobs != before.jobs
        check_devices(now, engine)
        before = now

    drive(engine, Clocks(), look)


def check_devices(snapshot: ClusterSnapshot, engine: Engine) -> None:
    """Hold that jobs are where the engine has them and no device has two holders, neighbours on a GPU apart."""
    held: dict[tuple[str, int], int] = {}
    for job in snapshot.jobs:
        run = engine.runs[job.job_id]
        assert (job.state == "RUNNING") == (run.place >= 0)
        for name, numbers in job.gpu_positions:
            for number in numbers:
                other = held.setdefault((name, number), job.job_id)
                assert other == job.job_id or run.partner is engine.runs[other]
    for node in snapshot.nodes:
        busy = sum((reading.utilisation or 0.0) > 0.0 for reading in node.gpu_readings)
        assert busy <= sum(at == node.name for at, _ in held)
    computing = sum(run.phase == COMPUTING for run in engine.runs.values())
    assert computing <= len(snapshot.jobs)
