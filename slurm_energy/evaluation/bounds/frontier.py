"""The least power for each limit on the mean run time: the line that trades energy against service time.

By Little's law the mean run time of jobs is the mean number of jobs that run over the rate at which jobs end. So it is
a linear function of the mixture, whatever the sizes of the jobs and whether or not a policy looks at them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.bounds.demand import (
    CountsByKind,
    FloatArray,
    StationaryModel,
    UnitsByKind,
    stationary_model,
    used_kinds,
)
from slurm_energy.evaluation.bounds.programme import Rows, minimise
from slurm_energy.evaluation.bounds.steady_state import (
    Bound,
    bound_of,
    infeasible_load,
    least_extra_power,
)
from slurm_energy.twin.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class StationaryLoad:
    """Work that arrives, and the jobs that it comes in."""

    units_per_second_by_kind: UnitsByKind
    mean_units_by_kind: UnitsByKind
    """Mean size of a job."""
    gpu_counts_by_kind: CountsByKind | None = None
    """Device counts that jobs of a kind may run with; any, for a kind that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """The least power among policies whose jobs run no longer than a limit, in the mean over jobs."""

    limit_seconds: float
    mean_run_seconds: float
    """Of the optimum, at most the limit; from start to end, waiting not counted."""
    bound: Bound


def energy_latency_frontier(
    world: World, load: StationaryLoad, mean_run_seconds_limits: Sequence[float]
) -> tuple[FrontierPoint, ...]:
    """Return the least power for each limit on the mean run time of jobs, in the order given.

    Args:
        world: The cluster.
        load: Work and the size of its jobs.
        mean_run_seconds_limits: Limits in s.

    Raises:
        ValueRangeError: no policy can carry the load, or none within a limit; the message has the bound.
    """
    kinds = used_kinds(load.units_per_second_by_kind, "load in units/s")
    if not kinds:
        raise ValueRangeError("the load is 0 of every kind: no job runs whose time could be limited")
    model = stationary_model(world, kinds, load.gpu_counts_by_kind, prune=False)
    loads = model.loads(load.units_per_second_by_kind)
    jobs_per_second = sum(units / _mean_units(load, kind) for kind, units in zip(kinds, loads.tolist(), strict=True))
    return tuple(_point(model, loads, jobs_per_second, limit) for limit in mean_run_seconds_limits)


def _point(model: StationaryModel, loads: FloatArray, jobs_per_second: float, limit_seconds: float) -> FrontierPoint:
    if not limit_seconds > 0.0:
        raise ValueRangeError(f"limit {limit_seconds} s on the mean run time is not above 0")
    jobs = model.activities.jobs
    limits = None
    if limit_seconds < np.inf:
        row = csr_array(jobs[None, :] / (limit_seconds * jobs_per_second))
        limits = Rows(matrix=row, values=np.ones(1))
    solution = least_extra_power(model, loads, limits)
    if solution is None:
        raise _too_short(model, loads, jobs_per_second, limit_seconds)
    return FrontierPoint(
        limit_seconds=limit_seconds,
        mean_run_seconds=float(jobs @ solution.x) / jobs_per_second,
        bound=bound_of(model, loads, solution),
    )


def _too_short(
    model: StationaryModel, loads: FloatArray, jobs_per_second: float, limit_seconds: float
) -> ValueRangeError:
    shortest = minimise(
        model.activities.jobs,
        equal=Rows(matrix=model.outputs / loads[:, None], values=np.ones(len(loads))),
        most=Rows(matrix=model.devices_used, values=model.devices),
    )
    if shortest is None:
        return infeasible_load(model, loads)
    return ValueRangeError(
        f"mean run time {limit_seconds:.6g} s is out of reach in world {model.world.name} at this load: at least "
        f"{shortest.value / jobs_per_second:.6g} s with any policy"
    )


def _mean_units(load: StationaryLoad, kind: str) -> float:
    units = load.mean_units_by_kind.get(kind, 0.0)
    if not 0.0 < units < np.inf:
        raise ValueRangeError(f"mean size {units} of jobs of kind {kind!r} is not a finite number above 0")
    return units
