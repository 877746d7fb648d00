"""What a job could be given, as a `DecisionBlock`: partitions and device counts with their cost, and clocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, log, nan

import numpy as np

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import DecisionBlock, Floats
from slurm_energy.graph.columns import Scaler, raw
from slurm_energy.graph.schema import CLOCK, OPTION, TASK

OPTION_SCALER = Scaler(OPTION)
CLOCK_SCALER = Scaler(CLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOption:
    """One clock of an option's device type; costs are against the highest clock, None where they are not known."""

    relative_clock: float
    slowdown: float | None = None
    energy_change: float | None = None
    is_default: bool = False
    is_oracle: bool = False
    bound_left: float | None = None
    """Slowdown bound less this clock's slowdown."""
    power_change: float | None = None
    open: bool = True
    """Whether it may be chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOption:
    """One way of running a job: a partition and a number of devices; unknown costs are None."""

    partition: int
    """Number of the partition, as in `TopBlock`."""
    gpus: int
    count_position: float = 0.0
    """0 for the fewest devices that the job may have, 1 for the most."""
    has_room: bool = False
    is_where_submitted: bool = False
    seconds: float | None = None
    """Run time at the oracle's clock."""
    joules: float | None = None
    """Energy at the oracle's clock."""
    seconds_full: float | None = None
    """Run time at the highest clock."""
    joules_full: float | None = None
    """Energy at the highest clock."""
    wait_seconds: float | None = None
    gpus_free_after: float | None = None
    """Share of the partition's GPUs."""
    wake_joules: float | None = None
    communication: float | None = None
    """Share of the run time lost to more devices."""
    is_cpu: bool = False
    open: bool = True
    """Whether it may be chosen."""
    clocks: tuple[ClockOption, ...] = ()


def decision_block(job_x: Floats, options: Sequence[RunOption], cluster: int = 0) -> DecisionBlock:
    """Return one job with its options; those of one partition are brought together, in the order of first mention.

    Args:
        job_x: Columns of the job, [TASK].
        options: Ways of running it.
        cluster: Number of the cluster that it was sent to.

    Raises:
        ValueRangeError: the columns are not those of a job.
    """
    if job_x.shape != (len(TASK),):
        raise ValueRangeError(f"columns of a submitted job have shape {job_x.shape}, ({len(TASK)},) is needed")
    ordered = together(options)
    clocks = [(place, clock) for place, option in enumerate(ordered) for clock in option.clocks]
    return DecisionBlock(
        job_x=job_x[None, :].astype(np.float32),
        job_cluster=np.array([cluster], dtype=np.int64),
        option_job=np.zeros(len(ordered), dtype=np.int64),
        option_partition=np.array([option.partition for option in ordered], dtype=np.int64),
        option_x=option_rows(ordered),
        option_open=np.array([option.open for option in ordered], dtype=bool),
        clock_option=np.array([place for place, _ in clocks], dtype=np.int64),
        clock_x=CLOCK_SCALER.scaled([_clock_row(clock) for _, clock in clocks]),
        clock_open=np.array([clock.open for _, clock in clocks], dtype=bool),
    )


def together(options: Sequence[RunOption]) -> list[RunOption]:
    """Return options with those of one partition side by side: the order of the options in the block."""
    order = {partition: place for place, partition in enumerate(dict.fromkeys(item.partition for item in options))}
    return sorted(options, key=lambda option: order[option.partition])


def option_rows(options: Sequence[RunOption]) -> Floats:
    """Return the OPTION columns, [options, OPTION]; relative costs are against the best of these options.

    Times and energies at the highest clock are against the same best figures as those at the oracle's clock.
    """
    fastest, cheapest = _smallest([item.seconds for item in options]), _smallest([item.joules for item in options])
    return OPTION_SCALER.scaled(
        [
            (
                float(option.has_room),
                float(option.is_where_submitted),
                float(option.gpus),
                option.count_position,
                float(_is_cost(option.seconds) and _is_cost(option.joules)),
                _relative(option.seconds, fastest),
                _relative(option.joules, cheapest),
                _relative(option.seconds_full, fastest),
                _relative(option.joules_full, cheapest),
                raw(option.seconds),
                raw(option.joules),
                raw(option.wait_seconds),
                raw(option.gpus_free_after),
                raw(option.wake_joules),
                raw(option.communication),
                float(option.is_cpu),
            )
            for option in options
        ]
    )


def _clock_row(clock: ClockOption) -> tuple[float, ...]:
    return (
        clock.relative_clock,
        raw(clock.slowdown),
        raw(clock.energy_change),
        float(clock.is_default),
        float(clock.is_oracle),
        raw(clock.bound_left),
        raw(clock.power_change),
    )


def _is_cost(value: float | None) -> bool:
    return value is not None and isfinite(value) and value > 0.0


def _smallest(values: Sequence[float | None]) -> float:
    return min((value for value in values if value is not None and _is_cost(value)), default=inf)


def _relative(value: float | None, least: float) -> float:
    return log(value / least) if value is not None and _is_cost(value) and isfinite(least) else nan
