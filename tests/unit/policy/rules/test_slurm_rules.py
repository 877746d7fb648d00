"""Rules that place jobs as Slurm does."""

from random import Random

import pytest
from rule_factory import A10, H100, L4, TWO_CLOCKS, FakeRun, FakeView, make_job, make_view

from slurm_energy.errors import ConfigError
from slurm_energy.policy.placement import Discipline, Placement, PlacementRule
from slurm_energy.policy.registry import create_rule


def begun(text: str, view: FakeView) -> PlacementRule:
    rule = create_rule(text)
    rule.begin(view, Random(1))
    return rule


@pytest.mark.parametrize("name", ["slurm-default", "fcfs", "sjf-backfill", "fixed-clock", "job-table"])
def test_the_first_place_with_room_gives_the_most_devices_that_fit_at_the_default_clock(name: str) -> None:
    view = make_view(devices=(H100, TWO_CLOCKS, L4), totals=(16, 16, 16), free_gpus=[0, 5, 16])
    assert begun(name, view).place(make_job(), view) == Placement(1, 5, 1)
    assert begun(name, view).place(make_job(gpu_counts=(8,)), view) == Placement(2, 8, 7)


@pytest.mark.parametrize("name", ["slurm-default", "fixed-dvfs", "masked-random", "greedy", "price", "edp", "dp"])
def test_a_job_that_fits_nowhere_waits(name: str) -> None:
    view = make_view(free_gpus=[3, 3, 3])
    assert begun(name, view).place(make_job(gpu_counts=(4, 8)), view) is None


def test_disciplines_are_those_of_the_names() -> None:
    assert create_rule("slurm-default").discipline == Discipline(order="fifo", backfill="easy")
    assert create_rule("fcfs").discipline == Discipline(order="fifo", backfill="none")
    assert create_rule("sjf-backfill").discipline == Discipline(order="sjf", backfill="easy")


def test_one_relative_clock_is_the_nearest_on_every_grid() -> None:
    view = make_view(devices=(H100, TWO_CLOCKS), totals=(8, 8))
    rule = begun("fixed-dvfs:f=0.62", view)
    assert [rule.place(make_job(routed_place=place), view) for place in (0, 1)] == [
        Placement(0, 8, 3),
        Placement(1, 8, 0),
    ]


def test_clocks_by_device_leave_other_devices_at_their_default() -> None:
    view = make_view(devices=(H100, L4, A10), totals=(8, 8, 8))
    rule = begun("fixed-clock:L4=0.7,h100=0.8", view)
    placements = [rule.place(make_job(routed_place=place), view) for place in range(3)]
    assert [isinstance(placement, Placement) and placement.clock for placement in placements] == [5, 4, 7]


def test_a_clock_for_a_device_that_no_place_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no place has device 'a100'; devices: h100, l4, a30"):
        begun("fixed-clock:a100=0.8", make_view())


def run_jobs(rule: PlacementRule, view: FakeView, runs: int, **changes: object) -> list[int]:
    """Run one job after another to its end and return the clocks they had."""
    clocks = []
    for number in range(runs):
        job = make_job(job_id=number, **changes)
        placement = rule.place(job, view)
        assert isinstance(placement, Placement)
        clocks.append(placement.clock)
        joules = float(view.options(job).joules_per_unit[placement.place, placement.gpus - 1, placement.clock])
        rule.ended(
            FakeRun(number, placement.place, placement.gpus, placement.clock, energy_joules=3.0 * joules, units=3.0)
        )
    return clocks


def test_the_job_table_walks_down_to_the_best_clock_and_stays() -> None:
    view = make_view(devices=(L4,), totals=(8,))
    best = int(view.options(make_job()).joules_per_unit[0, 7].argmin())
    clocks = run_jobs(begun("job-table", view), view, 12)
    assert clocks[:3] == [7, 6, 5]
    assert set(clocks[-4:]) == {best}


def test_the_job_table_keeps_accounts_and_names_apart() -> None:
    view = make_view(devices=(L4,), totals=(8,))
    rule = begun("job-table", view)
    run_jobs(rule, view, 8)
    assert run_jobs(rule, view, 1, name="other") == [7]
    assert run_jobs(rule, view, 1, account="other") == [7]


def test_the_job_table_never_goes_below_the_bound_of_the_job() -> None:
    view = make_view(devices=(L4,), totals=(8,))
    clocks = run_jobs(begun("job-table", view), view, 10, max_slowdown=0.15)
    assert min(clocks) == 6


def test_a_given_clock_is_taken_without_a_search() -> None:
    view = make_view(devices=(L4,), totals=(8,))
    rule = begun("job-table:lab/train=0.5,f=0.9", view)
    assert run_jobs(rule, view, 3) == [2, 2, 2]
    assert run_jobs(rule, view, 1, name="other") == [6]


def test_runs_that_did_not_complete_teach_nothing() -> None:
    view = make_view(devices=(L4,), totals=(8,))
    rule = begun("job-table", view)
    for number in range(3):
        assert rule.place(make_job(job_id=number), view) == Placement(0, 8, 7)
        rule.ended(FakeRun(number, state="TIMEOUT", units=5.0))
