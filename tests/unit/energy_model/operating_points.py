"""The clock of least energy inside a bound, for tests that look at one point of a type's table."""

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.operating_point import OperatingPoint, clock_table_of


def best_operating_point(
    gpu_type: GpuTypeName, max_slowdown: float, workload: str | None = None, power_limit_watts: float | None = None
) -> OperatingPoint | None:
    """Return the clock of least energy inside the bound; None when this type was not measured."""
    table = clock_table_of(gpu_type, workload, power_limit_watts)
    return None if table is None else table.best(max_slowdown)
