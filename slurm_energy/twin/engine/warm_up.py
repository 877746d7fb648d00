"""The totals of a run when its warm-up ends, and what is left of an outcome when they are taken off.

A run begins with an empty cluster. Where a long run is meant, its first stretch is simulated and not counted: energy
and work are differences of totals, so that jobs which run across the border count for what they did after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job_run import ENDED, JobRun
from slurm_energy.twin.engine.ledger import COMPONENTS

if TYPE_CHECKING:
    from slurm_energy.twin.engine.outcome import Outcome, Sampler

FloatArray = NDArray[np.float64]


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


def warm_up_of(execution: Execution, runs: Mapping[int, JobRun], sampler: "Sampler", now: float) -> WarmUp:
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


def since(outcome: "Outcome", warm_up: WarmUp) -> "Outcome":
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
