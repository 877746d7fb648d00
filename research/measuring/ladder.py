"""Runs of four hours with the trial ladder, on measured curves that the ladder does not see.

The detector is not run here: its answer is the truth plus an error as measured of it (see the detector's table). Some
programs are never answered, and a few answers are 2.5 points too low.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.estimation.clock_trials import SETTLE_SECONDS, ClockAnswer, ClockTrials

BOARDS: Final = {
    "A100 500 W": (GpuTypeName("a100-sxm4-80gb"), 500.0),
    "A100 400 W": (GpuTypeName("a100-sxm4-80gb"), 400.0),
    "A40": (GpuTypeName("a40"), 300.0),
    "V100": (GpuTypeName("v100-pcie-16gb"), 250.0),
}
BOUND: Final = 0.05
RUN_SECONDS: Final = 4 * 3600.0
ASK_SECONDS: Final = 60.0
ANSWERED_PROGRAMS: Final = 0.6
WRONG_ANSWERS: Final = 0.01
WRONG_BY: Final = 0.025
SEED: Final = 301


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one program."""

    joules: float
    seconds: float
    table_joules: float
    own_joules: float
    default_joules: float
    harm: float
    """Time lost in trials beyond what the clock between trials would have cost, over the run's time."""
    trials: int


class _Job:
    """Work of one curve that goes on at clocks."""

    def __init__(self, curve: WorkloadCurve, default_mhz: int) -> None:
        self.curve, self.default_mhz = curve, default_mhz
        self.left = RUN_SECONDS
        self.seconds = self.joules = self.lost = 0.0
        self._points: dict[int, tuple[float, float]] = {}

    def run(self, seconds: float, clock_mhz: int | None, between_mhz: int | None) -> float:
        """Run for a time at a clock and return the mean power."""
        slow = self.slowdown(clock_mhz)
        seconds = min(seconds, self.left * (1.0 + slow))
        watts = self.watts(clock_mhz)
        self.left -= seconds / (1.0 + slow)
        self.seconds += seconds
        self.joules += seconds * watts
        self.lost += seconds * max(slow - self.slowdown(between_mhz), 0.0)
        return watts

    def slowdown(self, clock_mhz: int | None) -> float:
        """Return the true slowdown."""
        return self._point(clock_mhz)[0]

    def watts(self, clock_mhz: int | None) -> float:
        """Return mean power, by energy and time of a unit of work."""
        return self._point(clock_mhz)[1]

    def _point(self, clock_mhz: int | None) -> tuple[float, float]:
        clock = clock_mhz or self.default_mhz
        if clock not in self._points:
            slow = self.curve.slowdown(clock)
            seconds = self.curve.seconds(self.default_mhz) * (1.0 + slow)
            self._points[clock] = slow, self.curve.joules(clock) / seconds
        return self._points[clock]


def run_once(curve: WorkloadCurve, board: str, rng: Generator) -> Run:
    """Return one run of four hours (at the default clock) with trials."""
    gpu_type, limit_watts = BOARDS[board]
    table, own = clock_table_of(gpu_type, None, limit_watts), clock_table_of(gpu_type, curve.workload, limit_watts)
    assert table is not None and own is not None
    clocks = [point.sm_clock_mhz for point in table.points]
    best_own, best_table = own.best(BOUND), table.best(BOUND)
    assert best_own is not None and best_table is not None
    ladder = ClockTrials(clocks_mhz=clocks, table_clock_mhz=best_table.sm_clock_mhz, max_slowdown=BOUND)
    job = _Job(curve.on_board(limit_watts), clocks[-1])
    answered = rng.uniform() < ANSWERED_PROGRAMS
    reached_mhz = job.curve.real_clock_mhz(clocks[-1])
    while job.left > 0.0:
        order = ladder.order(job.seconds, 24 * 3600.0)
        between = ladder.running_clock_mhz
        if not order.measure_seconds:
            job.run(ASK_SECONDS, order.sm_clock_mhz, between)
            continue
        watts = job.run(order.measure_seconds + SETTLE_SECONDS, order.sm_clock_mhz, between)
        watts *= float(np.exp(rng.normal(0.0, 0.005)))
        if order.sm_clock_mhz is None:
            ladder.measured_default(job.seconds, watts, reached_mhz)
            continue
        ladder.measured(
            order.sm_clock_mhz, job.seconds, watts, _answer(job.slowdown(order.sm_clock_mhz), answered, rng)
        )

    def joules(clock: int | None) -> float:
        return RUN_SECONDS * (1.0 + job.slowdown(clock)) * job.watts(clock)

    return Run(
        joules=job.joules,
        seconds=job.seconds,
        table_joules=joules(best_table.sm_clock_mhz),
        own_joules=joules(best_own.sm_clock_mhz),
        default_joules=joules(None),
        harm=job.lost / job.seconds,
        trials=len(ladder.trials),
    )


def _answer(truth: float, answered: bool, rng: Generator) -> ClockAnswer | None:
    error = float(rng.uniform(0.0025, 0.0085))
    if not answered or rng.uniform() < 0.1:
        return None
    value = truth + float(rng.normal(0.0, error))
    if rng.uniform() < WRONG_ANSWERS:
        value = truth - WRONG_BY
    return ClockAnswer(slowdown=max(value, 0.0), error=error)


def print_ladder(runs: int) -> None:
    """Print a line per board: saved energy with table, trials and own curves, harm, and broken bounds."""
    print(f"Trial ladder, bound {BOUND:.0%}, runs of 4 h, {runs} a program, seed {SEED}")
    print(
        f"{'board':12}{'table':>8}{'trials':>8}{'own':>8}{'closed':>8}{'max harm':>10}{'broken':>8}{'trials a run':>14}"
    )
    for number, board in enumerate(BOARDS):
        rng = np.random.default_rng([SEED, number])
        found = [run_once(curve, board, rng) for curve in curves_of(BOARDS[board][0]) for _ in range(runs)]
        saved = [
            float(np.mean([1.0 - getattr(run, kind) / run.default_joules for run in found]))
            for kind in ("table_joules", "joules", "own_joules")
        ]
        closed = (saved[1] - saved[0]) / (saved[2] - saved[0]) if saved[2] - saved[0] > 1e-6 else 1.0
        broken = float(np.mean([run.seconds / RUN_SECONDS - 1.0 > BOUND + 0.005 for run in found]))
        print(
            f"{board:12}{saved[0]:8.1%}{saved[1]:8.1%}{saved[2]:8.1%}{closed:8.0%}{max(r.harm for r in found):10.2%}"
            f"{broken:8.2%}{float(np.mean([run.trials for run in found])):14.1f}"
        )
