"""Clocks of names from ordinary runs: inside the bound with their error, and only where two clocks were measured."""

import random

import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.learning.nightly.name_clocks import name_clocks
from slurm_energy.store.site_history import ClockedRun

A100 = GpuTypeName("a100-sxm4-80gb")
DEFAULT, LOWER = 1410, 1275


def run(clock: int, *, waits: float = 0.15, noise: float = 0.0, at: float = 0.0, **changes: object) -> ClockedRun:
    seconds = 1000.0 * (1.0 + waits * (DEFAULT / clock - 1.0)) * (1.0 + noise)
    watts = 300.0 * (0.3 + 0.7 * (clock / DEFAULT) ** 2.4)
    values: dict[str, object] = {
        "user_id": 1000,
        "name": "train",
        "script_key": None,
        "gpu_type": A100,
        "gpus": 1,
        "sm_clock_mhz": clock,
        "default_clock_mhz": DEFAULT,
        "seconds": seconds,
        "joules": watts * seconds,
        "device_seconds": seconds,
        "ended_at_seconds": at,
        "probability": 1.0,
    }
    return ClockedRun(**{**values, **changes})  # type: ignore[arg-type]


def runs(default: int = 6, lower: int = 6, *, spread: float = 0.01, **changes: object) -> list[ClockedRun]:
    draw = random.Random(3)
    clocks = [DEFAULT] * default + [LOWER] * lower
    return [run(clock, noise=draw.gauss(0.0, spread), at=float(n), **changes) for n, clock in enumerate(clocks)]  # type: ignore[arg-type]


def clock_of(found: list[ClockedRun], bound: float = 0.05) -> LearnedClock | None:
    names = name_clocks(found, bound)
    return names[0].clocks[A100] if names else None


def test_a_name_that_hardly_waits_for_the_clock_gets_a_lower_one_inside_the_bound() -> None:
    clock = clock_of(runs())
    assert clock is not None
    assert clock.sm_clock_mhz < LOWER
    assert clock.upper <= 0.05
    assert clock.energy_change < -0.1
    assert not clock.by_trial
    assert DEFAULT / clock.sm_clock_mhz - 1.0 <= 1.5 * (DEFAULT / LOWER - 1.0)


def test_a_name_that_waits_for_the_clock_all_the_time_gets_none_below_the_bound() -> None:
    assert clock_of(runs(waits=1.0)) is None


@pytest.mark.parametrize(("default", "lower"), [(2, 9), (9, 2), (9, 0), (0, 9)])
def test_too_few_runs_at_either_clock_say_nothing(default: int, lower: int) -> None:
    assert clock_of(runs(default, lower)) is None


def test_runs_that_differ_much_say_nothing_within_a_narrow_bound() -> None:
    assert clock_of(runs(spread=0.25)) is None


def test_one_run_that_hung_changes_nothing() -> None:
    hung = [*runs(), run(LOWER, seconds=260_000.0, device_seconds=260_000.0, joules=9e6, at=20.0)]
    clock, without = clock_of(hung), clock_of(runs())
    assert clock is not None
    assert without is not None
    assert clock.slowdown == pytest.approx(without.slowdown, abs=0.01)


def test_runs_that_were_unlikely_count_for_the_others_of_their_kind() -> None:
    slow = [run(LOWER, noise=0.08, at=30.0 + n, probability=0.1) for n in range(4)]
    clock = clock_of([*runs(), *slow], bound=0.2)
    without = clock_of(runs(), bound=0.2)
    assert clock is not None
    assert without is not None
    assert clock.slowdown > without.slowdown


def test_garbage_raises_nothing() -> None:
    odd = [
        *runs(name=""),
        *runs(gpu_type=GpuTypeName("no-such-gpu")),
        *runs(name="\x00" * 500),
        run(LOWER, name="once"),
        *[run(DEFAULT, name="same") for _ in range(5)],
    ]
    assert isinstance(name_clocks(odd, 0.05), tuple)
