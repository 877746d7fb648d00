"""When the last of the jobs that run is expected to end."""

from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.policy.rules.total_cost import LatestEnd

_NEVER = float("inf")
EVENTS = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.none(), st.floats(0.0, 1e9), st.just(_NEVER))),
    max_size=60,
)
"""Job, and its expected end at a start, or None where it ends."""


def test_nothing_runs_so_nothing_ends() -> None:
    latest = LatestEnd()
    assert latest.seconds_left(5.0) == 0.0
    latest.ended(3)  # started before anybody looked
    assert latest.seconds_left(5.0) == 0.0


@given(events=EVENTS, now=st.floats(0.0, 1e9))
def test_it_is_the_greatest_end_of_those_that_run(events: list[tuple[int, float | None]], now: float) -> None:
    latest, running = LatestEnd(), dict[int, float]()
    for job_id, end in events:
        if end is None:
            latest.ended(job_id)
            running.pop(job_id, None)
        else:
            latest.started(job_id, end)
            running.pop(job_id, None)
            if end < _NEVER:
                running[job_id] = end
        assert latest.seconds_left(now) == max(0.0, max(running.values(), default=now) - now)
