"""The record of a finished run, and what is left of it when the totals of a warm-up are taken off.

A run begins with an empty cluster. Where a long run is meant, its first stretch is simulated and not counted: energy
and work are differences of totals, so that jobs which run across the border count for what they did after it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job import ENDED, JobRun
from slurm_energy.twin.engine.ledger import COMPONENTS
from slurm_energy.twin.engine.places import Place
from slurm_energy.twin.engine.sampling import Sampler
from slurm_energy.twin.world import World

FloatArray = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """A finished run. Columns are [num_jobs] in the order of submission; a time that never came is infinite."""

    world: str
    rule: str
    end_seconds: float
    job_id: NDArray[np.int64]
    state: list[str]
    """COMPLETED, TIMEOUT, FAILED, NODE_FAIL, CANCELLED, REJECTED; PENDING or RUNNING at the end of the run."""
    submitted_seconds: FloatArray
    eligible_seconds: FloatArray
    """When it could first have started: submission, or the end of its last dependency."""
    started_seconds: FloatArray
    """First start."""
    last_started_seconds: FloatArray
    ended_seconds: FloatArray
    run_seconds: FloatArray
    """Of all its starts together."""
    place: NDArray[np.int64]
    """-1 for a job that never started."""
    gpus: NDArray[np.int64]
    clock: NDArray[np.int64]
    """The set clock of its last start."""
    restarts: NDArray[np.int64]
    energy_joules: FloatArray
    units: FloatArray
    """Work that was done and kept."""
    units_lost: FloatArray
    true_units: FloatArray
    units_per_second: FloatArray
    """Of a job that runs at the end."""
    deadline_seconds: FloatArray
    gpu_seconds: FloatArray
    cpu_seconds: FloatArray
    joules_by_component: Mapping[str, float]
    """`idle`, `host`, `suspended`, `waking`: what no job is charged for."""
    total_joules: float
    """Integral of the cluster's power, made apart from the parts."""
    total_gpus: int
    total_cpu_sockets: int
    sample_seconds: FloatArray
    sample_watts: FloatArray
    """Mean power between one sample time and the next, [num_samples - 1]."""
    sample_waiting: NDArray[np.int64]
    waiting_at_day_end: tuple[int, ...]
    suspended_node_hours: float
    clamped: int
    """Answers that the guard had to change or refuse."""
    declined: int
    """Times that the rule let a job wait although it would have fitted."""
    disruptions: int
    decisions: int = 0
    decision_seconds: float = 0.0
    carbon_grams: float | None = None
    """Of the whole cluster; None in a world without carbon intensity."""
    cost: float | None = None
    """In the unit of the world's prices; None in a world without."""
    places: tuple[str, ...] = ()
    place_is_cpu: tuple[bool, ...] = ()
    place_gpus: tuple[int, ...] = ()
    extra: Mapping[str, float] = field(default_factory=dict)
    counted_from_seconds: float = 0.0
    """End of the warm-up. Energy, units, device-seconds and restarts are those from then on, of every job; states,
    times and samples are of the whole run."""
    units_before: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Units that each job had done and kept by then; empty without a warm-up."""

    @property
    def counted_seconds(self) -> float:
        """Length of what is counted."""
        return self.end_seconds - self.counted_from_seconds

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """Jobs that were submitted after the warm-up, [num_jobs]."""
        counted: NDArray[np.bool_] = self.submitted_seconds >= self.counted_from_seconds
        return counted

    @property
    def jobs_joules(self) -> float:
        """Energy charged to jobs."""
        return float(np.sum(self.energy_joules))

    @property
    def balance_error(self) -> float:
        """Difference between the parts and the total, relative to the total."""
        parts = self.jobs_joules + sum(self.joules_by_component.values())
        return abs(parts - self.total_joules) / max(self.total_joules, 1e-300)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Totals at one moment. Columns are of the jobs that had come by then, in the order of submission."""

    seconds: float
    total_joules: float
    joules_by_component: Mapping[str, float]
    energy_joules: FloatArray
    units: FloatArray
    units_lost: FloatArray
    gpu_seconds: FloatArray
    cpu_seconds: FloatArray
    restarts: FloatArray
    suspended_node_hours: float
    carbon_grams: float | None
    cost: float | None


