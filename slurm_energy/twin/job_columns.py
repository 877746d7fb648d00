"""What the jobs of a run leave, column by column."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.twin.job_run import ENDED, JobRun

_INDICES = ("job_id", "phase", "place", "gpus", "set_clock")
_NUMBERS = (
    "eligible_seconds",
    "first_started_seconds",
    "ended_seconds",
    "run_seconds",
    "gpu_seconds",
    "energy_joules",
    "units_done",
)
_NUMBERS_OF_RESTARTS = ("started_seconds", "units_kept", "units_lost", "restarts")
_NUMBERS_OF_JOB = ("submitted_seconds", "true_units", "deadline_seconds", "cpus")
_BLOCK = 1024
"""Rows that are read together: a pass over the jobs of a long run, which no cache holds, would fetch each from memory
as often as there are columns."""


class JobColumns(NamedTuple):
    """Attributes by name, each [num_jobs]."""

    numbers: dict[str, NDArray[np.float64]]
    indices: dict[str, NDArray[np.int64]]
    states: list[str]
    """Slurm's: that of the end, else RUNNING or PENDING."""


def job_columns(rows: Sequence[JobRun], *, has_restarts: bool) -> JobColumns:
    """Return the columns of all jobs.

    Args:
        rows: The jobs.
        has_restarts: Whether any was taken off its devices; if none was, what only such jobs have is not read.
    """
    size = len(rows)
    numbers = {name: np.zeros(size) for name in (*_NUMBERS, *_NUMBERS_OF_RESTARTS, *_NUMBERS_OF_JOB)}
    indices = {name: np.zeros(size, dtype=np.int64) for name in _INDICES}
    states: list[str] = []
    of_run = [
        (attrgetter(name), numbers[name]) for name in (*_NUMBERS, *(_NUMBERS_OF_RESTARTS if has_restarts else ()))
    ]
    of_job = [(attrgetter(name), numbers[name]) for name in _NUMBERS_OF_JOB]
    whole = [(attrgetter(name), column) for name, column in indices.items()]
    for start in range(0, size, _BLOCK):
        block = rows[start : start + _BLOCK]
        end = start + len(block)
        for attribute, column in of_run:
            column[start:end] = np.fromiter(map(attribute, block), np.float64, end - start)
        for attribute, index in whole:
            index[start:end] = np.fromiter(map(attribute, block), np.int64, end - start)
        jobs = [row.job for row in block]
        for attribute, column in of_job:
            column[start:end] = np.fromiter(map(attribute, jobs), np.float64, end - start)
        states += [row.state if row.phase == ENDED else "RUNNING" if row.place >= 0 else "PENDING" for row in block]
    if not has_restarts:
        numbers["started_seconds"] = numbers["first_started_seconds"].copy()
    return JobColumns(numbers, indices, states)
