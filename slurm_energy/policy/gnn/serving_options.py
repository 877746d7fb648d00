"""The ways of running a submitted job, from what the daemon knows: one for each partition that it may start in.

Slurm's submission fixes how many GPUs a job has, so there is one device count here. Time and energy on each GPU type
come from the measured curves through the types' relative costs; the reference is the fastest type with room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import NamedTuple

from slurm_energy.domain.decision import PolicyAnswer, Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.operating_point import OperatingPoint
from slurm_energy.graph.options import ClockOption, RunOption
from slurm_energy.graph.partitions import ClusterFacts
from slurm_energy.policy.base import Case
from slurm_energy.policy.oracle import oracle_clocks
from slurm_energy.policy.site.comparison import (
    Candidate,
    Rivals,
    TypeComparison,
    rivals_of,
    with_room,
)
from slurm_energy.policy.site.type_bound import default_candidate, lacks_runs_at_home

MAX_CLOCKS = 12
"""Clocks of one option that the network looks at, spread evenly over those inside the bound."""
_NOMINAL_WATTS = 300.0
_NOMINAL_SECONDS = 3600.0
"""Of a job of unknown length: only ratios count then."""
NOTHING_OPEN = "no partition is open to choice: the job stays where it was sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedType:
    """What the job costs on one GPU type of a partition at its highest clock."""

    gpu_type: GpuTypeName
    room: float
    """Slowdown that a clock may still cause."""
    seconds_full: float
    joules_full: float
    """Of all its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOption:
    """An option with what it stands for."""

    option: RunOption
    candidate: Candidate
    clocks: tuple[OperatingPoint, ...]
    """In the order of the option's clocks."""
    types: tuple[ServedType, ...]
    """Each GPU type of the partition; empty where the option is closed."""
    gpus_left: float
    """Free GPUs of the partition less those that are promised and that the job asks for; below 0 where it must wait."""
    stays: bool = False
    """Whether it is too slow to be named, and open because Slurm starts the job there without our doing."""


def served_options(case: Case, facts: ClusterFacts, *, with_clocks: bool) -> tuple[ServedOption, ...]:
    """Return one option for each candidate partition that the published state knows.

    Where routing is open, those are open that the answer may name, that have room now, and whose GPU types are known
    and fast enough, and the one where Slurm would start the job without our doing: the same as the exact policy's. Time
    limit and deadline are the guard's, which may still keep the job where it was sent.
    Where it is closed, the job goes where it was sent, and what is left to choose there is the clock.

    Args:
        case: The job's.
        facts: What is known beside the published embeddings.
        with_clocks: Whether the network is to choose among clocks as well.
    """
    comparison = case.comparison
    idle = with_room(case.candidates)
    rivals = rivals_of(idle, comparison) if case.may_route else None
    own = default_candidate(idle) if rivals is not None else None
    measure = _measure(own, rivals or rivals_of(case.candidates, comparison))
    names = {name for candidate in case.candidates for name in candidate.gpu_types}
    types = _Types(
        costs={name: None if measure is None else _type_cost(name, measure, case) for name in names},
        rooms={name: _room(name, rivals, case) for name in names},
        own=own,
        seconds=_seconds_on(None if measure is None else measure.rivals.fastest, case),
    )
    return tuple(
        _served(candidate, case, facts, types, with_clocks)
        for candidate in case.candidates
        if candidate.partition.name in facts.partition_index
    )


def nothing_open(case: Case) -> PolicyAnswer:
    """Return the answer where no option is open: the clocks of where the job goes anyway are still worth choosing."""
    return PolicyAnswer(clocks=oracle_clocks(case, None), reasons=(Reason.POLICY,), notes=(NOTHING_OPEN,))


def partitions_to_name(chosen: ServedOption, case: Case) -> tuple[PartitionName, ...] | None:
    """Return the partition to name, None where the job is left to Slurm: it starts there anyway, or it is on trial."""
    if is_trial(chosen, case) or chosen.candidate is default_candidate(with_room(case.candidates)):
        return None
    return (chosen.candidate.partition.name,) if case.may_route else None


