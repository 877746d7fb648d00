"""The least energy of a run that did so much work: what every outcome of the arena is held against.

At every instant power and work rates are a mixture of activities on top of the floor; their mean over the run is one
too, and the least power V for given rates is convex (Jensen). So a run of H seconds that did U units took at least
H V(U / H), whenever the work arrived and which policy ran it, with the work that was in flight at the end counted in.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from slurm_energy.errors import EvaluationError, ValueRangeError
from slurm_energy.evaluation.bounds.demand import (
    CountsByKind,
    StationaryModel,
    UnitsByKind,
    largest_feasible_share,
    runnable_kinds,
    shown_loads,
    stationary_model,
    used_kinds,
)
from slurm_energy.evaluation.bounds.floor import Downtime
from slurm_energy.evaluation.bounds.programme import RELATIVE_TOLERANCE, Rows, minimise
from slurm_energy.evaluation.bounds.steady_state import min_extra_power
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedBound:
    """What no policy can go below with this work in this time."""

    joules: float
    """Least total energy in which exactly the processed units could have been processed."""
    joules_per_unit: float
    """That over the processed units (all kinds summed), infinite for none."""
    min_joules_per_unit: float
    """Least total energy per unit over everything that could have been done of the arrivals, however much was left."""
    horizon_seconds: float


class EnergyBound(Protocol):
    """Any bound on a total energy."""

    @property
    def joules(self) -> float:
        """The bound."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConditions:
    """What else is known of a run."""

    gpu_counts_by_kind: CountsByKind | None = None
    """Device counts that jobs of a kind may run with; any, for a kind that is missing."""
    downtime: Downtime | None = None
    """What really was down. Without it, what may be down at random draws nothing at all in the bound."""


def bound_for_processed(
    world: World,
    processed_units: UnitsByKind,
    arrived_units: UnitsByKind,
    horizon_seconds: float,
    conditions: RunConditions | None = None,
) -> ProcessedBound:
    """Return the least energy of a run in which so much work was done.

    Args:
        world: The cluster.
        processed_units: True units that were done by kind, in flight at the end included, repeated work left out.
        arrived_units: True units that arrived by kind, at least as many. What the world cannot run is left aside.
        horizon_seconds: Length of the run, the one over which its energy is counted.
        conditions: What else is known of the run.

    Raises:
        EvaluationError: more was processed than arrived, or than the cluster could process in this time.
        ValueRangeError: an amount or the horizon is out of bounds, or nothing arrived that can run.
    """
    conditions = conditions or RunConditions()
    if not 0.0 < horizon_seconds < np.inf:
        raise ValueRangeError(f"horizon {horizon_seconds} s is not a finite number above 0")
    used_kinds(processed_units, "processed units")
    arrived = used_kinds(arrived_units, "arrived units")
    for kind, units in processed_units.items():
        if units > arrived_units.get(kind, 0.0) * (1.0 + RELATIVE_TOLERANCE):
            raise EvaluationError(
                f"{units:.9g} units of kind {kind!r} were processed, and {arrived_units.get(kind, 0.0):.9g} arrived"
            )
    runnable = runnable_kinds(world, arrived, conditions.gpu_counts_by_kind)
    kinds = tuple(kind for kind in arrived if kind in runnable or processed_units.get(kind, 0.0) > 0.0)
    if not kinds:
        raise ValueRangeError(f"nothing arrived that world {world.name} can run: there is no energy per unit to bound")
    model = stationary_model(
        world,
        kinds,
        conditions.gpu_counts_by_kind,
        horizon_seconds=horizon_seconds,
        downtime=conditions.downtime,
    )
    processed = {kind: processed_units.get(kind, 0.0) for kind in kinds}
    joules = horizon_seconds * _min_power(model, processed, horizon_seconds)
    total = sum(processed.values())
    return ProcessedBound(
        joules=joules,
        joules_per_unit=float(joules / total) if total else np.inf,
        min_joules_per_unit=_min_ratio(model, arrived_units, horizon_seconds),
        horizon_seconds=horizon_seconds,
    )


