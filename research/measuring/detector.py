"""What the detector answers on made programs, by family, beside what a perfect observer could."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from research.measuring import programs
from research.measuring.programs import Program
from research.measuring.sensors import draw_sensor, observe
from slurm_energy.estimation.clock_trials import SURE_ERROR
from slurm_energy.estimation.iterations.repetitions import Unknown
from slurm_energy.estimation.iterations.slowdown import Slowdown, slowdown_between

Maker = Callable[[Generator], Program]
GROUPS: Final[dict[str, tuple[tuple[Maker, ...], int]]] = {
    # Name: makers and seed.
    "periodic, tuned on": (programs.TUNING_PERIODIC, 101),
    "periodic, held out": (programs.HELD_OUT_PERIODIC, 102),
    "not periodic, tuned on": (programs.TUNING_APERIODIC, 103),
    "not periodic, held out": (programs.HELD_OUT_APERIODIC, 104),
    "timer of the host": ((programs.timer,), 105),
    "two programs": ((programs.two_programs,), 106),
}
DANGEROUS: Final = 0.02
"""The truth is slower than the answer by more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pair of windows: what was true and what was answered."""

    family: str
    truth: float
    answer: Slowdown | Unknown
    possible: bool
    """Whether the mean of all repetitions in both windows, known exactly, would be sure enough."""


def run_case(maker: Maker, rng: Generator, window_seconds: float) -> Case:
    """Return one case."""
    program, sensor = maker(rng), draw_sensor(rng)
    clock = float(rng.uniform(0.72, 0.96))
    before = observe(program, sensor, 1.0, window_seconds, rng)
    after = observe(program, sensor, clock, window_seconds, rng)
    truth = program.slowdown(clock)
    possible = False
    if program.periodic:
        period = program.traits["period"]
        error = program.traits["jitter"] * (2.0 * period / window_seconds) ** 0.5 * (1.0 + truth)
        possible = error <= SURE_ERROR and window_seconds >= 6.0 * period
    return Case(family=program.family, truth=truth, answer=slowdown_between(before, after), possible=possible)


def run_group(name: str, count: int, window_seconds: float) -> list[Case]:
    """Return cases of one group; the seed belongs to the group."""
    makers, seed = GROUPS[name]
    return [
        run_case(makers[number % len(makers)], np.random.default_rng([seed, number]), window_seconds)
        for number in range(count)
    ]


def summary(cases: Sequence[Case]) -> dict[str, float]:
    """Return counts and errors in points; errors are those of sure answers, the others are for many together."""
    every = [case.answer for case in cases if isinstance(case.answer, Slowdown)]
    answered = [
        (case, case.answer) for case in cases if isinstance(case.answer, Slowdown) and case.answer.error <= SURE_ERROR
    ]
    errors = np.array([100.0 * abs(answer.value - case.truth) for case, answer in answered])
    short = [case.truth - answer.value > DANGEROUS for case, answer in answered]
    beyond = [case.truth > case.answer.upper for case in cases if isinstance(case.answer, Slowdown)]
    possible = [case for case in cases if case.possible]
    return {
        "cases": len(cases),
        "answered": len(every) / len(cases),
        "sure": len(answered) / len(cases),
        "possible": len(possible) / len(cases),
        "median_error_points": float(np.median(errors)) if answered else 0.0,
        "p90_error_points": float(np.percentile(errors, 90)) if answered else 0.0,
        "beyond_2_points": float((errors > 2.0).mean()) if answered else 0.0,
        "dangerous": sum(short) / len(cases),
        "above_upper": sum(beyond) / max(len(every), 1),
    }


def reasons(cases: Sequence[Case]) -> Counter[str]:
    """Return why there was no answer, without figures."""
    words = (case.answer.reason for case in cases if isinstance(case.answer, Unknown))
    return Counter("".join(letter for letter in text if not letter.isdigit() and letter not in ".-%") for text in words)


def print_tables(count: int, window_seconds: float) -> None:
    """Print one line per group."""
    print(f"Detector, windows of {window_seconds:.0f} s, {count} cases a group")
    print(
        f"{'group':24}{'seed':>5}{'answers':>9}{'sure':>9}{'possible':>9}{'median':>8}{'p90':>6}"
        f"{'> 2 pt':>8}{'dangerous':>11}{'> upper':>9}"
    )
    for name, (_, seed) in GROUPS.items():
        row = summary(run_group(name, count, window_seconds))
        print(
            f"{name:24}{seed:5d}{row['answered']:9.1%}{row['sure']:9.1%}{row['possible']:9.1%}"
            f"{row['median_error_points']:8.2f}{row['p90_error_points']:6.2f}{row['beyond_2_points']:8.1%}"
            f"{row['dangerous']:11.1%}{row['above_upper']:9.1%}"
        )
