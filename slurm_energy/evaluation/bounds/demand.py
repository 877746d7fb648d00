"""Stationary work: how much of each kind arrives, in which widths it may run, and the most that a world can carry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.bounds.activities import Activities, WorkGroup, activities_of
from slurm_energy.evaluation.bounds.floor import Downtime, PoolFloor, pool_floors
from slurm_energy.evaluation.bounds.programme import Rows, devices_used, minimise, outputs
from slurm_energy.twin.engine.places import option_table, places_of
from slurm_energy.twin.world import World

FloatArray = NDArray[np.float64]
UnitsByKind = Mapping[str, float]
CountsByKind = Mapping[str, Sequence[int]]
MAX_COUNTS = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StationaryModel:
    """A world and kinds of work, ready for a linear programme."""

    world: World
    kinds: tuple[str, ...]
    floors: tuple[PoolFloor, ...]
    activities: Activities
    outputs: csr_array
    """Units per device-second, [num_kinds, num_activities]."""
    devices_used: csr_array
    """[num_pools, num_activities]."""

    @property
    def devices(self) -> FloatArray:
        """Devices of each pool, [num_pools]."""
        return np.array([floor.devices for floor in self.floors], dtype=np.float64)

    @property
    def base_watts(self) -> float:
        """Power of the whole cluster with nothing running."""
        return sum(floor.base_watts for floor in self.floors)

    def loads(self, units_by_kind: UnitsByKind) -> FloatArray:
        """Return the amounts in the order of `kinds`, [num_kinds]."""
        return np.array([units_by_kind[kind] for kind in self.kinds], dtype=np.float64)


def stationary_model(
    world: World,
    kinds: Sequence[str],
    gpu_counts_by_kind: CountsByKind | None = None,
    *,
    horizon_seconds: float | None = None,
    downtime: Downtime | None = None,
    prune: bool = True,
) -> StationaryModel:
    """Return the model of some kinds of work, each free to run in every place.

    Args:
        world: The cluster.
        kinds: Kinds of work.
        gpu_counts_by_kind: Device counts that jobs of a kind may run with; a kind that is missing may take any.
        horizon_seconds: See `pool_floors`.
        downtime: See `pool_floors`.
        prune: See `activities_of`.

    Raises:
        ValueRangeError: a kind can run nowhere, or the counts are not whole numbers from 1 up.
    """
    floors = pool_floors(world, kinds, horizon_seconds=horizon_seconds, downtime=downtime)
    places = tuple(range(len(places_of(world))))
    groups = [WorkGroup(kind, _counts(world, kind, gpu_counts_by_kind), places) for kind in kinds]
    activities = activities_of(world, groups, floors, prune=prune)
    for index, group in enumerate(groups):
        if not (activities.group == index).any():
            raise ValueRangeError(
                f"work of kind {group.kind!r} with {_shown(group.gpu_counts)} devices can run nowhere in "
                f"world {world.name}"
            )
    return StationaryModel(
        world=world,
        kinds=tuple(kinds),
        floors=floors,
        activities=activities,
        outputs=outputs(activities, len(groups)),
        devices_used=devices_used(activities, len(floors)),
    )


def used_kinds(units_by_kind: UnitsByKind, thing: str) -> tuple[str, ...]:
    """Return the kinds of which there is any, sorted.

    Raises:
        ValueRangeError: an amount is not a finite number from 0 up; `thing` names it.
    """
    for kind, units in units_by_kind.items():
        if not 0.0 <= units < inf:
            raise ValueRangeError(f"{thing} {units} of kind {kind!r} is not a finite number from 0 up")
    return tuple(sorted(kind for kind, units in units_by_kind.items() if units > 0.0))


def runnable_kinds(
    world: World, kinds: Sequence[str], gpu_counts_by_kind: CountsByKind | None = None
) -> tuple[str, ...]:
    """Return the kinds that can run somewhere with one of their device counts, in the order given."""
    found = (
        (kind, option_table(world, kind, _counts(world, kind, gpu_counts_by_kind)).seconds_per_unit) for kind in kinds
    )
    return tuple(kind for kind, seconds in found if np.isfinite(seconds).any())


def largest_feasible_share(model: StationaryModel, loads: FloatArray) -> float:
    """Return by what factor all loads (above 0) can be multiplied before the devices no longer suffice."""
    columns = len(model.activities)
    scaled = csr_array(model.outputs / loads[:, None])
    equal = Rows(matrix=csr_array(hstack([scaled, -np.ones((len(loads), 1))])), values=np.zeros(len(loads)))
    idle = csr_array((len(model.floors), 1))
    most = Rows(matrix=csr_array(hstack([model.devices_used, idle])), values=model.devices)
    solution = minimise(np.append(np.zeros(columns), -1.0), equal=equal, most=most)
    return 0.0 if solution is None else -solution.value


def largest_feasible_load(
    world: World, load_units_per_second_by_kind: UnitsByKind, gpu_counts_by_kind: CountsByKind | None = None
) -> dict[str, float]:
    """Return the greatest load in units/s, in the given proportions, that any policy could carry for ever."""
    kinds = used_kinds(load_units_per_second_by_kind, "load in units/s")
    if not kinds:
        raise ValueRangeError("the load is 0 of every kind: it has no proportions to keep")
    model = stationary_model(world, kinds, gpu_counts_by_kind)
    loads = model.loads(load_units_per_second_by_kind)
    share = largest_feasible_share(model, loads)
    return {kind: share * load for kind, load in zip(kinds, loads.tolist(), strict=True)}


def shown_loads(kinds: Sequence[str], loads: FloatArray) -> str:
    """Return amounts of work for a message."""
    return ", ".join(f"{load:.6g} of {kind}" for kind, load in zip(kinds, loads.tolist(), strict=True))


def _counts(world: World, kind: str, gpu_counts_by_kind: CountsByKind | None) -> tuple[int, ...]:
    given = None if gpu_counts_by_kind is None else gpu_counts_by_kind.get(kind)
    if given is not None:
        if not given or min(given) < 1:
            raise ValueRangeError(f"device counts {list(given)[:8]} of kind {kind!r} are not whole numbers from 1 up")
        return tuple(sorted(set(given)))
    most = max(min(p.partition.max_gpus_per_job, p.pool.nodes * p.pool.gpus_per_node) for p in places_of(world))
    if most > MAX_COUNTS:
        raise ValueRangeError(
            f"jobs of kind {kind!r} may take up to {most} devices in world {world.name}, and at most {MAX_COUNTS} "
            "counts are tried by default: name the device counts of the kind"
        )
    return tuple(range(1, most + 1))


def _shown(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts[:4])) + (", …" if len(counts) > 4 else "")
