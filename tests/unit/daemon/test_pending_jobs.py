"""Waiting jobs that are decided again: what counts as ours, what is left alone, and what is asked of Slurm."""

from collections.abc import Mapping
from dataclasses import replace
from heapq import merge
from typing import Any

import pytest
from policy_factory import NOW, ids, make_config, make_job, make_node, make_snapshot

from slurm_energy.config import RoutingConfig
from slurm_energy.daemon.decide import Decided, Decider, Known
from slurm_energy.daemon.pending.round import RoundResult, _place_in_queue, _sorted_parts, look_at_pending
from slurm_energy.daemon.pending.tracked import JOBS_PER_STEP, Attempt, TrackedJobs
from slurm_energy.domain.cluster import ClusterSnapshot, JobState
from slurm_energy.domain.decision import DecisionEntry, Reason
from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.ids import DecisionId, JobId, PartitionName
from slurm_energy.domain.job import EnergyOptions, JobRequest
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.oracle import OraclePolicy

ON = RoutingConfig(open=True, redecide="on", redecide_seconds=1.0)
FIELDS = {"tres_per_node": "gres:gpu:4"}


def snapshot(*jobs: JobState, a40_free: bool = False, seconds: float = 0.0, **changes: Any) -> ClusterSnapshot:
    nodes = (
        make_node("a100-1", "a100", "a100", allocated=4),
        make_node("a40-1", "a40", "a40", allocated=0 if a40_free else 4),
    )
    return make_snapshot(*nodes, jobs=jobs, taken_at_seconds=NOW + seconds, **changes)


def decider(config: Any = None) -> Decider:
    return Decider(
        OraclePolicy(), Guard(config or make_config(routing_open=True, less_gpu_memory=True, max_slowdown=0.9), ids())
    )


def submitted(
    tracked: TrackedJobs, job: JobRequest | None = None, fields: Mapping[str, str] = FIELDS, **known: Any
) -> Decided:
    """Decide a job on the full cluster, as it is submitted, and remember it."""
    now = snapshot()
    asked = job or make_job(4, time_limit_minutes=60.0)
    decided = decider().decide_request(asked, Known(snapshot=now, **known), NOW)
    assert tracked.add(decided, fields, now)
    return decided


def waiting(decided: Decided, **changes: Any) -> JobState:
    """Return the job as Slurm shows it while it waits."""
    values: dict[str, Any] = {
        "job_id": JobId(7),
        "user_name": "alice",
        "user_id": 1000,
        "name": "train",
        "state": "PENDING",
        "partitions": (PartitionName("a100"),),
        "submitted_at_seconds": NOW,
        "gpu_count": decided.decision.gpus or decided.job.gpu_count,
        "time_limit_minutes": 60.0,
        "priority": 100,
        "admin_comment": f"energy:{decided.decision.decision_id}",
    }
    return JobState(**{**values, **changes})


def look(
    tracked: TrackedJobs,
    now: ClusterSnapshot,
    *,
    settings: RoutingConfig = ON,
    max_updates: int = 100,
    config: Any = None,
    **known: Any,
) -> RoundResult:
    result = RoundResult()

    def known_for(shown: ClusterSnapshot, job: JobRequest, claimed: Mapping[PartitionName, float]) -> Known:
        del job
        return Known(snapshot=shown, claimed_gpus=dict(claimed), **known)

    for _ in look_at_pending(
        tracked, now, decider(config), known_for, settings, max_updates, now.taken_at_seconds + 1.0, result
    ):
        pass
    return result


def texts(result: RoundResult) -> list[str]:
    return [update.text for update in result.updates]


def one(tracked: TrackedJobs) -> Any:
    (job,) = tracked.jobs.values()
    return job


