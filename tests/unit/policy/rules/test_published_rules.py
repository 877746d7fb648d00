"""The baselines of the published geo-distributed world, as its public code has them."""

from math import log, sqrt
from random import Random

import pytest
from rule_factory import A10, A30, H100, L4, FakeRun, FakeView, make_job, make_view

from slurm_energy.policy.placement import Discipline, Placement, PlacementRule, placement_alone
from slurm_energy.policy.registry import create_rule


def begun(text: str, view: FakeView, seed: int = 1) -> PlacementRule:
    rule = create_rule(text)
    rule.begin(view, Random(seed))
    return rule


@pytest.mark.parametrize("name", ["dp", "dp-full", "ucb1", "jointnf"])
def test_a_job_is_routed_blindly_by_exactly_one_choice_from_the_stream(name: str) -> None:
    view = make_view(free_gpus=[0, 0, 1])
    rule, same = begun(name, view, seed=123), Random(123)
    assert rule.routes and rule.discipline == Discipline(order="fifo", backfill="none")
    assert [rule.route(make_job(), view) for _ in range(50)] == [same.choice(range(3)) for _ in range(50)]


def test_a_job_is_routed_only_to_places_it_may_use() -> None:
    view = make_view(forbidden=(0, 2))
    assert {begun("dp", view, seed).route(make_job(), view) for seed in range(9)} == {1}
    view.forbidden = (0, 1, 2)
    assert begun("dp", view).route(make_job(), view) is None


def test_a_routed_job_starts_nowhere_else() -> None:
    view = make_view(free_gpus=[16, 0, 512])
    assert begun("dp", view).place(make_job(routed_place=1), view) is None


def test_no_placement_of_a_routing_rule_draws_from_the_stream() -> None:
    view, random = make_view(), Random(5)
    for name in ("dp", "ucb1", "jointnf"):
        rule = create_rule(name)
        rule.begin(view, random)
        before = random.getstate()
        rule.place(make_job(routed_place=1), view)
        assert random.getstate() == before


def test_dp_takes_all_that_fits_at_0_6_and_the_sites_clock_stays() -> None:
    view = make_view()
    rule = begun("dp", view)
    view.free_gpus = [1, 16, 16]
    assert rule.place(make_job(routed_place=0), view) == Placement(0, 1, 7), "starts at the highest clock"
    view.free_gpus = [2, 16, 16]
    assert rule.place(make_job(routed_place=0), view) == Placement(0, 2, 3)
    view.free_gpus = [1, 16, 16]
    assert rule.place(make_job(routed_place=0), view) == Placement(0, 1, 3), "max(0.6, 0.6)"
    assert rule.place(make_job(routed_place=1), view) == Placement(1, 8, 3)


def test_dp_starts_every_run_with_the_highest_clocks() -> None:
    view = make_view(free_gpus=[2, 2, 2])
    rule = begun("dp", view)
    rule.place(make_job(routed_place=0), view)
    rule.begin(view, Random(1))
    view.free_gpus = [1, 1, 1]
    assert rule.place(make_job(routed_place=0), view) == Placement(0, 1, 7)


def test_dp_full_keeps_the_highest_clock() -> None:
    view = make_view()
    assert begun("dp-full", view).place(make_job(routed_place=2), view) == Placement(2, 8, 7)


def pull(rule: PlacementRule, view: FakeView, job_id: int, place: int = 0) -> int:
    placement = rule.place(make_job(job_id=job_id, routed_place=place), view)
    assert isinstance(placement, Placement)
    return placement.clock


def end(rule: PlacementRule, job_id: int, joules_per_unit: float) -> None:
    rule.ended(FakeRun(job_id, energy_joules=7.0 * joules_per_unit, units=7.0))


def test_ucb1_repeats_a_clock_until_one_of_its_jobs_completes_then_tries_the_next() -> None:
    view = make_view()
    rule = begun("ucb1", view)
    assert [pull(rule, view, job_id) for job_id in (1, 2, 3)] == [0, 0, 0]
    end(rule, 2, 15.0)
    assert pull(rule, view, 4) == 1
    assert pull(rule, view, 5, place=1) == 0, "arms belong to one place"


