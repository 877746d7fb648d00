"""What an agent may answer for a job now, and how an action's number stands for place, device count and clock.

An action is `(place x num_counts + count) x num_clocks + clock`; the last one of all is to let the job wait. With the
clock oracle there is one clock for each place and count: the one of the least energy inside the job's bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.placement import FloatArray, OptionTable, Placement
from slurm_energy.policy.rules.tables import TIME_MARGIN, Prepared, last_clocks
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.places import Place

BoolArray = NDArray[np.bool_]
ClockForm = Literal["oracle", "free"]
_WITHIN = 1.0 + 1e-9
_NO_DEVICES = 1 << 30
"""Device count of a column that a job does not have: it never fits."""
_OCTAVES = 8.0
"""Cost relative to the cheapest is shown up to 2^8 times it."""


class ActionSizes(NamedTuple):
    """How many places, device counts and clocks an action can tell apart."""

    places: int
    counts: int
    clocks: int
    """1 with the clock oracle."""

    @property
    def wait(self) -> int:
        """The action that lets the job wait: the last one."""
        return self.places * self.counts * self.clocks

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.wait + 1


class ChoiceCosts:
    """One option table in the environment's fixed shape [places, counts, clocks], worked out once."""

    def __init__(self, table: OptionTable, num_counts: int) -> None:
        """Pad a table.

        Raises:
            ValueRangeError: its job has more device counts than the environment has columns.
        """
        places, counts, clocks = table.seconds_per_unit.shape
        if counts > num_counts:
            raise ValueRangeError(
                f"a job has {counts} device counts {table.gpu_counts[:8]} and the environment's actions {num_counts}: "
                f"make it with max_counts={counts} or more"
            )
        shape = (places, num_counts, clocks)
        self.gpu_counts = table.gpu_counts
        self.gpus = np.full(num_counts, _NO_DEVICES, dtype=np.int64)
        self.gpus[:counts] = table.gpu_counts
        self.seconds: FloatArray = np.full(shape, inf)
        self.joules: FloatArray = np.full(shape, inf)
        self.last = np.zeros((places, num_counts), dtype=np.intp)
        self.seconds[:, :counts] = table.seconds_per_unit
        self.joules[:, :counts] = table.joules_per_unit
        self.last[:, :counts] = last_clocks(table)
        self.default_seconds = np.take_along_axis(self.seconds, self.last[:, :, None], axis=2)[:, :, 0]
        self.runs: BoolArray = np.isfinite(self.default_seconds)
        self.is_default: BoolArray = np.arange(clocks) == self.last[:, :, None]
        self.best_clocks = np.argmin(self.joules, axis=2)[:, :, None]
        """Clock of the least joules per unit, [places, counts, 1]."""
        self.every_clock = np.broadcast_to(np.arange(clocks), shape)
        self.cheapest_joules, self.fastest_seconds = float(self.joules.min()), float(self.seconds.min())
        self.joules_level = _level(self.joules, self.cheapest_joules)
        """Joules per unit over the least of all options: log2, scaled to [0, 1]; 1 for what cannot be."""
        self.seconds_level = _level(self.seconds, self.fastest_seconds)
        self.place_joules_level = self.joules_level.min(axis=(1, 2))
        self.place_seconds_level = self.seconds_level.min(axis=(1, 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """The answers to one job. Arrays are [places, counts, clocks], with one clock under the oracle."""

    sizes: ActionSizes
    costs: ChoiceCosts
    legal: BoolArray
    """What fits now and the guard would let through as it is."""
    clocks: NDArray[np.intp]
    """Index of the clock that each action sets."""
    may_wait: bool
    """Whether waiting is allowed and would end: see `ChoiceFinder`."""
    is_bound: bool
    """Whether a limit, deadline or slowdown bound narrows the job's clocks."""
    room: Sequence[int]
    """By place, the most devices that the job could start with now."""

    def mask(self) -> NDArray[np.int8]:
        """Return 1 for every legal action, [actions]."""
        mask = np.empty(self.sizes.actions, dtype=np.int8)
        mask[:-1] = self.legal.ravel()
        mask[-1] = self.may_wait
        return mask

    def is_legal(self, action: int) -> bool:
        """Return whether an action may be taken."""
        return self.may_wait if action == self.sizes.wait else bool(self.legal.flat[action])

    def placement(self, action: int) -> Placement | None:
        """Return what an action stands for, None for waiting; the column must be one of the job's."""
        if action == self.sizes.wait:
            return None
        place, count, _ = self._indices(action)
        return Placement(place, self.costs.gpu_counts[count], int(self.clocks.flat[action]))

    def action(self, placement: Placement | None) -> int:
        """Return the action of a placement; under the oracle whatever its clock.

        Raises:
            ValueRangeError: no action stands for it.
        """
        if placement is None:
            return self.sizes.wait
        clock = placement.clock if self.sizes.clocks > 1 else 0
        if clock == -1:
            clock = int(self.costs.last[placement.place, 0])
        if placement.gpus not in self.costs.gpu_counts or placement.partner is not None:
            raise ValueRangeError(f"{placement} has no action: the job's device counts are {self.costs.gpu_counts[:8]}")
        count = self.costs.gpu_counts.index(placement.gpus)
        return (placement.place * self.sizes.counts + count) * self.sizes.clocks + clock

    def cheapest(self) -> int:
        """Return the legal placement of the least joules per unit."""
        joules = np.take_along_axis(self.costs.joules, self.clocks, axis=2)
        return int(np.argmin(np.where(self.legal, joules, inf)))

    def added_joules(self, job: Job, placement: Placement, places: Sequence[Place]) -> float:
        """Return the energy that a placement adds over what its devices draw when free, by the job's estimate."""
        where = (placement.place, self.costs.gpu_counts.index(placement.gpus), placement.clock)
        free_watts = placement.gpus * places[placement.place].device.free_watts
        extra = float(self.costs.joules[where]) - free_watts * float(self.costs.seconds[where])
        return job.estimated_units * extra

    def refusal(self, action: int, names: Sequence[str]) -> str:
        """Return why an action is not legal.

        Args:
            action: Within the action space.
            names: Of the places.
        """
        if action == self.sizes.wait:
            return "to wait: waiting is switched off, or no running job is left whose end would ask again"
        place, count, clock = self._indices(action)
        if count >= len(self.costs.gpu_counts):
            return f"place {names[place]}, count {count}: the job has {len(self.costs.gpu_counts)} device counts"
        gpus = self.costs.gpu_counts[count]
        what = f"place {names[place]}, {gpus} devices"
        if not self.costs.runs[place, count]:
            return f"{what}: the job cannot run so there"
        if gpus > self.room[place]:
            return f"{what}: at most {self.room[place]} fit now"
        return (
            f"{what}, clock {clock}: not on the place's grid, or it breaks the job's slowdown bound, limit or deadline"
        )

    def _indices(self, action: int) -> tuple[int, int, int]:
        place, rest = divmod(action, self.sizes.counts * self.sizes.clocks)
        return place, *divmod(rest, self.sizes.clocks)


class ChoiceFinder:
    """Finds the choices of every job that is asked about in one run.

    Waiting is legal only while a job holds devices in one of the places of the job in question: its end asks again.
    With nothing running there, a job that waits could wait until the end of the run, and all behind it.
    """

    def __init__(self, places: Sequence[Place], sizes: ActionSizes, form: ClockForm, *, may_wait: bool) -> None:
        """Store what does not change in a run."""
        self._sizes, self._form, self._may_wait = sizes, form, may_wait
        self._pools = [place.pool_index for place in places]
        self._limits = np.array([[place.partition.max_time_seconds] for place in places])
        self._unlimited = bool(np.isinf(self._limits).all())
        self._costs = Prepared(lambda table: ChoiceCosts(table, sizes.counts))

    def costs(self, table: OptionTable) -> ChoiceCosts:
        """Return a table in the environment's shape."""
        return self._costs.of(table)

    def choices(self, job: Job, view: TwinView) -> Choices | None:
        """Return what may be answered for the job that the engine asks about; None where it cannot start anywhere now.

        A job that could only share a GPU waits.
        """
        costs = self.costs(view.options(job))
        room = view.room(job)
        fits = (costs.runs & (costs.gpus <= np.array(room)[:, None]))[:, :, None]
        is_bound = not (self._unlimited and job.time_limit_seconds == job.deadline_seconds == job.max_slowdown == inf)
        if self._form == "free":
            clocks = costs.every_clock
            legal = fits & (self._allowed(costs, job, view) if is_bound else np.isfinite(costs.seconds))
        else:
            legal, clocks = fits, costs.best_clocks
            if is_bound:
                within = self._allowed(costs, job, view, margin=TIME_MARGIN)
                clocks = np.argmin(np.where(within, costs.joules, inf), axis=2)[:, :, None]
        if not legal.any():
            return None
        return Choices(
            sizes=self._sizes,
            costs=costs,
            legal=legal,
            clocks=clocks,
            may_wait=self._may_wait and any(view.pools[self._pools[place]].runs for place in view.allowed_places(job)),
            is_bound=is_bound,
            room=room,
        )

    def _allowed(self, costs: ChoiceCosts, job: Job, view: TwinView, *, margin: float = 0.0) -> BoolArray:
        return allowed_clocks(costs, job, view.now_seconds, self._limits, margin=margin)


def allowed_clocks(
    costs: ChoiceCosts, job: Job, now_seconds: float, place_limits: FloatArray, *, margin: float = 0.0
) -> BoolArray:
    """Return which clocks keep the job's bounds as `guarded_placement` reads them; the default clock always may.

    Args:
        costs: Of the job's options.
        job: The job.
        now_seconds: Time of the start.
        place_limits: Time limits of the partitions, s, [places, 1].
        margin: Share of a limit, or of the time left, that must stay free after the expected end.
    """
    default = costs.default_seconds
    longest = default * (1.0 + job.max_slowdown) * _WITHIN
    units = job.estimated_units
    if units > 0.0:
        limit = np.minimum(job.time_limit_seconds, place_limits)
        left = np.float64(job.deadline_seconds - now_seconds)
        # A limit that no clock keeps leaves the default clock; a deadline that no clock keeps binds no more.
        for bound, binds in ((limit, np.isfinite(limit)), (left, np.isfinite(left) & (units * default <= left))):
            with np.errstate(over="ignore"):  # next to no work may take for ever
                kept = np.maximum(default, bound * (1.0 - margin) / units) * _WITHIN
            longest = np.where(binds, np.minimum(longest, kept), longest)
    return (np.isfinite(costs.seconds) & (costs.seconds <= longest[:, :, None])) | costs.is_default


def _level(values: FloatArray, least: float) -> NDArray[np.float32]:
    """Return log2 of values over the least, scaled to [0, 1]; 1 for what is infinite."""
    found = np.ones(values.shape, dtype=np.float32)
    if 0.0 < least < inf:
        finite = np.isfinite(values)
        found[finite] = np.minimum(1.0, np.log2(values[finite] / least) / _OCTAVES)
    return found
