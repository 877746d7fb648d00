from hypothesis import given
from hypothesis import strategies as st
from small_clusters import NOW, make_job

from slurm_energy.domain.cluster import JobState
from slurm_energy.graph.job_features import job_figures
from slurm_energy.graph.job_relations import Demand, QueueTotals


def add(totals: QueueTotals, *jobs: JobState) -> None:
    for job in jobs:
        totals.add(job, job_figures(job))


def test_the_queue_is_ordered_by_priority_then_age() -> None:
    totals = QueueTotals()
    add(
        totals,
        make_job(1, priority=5),
        make_job(2, priority=9),
        make_job(3, priority=9, submitted_at_seconds=NOW - 9999.0),
        make_job(4, running_on="n1", priority=99),
    )
    assert totals.first(9) == [3, 2, 1]
    assert totals.first(2) == [3, 2]
    assert totals.num_pending == 3


def test_demand_counts_every_task_of_an_array() -> None:
    totals = QueueTotals()
    waiting, running = make_job(1, gpus=2, array_task="1-10"), make_job(2, running_on="n1", gpus=4)
    add(totals, waiting, running)
    assert totals.demands == {("p",): Demand(waiting_jobs=10, waiting_gpus=20, running_jobs=1)}
    for job in (waiting, running):
        totals.remove(job, job_figures(job))
    assert totals.demands == {}


def test_demand_is_what_waits_for_room() -> None:
    totals = QueueTotals()
    held = make_job(1, gpus=2, waits_for_room=False)
    add(totals, held, make_job(2, gpus=4))
    assert totals.demands == {("p",): Demand(waiting_jobs=1, waiting_gpus=4, running_jobs=0)}
    totals.remove(held, job_figures(held))
    assert totals.demands == {("p",): Demand(waiting_jobs=1, waiting_gpus=4, running_jobs=0)}


def test_only_users_whose_share_moved_by_a_step_are_named() -> None:
    totals = QueueTotals()
    add(totals, *(make_job(number, gpus=100, user_id=number) for number in (1, 2)))
    assert {(share, *jobs) for share, jobs in totals.changed_shares()} == {(0.5, 1), (0.5, 2)}
    add(totals, make_job(3, gpus=1, user_id=1))
    assert list(totals.changed_shares()) == []
    add(totals, make_job(4, gpus=200, user_id=1))
    assert {share for share, _ in totals.changed_shares()} == {0.75, 0.25}


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(0, 3), st.booleans()), max_size=150))
def test_any_order_of_changes_leaves_the_sums_of_what_is_left(steps: list[tuple[int, int, bool]]) -> None:
    totals, live = QueueTotals(), dict[int, JobState]()
    for number, priority, stays in steps:
        if number in live:
            old = live.pop(number)
            totals.remove(old, job_figures(old))
        if stays:
            live[number] = make_job(number, priority=priority, gpus=priority, user_id=number % 3)
            add(totals, live[number])
        if priority == 3:
            totals.first(5)
    ranked = sorted(live.values(), key=lambda job: (-(job.priority or 0), job.job_id))
    assert totals.first(200) == [job.job_id for job in ranked]
    fresh = QueueTotals()
    add(fresh, *live.values())
    assert fresh.demands == totals.demands
    assert dict(fresh.shares) == {} and not list(QueueTotals().changed_shares())
    assert sorted((share, sorted(jobs)) for share, jobs in fresh.changed_shares()) == sorted(
        (share, sorted(jobs)) for share, jobs in totals.changed_shares()
    )