def test_ucb1_takes_the_greatest_upper_bound_with_a_count_over_all_places() -> None:
    view = make_view(devices=(H100, L4), totals=(16, 16))
    rule = begun("ucb1", view)
    costs = [15.1, 12.4, 10.9, 10.1, 9.6, 9.45, 9.48, 9.7]
    pulls = [0] * 8
    means = [0.0] * 8
    for selection in range(1, 400):
        if selection % 3 == 0:
            pull(rule, view, selection, place=1)
            continue
        clock = pull(rule, view, selection)
        if all(pulls):
            bounds = [means[arm] + sqrt(2.0 * log(selection) / pulls[arm]) for arm in range(8)]
            assert clock == bounds.index(max(bounds))
        else:
            assert clock == pulls.index(0)
        end(rule, selection, costs[clock])
        pulls[clock] += 1
        means[clock] += (-costs[clock] - means[clock]) / pulls[clock]
    assert max(pulls) == pulls[5]


def test_ucb1_credits_the_clock_that_was_chosen_though_the_board_ran_slower() -> None:
    view = make_view()
    rule = begun("ucb1", view)
    pull(rule, view, 1)
    rule.ended(FakeRun(1, clock=5, energy_joules=10.0, units=1.0))
    assert pull(rule, view, 2) == 1


def test_ucb1_learns_nothing_from_a_job_without_work() -> None:
    view = make_view()
    rule = begun("ucb1", view)
    pull(rule, view, 1)
    rule.ended(FakeRun(1, energy_joules=10.0, units=0.0))
    assert pull(rule, view, 2) == 0


def test_jointnf_takes_one_device_at_the_energy_optimal_clock() -> None:
    view = make_view(devices=(H100, L4, A30, A10), totals=(9, 9, 9, 9))
    rule = begun("jointnf", view)
    placements = [rule.place(make_job(routed_place=place), view) for place in range(4)]
    assert placements == [Placement(0, 1, 5), Placement(1, 1, 4), Placement(2, 1, 5), Placement(3, 1, 5)]


def test_jointnf_takes_the_count_of_the_least_energy_whatever_the_counts() -> None:
    view = make_view(devices=(H100,), totals=(16,), free_gpus=[5])
    assert begun("jointnf", view).place(make_job(gpu_counts=(3, 5, 9), routed_place=0), view) == Placement(0, 3, 5)


def test_the_masked_choice_is_uniform_over_places_with_room_and_cuts_the_count() -> None:
    view = make_view(free_gpus=[0, 3, 400])
    rule = begun("masked-random", view)
    placements = [rule.place(make_job(), view) for _ in range(4000)]
    assert None not in placements
    found = [placement for placement in placements if isinstance(placement, Placement)]
    first = [placement.gpus for placement in found if placement.place == 1]
    assert 0.46 < len(first) / len(found) < 0.54
    assert {placement.place for placement in found} == {1, 2}
    assert 0.69 < first.count(3) / len(first) < 0.81, "six counts of eight are cut to three"
    best = view.options(make_job()).joules_per_unit.argmin(axis=2)
    assert all(placement.clock == best[placement.place, placement.gpus - 1] for placement in found)


def test_jointnf_with_the_mask_takes_one_device_where_there_is_room() -> None:
    view = make_view(free_gpus=[0, 3, 400])
    rule = begun("jointnf-mask", view)
    assert {rule.place(make_job(), view) for _ in range(60)} == {Placement(1, 1, 4), Placement(2, 1, 5)}


@pytest.mark.parametrize("count", [1, 2, 5, 8, 9, 100])
def test_a_blind_choice_draws_what_a_choice_from_the_stream_draws(count: int) -> None:
    view = make_view(devices=(A10,) * count, totals=(8,) * count)
    rule, same = begun("dp", view, seed=7), Random(7)
    assert [rule.route(make_job(), view) for _ in range(40)] == [same.choice(range(count)) for _ in range(40)]


def test_a_placement_alone_is_kept_for_the_next_time() -> None:
    assert placement_alone(1, 2, 3) == Placement(1, 2, 3)
    assert placement_alone(1, 2, 3) is placement_alone(1, 2, 3)
