"""Jobs on their way from an ingress to the place to which they were routed."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import Answers, make_job, make_pool, make_world, run_jobs, started

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Discipline, Placement
from slurm_energy.twin.engine.job import Job, plain_job

FIFO = Discipline(order="fifo", backfill="none")
WAYS = (0.0, 2.0, 3.0, 7.0)
"""Latency of each ingress, s."""
WORLD = make_world(
    make_pool(gpus_per_node=1, region="here"),
    ingresses=("a", "b", "c", "d"),
    latency_seconds={(name, "here"): seconds for name, seconds in zip("abcd", WAYS, strict=True)},
    discipline=FIFO,
)


def first_place(job: WaitingJob, view: ClusterView) -> Placement | None:
    return Placement(0, 1, -1) if view.room(job)[0] else None


def to_the_place(job: WaitingJob, view: ClusterView) -> int:
    return 0


def starts_by_hand(jobs: list[Job]) -> dict[int, float]:
    """Return when each job starts on the one device: in the order in which they reach it."""
    reaches = [(job.submitted_seconds + WAYS[job.ingress], job.submitted_seconds, job.job_id) for job in jobs]
    units = {job.job_id: job.true_units for job in jobs}
    free, found = 0.0, {}
    for reach, _, job_id in sorted(reaches):
        found[job_id] = max(free, reach)
        free = found[job_id] + units[job_id]
    return found


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from((None, 1.0, 5.0)))
def test_jobs_start_in_the_order_in_which_they_reach_their_place(
    seed: int, plain: bool, control_interval_seconds: float | None
) -> None:
    random, now, jobs = Random(seed), 0.0, list[Job]()
    for number in range(12):
        now += random.choice((0.0, 1.0, 2.0, 5.0, 20.0))
        units, ingress = float(random.randint(1, 9)), random.randrange(len(WAYS))
        jobs.append(
            plain_job(number, now, units, "training", (1,), ingress)
            if plain
            else make_job(number, now, units, ingress=ingress)
        )
    rule = Answers(first_place, to_the_place, control_interval_seconds=control_interval_seconds)
    assert started(run_jobs(WORLD, jobs, rule)) == pytest.approx(starts_by_hand(jobs))


def test_a_job_that_would_reach_its_place_after_the_horizon_waits_nowhere() -> None:
    job = make_job(1, 5.0, ingress=3)
    outcome = run_jobs(WORLD, [job], Answers(first_place, to_the_place), horizon_seconds=11.0)
    assert (outcome.state, outcome.end_seconds, outcome.sample_waiting.tolist()[-1]) == (["PENDING"], 11.0, 0)
    assert started(run_jobs(WORLD, [job], Answers(first_place, to_the_place), horizon_seconds=12.0)) == {1: 12.0}


def test_what_waits_is_sampled_while_nothing_but_a_job_on_its_way_happens() -> None:
    jobs = [make_job(number, 4.0, 100.0, ingress=number) for number in (2, 3)]
    outcome = run_jobs(WORLD, jobs, Answers(first_place, to_the_place), horizon_seconds=20.0)
    waiting = dict(zip(outcome.sample_seconds.tolist(), outcome.sample_waiting.tolist(), strict=True))
    assert [count for second, count in waiting.items() if second <= 11.0] == [0] * sum(s <= 11.0 for s in waiting)
    assert {count for second, count in waiting.items() if second > 11.1} == {1}
