"""The TASK columns of a job: as Slurm has it in its queue or on its nodes, and as it is being submitted.

A job has columns that stay as long as it does not change, and columns that move: with time, with the other jobs of its
user, and with those that wait for it. The moving ones are worked out for many jobs at once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite, isnan, nan
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.job import JobRequest
from slurm_energy.energy_model.curves import WorkloadCurve, shipped_curves
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.columns import Scaler, raw
from slurm_energy.graph.schema import TASK, column

TASK_SCALER = Scaler(TASK)
MOVING = (
    "priority",
    "deadline_slack",
    "waited_seconds",
    "ran_seconds",
    "progress",
    "user_share",
    "critical_path_seconds",
    "dependents",
)
"""Columns that change although the job does not."""
_MOVING_PLACES = tuple(column(TASK, name) for name in MOVING)
MOVING_COLUMNS = np.array(_MOVING_PLACES)
_MOVING_SCALER = Scaler([TASK[index] for index in MOVING_COLUMNS])
RUNNING_STATES = frozenset({"RUNNING", "SUSPENDED"})
"""A suspended job keeps its devices."""
LIMIT_SHARE = 0.5
"""Run time over time limit where nothing else is known; users ask for more than they need."""
_LONGEST_ARRAY = 1_000_000
_MATRIX_KIND = re.compile(r"(?:matmul|matrix|gemm)-(\d{1,6})\Z")
_ARRAY_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\Z")
_MEBIBYTES_PER_GIBIBYTE = 1024.0


class JobFigures(NamedTuple):
    """What is worked out from a job once; times in Unix seconds, NaN where they are not known."""

    is_running: bool
    estimate_seconds: float
    """Expected run time; NaN when not even a time limit is known."""
    gpus: int
    """Of one job of an array."""
    tasks: int
    """Jobs that it stands for: the pending tasks of an array."""
    submitted_at_seconds: float
    started_at_seconds: float
    suspended_seconds: float
    deadline_seconds: float
    priority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """What a job's columns take from the rest of the queue."""

    highest_priority: float = 0.0
    """See `priority_ceiling`."""
    user_shares: Mapping[int, float] = field(default_factory=dict)
    """By user number, rounded by `rounded_share`."""
    critical_path_seconds: Mapping[int, float] = field(default_factory=dict)
    """By job number."""
    dependents: Mapping[int, int] = field(default_factory=dict)
    """By job number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWishes:
    """What the job's mode and the site's settings say of its trade between time and energy."""

    max_slowdown: float | None = None
    time_weight: float | None = None
    energy_weight: float | None = None


def job_figures(job: JobState) -> JobFigures:
    """Return what is worked out from a job once."""
    running = job.state in RUNNING_STATES
    return JobFigures(
        is_running=running,
        estimate_seconds=_estimate_seconds(job),
        gpus=max(0, job.gpu_count or 0),
        tasks=1 if running else array_tasks(job.array_task),
        submitted_at_seconds=job.submitted_at_seconds,
        started_at_seconds=raw(job.started_at_seconds) if running else nan,
        suspended_seconds=job.suspended_seconds,
        deadline_seconds=raw(job.deadline_seconds),
        priority=float(job.priority or 0),
    )


def array_tasks(array_task: str | None) -> int:
    """Return how many jobs an array's entry stands for, such as 998 for `3-1000%500`; 1 where that cannot be read."""
    if array_task is None:
        return 1
    total = 0
    for part in array_task.partition("%")[0].split(","):
        found = _ARRAY_RANGE.match(part.strip(" []"))
        if found is None:
            return max(1, total)
        low = int(found.group(1))
        total += max(0, int(found.group(2) or low) - low) // max(1, int(found.group(3) or 1)) + 1
    return min(_LONGEST_ARRAY, max(1, total))


def still_row(job: JobState, figures: JobFigures) -> list[float]:
    """Return the unscaled columns of a job that stay; the moving ones are NaN."""
    memory = job.memory_per_node_mib
    return [
        float(not figures.is_running),
        float(figures.is_running),
        0.0,
        figures.estimate_seconds,
        float(job.estimated_seconds is not None and isfinite(job.estimated_seconds)),
        figures.estimate_seconds if job.time_limit_minutes is None else job.time_limit_minutes * 60.0,
        nan if job.time_limit_minutes is None else job.time_limit_minutes * 60.0,
        float(job.time_limit_minutes is not None and isfinite(job.time_limit_minutes)),
        float(figures.gpus),
        float(max(figures.gpus, job.gpu_max_count or 0)),
        raw(job.cpus),
        nan if memory is None else memory / _MEBIBYTES_PER_GIBIBYTE,
        float(memory is not None and isfinite(memory)),
        float(job.node_count),
        float(job.exclusive),
        float(job.array_job_id is not None or job.array_task is not None),
        nan,
        float(bool(job.qos)),
        float(job.deadline_seconds is not None and isfinite(job.deadline_seconds)),
        *(nan,) * 7,
        float(bool(job.dependencies) and not figures.is_running),
        nan,
        nan,
        nan,
        compute_share(job.kind),
        matrix_size(job.kind),
    ]


