"""What the jobs of a run leave, column by column."""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.twin.job_run import ENDED, JobRun

Rows = Sequence[JobRun]
Reader = Callable[[Rows], list[int]] | Callable[[Rows], list[float]]
"""A list comprehension: it reads an attribute in a third of the time that `operator.attrgetter` takes."""

_OF_ALL: Mapping[str, Reader] = {
    "job_id": lambda rows: [row.job_id for row in rows],
    "phase": lambda rows: [row.phase for row in rows],
    "place": lambda rows: [row.place for row in rows],
    "submitted_seconds": lambda rows: [row.job.submitted_seconds for row in rows],
    "true_units": lambda rows: [row.job.true_units for row in rows],
}
_OF_STARTED: Mapping[str, Reader] = {
    "gpus": lambda rows: [row.gpus for row in rows],
    "set_clock": lambda rows: [row.set_clock for row in rows],
    "first_started_seconds": lambda rows: [row.first_started_seconds for row in rows],
    "ended_seconds": lambda rows: [row.ended_seconds for row in rows],
    "energy_joules": lambda rows: [row.energy_joules for row in rows],
    "units_done": lambda rows: [row.units_done for row in rows],
}
"""What all the others have in common."""
_OF_OTHERS_THAN_PLAIN: Mapping[str, Reader] = {
    "eligible_seconds": lambda rows: [row.eligible_seconds for row in rows],
    "deadline_seconds": lambda rows: [row.job.deadline_seconds for row in rows],
    "cpus": lambda rows: [row.job.cpus for row in rows],
}
_OF_RESTARTED: Mapping[str, Reader] = {
    "started_seconds": lambda rows: [row.started_seconds for row in rows],
    "units_kept": lambda rows: [row.units_kept for row in rows],
    "units_lost": lambda rows: [row.units_lost for row in rows],
    "restarts": lambda rows: [row.restarts for row in rows],
    "run_seconds_before": lambda rows: [row.run_seconds_before for row in rows],
    "gpu_seconds_before": lambda rows: [row.gpu_seconds_before for row in rows],
}
_INDICES = frozenset({"job_id", "phase", "place", "gpus", "set_clock"})
_NOT_ZERO = {"set_clock": -1, "first_started_seconds": inf, "ended_seconds": inf, "deadline_seconds": inf}
"""Of a job that never starts, or has no deadline."""
_BLOCK = 1024
"""Rows that are read together: a pass over the jobs of a long run, which no cache holds, would fetch each from memory
as often as there are columns."""


class JobColumns(NamedTuple):
    """Attributes by name, each [num_jobs]."""

    numbers: dict[str, NDArray[np.float64]]
    indices: dict[str, NDArray[np.int64]]
    states: list[str]
    """Slurm's: that of the end, else RUNNING or PENDING."""


def job_columns(rows: Rows, *, has_restarts: bool, only_plain_jobs: bool = False) -> JobColumns:
    """Return the columns of all jobs.

    Args:
        rows: The jobs.
        has_restarts: Whether any was taken off its devices; if none was, what only such jobs have is not read.
        only_plain_jobs: Whether `plain_job` made them all; if so, what others may have is not read.
    """
    of_all = {
        **_OF_ALL,
        **({} if only_plain_jobs else _OF_OTHERS_THAN_PLAIN),
        **({**_OF_STARTED, **_OF_RESTARTED} if has_restarts else {}),
    }
    of_started = {} if has_restarts else _OF_STARTED
    size = len(rows)
    names = (*_OF_ALL, *_OF_STARTED, *_OF_OTHERS_THAN_PLAIN, *_OF_RESTARTED)
    numbers = {name: np.full(size, _NOT_ZERO.get(name, 0.0)) for name in names if name not in _INDICES}
    indices = {name: np.full(size, _NOT_ZERO.get(name, 0), dtype=np.int64) for name in _INDICES}
    columns = {**numbers, **indices}
    states: list[str] = []
    for start in range(0, size, _BLOCK):
        block = rows[start : start + _BLOCK]
        here = slice(start, start + len(block))
        for name, read in of_all.items():
            columns[name][here] = np.fromiter(read(block), columns[name].dtype, len(block))
        is_over = indices["phase"][here] == ENDED
        has_started = is_over | (indices["place"][here] >= 0)
        started = list(compress(block, has_started.tolist()))
        for name, read in of_started.items():
            columns[name][here][has_started] = np.fromiter(read(started), columns[name].dtype, len(started))
        states += [row.state for row in block]
        for index in (start + np.flatnonzero(~is_over)).tolist():
            states[index] = "RUNNING" if rows[index].place >= 0 else "PENDING"
    if only_plain_jobs:
        numbers["eligible_seconds"] = numbers["submitted_seconds"].copy()
    if not has_restarts:
        numbers["started_seconds"] = numbers["first_started_seconds"].copy()
    _add_times_held(numbers, indices)
    return JobColumns(numbers, indices, states)


def _add_times_held(numbers: dict[str, NDArray[np.float64]], indices: dict[str, NDArray[np.int64]]) -> None:
    """Make `run_seconds` and `gpu_seconds`, as `JobRun` does."""
    is_over = (indices["phase"] == ENDED) & (indices["place"] >= 0)
    held = np.zeros(len(is_over))
    np.subtract(numbers["ended_seconds"], numbers["started_seconds"], out=held, where=is_over)
    numbers["run_seconds"] = numbers.pop("run_seconds_before") + held
    numbers["gpu_seconds"] = numbers.pop("gpu_seconds_before") + indices["gpus"] * held