def is_trial(chosen: ServedOption, case: Case) -> bool:
    """Return whether the job should run where Slurm starts it, since runs of its name have nothing to compare with."""
    own = default_candidate(with_room(case.candidates)) if case.may_route else None
    return lacks_runs_at_home(chosen.candidate, own, case.comparison)


def expected_seconds(case: Case) -> float:
    """Return the run time at the default clock: history's, else a share of the limit, else a nominal hour."""
    if case.runtime is not None and case.runtime.seconds > 0.0:
        return case.runtime.seconds
    limit = case.job.time_limit_minutes
    return 0.8 * 60.0 * limit if limit is not None and 0.0 < limit < inf else _NOMINAL_SECONDS


def _served(  # all of one candidate
    candidate: Candidate,
    case: Case,
    facts: ClusterFacts,
    types: "_Types",
    with_clocks: bool,
) -> ServedOption:
    place, sums = facts.partition_index[candidate.partition.name], facts.sums
    costs = [types.costs[name] for name in candidate.gpu_types]
    known = [cost for cost in costs if cost is not None]
    is_known = bool(known) and len(known) == len(costs)
    rooms = [types.rooms[name] for name in candidate.gpu_types]
    stays = is_known and candidate is types.own and None in rooms
    if stays:
        rooms = [case.max_slowdown] * len(rooms)
    is_open = is_known and _may_go(candidate, case) and all(room is not None for room in rooms)
    points = _clocks(candidate.gpu_types, rooms, case.comparison) if with_clocks and is_open else ()
    seconds, gpus = types.seconds, max(1, case.job.gpu_count)
    worst = max(known, key=lambda cost: cost.seconds) if is_known else None
    total, claimed = int(sums.gpus[place]), case.claimed_gpus.get(candidate.partition.name, 0.0)
    left = int(sums.gpus_free[place]) - gpus - claimed
    work = seconds * gpus
    option = RunOption(
        partition=place,
        gpus=case.job.gpu_count,
        count_position=0.0,
        has_room=candidate.has_idle_room,
        is_where_submitted=candidate.is_submitted_to,
        seconds=None if worst is None else seconds * worst.seconds,
        joules=None if worst is None else work * worst.watts_seconds,
        seconds_full=None if worst is None else seconds * worst.seconds_full,
        joules_full=None if worst is None else work * worst.watts_seconds_full,
        gpus_free_after=max(0.0, left) / total if total else None,
        is_cpu=total == 0 and int(sums.nodes[place]) > 0,
        open=is_open,
        clocks=tuple(_clock_option(point, points, case.max_slowdown) for point in points),
    )
    served_types = tuple(
        ServedType(
            gpu_type=name,
            room=room,
            seconds_full=seconds * cost.seconds_full,
            joules_full=work * cost.watts_seconds_full,
        )
        for name, room, cost in zip(candidate.gpu_types, rooms, costs, strict=True)
        if is_open and room is not None and cost is not None
    )
    return ServedOption(
        option=option, candidate=candidate, clocks=points, types=served_types, gpus_left=left, stays=stays
    )


def _may_go(candidate: Candidate, case: Case) -> bool:
    """Return whether the job may be sent there, or is sent there anyway."""
    if case.may_route:
        return candidate.may_be_named and candidate.has_idle_room
    return candidate.is_submitted_to


def _seconds_on(gpu_type: GpuTypeName | None, case: Case) -> float:
    """Return the run time at the default clock of a type; unchanged if history does not say on which type."""
    seconds, known = expected_seconds(case), None if case.runtime is None else case.runtime.gpu_type
    cost = None if gpu_type is None or known is None else case.comparison.cost(gpu_type, known)
    return seconds if cost is None else seconds * cost.time_ratio


class _Measure(NamedTuple):
    """What options of one decision are measured by."""

    rivals: Rivals
    home: GpuTypeName
    """Of energy: the type that Slurm would take, else the fastest."""