def moving_columns(
    times: NDArray[np.float64], queue: NDArray[np.float64], now_seconds: float, highest_priority: float
) -> Floats:
    """Return the moving columns of many jobs, scaled, [jobs, MOVING].

    Args:
        times: Submission, start, suspended time, deadline and estimate of each job, [jobs, 5].
        queue: Priority, share of its user, critical path and number of dependents, [jobs, 4].
        now_seconds: Unix time.
        highest_priority: What a priority is put in relation to.
    """
    submitted, started, suspended, deadline, estimate = times.T
    priority, share, path, dependents = queue.T
    until = np.where(np.isnan(started), now_seconds, np.minimum(started, now_seconds))
    ran = np.maximum(0.0, now_seconds - started - suspended)
    left = np.maximum(0.0, deadline - now_seconds)
    expected = np.where(np.isnan(estimate), 0.0, np.maximum(0.0, estimate - np.nan_to_num(ran)))
    columns = (
        priority / highest_priority if highest_priority > 0.0 else np.zeros_like(priority),
        _divided(left - expected, left + expected),
        np.maximum(0.0, until - submitted),
        ran,
        _divided(ran, estimate),
        share,
        path,
        dependents,
    )
    return _MOVING_SCALER.scaled(np.stack(columns, axis=1))


def time_figures(figures: JobFigures) -> tuple[float, float, float, float, float]:
    """Return the row of `times` of one job."""
    return (
        figures.submitted_at_seconds,
        figures.started_at_seconds,
        figures.suspended_seconds,
        figures.deadline_seconds,
        figures.estimate_seconds,
    )


def submitted_vector(
    job: JobRequest,
    now_seconds: float,
    facts: QueueFacts,
    *,
    runtime: RuntimeEstimate | None = None,
    wishes: JobWishes | None = None,
    kind: str = "",
) -> Floats:
    """Return the columns of a job that a decision is asked for, [TASK]; it has no priority yet."""
    wishes = wishes or JobWishes()
    limit = None if job.time_limit_minutes is None else job.time_limit_minutes * 60.0
    estimate = runtime.seconds if runtime is not None else nan if limit is None else limit * LIMIT_SHARE
    deadline = job.options.deadline_seconds
    memory = job.memory_per_node_mib
    row = [
        0.0,
        0.0,
        1.0,
        estimate,
        float(runtime is not None and runtime.is_known),
        runtime.upper_seconds if runtime is not None else raw(limit),
        raw(limit),
        float(limit is not None and isfinite(limit)),
        float(job.gpu_count),
        float(sum(demand.count if demand.max_count is None else demand.max_count for demand in job.gpus)),
        float((job.tasks or 1) * (job.cpus_per_task or 1)),
        nan if memory is None else memory / _MEBIBYTES_PER_GIBIBYTE,
        float(memory is not None and isfinite(memory)),
        float(job.nodes_min),
        float(job.exclusive),
        float(job.array is not None),
        0.0,
        float(bool(job.qos)),
        float(deadline is not None),
        *(nan,) * 7,
        0.0,
        raw(wishes.max_slowdown),
        raw(wishes.time_weight),
        raw(wishes.energy_weight),
        compute_share(kind),
        matrix_size(kind),
    ]
    expected = 0.0 if isnan(estimate) else max(0.0, estimate)
    left = nan if deadline is None else max(0.0, deadline - now_seconds)
    moving = (
        0.0,
        (left - expected) / (left + expected) if left + expected > 0.0 else nan,
        max(0.0, now_seconds - (job.submitted_at_seconds or now_seconds)),
        nan,
        nan,
        facts.user_shares.get(job.user_id, 0.0),
        estimate,
        0.0,
    )
    for index, value in zip(_MOVING_PLACES, moving, strict=True):
        row[index] = value
    vector: Floats = TASK_SCALER.scaled([row])[0]
    return vector


def priority_ceiling(priority: float) -> float:
    """Return the next of eight steps per doubling: so that a slightly higher priority does not change every job."""
    if not priority > 0.0:
        return 0.0
    return float(2.0 ** (np.ceil(np.log2(priority) * 8.0) / 8.0))


def rounded_share(part: float, whole: float) -> float:
    """Return a share in steps of 1/32: so that one job more does not change those of every user."""
    return round(32.0 * part / whole) / 32.0 if whole > 0.0 else 0.0


def matrix_size(kind: str) -> float:
    """Return the size of the products that a kind of work such as `matrix-800` consists of; NaN for others."""
    found = _MATRIX_KIND.match(kind)
    return nan if found is None else float(found.group(1))


@lru_cache(maxsize=1024)
def compute_share(kind: str) -> float:
    """Return the share of the run time that goes with the clock, over the measured clocks, mean over GPU types."""
    curves = [curve for row in shipped_curves().values() for curve in row if curve.workload == kind]
    return fmean(_compute_share(curve) for curve in curves) if curves else nan


def _compute_share(curve: WorkloadCurve) -> float:
    low, high = (clock / curve.reference_clock_mhz for clock in (curve.low_clock_mhz, curve.high_clock_mhz))
    return (curve.runtime.seconds(low) / curve.runtime.seconds(high) - 1.0) / (high / low - 1.0)


def _estimate_seconds(job: JobState) -> float:
    if job.estimated_seconds is not None and isfinite(job.estimated_seconds):
        return max(0.0, job.estimated_seconds)
    limit = job.time_limit_minutes
    return nan if limit is None or not isfinite(limit) else max(0.0, limit) * 60.0 * LIMIT_SHARE


def _divided(value: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return value / whole, NaN where the whole is not above 0."""
    known = whole > 0.0
    return np.where(known, value / np.where(known, whole, 1.0), nan)
