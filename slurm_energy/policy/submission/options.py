"""What a submitted job's options cost, as the table that every rule reads: places by clocks, from the energy model.

Slurm's submission fixes how many GPUs a job has, so there is one device count. The unit of work is a second of the job
at the default clock of the fastest type with room; time and energy on the other types come from runs of the job's name
or from tables, through the types' relative costs. A clock that would break the job's bound, and a type that would, are
no options: their time is infinite.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import NamedTuple

from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.operating_point import ClockTable
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import Candidate, Rivals, landing_types, rivals_of, with_room
from slurm_energy.policy.site.type_bound import default_candidate

NOMINAL_WATTS = 300.0
NOMINAL_SECONDS = 3600.0
"""Of a job whose length is not known: only ratios count then."""
LIMIT_SHARE = 0.8
"""Of its time limit that a job without history is taken to need."""


class Measure(NamedTuple):
    """What the options of one decision are measured by."""

    rivals: Rivals
    home: GpuTypeName
    """Of energy: the type that Slurm would take, else the fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeWork:
    """What a unit of a job's work takes on one GPU of a type at its default clock."""

    seconds: float
    watts: float
    clocks: ClockTable | None
    """None where only the default clock is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """A job's ways of running under one question: where it is sent, or where it may land."""

    units: float
    """Its work, in seconds on the fastest type."""
    work: Mapping[GpuTypeName, TypeWork]
    """Of the types that can be compared."""
    room: Mapping[tuple[PartitionName, GpuTypeName], float]
    """Slowdown that a clock may still cause; a pair without one is closed."""
    is_comparison: bool = False
    """Whether types are weighed against each other, and not only the clocks of each."""

    def types(self, candidate: Candidate) -> tuple[GpuTypeName, ...]:
        """Return the types of a partition that are options; none where one of them is not: Slurm takes any of them."""
        name = candidate.partition.name
        found = tuple(one for one in candidate.gpu_types if (name, one) in self.room and one in self.work)
        return found if len(found) == len(candidate.gpu_types) else ()


def routing_options(case: Case) -> JobOptions | None:
    """Return the options of where to send the job: those with room now, and where Slurm would start it.

    None where the types with room cannot be compared.
    """
    idle = with_room(case.candidates)
    rivals = rivals_of(idle, case.comparison)
    if rivals is None:
        return None
    own = default_candidate(idle)
    measure = Measure(rivals, rivals.fastest if own is None else own.gpu_types[0])
    type_bound = case.type_bound
    rooms = {name: type_bound.left(name) for name in rivals.types}
    room: dict[tuple[PartitionName, GpuTypeName], float] = {}
    for candidate in idle:
        # Where Slurm starts the job without our doing it stays, however slow its GPUs are: it is on the clock alone.
        stays = candidate is own and any(rooms[name] is None for name in candidate.gpu_types)
        for name in candidate.gpu_types:
            left = case.max_slowdown if stays else rooms[name]
            if left is not None:
                room[candidate.partition.name, name] = left
    return JobOptions(
        units=_seconds_on(rivals.fastest, case),
        work=_work(rivals.types, measure, case),
        room=room,
        is_comparison=True,
    )


def landing_options(case: Case, landing: Sequence[Candidate], *, is_sent: bool) -> JobOptions:
    """Return the options of the clock on each type on which the job may land.

    Args:
        job: The job.
        case: The job's.
        landing: Where the job may start.
        is_sent: Whether it is sent elsewhere: it then has what its bounds leave against where Slurm would start it.
    """
    types, type_bound = landing_types(landing), case.type_bound
    rivals = rivals_of(with_room(case.candidates) if is_sent else landing, case.comparison)
    work: dict[GpuTypeName, TypeWork] = {}
    if rivals is not None:
        own = default_candidate(with_room(case.candidates)) if case.may_route else None
        work = _work(types, Measure(rivals, rivals.fastest if own is None else own.gpu_types[0]), case)
    for name in types:  # a type that cannot be compared is on its own: only its clock is asked for
        if name not in work:
            work |= _work((name,), Measure(Rivals((name,), name), name), case)
    room: dict[tuple[PartitionName, GpuTypeName], float] = {}
    for candidate in landing:
        for name in candidate.gpu_types:
            left = type_bound.left(name) if is_sent else case.max_slowdown
            if left is not None:
                room[candidate.partition.name, name] = left
    return JobOptions(units=_seconds_on(None if rivals is None else rivals.fastest, case), work=work, room=room)


def expected_seconds(case: Case) -> float:
    """Return the run time at the default clock: history's, else a share of the limit, else a nominal hour."""
    if case.runtime is not None and case.runtime.seconds > 0.0:
        return case.runtime.seconds
    limit = case.job.time_limit_minutes
    return LIMIT_SHARE * 60.0 * limit if limit is not None and 0.0 < limit < inf else NOMINAL_SECONDS


def _work(types: Iterable[GpuTypeName], measure: Measure, case: Case) -> dict[GpuTypeName, TypeWork]:
    """Return what a unit of work takes on each type that can be compared with both measures."""
    comparison, home, fastest = case.comparison, measure.home, measure.rivals.fastest
    at_home = comparison.cost(home, fastest)
    if at_home is None:
        return {}
    watts = comparison.watts(home) or mean_watts(home, case.board_limits.watts(home))
    found: dict[GpuTypeName, TypeWork] = {}
    for name in types:
        time, energy = comparison.cost(name, fastest), comparison.cost(name, home)
        if time is None or energy is None:
            continue
        joules = watts * at_home.time_ratio * energy.energy_ratio
        found[name] = TypeWork(
            seconds=time.time_ratio,
            watts=joules / time.time_ratio,
            clocks=comparison.clock_table(name),
        )
    return found


def _seconds_on(gpu_type: GpuTypeName | None, case: Case) -> float:
    """Return the run time at the default clock of a type; unchanged where history names no type."""
    seconds, known = expected_seconds(case), None if case.runtime is None else case.runtime.gpu_type
    cost = None if gpu_type is None or known is None else case.comparison.cost(gpu_type, known)
    return seconds if cost is None else seconds * cost.time_ratio


@lru_cache(maxsize=256)
def mean_watts(name: GpuTypeName, limit_watts: float) -> float:
    """Return the mean power of a type's measured workloads at the highest clock, on boards of such a limit.

    Of a type that was not measured, the limit, else a nominal power: a common factor of all options' energies, whose
    ratios are what is known.
    """
    curves = [curve.on_board(limit_watts) for curve in curves_of(name)]
    if curves:
        return sum(curve.watts(curve.high_clock_mhz) for curve in curves) / len(curves)
    return limit_watts if isfinite(limit_watts) else NOMINAL_WATTS
