"""Clocks by what a site measured: one price of time for all jobs, kept to the bound in the mean."""

from dataclasses import replace
from math import log
from random import Random

import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.estimation.run_time import EndedRun
from slurm_energy.estimation.site_clocks import MIN_RUNS, LimitHabits, SiteClocks, site_clocks

A100, H100 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("h100-sxm5-80gb")
BOUNDS = (0.05, 0.2)
LIMITS = BoardLimits(site_watts={A100: 400.0})
DEFAULT_MHZ = 1410


def run(name: str, watts: float, *, seconds: float = 3600.0, **changes: object) -> MeasuredRun:
    made = MeasuredRun(
        user="anna", name=name, gpu_type=A100, gpus=1, seconds=seconds, watts=watts, ended_at_seconds=1000.0
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # by name


def tried(slowdowns: dict[int, float], *, power: float = 1.0, error: float = 0.004) -> LearnedClock:
    """Return what trials found of a program of such slowdowns, whose power falls with the clock to this power."""
    found = [
        LearnedClock(
            sm_clock_mhz=clock,
            default_clock_mhz=DEFAULT_MHZ,
            slowdown=slowdown,
            error=error,
            energy_change=(clock / DEFAULT_MHZ) ** power * (1.0 + slowdown) - 1.0,
            runs=3,
        )
        for clock, slowdown in slowdowns.items()
    ]
    return replace(found[0], others=tuple(found[1:]))


MEMORY_BOUND = tried({1200: 0.0, 990: 0.005})
CLOCK_BOUND = tried({1290: 0.09, 1200: 0.17})


def site(learned: dict[str, LearnedClock], runs: list[MeasuredRun], **changes: object) -> SiteClocks:
    rows = [("anna", name, {A100: clock}) for name, clock in learned.items()]
    return site_clocks(rows, runs, BOUNDS, changes.get("limits", LIMITS), 2000.0)  # type: ignore[arg-type]


def chosen(clocks: SiteClocks, watts: float | None, learned: LearnedClock | None, bound: float = 0.05) -> float:
    table = clocks.table(A100, watts, learned, bound)
    assert table is not None
    best = table.best(2.0 * bound)
    assert best is not None
    return best.sm_clock_mhz / best.default_clock_mhz


def both_kinds() -> SiteClocks:
    runs = [run(name, watts) for name, watts in (("memory", 160.0), ("clock", 390.0)) for _ in range(20)]
    return site({"memory": MEMORY_BOUND, "clock": CLOCK_BOUND}, runs)


def test_a_program_that_hardly_slows_down_gets_a_lower_clock_than_one_that_does() -> None:
    clocks = both_kinds()
    assert chosen(clocks, 160.0, MEMORY_BOUND) < 0.8 < chosen(clocks, 390.0, CLOCK_BOUND)


def test_a_name_without_trials_is_taken_for_what_jobs_of_its_power_are() -> None:
    clocks = both_kinds()
    assert chosen(clocks, 155.0, None) < chosen(clocks, 395.0, None)


def test_the_planned_mean_and_its_doubt_stay_within_the_bound_and_use_most_of_it() -> None:
    clocks = both_kinds()
    assert clocks.expected_slowdown + clocks.slowdown_doubt <= BOUNDS[0]
    wider = site_clocks([], [run("clock", 390.0) for _ in range(40)], (0.1, 0.2), LIMITS, 2000.0)
    narrower = site_clocks([], [run("clock", 390.0) for _ in range(40)], (0.02, 0.2), LIMITS, 2000.0)
    assert wider.price(0.1) < narrower.price(0.02)


def test_no_other_clocks_save_more_energy_at_the_same_mean_slowdown() -> None:
    clocks = both_kinds()
    everything = [
        {
            point.sm_clock_mhz: (watts * point.energy_change, point.slowdown)
            for point in (clocks.table(A100, watts, learned, 1e6) or pytest.fail("no table")).points
        }
        for watts, learned in ((160.0, MEMORY_BOUND), (390.0, CLOCK_BOUND))
    ]
    tables = [
        clocks.table(A100, watts, learned, 0.05) for watts, learned in ((160.0, MEMORY_BOUND), (390.0, CLOCK_BOUND))
    ]
    picked = [table.points[0].sm_clock_mhz for table in tables if table is not None]
    energy = sum(options[clock][0] for options, clock in zip(everything, picked, strict=True))
    slowdown = sum(options[clock][1] for options, clock in zip(everything, picked, strict=True))
    for one in everything[0].values():
        for other in everything[1].values():
            if one[1] + other[1] <= slowdown + 1e-9:
                assert one[0] + other[0] >= energy - 1e-6


def test_what_limits_leave_of_the_plan_is_used_by_other_jobs_and_too_much_is_taken_back() -> None:
    def price(slowed: float) -> float:
        runs = [run("clock", 390.0, slowed=slowed, is_decided=True) for _ in range(3 * MIN_RUNS)]
        return site({}, runs).price(0.05)

    assert price(0.02) <= price(0.05) <= price(0.09)
    assert price(0.02) < price(0.09)


def test_a_site_that_changes_over_from_a_bound_of_each_job_is_not_slowed_far_beyond_the_bound() -> None:
    kinds = [run("a", 390.0), run("b", 150.0, gpu_type=GpuTypeName("v100-pcie-16gb")), run("c", 300.0)]
    before = [replace(one, slowed=0.002, is_decided=True) for one in kinds for _ in range(50)]
    clocks = site({}, before)
    assert clocks.expected_slowdown + clocks.slowdown_doubt <= 1.25 * BOUNDS[0]


def test_runs_from_before_the_installation_say_nothing_of_how_much_of_the_bound_is_used() -> None:
    assert site({}, [run("a", 390.0) for _ in range(3 * MIN_RUNS)]).measured_slowdown is None


def test_a_type_without_curves_has_no_clock_until_some_were_tried() -> None:
    limits = BoardLimits(site_watts={H100: 700.0})
    assert site_clocks([], [], BOUNDS, limits, 0.0).table(H100, 600.0, None, 0.05) is None
    learned = replace(MEMORY_BOUND, default_clock_mhz=1980, sm_clock_mhz=1500, others=())
    clocks = site_clocks([("anna", "x", {H100: learned})], [], BOUNDS, limits, 0.0)
    table = clocks.table(H100, 300.0, learned, 0.05)
    assert table is not None and table.points[0].sm_clock_mhz < 1980


@pytest.mark.parametrize("watts", [None, 0.0, 1e-9, 1e9])
def test_any_power_gets_a_table(watts: float | None) -> None:
    table = both_kinds().table(A100, watts, None, 0.05)
    assert table is not None
    assert table.points[-1].sm_clock_mhz == DEFAULT_MHZ and table.points[-1].slowdown == 0.0


def test_an_empty_site_begins_inside_the_bound_by_the_programs_of_the_package() -> None:
    clocks = site_clocks([], [], BOUNDS, LIMITS, 0.0)
    table = clocks.table(A100, None, None, 0.05)
    assert table is not None and 0.0 < table.points[0].slowdown <= 0.1
    assert clocks.expected_slowdown + clocks.slowdown_doubt <= 0.05


def limited(share: float, *, user: str = "anna", cut_off: bool = False) -> EndedRun:
    return EndedRun(user=user, name="a", seconds=1000.0 * share, limit_seconds=1000.0, cut_off=cut_off)


def test_a_site_whose_jobs_end_far_from_their_limits_leaves_room() -> None:
    random = Random(1)
    habits = LimitHabits.of(limited(random.uniform(0.2, 0.8)) for _ in range(400))
    assert habits.room(("anna",), 0.02, 0.01) == pytest.approx(0.98 / 0.8 - 1.0, abs=0.02)


def test_a_user_who_ended_near_a_limit_has_the_room_that_was_left() -> None:
    runs = [limited(0.5, user=f"user{number}") for number in range(400)]
    habits = LimitHabits.of([*runs, limited(0.97, user="tight")])
    assert habits.room(("tight",), 0.02, 0.01) == pytest.approx(0.98 / 0.97 - 1.0)
    assert habits.room((7, "user1"), 0.02, 0.01) > 0.5


def test_few_runs_or_none_leave_no_room() -> None:
    assert LimitHabits.of([]).room((None,), 0.02, 0.01) < 0.0
    assert LimitHabits.of(limited(0.1) for _ in range(50)).room((None,), 0.02, 0.01) < 0.0


def test_runs_that_reach_their_limit_anyway_count_for_nothing_and_cancelled_ones_are_left_out() -> None:
    runs = [limited(0.5, user="a") for _ in range(400)] + [limited(1.0, user="b", cut_off=True) for _ in range(40)]
    habits = LimitHabits.of([*runs, limited(0.3, user="c", cut_off=True)])
    assert len(habits.shares) == 440
    assert habits.room(("a",), 0.02, 0.01) > 0.5
    assert habits.room(("b",), 0.02, 0.01) < 0.0


def test_power_classes_are_near_in_ratio() -> None:
    one = both_kinds().types[A100]
    assert one.class_of(400.0 * 0.95) == one.class_of(380.0) != one.class_of(100.0)
    assert one.class_of(None) == len(one.classes) - 1
    assert log(one.limit_watts) > 0.0
