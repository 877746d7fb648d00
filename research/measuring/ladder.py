"""Runs of four hours with the trial ladder, on measured curves that the ladder does not see.

The detector is not run here: its answer is the truth plus an error as measured of it (see the detector's table), which
a longer window makes smaller. Programs that vary too much are never answered, and a few answers are 2.5 points too low.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from slurm_energy.config import GuardConfig
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import ClockTrial, LearnedClock, NamedTrial
from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.estimation.clock_trials import SETTLE_SECONDS, ClockTrials
from slurm_energy.estimation.learned_clocks import learned_clocks
from slurm_energy.policy.guard.trials import MIN_POSSIBLE_GAIN, WELL_KNOWN_RUNS, possible_gain
from slurm_energy.twin.engine.trials import DETECTOR_CPU_SECONDS, MAX_CPU_SHARE, WINDOW_CPU_SHARE, MeasuredProgram

BOARDS: Final = {
    "A100 500 W": (GpuTypeName("a100-sxm4-80gb"), 500.0),
    "A100 400 W": (GpuTypeName("a100-sxm4-80gb"), 400.0),
    "A40": (GpuTypeName("a40"), 300.0),
    "V100": (GpuTypeName("v100-pcie-16gb"), 250.0),
}
BOUND: Final = 0.05
RUN_SECONDS: Final = 4 * 3600.0
RUNS_OF_A_NAME: Final = 4
ASK_SECONDS: Final = 60.0
MIN_SAVING: Final = GuardConfig().min_energy_saving
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


def runs_of_a_name(curve: WorkloadCurve, board: str, rng: Generator, count: int = RUNS_OF_A_NAME) -> list[Run]:
    """Return runs of four hours of one program, each beginning with what those before learned."""
    program = MeasuredProgram(rng)
    found: list[Run] = []
    known: list[NamedTrial] = []
    for number in range(count):
        learned = next((clocks for _, _, clocks in learned_clocks(known)), {}).get(BOARDS[board][0])
        run, trials = _run_once(curve, board, program, learned, rng)
        found.append(run)
        known = [
            NamedTrial(user_id=0, name="name", script_key=None, run=number, ended_at_seconds=float(number), trial=trial)
            for trial in trials
        ] + known
    return found


def _run_once(
    curve: WorkloadCurve, board: str, program: MeasuredProgram, learned: LearnedClock | None, rng: Generator
) -> tuple[Run, list[ClockTrial]]:
    gpu_type, limit_watts = BOARDS[board]
    table, own = clock_table_of(gpu_type, None, limit_watts), clock_table_of(gpu_type, curve.workload, limit_watts)
    assert table is not None and own is not None
    clocks = [point.sm_clock_mhz for point in table.points]
    best_own, best_table = own.best(BOUND), table.best(BOUND)
    assert best_own is not None and best_table is not None
    begin = best_table.sm_clock_mhz
    # As the guard: what was learned stands in the place of the table where it keeps the bound with its error.
    fit = [] if learned is None else [one for one in (learned, *learned.others) if one.upper <= BOUND]
    begun = min(
        (one for one in fit if one.energy_change < -MIN_SAVING), key=lambda one: one.energy_change, default=None
    )
    begin = begin if begun is None else begun.sm_clock_mhz
    well_known = begun is not None and begun.runs >= WELL_KNOWN_RUNS
    is_worth = possible_gain(gpu_type, limit_watts, BOUND) >= MIN_POSSIBLE_GAIN
    ladder = ClockTrials(clocks_mhz=clocks, table_clock_mhz=begin, max_slowdown=BOUND, done=well_known or not is_worth)
    job = _Job(curve.on_board(limit_watts), clocks[-1])
    reached_mhz = job.curve.real_clock_mhz(clocks[-1])
    records: list[ClockTrial] = []
    default_watts = cpu_seconds = 0.0
    while job.left > 0.0:
        order = ladder.order(job.seconds, 24 * 3600.0)
        between = ladder.running_clock_mhz
        cpu = WINDOW_CPU_SHARE * 2.0 * order.measure_seconds + DETECTOR_CPU_SECONDS
        waits = order.sm_clock_mhz is None and cpu_seconds + cpu > MAX_CPU_SHARE * job.seconds
        if not order.measure_seconds or waits:
            job.run(ASK_SECONDS, between if waits else order.sm_clock_mhz, between)
            continue
        cpu_seconds += WINDOW_CPU_SHARE * order.measure_seconds
        watts = job.run(order.measure_seconds + SETTLE_SECONDS, order.sm_clock_mhz, between)
        watts = program.watts(watts, rng)
        if order.sm_clock_mhz is None:
            default_watts = watts
            ladder.measured_default(job.seconds, watts, reached_mhz)
            continue
        clock = order.sm_clock_mhz
        cpu_seconds += DETECTOR_CPU_SECONDS
        answer, longer_may_help = program.answer(job.slowdown(clock), order.measure_seconds, rng)
        ladder.measured(clock, job.seconds, watts, answer, longer_may_help=longer_may_help)
        records.append(
            ClockTrial(
                gpu_type=gpu_type,
                sm_clock_mhz=clock,
                default_clock_mhz=clocks[-1],
                at_seconds=job.seconds,
                watts=watts,
                default_watts=default_watts,
                slowdown=None if answer is None else answer.slowdown,
                error=None if answer is None else answer.error,
                kept=answer is not None and ladder.running_clock_mhz == clock,
            )
        )

    def joules(clock: int | None) -> float:
        return RUN_SECONDS * (1.0 + job.slowdown(clock)) * job.watts(clock)

    run = Run(
        joules=job.joules,
        seconds=job.seconds,
        table_joules=joules(best_table.sm_clock_mhz),
        own_joules=joules(best_own.sm_clock_mhz),
        default_joules=joules(None),
        harm=job.lost / job.seconds,
        trials=len(ladder.trials),
    )
    return run, records


def print_ladder(runs: int) -> None:
    """Print a line per board and run of a name: saved energy with table, trials and own curves, harm, broken bounds."""
    print(f"Trial ladder, bound {BOUND:.0%}, runs of 4 h, {runs} names a program, seed {SEED}")
    print(
        f"{'board':12}{'run':>4}{'table':>8}{'trials':>8}{'own':>8}{'closed':>8}{'max harm':>10}{'broken':>8}"
        f"{'trials a run':>14}"
    )
    for number, board in enumerate(BOARDS):
        rng = np.random.default_rng([SEED, number])
        names = [runs_of_a_name(curve, board, rng) for curve in curves_of(BOARDS[board][0]) for _ in range(runs)]
        for place in range(RUNS_OF_A_NAME):
            found = [name[place] for name in names]
            saved = [
                float(np.mean([1.0 - getattr(run, kind) / run.default_joules for run in found]))
                for kind in ("table_joules", "joules", "own_joules")
            ]
            closed = (saved[1] - saved[0]) / (saved[2] - saved[0]) if saved[2] - saved[0] > 1e-6 else 1.0
            broken = float(np.mean([run.seconds / RUN_SECONDS - 1.0 > BOUND + 0.005 for run in found]))
            print(
                f"{board:12}{place + 1:4d}{saved[0]:8.1%}{saved[1]:8.1%}{saved[2]:8.1%}{closed:8.0%}"
                f"{max(r.harm for r in found):10.2%}{broken:8.2%}{float(np.mean([run.trials for run in found])):14.1f}"
            )
