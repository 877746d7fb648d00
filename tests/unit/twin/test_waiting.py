"""Queues of waiting jobs against a plain sorted list."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from small_worlds import make_job

from slurm_energy.twin.engine.job import JobRun, plain_job
from slurm_energy.twin.engine.waiting import JobQueue, QueueKey, Waiting, queue_key

_KEYS = st.tuples(st.sampled_from([-2.0, -0.0, 0.0, 1.0]), st.sampled_from([0.0, 1.5, 7.0]))
_STEPS = st.lists(st.one_of(_KEYS, st.just("take"), st.integers(0, 30)), max_size=60)


@given(_STEPS)
def test_queue_is_a_sorted_list_whatever_comes_and_goes(steps: list[object]) -> None:
    queue, expected, ids = JobQueue((0,)), list[JobRun](), count()

    def key(run: JobRun) -> QueueKey:
        return run.queue_key

    for step in steps:
        if isinstance(step, tuple):
            run = JobRun(make_job(next(ids)))
            run.queue_key = (*step, run.job_id)
            expected = sorted([*expected, run], key=key)
            assert queue.add(run) == (expected[0] is run)
        elif step == "take" and expected:
            assert queue.head() is expected[0]
            assert queue.head_key() == expected[0].queue_key
            queue.take_head()
            del expected[0]
        elif isinstance(step, int) and expected:
            queue.remove(expected.pop(step % len(expected)))
        assert queue.size == len(expected)
        assert queue.first(100) == expected


def test_key_of_a_plain_job_is_that_of_the_same_job_in_full() -> None:
    plain = plain_job(3, 5.0, 100.0, "training", (1,), 0)
    assert queue_key(plain, 7.0) == queue_key(make_job(3, 5.0, 100.0), 7.0) == (0.0, 7.0, 3)
    assert queue_key(make_job(3, priority=2.0), 7.0) == (-2.0, 7.0, 3)


def test_queue_of_one_place_is_found_by_its_place() -> None:
    waiting = Waiting([0, 0, 1])
    assert waiting.queue_of_place == [None, None, None]
    alone, both = waiting.queue((1,)), waiting.queue((1, 2))
    assert waiting.queue_of_place == [None, alone, None]
    assert waiting.queue((1,)) is alone
    assert both is not alone


def test_a_change_touches_the_queues_with_jobs_that_share_its_pools_and_is_forgotten() -> None:
    waiting = Waiting([0, 0, 1, 2])
    first, wide, alone = waiting.queue((0,)), waiting.queue((1, 2)), waiting.queue((3,))
    lists = list(waiting.together)
    changed = {0}
    assert waiting.take_touched(changed) == []
    for queue in (first, wide, alone):
        run = JobRun(make_job(len(queue.places)))
        run.queue_key = (0.0, 0.0, run.job_id)
        queue.add(run)
    for places, expected in (
        ({0}, [first, wide]),
        ({2}, [first, wide]),
        ({3}, [alone]),
        ({1, 3}, [first, wide, alone]),
    ):
        assert waiting.take_touched(places) == expected
        assert not places
    late = waiting.queue((2, 3))
    assert [queues is known for queues, known in zip(waiting.together, lists, strict=True)] == [True] * 4
    assert all(queues == [first, wide, alone, late] for queues in lists)


def test_a_job_queues_at_the_place_of_its_route_or_for_all_that_it_may_use() -> None:
    waiting = Waiting([0, 1, 2])
    assert waiting.queue_for((0, 2), None) is waiting.queue((0, 2))
    assert waiting.queue_for((0, 2), 2) is waiting.queue((2,)) is waiting.queue_for((1, 2), 2)
