"""EASY backfill: textbook cases, and against a plain scheduler written for these tests."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import make_job, make_pool, make_world, run_jobs, started, states

from slurm_energy.policy.placement import Discipline
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import Partition, World

EASY = Discipline(order="fifo", backfill="easy")
NONE = Discipline(order="fifo", backfill="none")


def timed(job_id: int, gpus: int, seconds: float, *, submitted: float = 0.0, limit: float | None = None) -> Job:
    """Return a job that runs so long, with a true limit unless another is given."""
    return make_job(
        job_id,
        submitted=submitted,
        units=seconds * gpus,
        gpus=gpus,
        time_limit_seconds=seconds if limit is None else limit,
    )


def test_a_short_job_fills_the_gap_before_the_head() -> None:
    jobs = [timed(1, 3, 100.0), timed(2, 4, 50.0, submitted=1.0), timed(3, 1, 60.0, submitted=2.0)]
    assert started(run_jobs(make_world(discipline=EASY), jobs)) == {1: 0.0, 2: 100.0, 3: 2.0}
    assert started(run_jobs(make_world(discipline=NONE), jobs)) == {1: 0.0, 2: 100.0, 3: 150.0}


def test_a_long_job_may_not_delay_the_head() -> None:
    jobs = [timed(1, 3, 100.0), timed(2, 4, 50.0, submitted=1.0), timed(3, 1, 99.0, submitted=2.0)]
    assert started(run_jobs(make_world(discipline=EASY), jobs)) == {1: 0.0, 2: 100.0, 3: 150.0}


def test_a_job_that_ends_exactly_when_the_head_starts_may_fill() -> None:
    jobs = [timed(1, 3, 100.0), timed(2, 4, 50.0, submitted=1.0), timed(3, 1, 98.0, submitted=2.0)]
    assert started(run_jobs(make_world(discipline=EASY), jobs))[3] == 2.0


def test_a_long_job_may_use_devices_that_the_head_leaves_over() -> None:
    jobs = [timed(1, 3, 100.0), timed(2, 3, 50.0, submitted=1.0), timed(3, 1, 1_000.0, submitted=2.0)]
    assert started(run_jobs(make_world(discipline=EASY), jobs)) == {1: 0.0, 2: 100.0, 3: 2.0}


def test_devices_left_over_are_given_away_only_once() -> None:
    world = make_world(make_pool(gpus_per_node=8), discipline=EASY)
    jobs = [
        timed(1, 5, 100.0),
        timed(2, 7, 50.0, submitted=1.0),
        timed(3, 1, 1_000.0, submitted=2.0),
        timed(4, 1, 1_000.0, submitted=3.0),
    ]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 100.0, 3: 2.0, 4: 150.0}


def test_the_head_starts_early_when_a_job_ends_before_its_limit() -> None:
    jobs = [
        timed(1, 3, 40.0, limit=100.0),
        timed(2, 4, 50.0, submitted=1.0),
        timed(3, 1, 30.0, submitted=2.0, limit=90.0),
    ]
    assert started(run_jobs(make_world(discipline=EASY), jobs)) == {1: 0.0, 2: 40.0, 3: 2.0}


def test_without_limits_the_estimates_decide() -> None:
    jobs = [
        make_job(1, units=300.0, gpus=3),
        make_job(2, submitted=1.0, units=200.0, gpus=4),
        make_job(3, submitted=2.0, units=98.0),
        make_job(4, submitted=3.0, units=10.0, estimated_units=98.0),
    ]
    assert started(run_jobs(make_world(discipline=EASY), jobs)) == {1: 0.0, 2: 100.0, 3: 2.0, 4: 150.0}


@pytest.mark.parametrize(
    ("limit", "reserves", "start"), [(1_000.0, False, 2.0), (1_000.0, True, 100.0), (98.0, True, 2.0)]
)
def test_nodes_of_the_head_may_be_kept_whole(limit: float, reserves: bool, start: float) -> None:
    """The head will take 3 of the 4 devices of the first node; Slurm keeps the node, the textbook the devices."""
    jobs = [
        timed(1, 3, 100.0),
        timed(2, 4, 200.0),
        timed(3, 3, 50.0, submitted=1.0),
        timed(4, 1, 40.0, submitted=2.0, limit=limit),
    ]
    world = make_world(make_pool(nodes=2), discipline=EASY, backfill_reserves_nodes=reserves)
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 0.0, 3: 100.0, 4: start}
    world = make_world(make_pool(), discipline=EASY, backfill_reserves_nodes=reserves)
    assert started(run_jobs(world, [jobs[0], *jobs[2:]])) == {1: 0.0, 3: 100.0, 4: start}


def test_nodes_that_the_head_will_not_take_stay_open_when_its_own_are_kept() -> None:
    jobs = [
        timed(1, 3, 100.0),
        timed(2, 3, 200.0),
        timed(3, 3, 50.0, submitted=1.0),
        timed(4, 1, 1_000.0, submitted=2.0),
    ]
    world = make_world(make_pool(nodes=2), discipline=EASY, backfill_reserves_nodes=True)
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 0.0, 3: 100.0, 4: 2.0}


def test_all_that_ends_when_the_head_starts_is_left_over_to_others() -> None:
    jobs = [
        timed(1, 1, 100.0),
        timed(2, 2, 100.0),
        timed(3, 2, 50.0, submitted=1.0),
        timed(4, 1, 1_000.0, submitted=2.0),
    ]
    assert started(run_jobs(make_world(discipline=EASY), jobs)) == {1: 0.0, 2: 0.0, 3: 100.0, 4: 2.0}
    world = make_world(make_pool(nodes=4, gpus_per_node=1), discipline=EASY)
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 0.0, 3: 100.0, 4: 2.0}


def test_only_the_first_jobs_of_the_queue_are_looked_at() -> None:
    jobs = [
        timed(1, 3, 100.0),
        timed(2, 4, 50.0, submitted=1.0),
        timed(3, 4, 1.0, submitted=2.0),
        timed(4, 1, 9.0, submitted=3.0),
    ]
    assert started(run_jobs(make_world(discipline=EASY, backfill_depth=3), jobs))[4] == 3.0
    assert started(run_jobs(make_world(discipline=EASY, backfill_depth=2), jobs))[4] > 100.0


def test_backfill_at_an_interval_waits_for_its_turn() -> None:
    world = make_world(discipline=EASY, backfill_interval_seconds=30.0)
    jobs = [timed(1, 3, 100.0), timed(2, 4, 50.0, submitted=1.0), timed(3, 1, 60.0, submitted=2.0)]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 100.0, 3: 30.0}


def test_a_node_that_the_head_needs_whole_is_kept_for_it() -> None:
    """The reservation is by node: four free devices on two nodes do not hold a job that packs onto one."""
    world = make_world(make_pool(nodes=2), discipline=EASY)
    jobs = [
        timed(1, 2, 100.0),
        timed(2, 4, 60.0),
        timed(3, 4, 50.0, submitted=1.0),
        timed(4, 2, 200.0, submitted=2.0),
    ]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 0.0, 3: 60.0, 4: 2.0}


def test_jobs_of_a_pool_with_room_pass_a_head_that_waits_for_another_pool() -> None:
    world = make_world(make_pool("a"), make_pool("b"), discipline=NONE)
    jobs = [
        replace_partition(timed(1, 4, 100.0), "a"),
        replace_partition(timed(2, 4, 10.0, submitted=1.0), "a"),
        replace_partition(timed(3, 4, 10.0, submitted=2.0), "b"),
    ]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 100.0, 3: 2.0}


def replace_partition(job: Job, *names: str) -> Job:
    return replace(job, partitions=names)


def over_two_pools(discipline: Discipline) -> World:
    return make_world(make_pool("a", gpus_per_node=4), make_pool("b", gpus_per_node=1), discipline=discipline)


@pytest.mark.parametrize("discipline", [EASY, NONE])
def test_a_job_of_two_pools_does_not_take_from_the_head_of_one_when_the_other_is_freed(discipline: Discipline) -> None:
    jobs = [
        replace_partition(timed(1, 2, 100.0), "a"),
        replace_partition(timed(2, 1, 50.0), "b"),
        replace_partition(timed(3, 4, 10.0, submitted=1.0), "a"),
        replace_partition(timed(4, 1, 500.0, submitted=2.0), "a", "b"),
    ]
    found = started(run_jobs(over_two_pools(discipline), jobs))
    assert found == {1: 0.0, 2: 0.0, 3: 100.0, 4: 50.0}


@pytest.mark.parametrize("discipline", [EASY, NONE])
def test_a_later_job_of_another_partition_does_not_delay_the_head_over_the_same_pool(discipline: Discipline) -> None:
    world = make_world(
        make_pool(),
        partitions=(Partition(name="a", pools=("pool",)), Partition(name="b", pools=("pool",))),
        discipline=discipline,
    )
    jobs = [
        replace_partition(timed(1, 3, 100.0), "a"),
        replace_partition(timed(2, 4, 10.0, submitted=1.0), "a"),
        replace_partition(timed(3, 1, 500.0, submitted=2.0), "b"),
    ]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 100.0, 3: 110.0}


def plain_easy(jobs: list[Job], devices: int, *, backfill: bool) -> dict[int, float]:
    """Return starts by the textbook: FIFO on one number of devices, EASY around the head."""
    seconds = {job.job_id: job.true_units / job.gpu_counts[0] for job in jobs}
    running: list[tuple[float, float, int]] = []  # end, expected end, devices
    queue: list[Job] = []
    starts: dict[int, float] = {}
    coming = sorted(jobs, key=lambda job: (job.submitted_seconds, job.job_id))
    free = devices
    now = 0.0

    def start(job: Job) -> int:
        gpus = job.gpu_counts[0]
        starts[job.job_id] = now
        running.append((now + seconds[job.job_id], now + job.time_limit_seconds, gpus))
        queue.remove(job)
        return gpus

    while coming or running:
        now = min([*(end for end, _, _ in running), *(job.submitted_seconds for job in coming)])
        free += sum(gpus for end, _, gpus in running if end <= now)
        running = [item for item in running if item[0] > now]
        while coming and coming[0].submitted_seconds <= now:
            queue.append(coming.pop(0))
        while queue and queue[0].gpu_counts[0] <= free:
            free -= start(queue[0])
        if not (queue and backfill):
            continue
        shadow, extra = inf, 0
        for shadow in sorted({expected for _, expected, _ in running}):
            available = free + sum(gpus for _, expected, gpus in running if expected <= shadow)
            extra = available - queue[0].gpu_counts[0]
            if extra >= 0:
                break
        for job in list(queue[1:]):
            gpus = job.gpu_counts[0]
            short = now + job.time_limit_seconds <= shadow
            if gpus <= free and (short or gpus <= extra):
                free -= start(job)
                extra -= 0 if short else gpus
    return starts


job_lists = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 8), st.integers(1, 20), st.integers(1, 3)), min_size=1, max_size=25
)


def drawn_jobs(rows: list[tuple[int, int, int, int]]) -> list[Job]:
    rows = sorted(rows, key=lambda row: row[0])
    return [
        timed(number, gpus, float(seconds), submitted=float(time * 3), limit=float(seconds * factor))
        for number, (time, gpus, seconds, factor) in enumerate(rows)
    ]


@pytest.mark.parametrize("shape", [(1, 8), (8, 1)])
@given(rows=job_lists)
def test_starts_are_those_of_the_textbook(shape: tuple[int, int], rows: list[tuple[int, int, int, int]]) -> None:
    jobs = drawn_jobs(rows)
    for discipline in (EASY, NONE):
        world = make_world(make_pool(nodes=shape[0], gpus_per_node=shape[1]), discipline=discipline)
        found = started(run_jobs(world, jobs))
        assert found == pytest.approx(plain_easy(jobs, 8, backfill=discipline is EASY))


@given(rows=job_lists)
def test_the_first_job_that_waits_starts_no_later_than_without_backfill(rows: list[tuple[int, int, int, int]]) -> None:
    jobs = [timed(number, gpus, float(seconds)) for number, (_, gpus, seconds, _) in enumerate(rows)]
    pool = make_pool(nodes=3, gpus_per_node=3)
    easy = started(run_jobs(make_world(pool, discipline=EASY), jobs))
    none = started(run_jobs(make_world(pool, discipline=NONE), jobs))
    head = next((job.job_id for job in jobs if none[job.job_id] > 0.0), None)
    if head is not None:
        assert easy[head] <= none[head]
    assert set(states(run_jobs(make_world(pool, discipline=EASY), jobs)).values()) == {"COMPLETED"}