def test_a_job_that_waits_is_sent_where_room_has_appeared_and_its_node_is_told_its_clock_there() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked)
    job = waiting(decided)
    assert texts(look(tracked, snapshot(job, seconds=5))) == []
    result = look(tracked, snapshot(job, a40_free=True, seconds=10))
    assert texts(result) == ["JobId=7 Partition=a40,a100"]
    assert result.updates[0].user_id == 1000
    in_flight = tracked.newer_entry(decided.decision.decision_id)
    assert in_flight is not None
    assert "a40" in in_flight.clocks_mhz, "it may start before the next snapshot"
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=12))) == [], "the update is under way"
    one(tracked).attempt = replace(one(tracked).attempt, ended_at_seconds=NOW + 12)
    moved = replace(job, partitions=(PartitionName("a40"), PartitionName("a100")))
    (change,) = look(tracked, snapshot(moved, a40_free=True, seconds=15)).changes
    assert (change.outcome, change.partitions, change.number) == ("changed", ("a40", "a100"), 1)
    assert {clock.gpu_type for clock in change.clocks} >= {"a40"}


def test_left_to_slurm_again_a_job_is_tried_in_its_own_partition_first_and_keeps_the_other() -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked))
    look(tracked, snapshot(job, seconds=5))
    look(tracked, snapshot(job, a40_free=True, seconds=10))
    one(tracked).attempt = replace(one(tracked).attempt, ended_at_seconds=NOW + 10)
    moved = replace(job, partitions=(PartitionName("a40"), PartitionName("a100")))
    assert texts(look(tracked, snapshot(moved, seconds=20))) == [], "no room anywhere: it stays"
    idle = make_snapshot(
        make_node("a100-1", "a100", "a100"), make_node("a40-1", "a40", "a40", allocated=4), jobs=(moved,)
    )
    result = look(tracked, replace(idle, taken_at_seconds=NOW + 30))
    assert texts(result) == ["JobId=7 Partition=a100,a40"]


def test_what_slurm_refuses_leaves_the_job_as_it_was_and_is_not_asked_for_ever() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked)
    job, carried = waiting(decided), decided.entry
    look(tracked, snapshot(job, seconds=5))
    outcomes = []
    for turn in range(1, 6):
        result = look(tracked, snapshot(job, a40_free=True, seconds=20.0 * turn))
        outcomes += [change.outcome for change in result.changes]
        if one(tracked).attempt is not None:
            one(tracked).attempt = replace(one(tracked).attempt, ended_at_seconds=NOW + 20.0 * turn + 1)
    assert outcomes.count("refused") == 2
    assert one(tracked).attempt is None
    newer = tracked.newer_entry(decided.decision.decision_id)
    assert newer is None or newer.time_limit_minutes == carried.time_limit_minutes


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": (PartitionName("v100"),)},
        {"gpu_count": 2},
        {"time_limit_minutes": 30.0},
        {"account": "other"},
        {"qos": "other"},
        {"restart_count": 1},
        {"array_job_id": JobId(7), "array_task": "1"},
        {"het_job_id": JobId(7)},
        {"job_id": JobId(8)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_job_that_someone_else_changed_is_never_touched_again(change: dict[str, Any]) -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked))
    look(tracked, snapshot(job, seconds=5))
    assert texts(look(tracked, snapshot(replace(job, **change), a40_free=True, seconds=10))) == []
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=20))) == [], "not even once it is as it was"


@pytest.mark.parametrize(
    "change",
    [{"waits_for_room": False}, {"state": "RUNNING"}, {"expected_start_seconds": NOW + 20.0}],
    ids=["held or dependent", "started", "about to start"],
)
def test_a_job_that_cannot_start_or_is_about_to_keeps_what_it_has(change: dict[str, Any]) -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked))
    look(tracked, snapshot(job, seconds=5))
    assert texts(look(tracked, snapshot(replace(job, **change), a40_free=True, seconds=10))) == []


def test_an_update_of_a_job_that_has_started_meanwhile_is_forgotten_with_the_job() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked)
    job = waiting(decided)
    look(tracked, snapshot(job, seconds=5))
    look(tracked, snapshot(job, a40_free=True, seconds=10))
    running = replace(job, state="RUNNING", nodes="a100-1")
    assert texts(look(tracked, snapshot(running, a40_free=True, seconds=15))) == []
    for turn in range(4):
        look(tracked, snapshot(a40_free=True, seconds=20.0 + turn))
    assert tracked.jobs == {}
    assert tracked.newer_entry(decided.decision.decision_id) is None


