"""Fits speed and power against the power limit (Zeus, four GPU types, six training programs): power_limit.json.

The board lowers its clock until it stays inside the limit. The clock itself was not recorded: it is the hidden quantity
f = ((limit - static) / (demand - static))^(1/3), at most 1, that ties time a + b/f and power c + d f^3 together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from slurm_energy.energy_model.calibration.files import Document, Tell, Vector, document, read_rows
from slurm_energy.energy_model.coefficients import FitError

SOURCE = "Zeus, NSDI 2023, ml-energy/zeus 75a8b939 (Apache-2.0): A40, P100, RTX6000, V100"
MIN_CLOCK = 0.046
"""Of f, the cube root of 1e-4: a limit at or below the static power still lets the board run a little."""
_MIN_LIMITS = 4
_FINE = (60, 90)
_COARSE = (30, 40)
"""Values of the static power and of the demand that are tried, for the fit and for each left-out limit."""


@dataclass(frozen=True, slots=True)
class Program:
    """One training program on one GPU type, [num_limits] each, limits ascending."""

    gpu: str
    dataset: str
    network: str
    batch_size: int
    optimizer: str
    limit_watts: Vector
    seconds: Vector
    watts: Vector

    def only(self, kept: Sequence[int]) -> "Program":
        """Return the same program with some of its limits."""
        names = (self.gpu, self.dataset, self.network, self.batch_size, self.optimizer)
        index = np.array(kept)
        return Program(*names, self.limit_watts[index], self.seconds[index], self.watts[index])


@dataclass(frozen=True, slots=True)
class LimitFit:
    """Time of one epoch, fixed + clock / f, and mean board power, constant + cubic f^3."""

    static_watts: float
    demand_watts: float
    fixed_seconds: float
    clock_seconds: float
    constant_watts: float
    cubic_watts: float

    def errors(self, program: Program) -> tuple[Vector, Vector]:
        """Return relative errors of time and power at each limit of a program."""
        clock = _clocks(program.limit_watts, np.array([self.static_watts]), np.array([self.demand_watts]))[0]
        seconds = self.fixed_seconds + self.clock_seconds / clock
        watts = self.constant_watts + self.cubic_watts * clock**3
        return np.abs(seconds / program.seconds - 1.0), np.abs(watts / program.watts - 1.0)


def read_programs(path: Path) -> list[Program]:
    """Return the programs that were measured at four limits or more."""
    columns = ("gpu", "dataset", "network", "batch_size", "optimizer", "power_limit_w", "time_per_epoch_s")
    found: dict[tuple[str, str, str, int, str], list[tuple[float, float, float]]] = {}
    for row in read_rows(path, (*columns, "average_power_w")):
        names = (row.text("gpu").lower(), row.text("dataset"), row.text("network"))
        point = (
            row.number("power_limit_w", 1.0),
            row.number("time_per_epoch_s", 1e-9),
            row.number("average_power_w", 1.0),
        )
        found.setdefault((*names, row.count("batch_size", 1), row.text("optimizer")), []).append(point)
    return [
        Program(*key, *np.array(sorted(points)).T)
        for key, points in sorted(found.items())
        if len(points) >= _MIN_LIMITS
    ]


def fit_power_limit(data: Path, tell: Tell) -> Document:
    """Return power_limit.json; errors are of the fit, and of fits that did not see the limit they are judged at."""
    programs = read_programs(data / "zeus_power_limit" / "power_limit_sweep.csv")
    curves: list[dict[str, Any]] = []
    left_out: list[tuple[str, Vector, Vector]] = []
    for index, program in enumerate(programs):
        tell("power limits", index, len(programs))
        curves.append(_entry(program, fit_program(program, *_FINE)))
        left_out.append((program.gpu, *_leave_limit_out(program)))
    tell("power limits", len(programs), len(programs))
    errors = []
    for gpu in sorted({program.gpu for program in programs}):
        members = [curve for curve in curves if curve["gpu"] == gpu]
        inner = [(times, powers) for name, times, powers in left_out if name == gpu]
        for quantity, key, which in (("time", "time_error", 0), ("power", "power_error", 1)):
            unseen = np.concatenate([pair[which] for pair in inner])
            title = f"{gpu.upper()}: {quantity} against the power limit, {len(members)} programs"
            errors += [
                _error(
                    title, mean(curve[key] for curve in members), sum(len(p.seconds) for p in programs if p.gpu == gpu)
                ),
                _error(title, float(unseen.mean()), len(unseen), "leave-limit-out"),
            ]
    return document(SOURCE, errors, {"curves": curves})


def fit_program(program: Program, num_static: int, num_demand: int) -> LimitFit:
    """Return the fit of least mean relative error of time and power together.

    Static power and demand are tried on a grid; what remains is linear and never negative.

    Args:
        program: At least three limits.
        num_static: How many static powers are tried, from 0 to just below the lowest limit.
        num_demand: How many demands are tried, from 0.7 of the lowest limit to twice the highest.
    """
    low, high = float(program.limit_watts.min()), float(program.limit_watts.max())
    static, demand = (
        grid.ravel()
        for grid in np.meshgrid(
            np.linspace(0.0, 0.995, num_static) * low, np.linspace(0.7 * low, 2.0 * high, num_demand)
        )
    )
    possible = demand > static + 1.0
    static, demand = static[possible], demand[possible]
    clock = _clocks(program.limit_watts, static, demand)
    fixed, slope, time_error = _nonnegative_line(1.0 / clock, program.seconds)
    constant, cubic, power_error = _nonnegative_line(clock**3, program.watts)
    best = int(np.argmin(np.round(time_error + power_error, 12)))
    return LimitFit(*(float(values[best]) for values in (static, demand, fixed, slope, constant, cubic)))


def _clocks(limit_watts: Vector, static: Vector, demand: Vector) -> Vector:
    """Return f for each candidate and limit, [num_candidates, num_limits]."""
    share = (limit_watts[None, :] - static[:, None]) / (demand - static)[:, None]
    clock: Vector = np.maximum(MIN_CLOCK, np.clip(share, 0.0, 1.0) ** (1.0 / 3.0))
    return clock


def _nonnegative_line(basis: Vector, measured: Vector) -> tuple[Vector, Vector, Vector]:
    """Return constant, slope and mean relative error for each candidate: least squares, nothing negative.

    Args:
        basis: What the slope is multiplied with, [num_candidates, num_limits].
        measured: [num_limits].
    """
    ones, rest = np.broadcast_to(1.0 / measured, basis.shape), basis / measured
    one_one, rest_rest, one_rest = (ones * ones).sum(1), (rest * rest).sum(1), (ones * rest).sum(1)
    one_sum, rest_sum = ones.sum(1), rest.sum(1)
    determinant = one_one * rest_rest - one_rest**2
    flat = determinant <= 1e-12 * one_one * rest_rest
    safe = np.where(flat, 1.0, determinant)
    constant = (one_sum * rest_rest - rest_sum * one_rest) / safe
    slope = (rest_sum * one_one - one_sum * one_rest) / safe
    only_constant, only_slope = one_sum / one_one, rest_sum / rest_rest
    constant_is_better = only_constant * one_sum >= only_slope * rest_sum  # the larger, the smaller the squared error
    negative = flat | (constant < 0.0) | (slope < 0.0)
    constant = np.where(negative, np.where(constant_is_better, only_constant, 0.0), constant)
    slope = np.where(negative, np.where(constant_is_better, 0.0, only_slope), slope)
    error = np.abs(constant[:, None] * ones + slope[:, None] * rest - 1.0).mean(1)
    return constant, slope, error


def _leave_limit_out(program: Program) -> tuple[Vector, Vector]:
    """Return errors of time and power at each limit between the lowest and the highest, by fits without it."""
    times, powers = [], []
    for index in range(1, len(program.limit_watts) - 1):
        others = [other for other in range(len(program.limit_watts)) if other != index]
        time_errors, power_errors = fit_program(program.only(others), *_COARSE).errors(program.only([index]))
        times.append(time_errors[0])
        powers.append(power_errors[0])
    return np.array(times), np.array(powers)


def _entry(program: Program, fit: LimitFit) -> dict[str, Any]:
    time_errors, power_errors = fit.errors(program)
    return {
        "gpu": program.gpu,
        "dataset": program.dataset,
        "network": program.network,
        "batch_size": program.batch_size,
        "optimizer": program.optimizer,
        "low_limit_watts": float(program.limit_watts[0]),
        "high_limit_watts": float(program.limit_watts[-1]),
        **{name: getattr(fit, name) for name in LimitFit.__slots__},
        "time_error": float(time_errors.mean()),
        "power_error": float(power_errors.mean()),
    }


def _error(quantity: str, error: float, num_points: int, method: str = "fit") -> FitError:
    return FitError(quantity=quantity, mean_relative_error=error, num_points=num_points, method=method)
