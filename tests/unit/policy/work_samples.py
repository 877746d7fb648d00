"""Work estimates for the policy tests."""

from collections.abc import Mapping
from math import log

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import WorkEstimate


def make_work(figures: Mapping[GpuTypeName, tuple[float, float]], *, doubt: float = 0.0) -> WorkEstimate:
    """Return an estimate from seconds and watts by type; every pair of types has the same doubt."""
    types = tuple(figures)
    return WorkEstimate(
        runs_by_type=dict.fromkeys(types, 7),
        gpu_types=types,
        log_seconds=tuple(log(seconds) for seconds, _ in figures.values()),
        log_seconds_doubt=tuple(tuple(0.0 if one == other else doubt for other in types) for one in types),
        log_watts=tuple(log(watts) for _, watts in figures.values()),
    )
