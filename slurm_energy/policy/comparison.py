"""What the same work takes and costs on two GPU types: by runs of the job's name if they say enough, else by tables."""

from dataclasses import dataclass, field
from math import exp

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.operating_point import (
    ClockTable,
    clock_table_of,
    default_clock_only,
    min_measured_watts,
)
from slurm_energy.energy_model.relative_speed import RelativeCost, relative_cost

ENOUGH_RUNS = 2
"""Runs on a type from which on something is known of a name there."""
_NINE_OF_TEN = 1.28
"""Standard deviations above the mean of a normal distribution below which nine of ten lie."""
_FAR_LESS = 0.75
"""Boards of one type and sweeps of one program differ by a tenth at most."""
MAX_LOG_STD = 0.4
"""Standard deviation of ln(time ratio) above which runs say too little, and the tables are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeComparison:
    """Compares GPU types for one job."""

    limits: BoardLimits = field(default_factory=BoardLimits)
    work: WorkEstimate | None = None
    """What runs of the job's name say; None for a name without."""

    def cost(self, gpu_type: GpuTypeName, reference: GpuTypeName) -> RelativeCost | None:
        """Return what the work needs on a type relative to another at default clocks; None when nobody knows.

        The tables' worst ratio is over all workloads that were measured. By runs it is one that nine of ten ratios stay
        below, if the doubt is right; energy is the mean over what it may be. Both grow with the doubt.
        """
        work = self.work
        doubt = None if work is None else work.doubt(gpu_type, reference)
        if work is None or doubt is None or doubt > MAX_LOG_STD or gpu_type == reference:
            return relative_cost(gpu_type, reference, self.limits)
        time_ratio = work.time_ratio(gpu_type, reference)
        has_runs = all(work.runs_by_type.get(name, 0) >= ENOUGH_RUNS for name in (gpu_type, reference))
        return RelativeCost(
            time_ratio=time_ratio,
            worst_time_ratio=time_ratio * exp(_NINE_OF_TEN * doubt),
            energy_ratio=time_ratio * exp(doubt**2 / 2.0) * work.watts_ratio(gpu_type, reference),
            source="runs of this name" if has_runs else "names that draw alike",
        )

    def clock_table(self, gpu_type: GpuTypeName) -> ClockTable | None:
        """Return what clocks of a type do to the work; None when nobody has measured the type at several clocks.

        The tables hold for work that behaves like what was measured. A name whose own runs draw far less does not: the
        power limit never holds it back, and its time may go with the inverse of the clock. It keeps the default clock.
        """
        table = clock_table_of(gpu_type, power_limit_watts=self.limits.watts(gpu_type))
        return table if table is None or not self.draws_less(gpu_type) else default_clock_only(table)

    def draws_less(self, gpu_type: GpuTypeName) -> bool:
        """Return whether nine of ten runs of the name on a type draw far less than all that was measured there."""
        own, measured = self.watts(gpu_type), min_measured_watts(gpu_type, self.limits.watts(gpu_type))
        if own is None or measured is None or self.work is None:
            return False
        return own * exp(_NINE_OF_TEN * self.work.watts_spread) < _FAR_LESS * measured

    def watts(self, gpu_type: GpuTypeName) -> float | None:
        """Return the power of one GPU at the default clock by the name's own runs there; None where they are few."""
        if self.work is None or self.work.runs_by_type.get(gpu_type, 0) < ENOUGH_RUNS:
            return None
        return self.work.watts(gpu_type)