def test_the_first_in_the_queue_gets_the_room_and_the_next_one_waits() -> None:
    tracked = TrackedJobs()
    first = submitted(tracked)
    jobs = (
        waiting(first, job_id=JobId(1), priority=1),
        waiting(first, job_id=JobId(2), priority=9, admin_comment=f"energy:{DecisionId('b' * 16)}"),
    )
    look(tracked, snapshot(*jobs, seconds=5))
    assert texts(look(tracked, snapshot(*jobs, a40_free=True, seconds=10))) == ["JobId=1 Partition=a40,a100"]
    foreign = replace(jobs[1], partitions=(PartitionName("a40"),))
    again = TrackedJobs()
    third = submitted(again)
    mine = waiting(third, job_id=JobId(1), priority=1)
    look(again, snapshot(mine, seconds=5))
    assert texts(look(again, snapshot(mine, foreign, a40_free=True, seconds=10))) == [], "another is before it there"


def test_updates_are_limited_and_without_the_right_none_is_asked_for() -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked))
    look(tracked, snapshot(job, seconds=5))
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=10), max_updates=0)) == []
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=20))) == ["JobId=7 Partition=a40,a100"]


def test_with_clock_alone_slurm_is_asked_for_nothing() -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked))
    only_clock = replace(ON, redecide="clock")
    look(tracked, snapshot(job, seconds=5), settings=only_clock)
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=10), settings=only_clock)) == []


def test_a_clock_that_changes_is_told_to_the_node_and_recorded_once() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked, make_job(4, partitions=("a100",), time_limit_minutes=60.0))
    job = waiting(decided)
    look(tracked, snapshot(job, seconds=5))
    less = make_config(routing_open=True, less_gpu_memory=True, max_slowdown=0.02)
    result = look(tracked, snapshot(job, seconds=10), config=less)
    assert [change.outcome for change in result.changes] == ["clock"]
    entry = tracked.newer_entry(decided.decision.decision_id)
    assert entry is not None
    assert entry.may_change
    assert entry.decision_id == decided.decision.decision_id
    assert entry.clocks_mhz != decided.entry.clocks_mhz
    assert look(tracked, snapshot(job, seconds=20), config=less).changes == []


def test_a_decision_that_could_not_be_made_changes_nothing() -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked))
    look(tracked, snapshot(job, seconds=5))
    result = RoundResult()
    old = replace(snapshot(job, a40_free=True, seconds=10))
    for _ in look_at_pending(
        tracked, old, decider(), lambda shown, *_: Known(snapshot=shown), ON, 9, NOW + 10_000.0, result
    ):
        pass
    assert (texts(result), result.changes) == ([], []), Reason.STALE_SNAPSHOT


def test_the_number_of_gpus_changes_where_nothing_else_of_the_job_would_have_to_follow() -> None:
    options = tuple(GpuCountOption(gpus=gpus, nodes=1, cpus_per_node=1) for gpus in (1, 2, 4))
    ranged = make_job(
        4,
        partitions=("a100",),
        time_limit_minutes=60.0,
        count_options=options,
        options=EnergyOptions(gpu_counts=(1, 2, 4)),
    )
    tracked = TrackedJobs()
    decided = submitted(tracked, ranged)
    assert decided.decision.gpus == 4
    job = waiting(decided)
    look(tracked, snapshot(job, seconds=5))
    fewer = make_config(routing_open=True, less_gpu_memory=True, unmeasured_gpu_count=2)
    result = look(tracked, snapshot(job, seconds=10), config=fewer)
    assert texts(result) == ["JobId=7 TresPerNode=gres:gpu:2 TimeLimit=120"]
    in_flight = tracked.newer_entry(decided.decision.decision_id)
    assert in_flight is not None
    assert in_flight.time_limit_minutes == 60, "good before the update and after it"


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        ({"array": "1-9"}, {}),
        ({"reservation": "maintenance"}, {}),
        ({"tied": True}, {}),
        ({"exclusive": True}, {}),
        ({}, {"het_offset": "0"}),
        ({}, {"interactive": "1"}),
        ({}, {"energy_redecide": "off"}),
    ],
)
def test_kinds_of_jobs_that_are_never_decided_again(job: dict[str, Any], fields: dict[str, str]) -> None:
    asked = make_job(4, **job)
    decided = decider().decide_request(asked, Known(snapshot=snapshot()), NOW)
    assert not TrackedJobs().add(decided, fields, snapshot())