def bound_of_run(
    world: World,
    jobs: Sequence[Job],
    units: Sequence[float],
    horizon_seconds: float,
    downtime: Downtime | None = None,
) -> ProcessedBound:
    """Return the least energy of a run from its jobs.

    Args:
        world: The cluster.
        jobs: Every job that arrived.
        units: True units that were done and kept of each.
        horizon_seconds: Length of the run, the one over which its energy is counted.
        downtime: See `RunConditions`.

    Raises:
        EvaluationError: see `bound_for_processed`.
        ValueRangeError: see `bound_for_processed`; or `units` is not as long as `jobs`.
    """
    if len(jobs) != len(units):
        raise ValueRangeError(f"units of {len(units)} jobs are given for {len(jobs)} jobs")
    arrived: dict[str, float] = defaultdict(float)
    processed: dict[str, float] = defaultdict(float)
    counts: dict[str, set[int]] = defaultdict(set)
    for job, done in zip(jobs, units, strict=True):
        arrived[job.kind] += job.true_units
        processed[job.kind] += done
        counts[job.kind].update(job.gpu_counts)
    conditions = RunConditions(
        gpu_counts_by_kind={kind: tuple(found) for kind, found in counts.items()}, downtime=downtime
    )
    return bound_for_processed(world, processed, arrived, horizon_seconds, conditions)


def assert_not_below(energy_joules: float, bound: EnergyBound, name: str = "the policy") -> None:
    """Check that a total energy is not below what any policy could have reached.

    Args:
        energy_joules: Total energy of the run, the whole cluster.
        bound: The bound for the work and the time of the run.
        name: Whose run it was, for the message.

    Raises:
        EvaluationError: the energy is below the bound, or is not a number: an account is wrong, or the bound is.
    """
    if not energy_joules >= bound.joules * (1.0 - RELATIVE_TOLERANCE):
        raise EvaluationError(
            f"{name} took {energy_joules:.9g} J, below the {bound.joules:.9g} J that any policy needs for the work it "
            "did in this time: energy is missing from the account, or work is counted twice"
        )


def _min_power(model: StationaryModel, processed: UnitsByKind, horizon_seconds: float) -> float:
    done = [index for index, kind in enumerate(model.kinds) if processed[kind] > 0.0]
    rates = model.loads(processed)[done] / horizon_seconds
    # Rates of 0 forbid what yields that kind: those columns and rows go, and the scaled rows stay well-conditioned.
    undone = np.setdiff1d(np.arange(len(model.kinds)), done)
    allowed = ~(np.isin(model.activities.group, undone) | np.isin(model.activities.partner, undone))
    part = StationaryModel(
        world=model.world,
        kinds=tuple(model.kinds[index] for index in done),
        floors=model.floors,
        activities=model.activities.take(allowed),
        outputs=csr_array(model.outputs[done][:, allowed]),
        devices_used=csr_array(model.devices_used[:, allowed]),
    )
    solution = min_extra_power(part, rates)
    if solution is None:
        most = largest_feasible_share(part, rates) * rates * horizon_seconds
        raise EvaluationError(
            f"{shown_loads(part.kinds, rates * horizon_seconds)} units were processed in {horizon_seconds:.6g} s, and "
            f"world {model.world.name} can process at most {shown_loads(part.kinds, most)} in these proportions"
        )
    return model.base_watts + solution.value


def _min_ratio(model: StationaryModel, arrived_units: UnitsByKind, horizon_seconds: float) -> float:
    """Return the least power over rate, over all rates up to the arrivals.

    A ratio of linear functions, made linear by scaling: with t = 1 / rate and y = t x, minimise base t + cost y for
    total rate 1 (Charnes and Cooper 1962).
    """
    rates = model.loads(arrived_units) / horizon_seconds
    scale = float(rates.sum())
    units = csr_array(model.outputs.sum(axis=0)[None, :] / scale)
    equal = Rows(matrix=csr_array(hstack([units, csr_array((1, 1))])), values=np.ones(1))
    most = Rows(
        matrix=csr_array(
            vstack(
                [
                    hstack([model.devices_used, -model.devices[:, None]]),
                    hstack([model.outputs / rates[:, None], -np.ones((len(rates), 1))]),
                ]
            )
        ),
        values=np.zeros(len(model.floors) + len(rates)),
    )
    solution = minimise(np.append(model.activities.extra_watts, model.base_watts), equal=equal, most=most)
    if solution is None:
        raise EvaluationError(f"no work of kinds {', '.join(model.kinds)} can be done in world {model.world.name}")
    return solution.value / scale
