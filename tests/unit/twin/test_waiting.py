"""Queues of waiting jobs against a plain sorted list."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from small_worlds import make_job

from slurm_energy.twin.job import plain_job
from slurm_energy.twin.job_run import JobRun
from slurm_energy.twin.waiting import JobQueue, QueueKey, Waiting, queue_key

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
        assert [run for _, run in queue.first(100)] == expected


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
