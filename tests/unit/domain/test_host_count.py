"""What of a node's host energy is in no job: never negative, and with the jobs' parts the whole count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.host_count import HostStretch, unused_host


def stretch(start: float, end: float, share: float, count_id: str = "boot") -> HostStretch:
    return HostStretch(
        count_id=count_id,
        start_joules=start,
        end_joules=end,
        started_at_seconds=start / 10.0,
        ended_at_seconds=end / 10.0,
        share=share,
    )


STRETCHES = st.lists(
    st.builds(
        lambda start, length, share, count: stretch(start, start + length, share, count),
        st.integers(0, 1000),
        st.integers(0, 500),
        st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]),
        st.sampled_from(["boot", "other"]),
    ),
    max_size=8,
)


def unused(stretches: list[HostStretch]) -> float:
    return sum(piece.joules for piece in unused_host(stretches))


def test_what_two_halves_do_not_cover_is_in_no_job() -> None:
    pieces = unused_host([stretch(0, 100, 0.5), stretch(40, 160, 0.25), stretch(200, 300, 1.0)])
    assert [(piece.joules, piece.until_seconds) for piece in pieces] == [
        (20.0, 4.0),
        (15.0, 10.0),
        (45.0, 16.0),
        (40.0, 20.0),
        (0.0, 30.0),
    ]


@given(STRETCHES)
def test_it_is_never_negative_nor_more_than_the_count(stretches: list[HostStretch]) -> None:
    counts: dict[str, list[float]] = {}
    for one in stretches:
        counts.setdefault(one.count_id, []).extend((one.start_joules, one.end_joules))
    assert all(piece.joules >= 0.0 for piece in unused_host(stretches))
    assert unused(stretches) <= sum(max(ends) - min(ends) for ends in counts.values()) + 1e-9


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), min_size=1, max_size=4))
def test_parts_and_the_rest_are_the_whole_count_while_cores_are_given_away_once(spans: list[tuple[int, int]]) -> None:
    stretches = [stretch(start, start + length, 0.25) for start, length in spans]
    parts = sum((one.end_joules - one.start_joules) * one.share for one in stretches)
    whole = max(one.end_joules for one in stretches) - min(one.start_joules for one in stretches)
    assert parts + unused(stretches) == pytest.approx(whole)


@given(STRETCHES, st.integers(0, 7), st.floats(0.0, 1.0))
def test_splitting_a_stretch_or_another_order_changes_nothing(
    stretches: list[HostStretch], which: int, where: float
) -> None:
    before = unused(stretches)
    assert unused(stretches[::-1]) == pytest.approx(before)
    if stretches:
        one = stretches[which % len(stretches)]
        middle = one.start_joules + where * (one.end_joules - one.start_joules)
        seconds = one.started_at_seconds + where * (one.ended_at_seconds - one.started_at_seconds)
        halves = [
            replace(one, end_joules=middle, ended_at_seconds=seconds),
            replace(one, start_joules=middle, started_at_seconds=seconds),
        ]
        rest = list(stretches)
        rest.remove(one)
        assert unused([*rest, *halves]) == pytest.approx(before, abs=1e-6)
