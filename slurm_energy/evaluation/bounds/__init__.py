"""Bounds that no policy can pass, by linear programmes; what each means is in docs/explanation/bounds.md."""

from slurm_energy.evaluation.bounds.demand import largest_feasible_load
from slurm_energy.evaluation.bounds.floor import Downtime
from slurm_energy.evaluation.bounds.processed import (
    ProcessedBound,
    RunConditions,
    assert_not_below,
    bound_for_processed,
    bound_of_run,
)
from slurm_energy.evaluation.bounds.steady_state import (
    Bound,
    FrontierPoint,
    Run,
    StationaryLoad,
    energy_latency_frontier,
    steady_state_bound,
)
from slurm_energy.evaluation.bounds.trace import TraceBound, TraceOptions, clairvoyant_bound

__all__ = [
    "Bound",
    "Downtime",
    "FrontierPoint",
    "ProcessedBound",
    "Run",
    "RunConditions",
    "StationaryLoad",
    "TraceBound",
    "TraceOptions",
    "assert_not_below",
    "bound_for_processed",
    "bound_of_run",
    "clairvoyant_bound",
    "energy_latency_frontier",
    "largest_feasible_load",
    "steady_state_bound",
]
