"""Programs with a known slowdown, seen through sensors: what the detector answers, and when it does not."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.iterations.repetitions import Repetitions, Unknown
from slurm_energy.estimation.iterations.slowdown import Slowdown, _measured, slowdown_between
from slurm_energy.estimation.iterations.traces import Trace, regular

Floats = NDArray[np.float64]
WINDOW_SECONDS = 60.0
FAST_MHZ, SLOW_MHZ = 1410.0, 1200.0


def sampled(
    power: Callable[[Floats], Floats], seed: int, mhz: float, rates: Mapping[str, float] | None = None
) -> Trace:
    """Return 60 s at 10 Hz with 2 W of noise and constant rates of work with 5 % of noise."""
    rng = np.random.default_rng(seed)
    seconds = np.sort(np.arange(0.0, WINDOW_SECONDS, 0.1) + rng.uniform(0.0, 0.01, 600))
    watts = power(seconds) + rng.normal(0.0, 2.0, seconds.size)
    noisy = {name: rate * rng.lognormal(0.0, 0.05, seconds.size) for name, rate in (rates or {}).items()}
    return Trace(seconds=seconds, watts=watts, sm_clock_mhz=mhz, work_rates=noisy)


def found_in(trace: Trace) -> Repetitions | Unknown:
    """Return the shortest repetition of the power's pattern that fits nearly as well as the best."""
    grid = regular(trace)
    found = Unknown(reason="too few samples") if grid is None else _measured(grid)
    if isinstance(found, Unknown):
        return found
    highest_fit = max(one.fit for one in found)
    return min((one for one in found if one.fit >= 0.95 * highest_fit), key=lambda one: one.period)


def iterations(period_seconds: float, seed: int, jitter: float = 0.02) -> Callable[[Floats], Floats]:
    """Return the power of repetitions: 60 % high, 40 % low, each a little longer or shorter than the others."""
    lengths = period_seconds * (1.0 + np.random.default_rng(seed).normal(0.0, jitter, 1000))
    ends = np.cumsum(lengths)

    def power(seconds: Floats) -> Floats:
        turn = np.searchsorted(ends, seconds)
        return np.where(seconds < ends[turn] - 0.4 * lengths[turn], 400.0, 150.0)

    return power


def pair(slow: float, *, rates: tuple[float, float] | None, period: float = 1.1) -> tuple[Trace, Trace]:
    """Return windows of a program whose period grows by `slow`, with a counter of work before and after."""
    counters = [{"pcie": rate} for rate in rates] if rates else [None, None]
    return (
        sampled(iterations(period, 1), 2, FAST_MHZ, counters[0]),
        sampled(iterations(period * (1.0 + slow), 3), 4, SLOW_MHZ, counters[1]),
    )


@pytest.mark.parametrize("slow", [0.0, 0.04, 0.12])
def test_a_slowdown_is_found_within_a_point_where_a_counter_of_work_agrees(slow: float) -> None:
    answer = slowdown_between(*pair(slow, rates=(1e9, 1e9 / (1.0 + slow))))

    assert isinstance(answer, Slowdown)
    assert answer.value == pytest.approx(slow, abs=0.01)
    assert answer.value <= answer.upper <= answer.value + 0.02


def test_nothing_is_answered_without_a_counter_of_work() -> None:
    answer = slowdown_between(*pair(0.12, rates=None))

    assert isinstance(answer, Unknown)
    assert "no counter of work" in answer.reason


def test_a_timer_of_the_host_beside_constant_load_is_not_taken_for_no_slowdown() -> None:
    answer = slowdown_between(*pair(0.0, rates=(1e9, 1e9 / 1.12)))

    assert isinstance(answer, Unknown)
    assert "pcie" in answer.reason


def test_a_counter_that_never_moves_is_no_witness() -> None:
    before, after = pair(0.0, rates=None)
    ones = np.full(before.seconds.shape, 50.0)
    still = [
        Trace(seconds=t.seconds, watts=t.watts, sm_clock_mhz=t.sm_clock_mhz, work_rates={"memory": 0.0 * ones})
        for t in (before, after)
    ]

    assert isinstance(slowdown_between(*still), Unknown)


def test_power_that_repeats_more_slowly_than_the_clock_allows_is_not_believed() -> None:
    assert isinstance(slowdown_between(*pair(0.3, rates=(1e9, 1e9 / 1.3))), Unknown)


@pytest.mark.parametrize(
    "power",
    [
        lambda seconds: np.full(seconds.shape, 300.0),
        lambda seconds: 300.0 + 15.0 * np.cumsum(np.random.default_rng(1).normal(size=seconds.size)),
        lambda seconds: np.where(np.random.default_rng(2).uniform(size=seconds.size) > 0.5, 400.0, 150.0),
        lambda seconds: 250.0 + 100.0 * np.sin(2.0 * np.pi * (seconds / 2.0 + seconds**2 / 60.0)),
    ],
    ids=["constant", "walk", "coin", "chirp"],
)
def test_power_that_does_not_repeat_has_no_period(power: Callable[[Floats], Floats]) -> None:
    assert isinstance(found_in(sampled(power, 5, FAST_MHZ)), Unknown)


def test_the_period_comes_with_its_error_and_ignores_order_and_missing_samples() -> None:
    trace = sampled(iterations(1.7, 1, jitter=0.01), 2, FAST_MHZ)
    keep = np.random.default_rng(3).permutation(trace.seconds.size)[:540]
    watts = trace.watts.copy()
    watts[::50] = np.nan

    found = found_in(Trace(seconds=trace.seconds[keep], watts=watts[keep]))

    assert isinstance(found, Repetitions)
    assert abs(found.period - 1.7) < 4.0 * found.error + 0.003
    assert found.count > 25


def test_power_from_an_energy_counter_leaves_out_what_the_counter_did_not_say() -> None:
    seconds = np.arange(0.0, 20.0, 0.1)
    joules = 200.0 * np.floor(seconds / 0.1 + 1e-9) * 0.1
    joules[100:] -= 1500.0

    trace = Trace.from_energy_counter(seconds, joules)

    assert np.nanmedian(trace.watts) == pytest.approx(200.0)
    assert np.nanmax(trace.watts) == pytest.approx(200.0)
    assert np.isnan(trace.watts[100])


@pytest.mark.parametrize("size", [0, 5, 19])
def test_too_few_samples_are_no_trace(size: int) -> None:
    trace = Trace(seconds=np.arange(size, dtype=float), watts=np.ones(size))

    assert regular(trace) is None
    assert isinstance(found_in(trace), Unknown)


def test_rubbish_makes_no_exception() -> None:
    rng = np.random.default_rng(7)
    for watts in (np.full(600, np.nan), np.full(600, np.inf), rng.normal(size=600) * 1e30, np.zeros(600)):
        trace = Trace(seconds=np.linspace(0.0, 60.0, 600), watts=watts, work_rates={"pcie": np.full(600, np.nan)})
        assert isinstance(slowdown_between(trace, trace), Unknown)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueRangeError, match="watts has shape"):
        Trace(seconds=np.linspace(0.0, 1.0, 10), watts=np.linspace(0.0, 1.0, 9))
