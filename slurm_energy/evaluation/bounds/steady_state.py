"""The least power at which a world can carry a stationary load, whatever the policy; also for limits on the run time.

By Little's law the mean run time of jobs is the mean number of jobs that run over the rate at which jobs end. So it is
a linear function of the mixture, whatever the sizes of the jobs and whether or not a policy looks at them. The least
power for each limit is the line that trades energy against service time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.sparse import csr_array, vstack

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.bounds.demand import (
    CountsByKind,
    FloatArray,
    StationaryModel,
    UnitsByKind,
    largest_feasible_share,
    shown_loads,
    stationary_model,
    used_kinds,
)
from slurm_energy.evaluation.bounds.programme import Rows, Solution, minimise
from slurm_energy.twin.world import World

_NOTHING_DEVICES = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way of running work that the optimum uses."""

    pool: str
    kind: str
    gpus_per_job: int
    relative_clock: float
    busy_gpus: float
    """Mean number of devices; half of those that are shared with another kind."""
    units_per_second: float
    watts: float
    """Of these devices."""
    partner: str | None = None
    """Kind of the job that shares the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A power that no policy can go below while it carries a load."""

    watts: float
    base_watts: float
    """Of the cluster with nothing running: the part that no policy changes."""
    job_watts: float
    """Of the devices that jobs hold."""
    units_per_second: float
    """Over all kinds."""
    busy_gpus: float
    runs: tuple[Run, ...]
    """Who runs what, by pool."""
    marginal_joules_by_kind: dict[str, float]
    """Energy of one more unit: the dual of the load."""
    price_watts_by_pool: dict[str, float]
    """What one more device of a pool would save: the dual of its capacity, 0 where devices stay free."""

    @property
    def joules_per_unit(self) -> float:
        """Total power over load, infinite without load."""
        return self.watts / self.units_per_second if self.units_per_second else inf


def steady_state_bound(
    world: World, load_units_per_second_by_kind: UnitsByKind, gpu_counts_by_kind: CountsByKind | None = None
) -> Bound:
    """Return the least mean power at which a stationary load can be carried.

    Args:
        world: The cluster.
        load_units_per_second_by_kind: Work that arrives.
        gpu_counts_by_kind: Device counts that jobs of a kind may run with; any, for a kind that is missing.

    Raises:
        ValueRangeError: no policy can carry the load; the message has the largest load that can be carried.
    """
    kinds = used_kinds(load_units_per_second_by_kind, "load in units/s")
    model = stationary_model(world, kinds, gpu_counts_by_kind)
    loads = model.loads(load_units_per_second_by_kind)
    solution = min_extra_power(model, loads)
    if solution is None:
        raise infeasible_load(model, loads)
    return bound_of(model, loads, solution)


def min_extra_power(model: StationaryModel, loads: FloatArray, limits: Rows | None = None) -> Solution | None:
    """Return the cheapest mixture that carries loads in units/s, None if there is none.

    Args:
        model: World and kinds.
        loads: By kind, above 0, [num_kinds].
        limits: Further rows over the activities.
    """
    equal = Rows(matrix=model.outputs / loads[:, None], values=np.ones(len(loads)))
    most = Rows(matrix=model.devices_used, values=model.devices)
    if limits is not None:
        most = stacked(most, limits)
    return minimise(model.activities.extra_watts, equal=equal, most=most)


def stacked(first: Rows, second: Rows) -> Rows:
    """Return the rows of both."""
    return Rows(matrix=csr_array(vstack([first.matrix, second.matrix])), values=np.append(first.values, second.values))


def infeasible_load(model: StationaryModel, loads: FloatArray) -> ValueRangeError:
    """Return the error for a load that is too great."""
    share = largest_feasible_share(model, loads)
    return ValueRangeError(
        f"load {shown_loads(model.kinds, loads)} units/s is more than world {model.world.name} can carry with any "
        f"policy: at most {shown_loads(model.kinds, share * loads)} units/s in these proportions"
    )


def bound_of(model: StationaryModel, loads: FloatArray, solution: Solution) -> Bound:
    """Return an optimum in the words of the world."""
    activities, busy = model.activities, solution.x
    return Bound(
        watts=model.base_watts + solution.value,
        base_watts=model.base_watts,
        job_watts=float(activities.watts @ busy),
        units_per_second=float(loads.sum()),
        busy_gpus=float(busy.sum()),
        runs=tuple(run for row in np.flatnonzero(busy > _NOTHING_DEVICES).tolist() for run in _runs(model, row, busy)),
        marginal_joules_by_kind=dict(zip(model.kinds, (solution.equal_prices / loads).tolist(), strict=True)),
        price_watts_by_pool={
            floor.pool: -price
            for floor, price in zip(model.floors, solution.limit_prices[: len(model.floors)].tolist(), strict=True)
        },
    )


def _runs(model: StationaryModel, row: int, busy: FloatArray) -> list[Run]:
    """Return what one activity runs: one kind of work, or two."""
    a = model.activities
    pool = model.world.pools[a.pool[row]]
    device = model.world.devices[pool.device]
    sides = [(a.group[row], a.clock[row], a.rate[row], a.partner[row])]
    if a.partner[row] >= 0:
        sides.append((a.partner[row], a.partner_clock[row], a.partner_rate[row], a.group[row]))
    return [
        Run(
            pool=pool.name,
            kind=model.kinds[kind],
            gpus_per_job=int(a.gpus[row]),
            relative_clock=device.relative_clocks[clock],
            busy_gpus=float(busy[row]) / len(sides),
            units_per_second=float(rate * busy[row]),
            watts=float(a.watts[row] * busy[row]) / len(sides),
            partner=model.kinds[other] if other >= 0 else None,
        )
        for kind, clock, rate, other in sides
    ]


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
    solution = min_extra_power(model, loads, limits)
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
