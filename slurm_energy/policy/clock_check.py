"""The clock that a job may really get on one GPU type: in the table, inside the slowdown bound and every time limit."""

import math
from dataclasses import dataclass

from slurm_energy.domain.decision import ClockChoice, Reason
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.operating_point import OperatingPoint
from slurm_energy.policy.baselines import clock_choice
from slurm_energy.policy.comparison import TypeComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownRoom:
    """How much longer than at the default clock a job may take on one GPU type, by each rule; negative: no room."""

    bound: float
    """Of the user or the site."""
    time_limit: float = math.inf
    deadline: float = math.inf

    @property
    def smallest(self) -> float:
        """What all rules together leave."""
        return min(self.bound, self.time_limit, self.deadline)

    def broken_by(self, slowdown: float) -> tuple[Reason, ...]:
        """Return the rules that a slowdown breaks."""
        rules = (
            (Reason.SLOWDOWN_BOUND, self.bound),
            (Reason.TIME_LIMIT, self.time_limit),
            (Reason.DEADLINE, self.deadline),
        )
        return tuple(reason for reason, room in rules if not slowdown <= room)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockVerdict:
    """The clock that was allowed, None for the default, and why it is not the one proposed."""

    choice: ClockChoice | None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


def allowed_clock(
    gpu_type: GpuTypeName, proposed_mhz: int, room: SlowdownRoom, min_energy_saving: float, comparison: TypeComparison
) -> ClockVerdict:
    """Return the proposed clock if every rule allows it, else the best clock that they allow.

    The proposal is moved to the nearest supported clock. Slowdown and saving are the guard's own figures, against the
    default clock of the site's boards and over every measured workload; what the policy predicted does not count.
    """
    row = CATALOG.get(gpu_type)
    table = comparison.clock_table(gpu_type)
    if row is None or table is None:
        note = f"{gpu_type}: energy at lower clocks is unknown, the default clock stays"
        return ClockVerdict(choice=None, reasons=(Reason.UNKNOWN_GPU_TYPE,), notes=(note,))
    nearest = row.nearest_supported_clock_mhz(proposed_mhz)
    point = None if nearest is None else table.at(nearest)
    reasons: list[Reason] = []
    notes: list[str] = []
    if nearest != proposed_mhz:
        reasons.append(Reason.CLOCK_TABLE)
        notes.append(f"{gpu_type}: {proposed_mhz} MHz is not supported, {nearest} MHz is the nearest")
    worst = table.points[0].slowdown if point is None else point.slowdown
    broken = room.broken_by(worst)
    if broken or point is None:
        reasons += broken or (Reason.CLOCK_TABLE,)
        point = table.best(room.smallest)
        clock = "the default clock" if point is None else f"{point.sm_clock_mhz} MHz"
        notes.append(
            f"{gpu_type}: {nearest} MHz may take {worst:.1%} longer, {max(0.0, room.smallest):.1%} is allowed: {clock}"
        )
    if point is not None and _saves_too_little(point, min_energy_saving):
        reasons.append(Reason.NO_SAVING)
        point = None
    choice = clock_choice(gpu_type, point, comparison.limits)
    return ClockVerdict(choice=choice, reasons=tuple(reasons), notes=tuple(notes))


def _saves_too_little(point: OperatingPoint, min_energy_saving: float) -> bool:
    return point.sm_clock_mhz != point.default_clock_mhz and -point.energy_change < min_energy_saving
