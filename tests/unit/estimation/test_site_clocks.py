"""Clocks by what a site measured: one price of time for all jobs, kept to the bound in the mean."""

import gc
import pickle
from dataclasses import replace
from math import log
from random import Random
from typing import Any

import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.operating_point import ClockTable
from slurm_energy.estimation.clock_response import FORMS
from slurm_energy.estimation.decided_runs import MIN_RUNS, DecidedRun
from slurm_energy.estimation.run_time import EndedRun
from slurm_energy.estimation.site_clocks import EndedJobs, SiteClocks, site_clocks
from slurm_energy.estimation.type_clocks import TypeClocks
from slurm_energy.estimation.user_shares import within_share

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
    ended: Any = changes.get("ended", EndedJobs())
    return site_clocks(rows, runs, BOUNDS, changes.get("limits", LIMITS), 2000.0, ended)  # type: ignore[arg-type]


def decided(slowdown: float, *, is_measured: bool = False) -> DecidedRun:
    return DecidedRun(
        user="anna",
        gpu_seconds=3600.0,
        ended_at_seconds=1500.0,
        slowdown=slowdown,
        is_slowed=True,
        is_measured=is_measured,
    )


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
    runs = [run(f"name{watts}", float(watts)) for watts in range(100, 400, 5)]

    def price(slowdown: float, *, is_measured: bool) -> float:
        ended = [decided(slowdown, is_measured=is_measured) for _ in range(3 * MIN_RUNS)]
        return site({}, runs, ended=EndedJobs(decided=ended)).price(0.05)

    least, usual, most = (price(slowdown, is_measured=True) for slowdown in (0.02, 0.05, 0.09))
    assert least < usual < most
    # Of what was only predicted nobody knows that it was less than the bound.
    assert price(0.02, is_measured=False) == usual < price(0.09, is_measured=False)


def test_measured_and_predicted_slowdowns_are_told_apart() -> None:
    ended = [decided(0.03) for _ in range(200)]
    predicted = site({}, [], ended=EndedJobs(decided=ended)).used
    assert predicted.slowdown == pytest.approx(0.03) and predicted.measured_slowdown is None
    assert not predicted.is_measured and (predicted.jobs, predicted.measured_jobs) == (200, 0)
    wrong = [*ended[:100], *(decided(0.09, is_measured=True) for _ in range(100))]
    measured = site({}, [], ended=EndedJobs(decided=wrong)).used
    assert measured.measured_slowdown == pytest.approx(0.09) and measured.slowdown == pytest.approx(0.06)
    assert measured.is_measured


def test_jobs_at_the_default_clock_used_nothing_of_the_bound_and_measured_nothing() -> None:
    one = DecidedRun(user="anna", gpu_seconds=1.0, ended_at_seconds=1500.0, slowdown=0.0, is_slowed=False)
    used = site({}, [], ended=EndedJobs(decided=[one] * 50)).used
    assert used.slowdown == pytest.approx(0.0, abs=1e-5) and not used.is_measured


def mean_share(clocks: SiteClocks, watts: float) -> float:
    """Return the mean share of what the clock alone would cost, of work of a power."""
    one = clocks.types[A100]
    kind = one.classes[one.class_of(watts)]
    return sum(weight * share for weight, (share, _) in zip(kind.forms, FORMS, strict=True))


def test_one_user_with_many_names_decides_no_other_users_clocks() -> None:
    newest = replace(MEMORY_BOUND, measured_at_seconds=9e9)
    many = [("anna", f"variant{number}", {A100: newest}) for number in range(400)]
    few = [(f"user{number}", "mine", {A100: CLOCK_BOUND}) for number in range(4)]
    runs = [replace(run(name, 390.0), user=user) for user, name, _ in (*many, *few)]
    found, without = (site_clocks(learned, runs, BOUNDS, LIMITS, 2000.0) for learned in ([*many, *few], few))
    assert mean_share(found, 390.0) >= 0.8 * mean_share(without, 390.0)
    alone = site_clocks(many, runs, BOUNDS, LIMITS, 2000.0)
    assert mean_share(alone, 390.0) >= 0.8 * mean_share(site_clocks([], runs, BOUNDS, LIMITS, 2000.0), 390.0)


def test_one_users_jobs_are_no_more_than_a_fifth_of_the_plan() -> None:
    flat = [replace(run("memory", 160.0), user="anna") for _ in range(2000)]
    steep = [replace(run("clock", 390.0), user=f"user{number % 9}") for number in range(90)]
    learned = [("anna", "memory", {A100: MEMORY_BOUND})]
    learned += [(f"user{number}", "clock", {A100: CLOCK_BOUND}) for number in range(9)]
    found = site_clocks(learned, [*flat, *steep], BOUNDS, LIMITS, 2000.0)
    table = found.table(A100, 390.0, CLOCK_BOUND, 0.05)
    assert table is not None
    assert 0.8 * table.points[0].slowdown <= BOUNDS[0]


def test_no_users_share_is_more_than_a_fifth_or_an_equal_one() -> None:
    assert within_share({"a": 100.0, "b": 1.0}, 2) == pytest.approx({"a": 1.0, "b": 1.0})
    assert within_share({"a": 7.0}, 1) == {"a": 7.0}
    cut = within_share({"a": 100.0, "b": 3.0, "c": 1.0}, 50, others=2.0)
    assert all(value <= 0.2 * (sum(cut.values()) + 2.0) + 1e-9 for value in cut.values())
    assert cut["c"] == 1.0
    assert within_share({}, 0) == {}


def test_what_is_sent_does_not_grow_with_the_runs() -> None:
    random = Random(2)
    timed = [limited(random.random(), user=f"user{number % 50}") for number in range(20_000)]
    sent = [len(pickle.dumps(site({}, [], ended=EndedJobs(timed=some)))) for some in (timed[:2000], timed)]
    assert sent[1] - sent[0] < 4096


def test_tables_of_jobs_are_few_and_go_with_what_they_were_made_of() -> None:
    def known() -> int:
        gc.collect()
        return sum(isinstance(one, ClockTable | TypeClocks) for one in gc.get_objects())

    before = known()
    for _ in range(3):
        clocks = site({}, [])
        for number in range(1000):
            clocks.table(A100, 100.0 + 0.1 * number, None, 0.05)
    assert known() - before <= 300
    del clocks
    assert known() == before


def test_a_site_that_changes_over_from_a_bound_of_each_job_is_not_slowed_far_beyond_the_bound() -> None:
    kinds = [run("a", 390.0), run("b", 150.0, gpu_type=GpuTypeName("v100-pcie-16gb")), run("c", 300.0)]
    ended = [decided(0.002, is_measured=True) for _ in range(150)]
    clocks = site({}, [one for one in kinds for _ in range(50)], ended=EndedJobs(decided=ended))
    assert clocks.expected_slowdown + clocks.slowdown_doubt <= 1.25 * BOUNDS[0]


def test_runs_from_before_the_installation_say_nothing_of_how_much_of_the_bound_is_used() -> None:
    assert site({}, [run("a", 390.0) for _ in range(3 * MIN_RUNS)]).used.slowdown is None


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


def limited(share: float, *, user: str = "anna") -> EndedRun:
    return EndedRun(user=user, name="a", seconds=1000.0 * share, limit_seconds=1000.0)


def test_power_classes_are_near_in_ratio() -> None:
    one = both_kinds().types[A100]
    assert one.class_of(400.0 * 0.95) == one.class_of(380.0) != one.class_of(100.0)
    assert one.class_of(None) == len(one.classes) - 1
    assert log(one.limit_watts) > 0.0
