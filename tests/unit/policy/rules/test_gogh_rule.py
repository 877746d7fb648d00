"""Waiting jobs planned together by an integer programme."""

from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_factory import A10, A30, H100, L4, FakeJob, FakeRun, FakeView, make_job, make_view

from slurm_energy.policy.jobs import PartnerOffer
from slurm_energy.policy.placement import Placement
from slurm_energy.policy.registry import create_rule
from slurm_energy.policy.rules.gogh import GoghRule, _Choice, _in_turn

OFFER = PartnerOffer(job_id=70, place=1, speed=0.95, partner_speed=0.9, watts=110.0, partner_watts=105.0)


def begun(view: FakeView, text: str = "gogh:seconds=60") -> GoghRule:
    rule = create_rule(text)
    assert isinstance(rule, GoghRule)
    rule.begin(view, Random(1))
    return rule


def planned(view: FakeView, jobs: list[FakeJob], text: str = "gogh:seconds=60") -> dict[int, Placement | None]:
    """Ask for each job in turn, as the queue does; what starts takes its GPUs."""
    rule = begun(view, text)
    for job in jobs:
        rule.route(job, view)
    found: dict[int, Placement | None] = {}
    for job in jobs:
        placement = rule.place(job, view)
        found[job.job_id] = placement
        if placement is not None and placement.partner is None:
            view.free_gpus[placement.place] -= placement.gpus
        elif placement is not None:
            view.offers = [offer for offer in view.offers if offer.job_id != placement.partner]
    return found


def joules(view: FakeView, job: FakeJob, placement: Placement) -> float:
    table = view.options(job)
    where = placement.place, table.count_index(placement.gpus), placement.clock
    power = table.watts[where] - table.free_watts[where]
    return float(job.estimated_units * table.seconds_per_unit[where] * power)


def test_the_efficient_place_goes_to_the_job_that_gains_most_by_it() -> None:
    view = make_view(devices=(H100, L4), totals=(1, 1))
    small = make_job(job_id=1, gpu_counts=(1,), estimated_units=1_000.0)
    large = make_job(job_id=2, gpu_counts=(1,), estimated_units=90_000.0, submitted_seconds=1.0)
    alone = begun(make_view(devices=(H100, L4), totals=(1, 1))).place(small, view)
    assert alone is not None
    found = planned(view, [small, large])
    first, second = found[1], found[2]
    assert first is not None and second is not None
    assert second.place == alone.place != first.place


@given(units=st.lists(st.sampled_from([0.0, 100.0, 2_000.0, 50_000.0]), min_size=2, max_size=4), free=st.data())
def test_the_plan_is_the_best_of_all(units: list[float], free: st.DataObject) -> None:
    devices = (H100, L4, A30)
    view = make_view(devices=devices, totals=(4, 4, 4))
    view.free_gpus = [free.draw(st.integers(0, 2)) for _ in devices]
    jobs = [
        make_job(job_id=at + 1, gpu_counts=(1, 2), estimated_units=value, submitted_seconds=float(at))
        for at, value in enumerate(units)
    ]
    rule, before = begun(view), list(view.free_gpus)
    for job in jobs:
        rule.route(job, view)
    plan = rule._planned(jobs[0], view)

    options = [[None, *(choice.placement for choice in rule._choices(at, job, view))] for at, job in enumerate(jobs)]
    best: tuple[float, float] = (-1.0, 0.0)
    for chosen in product(*options):
        taken = [sum(one.gpus for one in chosen if one is not None and one.place == place) for place in range(3)]
        if any(used > left for used, left in zip(taken, before, strict=True)):
            continue
        started = float(sum(one is not None for one in chosen))
        total = sum(joules(view, job, one) for job, one in zip(jobs, chosen, strict=True) if one is not None)
        best = max(best, (started, -total))
    got = [plan[job.job_id] for job in jobs]
    assert sum(one is not None for one in got) == best[0]
    # Which of equally many start is settled by the queue first: of the same number, never more energy than the best.
    if best[0] == len(jobs):
        total = sum(joules(view, job, one) for job, one in zip(jobs, got, strict=True) if one is not None)
        assert total == pytest.approx(-best[1], rel=1e-6, abs=1e-3)


def test_no_more_than_two_jobs_share_a_gpu_and_only_where_both_stay_fast() -> None:
    for offer, expected in ((OFFER, 1), (OFFER._replace(speed=0.8), 0), (OFFER._replace(partner_speed=0.7), 0)):
        view = make_view(devices=(H100, L4), totals=(2, 2))
        view.free_gpus = [0, 0]
        view.offers = [offer]
        view.running = [FakeRun(70, place=1, gpus=1, clock=7)]
        jobs = [make_job(job_id=at, gpu_counts=(1,)) for at in (1, 2, 3)]
        found = planned(view, jobs)
        assert [one.partner for one in found.values() if one is not None] == [70] * expected


def test_none_share_where_the_setting_says_so() -> None:
    view = make_view(devices=(H100, L4), totals=(2, 2))
    view.offers, view.running = [OFFER], [FakeRun(70, place=1, gpus=1, clock=7)]
    found = planned(view, [make_job(job_id=1, gpu_counts=(1,))], "gogh:min_speed=2")
    assert found[1] is not None and found[1].partner is None


def test_a_search_without_a_plan_in_time_leaves_each_job_its_cheapest_option() -> None:
    choices = [
        _Choice(0, Placement(0, 2, 1), 5.0, ("place", 0), 2),
        _Choice(0, Placement(1, 1, 1), 9.0, ("place", 1), 1),
        _Choice(1, Placement(0, 1, 1), 1.0, ("place", 0), 1),
        _Choice(1, Placement(1, 1, 1), 2.0, ("place", 1), 1),
        _Choice(2, Placement(1, 1, 1), 3.0, ("place", 1), 1),
    ]
    found = _in_turn(choices, {("place", 0): 2, ("place", 1): 1})
    assert [(choice.job, choice.placement.place) for choice in found] == [(0, 0), (1, 1)]


def test_a_burst_of_jobs_is_planned_within_its_limits() -> None:
    view = make_view(devices=(H100, L4, A30, A10), totals=(16, 64, 64, 64))
    jobs = [
        make_job(job_id=at, gpu_counts=(1, 2, 4), estimated_units=1_000.0 * at, deadline_seconds=inf)
        for at in range(1, 61)
    ]
    found = planned(view, jobs, "gogh")
    assert all(one is not None for one in found.values())
    assert min(view.free_gpus) >= 0
