"""What every rule owes to every job on every cluster, by the word of the guard that stands behind it."""

from math import inf
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rule_factory import A10, A30, H100, L4, TWO_CLOCKS, Device, FakeJob, FakeView, make_job, make_view

from slurm_energy.policy.placement import Placement
from slurm_energy.policy.registry import create_rule, rule_names
from slurm_energy.twin.engine.scheduler import guarded_placement

CPU = Device("xeon", (40.0, 30.0, 60.0), (0.0, 0.9, 0.0), 30.0, clocks=(1.0,), is_cpu=True)
DEVICES = st.lists(st.sampled_from([H100, L4, A30, A10, TWO_CLOCKS, CPU]), min_size=1, max_size=5)
COUNTS = st.sets(st.integers(1, 12), min_size=1, max_size=5).map(lambda counts: tuple(sorted(counts)))


@st.composite
def views(draw: st.DrawFn) -> FakeView:
    devices = draw(DEVICES)
    totals = [draw(st.integers(1, 40)) for _ in devices]
    view = make_view(devices=devices, totals=totals, now_seconds=draw(st.sampled_from([0.0, 5000.0])))
    view.free_gpus = [draw(st.integers(0, total)) for total in totals]
    view.num_waiting = draw(st.integers(0, 3))
    view.power_budget_watts = draw(st.sampled_from([inf, 100.0, 3000.0]))
    view.wake = draw(st.dictionaries(st.integers(0, len(devices) - 1), st.floats(0.0, 1e6), max_size=3))
    return view


@st.composite
def jobs(draw: st.DrawFn) -> FakeJob:
    return make_job(
        gpu_counts=draw(COUNTS),
        estimated_units=draw(st.sampled_from([0.0, 1.0, 2_000.0, 50_000.0])),
        time_limit_seconds=draw(st.sampled_from([1.0, 600.0, 3600.0, inf])),
        deadline_seconds=draw(st.sampled_from([100.0, 5300.0, 7000.0, inf])),
        max_slowdown=draw(st.sampled_from([0.0, 0.05, 0.3, inf])),
    )


@pytest.mark.parametrize("name", rule_names())
@given(view=views(), job=jobs(), seed=st.integers(0, 3))
def test_an_answer_needs_no_correction_and_there_is_one_whenever_the_job_fits(
    name: str, view: FakeView, job: FakeJob, seed: int
) -> None:
    rule = create_rule(name)
    rule.begin(view, Random(seed))
    if rule.routes:
        routed = rule.route(job, view)
        assert isinstance(routed, int | None)
        job.routed_place = routed
    room = view.room(job)
    placement = rule.place(job, view)
    if placement is None:
        waits_for_power = name.startswith(("cap-", "total-cost")) and view.power_budget_watts < inf
        assert waits_for_power or not any(room)
        return
    assert isinstance(placement, Placement)
    table = view.options(job)
    column = {gpus: index for index, gpus in enumerate(table.gpu_counts)}
    seconds = table.seconds_per_unit[placement.place].tolist()
    left = job.deadline_seconds - view.now_seconds
    # A deadline that the fastest clock meets to the last digit is met or missed by how a product is rounded.
    fastest = min(job.estimated_units * time for times in seconds for time in times)
    assume(left == inf or abs(fastest - left) > 1e-9 * left)
    guarded = guarded_placement(placement, job, room[placement.place], seconds, column, view.now_seconds)
    assert guarded.placement == placement
    assert not guarded.clamped


@pytest.mark.parametrize("name", rule_names())
@given(view=views(), data=st.data())
def test_the_same_stream_gives_the_same_answers(name: str, view: FakeView, data: st.DataObject) -> None:
    asked = data.draw(st.lists(jobs(), min_size=1, max_size=4))
    answers = []
    for _ in range(2):
        rule = create_rule(name)
        rule.begin(view, Random(7))
        answers.append([(rule.route(job, view) if rule.routes else None, rule.place(job, view)) for job in asked])
    assert answers[0] == answers[1]