def outcome_of(  # noqa: PLR0913  # everything that one run consists of
    world: World,
    places: Sequence[Place],
    execution: Execution,
    runs: Mapping[int, JobRun],
    sampler: Sampler,
    *,
    name: str,
    end_seconds: float,
    clamped: int,
    declined: int,
    disruptions: int,
    only_plain_jobs: bool = False,
    warm_up: WarmUp | None = None,
) -> Outcome:
    """Return the record of a run that is over and closed."""
    rows = list(runs.values())
    column, index, states = job_columns(rows, has_restarts=execution.has_evicted, only_plain_jobs=only_plain_jobs)
    holds = np.flatnonzero((index["phase"] != ENDED) & (index["place"] >= 0))
    in_flight, units_per_second = np.zeros(len(rows)), np.zeros(len(rows))
    in_flight[holds] = end_seconds - column["started_seconds"][holds]
    units_per_second[holds] = [rows[number].units_per_second for number in holds.tolist()]
    run_seconds = column["run_seconds"] + in_flight
    components = {
        component: sum(ledger.energy_joules[index] for ledger in execution.ledgers)
        for index, component in enumerate(COMPONENTS)
    }
    times = np.array(sampler.times)
    whole = Outcome(
        world=world.name,
        rule=name,
        end_seconds=end_seconds,
        job_id=index["job_id"],
        state=states,
        submitted_seconds=column["submitted_seconds"],
        eligible_seconds=column["eligible_seconds"],
        started_seconds=column["first_started_seconds"],
        last_started_seconds=column["started_seconds"],
        ended_seconds=column["ended_seconds"],
        run_seconds=run_seconds,
        place=index["place"],
        gpus=index["gpus"],
        clock=index["set_clock"],
        restarts=column["restarts"].astype(np.int64),
        energy_joules=column["energy_joules"],
        units=column["units_kept"] + column["units_done"],
        units_lost=column["units_lost"],
        true_units=column["true_units"],
        units_per_second=units_per_second,
        deadline_seconds=column["deadline_seconds"],
        gpu_seconds=column["gpu_seconds"] + index["gpus"] * in_flight,
        cpu_seconds=run_seconds * column["cpus"],
        joules_by_component=components,
        total_joules=execution.total_joules(end_seconds),
        total_gpus=sum(pool.total for index, pool in enumerate(execution.pools) if not execution.devices[index].is_cpu),
        total_cpu_sockets=sum(
            pool.total for index, pool in enumerate(execution.pools) if execution.devices[index].is_cpu
        ),
        sample_seconds=times,
        sample_watts=np.diff(np.array(sampler.joules)) / np.diff(times) if len(times) > 1 else np.zeros(0),
        sample_waiting=np.array(sampler.waiting, dtype=np.int64),
        waiting_at_day_end=tuple(sampler.waiting_at_day_end),
        suspended_node_hours=execution.nodes.suspended_node_seconds / 3600.0,
        clamped=clamped,
        declined=declined,
        disruptions=disruptions,
        carbon_grams=sampler.regional.carbon_grams,
        cost=sampler.regional.cost,
        places=tuple(place.info.name for place in places),
        place_is_cpu=tuple(place.device.is_cpu for place in places),
        place_gpus=tuple(place.info.total_gpus for place in places),
    )
    return whole if warm_up is None else since(whole, warm_up)


def warm_up_of(execution: Execution, runs: Mapping[int, JobRun], sampler: Sampler, now: float) -> WarmUp:
    """Return the totals of a run at the present moment; nothing of the run is changed but its books."""
    for run in runs.values():
        if run.place >= 0 and run.phase != ENDED:
            run.settle(now)
    for ledger in execution.ledgers:
        ledger.close(now)
    execution.nodes.close(now)
    sampler.regional.account(now)
    rows = list(runs.values())
    held = [now - row.started_seconds if row.place >= 0 and row.phase != ENDED else 0.0 for row in rows]
    return WarmUp(
        seconds=now,
        total_joules=execution.total_joules(now),
        joules_by_component={
            component: sum(ledger.energy_joules[index] for ledger in execution.ledgers)
            for index, component in enumerate(COMPONENTS)
        },
        energy_joules=np.array([row.energy_joules for row in rows], dtype=np.float64),
        units=np.array([row.units for row in rows], dtype=np.float64),
        units_lost=np.array([row.units_lost for row in rows], dtype=np.float64),
        gpu_seconds=np.array(
            [row.gpu_seconds + row.gpus * seconds for row, seconds in zip(rows, held, strict=True)], dtype=np.float64
        ),
        cpu_seconds=np.array(
            [(row.run_seconds + seconds) * row.job.cpus for row, seconds in zip(rows, held, strict=True)],
            dtype=np.float64,
        ),
        restarts=np.array([row.restarts for row in rows], dtype=np.float64),
        suspended_node_hours=execution.nodes.suspended_node_seconds / 3600.0,
        carbon_grams=sampler.regional.carbon_grams,
        cost=sampler.regional.cost,
    )


def since(outcome: Outcome, warm_up: WarmUp) -> Outcome:
    """Return an outcome whose energy, work and device-seconds are those after the warm-up."""
    size = len(outcome.job_id)

    def padded(column: FloatArray) -> FloatArray:
        return np.concatenate([column, np.zeros(size - len(column))])

    return replace(
        outcome,
        counted_from_seconds=warm_up.seconds,
        units_before=padded(warm_up.units),
        total_joules=outcome.total_joules - warm_up.total_joules,
        joules_by_component={
            component: joules - warm_up.joules_by_component[component]
            for component, joules in outcome.joules_by_component.items()
        },
        energy_joules=outcome.energy_joules - padded(warm_up.energy_joules),
        units=outcome.units - padded(warm_up.units),
        units_lost=outcome.units_lost - padded(warm_up.units_lost),
        gpu_seconds=outcome.gpu_seconds - padded(warm_up.gpu_seconds),
        cpu_seconds=outcome.cpu_seconds - padded(warm_up.cpu_seconds),
        restarts=outcome.restarts - padded(warm_up.restarts).astype(np.int64),
        suspended_node_hours=outcome.suspended_node_hours - warm_up.suspended_node_hours,
        carbon_grams=_left(outcome.carbon_grams, warm_up.carbon_grams),
        cost=_left(outcome.cost, warm_up.cost),
    )


def _left(whole: float | None, before: float | None) -> float | None:
    return None if whole is None or before is None else whole - before


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
