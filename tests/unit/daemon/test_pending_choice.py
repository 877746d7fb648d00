"""The clocks of a waiting job: only those that its present number of GPUs and time limit allow."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from policy_factory import A40, A100, make_clock, make_job
from test_pending_jobs import ON, look, one, snapshot, submitted, texts, waiting

from slurm_energy.daemon.decide import Decided
from slurm_energy.daemon.pending.choice import choose, request_again
from slurm_energy.daemon.pending.tracked import JobShape, TrackedJob, TrackedJobs
from slurm_energy.domain.decision import DecisionEntry, Reason
from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyOptions, JobRequest

OPTIONS = tuple(GpuCountOption(gpus=gpus, nodes=1, cpus_per_node=1) for gpus in (1, 2, 4))
OWN, BOTH = (PartitionName("a100"),), (PartitionName("a40"), PartitionName("a100"))
Answer = Callable[[JobRequest], Decided]


def ranged(**changes: Any) -> JobRequest:
    options = EnergyOptions(gpu_counts=(1, 2, 4))
    return make_job(4, time_limit_minutes=60.0, count_options=OPTIONS, options=options, **changes)


def tracked_job(job: JobRequest | None = None, **shown: Any) -> TrackedJob:
    tracked = TrackedJobs()
    decided = submitted(tracked, job or ranged())
    now = waiting(decided, **shown)
    one(tracked).see(now, 0.0)
    found: TrackedJob = one(tracked)
    return found


def answer(
    own: TrackedJob, request: JobRequest, clocks: dict[GpuTypeName, int], limit: int | None, **decision: Any
) -> Decided:
    changed = {"partitions": None, "gpus": None, "reasons": (Reason.POLICY,), "trial_bounds": {}, **decision}
    choices = tuple(make_clock(name, mhz) for name, mhz in clocks.items())
    return Decided(
        decision=replace(own.decision, clocks=choices, **changed),
        job=request,
        entry=DecisionEntry(
            decision_id=own.decision.decision_id, mode=own.decision.mode, clocks_mhz=clocks, time_limit_minutes=limit
        ),
    )


def test_a_job_that_is_moved_first_gets_the_clock_of_the_number_and_limit_that_it_keeps() -> None:
    own = tracked_job()

    def decide(request: JobRequest) -> Decided:
        if request.count_options:  # two GPUs, twice the time: room for a slow clock
            return answer(own, request, {A40: 900}, 120, gpus=2, partitions=("a40",))
        assert (request.gpu_count, request.time_limit_minutes) == (4, 60.0)
        return answer(own, request, {A40: 1500}, 60, partitions=("a40",))

    choice = choose(own, decide, snapshot(), may_update=True)
    assert choice is not None
    assert choice.shape == JobShape(partitions=BOTH, gpus=4, time_limit_minutes=60.0)
    assert choice.entry.clocks_mhz == {A40: 1500}
    assert (choice.entry.gpus, choice.entry.time_limit_minutes) == (4, 60)


def test_a_new_number_that_is_best_elsewhere_only_comes_without_a_clock_of_there() -> None:
    own = tracked_job()

    def decide(request: JobRequest) -> Decided:
        if request.count_options:
            return answer(own, request, {A40: 900, A100: 900}, 120, gpus=2, partitions=("a40",))
        return answer(own, request, {A100: 1200}, 60)

    choice = choose(own, decide, snapshot(), may_update=True)
    assert choice is not None
    assert choice.shape == JobShape(partitions=OWN, gpus=2, time_limit_minutes=120.0)
    assert (choice.entry.clocks_mhz, choice.entry.gpus, choice.entry.time_limit_minutes) == ({}, 2, 120)


def test_without_a_choice_of_a_number_the_clock_is_that_of_the_present_one() -> None:
    own = tracked_job()
    own.shape = replace(own.shape, gpus=2, time_limit_minutes=120.0)

    def decide(request: JobRequest) -> Decided:
        asked = {4: (900, 60), 2: (1300, 120)}[request.gpu_count]
        return answer(own, request, {A100: asked[0]}, asked[1])

    choice = choose(own, decide, snapshot(), may_update=True)
    assert choice is not None
    assert choice.shape == own.shape
    assert (choice.entry.clocks_mhz, choice.entry.gpus) == ({A100: 1300}, 2)


def test_clocks_for_more_time_than_the_job_has_are_left_out() -> None:
    own = tracked_job(make_job(4, time_limit_minutes=60.0))
    choice = choose(own, lambda request: answer(own, request, {A100: 900}, 120), snapshot(), may_update=True)
    assert choice is not None
    assert (choice.entry.clocks_mhz, choice.entry.time_limit_minutes) == ({}, 60)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {A40: 1305, A100: 1200}),
        ({"gpus": 2}, {A100: 1200}),
        ({"time_limit_minutes": 120}, {A100: 1200}),
    ],
    ids=["as it was", "chosen for another number", "chosen for more time"],
)
def test_a_partition_that_stays_behind_its_own_keeps_its_clock(
    change: dict[str, Any], expected: dict[GpuTypeName, int]
) -> None:
    own = tracked_job(make_job(4, time_limit_minutes=60.0))
    own.shape = replace(own.shape, partitions=BOTH)
    base = replace(own.entry, clocks_mhz={A40: 1305, A100: 1100}, assumed_watts={A40: 300}, time_limit_minutes=60)
    own.entry = replace(base, **change)
    reasons = (Reason.NO_IDLE_PARTITION,)
    decided = choose(own, lambda job: answer(own, job, {A100: 1200}, 60, reasons=reasons), snapshot(), may_update=True)
    assert decided is not None
    assert decided.shape == own.shape
    assert decided.entry.clocks_mhz == expected
    assert decided.entry.assumed_watts == ({A40: 300} if A40 in expected else {})


def test_a_type_that_the_new_decision_leaves_at_its_default_clock_keeps_no_old_one() -> None:
    own = tracked_job(make_job(4, time_limit_minutes=60.0))
    own.entry = replace(own.entry, clocks_mhz={A100: 900})
    decided = choose(own, lambda job: answer(own, job, {}, 60), snapshot(), may_update=True)
    assert decided is not None
    assert decided.entry.clocks_mhz == {}


def test_a_limit_that_slurm_gave_is_what_the_job_is_decided_with() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked, make_job(4, time_limit_minutes=None))
    assert decided.entry.clocks_mhz
    assert decided.entry.time_limit_minutes == 1440
    own = one(tracked)
    own.see(waiting(decided, time_limit_minutes=60.0), 0.0)
    newest = tracked.newer_entry(decided.decision.decision_id)
    assert newest is not None, "what travels in the job is for 1,440 minutes"
    assert (newest.clocks_mhz, newest.time_limit_minutes) == ({}, 60)
    assert request_again(own).time_limit_minutes == 60.0
    longer = choose(own, lambda job: answer(own, job, {A100: 900}, 60), snapshot(), may_update=True)
    assert longer is not None
    assert longer.entry.clocks_mhz == {A100: 900}


def test_a_partition_with_less_time_by_default_takes_the_clock_from_a_job_without_a_limit() -> None:
    own = tracked_job(make_job(4, time_limit_minutes=None), time_limit_minutes=1440.0)
    now = snapshot()
    short = [replace(one, default_time_minutes=60.0 if one.name == "a40" else None) for one in now.partitions]
    now = replace(now, partitions=tuple(short))
    sent = choose(own, lambda job: answer(own, job, {A40: 900}, 1440, partitions=("a40",)), now, may_update=True)
    assert sent is not None
    assert (sent.shape.partitions, sent.entry.clocks_mhz) == (BOTH, {})


@pytest.mark.parametrize("shown", [{"time_limit_minutes": 30.0}, {"gpu_count": 2}], ids=["less time", "fewer GPUs"])
def test_a_job_that_its_user_changes_keeps_no_clock_that_was_chosen_before(shown: dict[str, Any]) -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked, ranged())
    job = waiting(decided)
    one(tracked).see(job, 0.0)
    assert one(tracked).see(replace(job, **shown), 5.0) == "closed"
    newest = tracked.newer_entry(decided.decision.decision_id)
    assert newest is not None
    assert newest.clocks_mhz == {}
    assert newest.time_limit_minutes == shown.get("time_limit_minutes", 60)


def test_where_nothing_may_be_changed_the_clock_follows_for_the_job_as_it_is() -> None:
    own = tracked_job()

    def decide(request: JobRequest) -> Decided:
        if request.partitions == OWN:
            assert (request.gpu_count, request.count_options) == (4, ())
            return answer(own, request, {A100: 1200}, 60)
        return answer(own, request, {A40: 900}, 60, partitions=("a40",))

    choice = choose(own, decide, snapshot(), may_update=False)
    assert choice is not None
    assert choice.shape == own.shape
    assert choice.entry.clocks_mhz == {A100: 1200}


def test_with_clock_alone_the_clock_changes_though_another_partition_would_be_better() -> None:
    tracked = TrackedJobs()
    decided = submitted(tracked)
    job = waiting(decided)
    only_clock = replace(ON, redecide="clock")
    look(tracked, snapshot(job, seconds=5), settings=only_clock)
    one(tracked).entry = replace(one(tracked).entry, clocks_mhz={A100: 999})
    result = look(tracked, snapshot(job, a40_free=True, seconds=10), settings=only_clock)
    assert (texts(result), [change.outcome for change in result.changes]) == ([], ["clock"])


def test_what_travels_in_a_job_that_may_change_has_the_shortest_limit_of_all_its_numbers() -> None:
    entry = replace(tracked_job().entry, time_limit_minutes=120, min_limit_minutes=60, gpus=2)
    assert ";limit=120;gpus=2" in entry.encode()
    carried = replace(entry, may_change=True).encode()
    assert ";limit=60;newer=1;gpus=2" in carried
    assert DecisionEntry.decode(carried).gpus == 2
    assert DecisionEntry.decode(carried.removesuffix(";gpus=2")).gpus is None, "entries of before"
    own = tracked_job()
    assert (own.entry.gpus, own.entry.min_limit_minutes) == (4, 60)