def _measure(own: Candidate | None, rivals: Rivals | None) -> _Measure | None:
    if rivals is None:
        return None
    return _Measure(rivals, rivals.fastest if own is None else own.gpu_types[0])


def _room(name: GpuTypeName, rivals: Rivals | None, case: Case) -> float | None:
    """Return the slowdown that a clock on a type may still cause; None where the type itself is too slow."""
    if not case.may_route:
        return case.max_slowdown
    return None if rivals is None else case.type_bound.left(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TypeCost:
    """Of one second of work on the fastest type; energy for one GPU."""

    seconds: float
    watts_seconds: float
    seconds_full: float
    watts_seconds_full: float


class _Types(NamedTuple):
    """What is the same for a GPU type in all partitions."""

    costs: Mapping[GpuTypeName, _TypeCost | None]
    rooms: Mapping[GpuTypeName, float | None]
    own: Candidate | None
    """Where Slurm would start the job."""
    seconds: float
    """Run time on the fastest type."""


def _type_cost(name: GpuTypeName, measure: _Measure, case: Case) -> _TypeCost | None:
    """Return what a second of the fastest type's work costs on a type, None where that is not known."""
    comparison, home, fastest = case.comparison, measure.home, measure.rivals.fastest
    time, energy, at_home = (
        comparison.cost(name, fastest),
        comparison.cost(name, home),
        comparison.cost(home, fastest),
    )
    if time is None or energy is None or at_home is None:
        return None
    watts = comparison.watts(home) or _mean_watts(home, case.board_limits.watts(home))
    joules = watts * at_home.time_ratio * energy.energy_ratio
    room = case.type_bound.left(name)
    table = comparison.clock_table(name)
    point = None if table is None or room is None else table.best(room)
    slowdown, change = (0.0, 0.0) if point is None else (point.slowdown, point.energy_change)
    return _TypeCost(
        seconds=time.time_ratio * (1.0 + slowdown),
        watts_seconds=joules * (1.0 + change),
        seconds_full=time.time_ratio,
        watts_seconds_full=joules,
    )


@lru_cache(maxsize=256)
def _mean_watts(name: GpuTypeName, limit_watts: float) -> float:
    """Return the mean power of a type's measured workloads at the highest clock, on boards of such a limit.

    Of an unmeasured type, the limit, else a nominal power: a common factor of all options' energies, whose
    ratios are what is known.
    """
    curves = [curve.on_board(limit_watts) for curve in curves_of(name)]
    if curves:
        return sum(curve.watts(curve.high_clock_mhz) for curve in curves) / len(curves)
    return limit_watts if isfinite(limit_watts) else _NOMINAL_WATTS


def _clocks(
    gpu_types: Sequence[GpuTypeName], rooms: Sequence[float | None], comparison: TypeComparison
) -> tuple[OperatingPoint, ...]:
    """Return clocks inside the bound of a partition with one GPU type; none where there are several."""
    if len(gpu_types) != 1 or rooms[0] is None:
        return ()
    table = comparison.clock_table(gpu_types[0])
    inside = [] if table is None else [point for point in table.points if point.slowdown <= rooms[0]]
    step = max(1.0, len(inside) / MAX_CLOCKS)
    picked = {len(inside) - 1 - int(number * step) for number in range(min(MAX_CLOCKS, len(inside)))}
    best = table.best(rooms[0]) if table is not None else None
    return tuple(point for index, point in enumerate(inside) if index in picked or point is best)


def _clock_option(point: OperatingPoint, points: Sequence[OperatingPoint], max_slowdown: float) -> ClockOption:
    best = min(points, key=lambda one: (one.energy_change, -one.sm_clock_mhz))
    return ClockOption(
        relative_clock=point.sm_clock_mhz / point.default_clock_mhz,
        slowdown=point.slowdown,
        energy_change=point.energy_change,
        is_default=point.sm_clock_mhz == point.default_clock_mhz,
        is_oracle=point is best,
        bound_left=max_slowdown - point.slowdown,
        power_change=(1.0 + point.energy_change) / (1.0 + point.slowdown) - 1.0,
        open=True,
    )