def test_where_slurmctld_kept_partitions_or_number_they_stay() -> None:
    now = snapshot(a40_free=True)
    decided = decider().decide_request(make_job(4, time_limit_minutes=60.0), Known(snapshot=now), NOW)
    assert decided.decision.partitions == ("a40",)
    tracked = TrackedJobs()
    assert tracked.add(decided, FIELDS, now)
    job = waiting(decided)
    look(tracked, snapshot(job, seconds=5))
    assert not one(tracked).partitions_open
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=10))) == []


@pytest.mark.parametrize(
    "change",
    [{"time_limit_minutes": 20.0}, {"partitions": (PartitionName("v100"),)}, {"gpu_count": 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_job_that_was_changed_before_it_was_first_seen_is_left_alone(change: dict[str, Any]) -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked), **change)
    look(tracked, snapshot(job, seconds=5))
    assert one(tracked).closed
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=10))) == []


def test_an_update_under_way_is_told_from_a_change_by_others() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked)
    job = waiting(decided)
    look(tracked, snapshot(job, seconds=5))
    tracked_job = one(tracked)
    tracked_job.attempt = Attempt(
        shape=replace(tracked_job.shape, gpus=2),
        decision=decided.decision,
        entry=DecisionEntry(decision_id=decided.decision.decision_id, mode=decided.decision.mode),
        ended_at_seconds=NOW + 6,
    )
    look(tracked, snapshot(replace(job, gpu_count=1), seconds=20))
    assert tracked_job.closed


def test_submissions_are_answered_between_steps_of_a_long_queue() -> None:
    jobs = tuple(
        JobState(
            job_id=JobId(number),
            user_name="bob",
            user_id=2000,
            name="other",
            state="RUNNING" if number % 2 else "PENDING",
            partitions=(PartitionName("a100"),),
            submitted_at_seconds=NOW - number % 7,
            gpu_count=1,
            priority=number * 7919 % 101,
            waits_for_room=number % 4 == 0,
        )
        for number in range(1, 3001)
    )
    now = snapshot(*jobs)
    tracked, result = TrackedJobs(), RoundResult()
    parts: list[list[JobState]] = []
    assert sum(1 for _ in _sorted_parts(now, parts)) >= len(jobs) // JOBS_PER_STEP
    in_order = list(merge(*parts, key=_place_in_queue))
    assert in_order == sorted(
        (job for job in jobs if job.state == "PENDING" and job.waits_for_room), key=_place_in_queue
    )
    assert max(map(len, parts)) <= JOBS_PER_STEP
    steps = look_at_pending(tracked, now, decider(), lambda shown, *_: Known(snapshot=shown), ON, 9, NOW, result)
    scans = 2 * (len(jobs) // JOBS_PER_STEP)
    assert sum(1 for _ in steps) >= scans + len(in_order)


def test_a_held_job_that_its_user_gives_less_time_keeps_no_clock_for_more() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked)
    job = waiting(decided)
    look(tracked, snapshot(job, seconds=5))
    look(tracked, snapshot(replace(job, waits_for_room=False, time_limit_minutes=20.0), seconds=10))
    newest = tracked.newer_entry(decided.decision.decision_id)
    assert newest is not None
    assert (newest.clocks_mhz, newest.time_limit_minutes) == ({}, 20)
