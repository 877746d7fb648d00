"""Which clock the next run of a name begins with."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import OUTDATED, ClockTrial, LearnedClock, NamedTrial
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.learned_clocks import learned_clocks

A100 = GpuTypeName("a100-sxm4-80gb")
STEADY = job_group("steady", None)


def tried(run: int, clock: int = 1110, **changes: Any) -> NamedTrial:
    values: dict[str, Any] = {
        "gpu_type": A100,
        "sm_clock_mhz": clock,
        "default_clock_mhz": 1410,
        "at_seconds": 900.0,
        "watts": 240.0,
        "default_watts": 330.0,
        "slowdown": 0.02,
        "error": 0.003,
        "kept": True,
    }
    return NamedTrial(
        run=run,
        trial=ClockTrial(**{**values, **changes}),
        user_id=1000,
        name="steady",
        script_key=None,
        ended_at_seconds=5.0,
    )


def learned(*trials: NamedTrial) -> LearnedClock | None:
    for user_id, name, clocks in learned_clocks(trials):
        if (user_id, name) == (1000, STEADY):
            return clocks.get(A100)
    return None


def test_the_last_clock_that_the_latest_run_kept_is_begun_with() -> None:
    found = learned(tried(2, 1200, slowdown=0.01), tried(2, 1110), tried(1, 900))
    assert found is not None
    assert (found.sm_clock_mhz, found.runs) == (1110, 1)
    assert found.slowdown == pytest.approx(0.018, abs=0.003)
    assert {one.sm_clock_mhz for one in found.others} == {1200, 900}


def test_answers_at_one_clock_from_several_runs_make_the_error_smaller() -> None:
    one, three = learned(tried(3)), learned(tried(3), tried(2), tried(1))
    assert one is not None and three is not None
    assert three.error < one.error
    assert three.runs == 3


def test_answers_that_contradict_each_other_make_the_error_larger() -> None:
    one, two = learned(tried(2)), learned(tried(2, slowdown=0.045), tried(1, slowdown=0.0))
    assert one is not None and two is not None
    assert two.error > 3 * one.error


def test_several_runs_together_are_sure_of_a_clock_that_none_of_them_could_keep() -> None:
    unsure: dict[str, Any] = {"slowdown": 0.025, "error": 0.02, "kept": False}
    one, four = learned(tried(1, **unsure)), learned(*(tried(run, **unsure) for run in (4, 3, 2, 1)))
    assert one is not None and one.upper > 0.05
    assert four is not None and four.upper <= 0.05


def test_a_window_at_a_lower_clock_says_that_those_above_it_are_no_slower() -> None:
    found = learned(tried(1, 900, slowdown=0.01, error=0.002), tried(1, 1110, error=0.05), tried(1, 1300, error=0.05))
    assert found is not None
    known = {one.sm_clock_mhz: one for one in (found, *found.others)}
    assert known[1300].upper < known[1110].upper < known[900].upper < 0.015


def test_a_latest_run_without_an_answer_leaves_what_was_known_before() -> None:
    found = learned(tried(2, slowdown=None, error=None, kept=False), tried(1))
    assert found is not None and found.sm_clock_mhz == 1110


def test_what_a_run_dropped_since_its_work_changed_teaches_nothing() -> None:
    dropped: dict[str, Any] = {"kept": False, "reason": OUTDATED}
    assert learned(tried(2, **dropped), tried(1)) is None
    found = learned(tried(2, slowdown=0.045, **dropped), tried(2), tried(1, slowdown=0.04, **dropped))
    assert found is not None
    assert found.slowdown == pytest.approx(0.02)
    assert found.runs == 1


def test_old_runs_are_forgotten() -> None:
    unknown = [tried(run, slowdown=None, error=None, kept=False) for run in range(9, 4, -1)]
    assert learned(*unknown, tried(1)) is None


def test_nothing_is_learned_of_nothing() -> None:
    assert learned_clocks(()) == ()


def test_users_and_names_are_kept_apart() -> None:
    other = replace(tried(2), user_id=1001)
    assert {user for user, _, _ in learned_clocks((tried(1), other))} == {1000, 1001}
