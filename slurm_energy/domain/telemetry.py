"""What devices and clusters read at one moment; None where nobody tells."""

from dataclasses import dataclass

from slurm_energy.domain.ids import ClusterName


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU of a node as it stands."""

    index: int
    """Place among the node's devices, in the order of its GRES, from 0."""
    slurm_type: str | None = None
    utilisation: float | None = None
    """0 to 1."""
    memory_used_gib: float | None = None
    memory_gib: float | None = None
    sm_clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    efficiency_change: float | None = None
    """History: measured joules of jobs here over the model's, less 1."""
    is_slowed: bool = False
    """Whether a clock below the default is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Readings and limits of one cluster; in a world of several sites, of one site."""

    name: ClusterName
    power_watts: float | None = None
    power_budget_watts: float | None = None
    cooling_watts: float | None = None
    """Heat that the cooling can carry away."""
    heat_watts: float | None = None
    carbon_grams_per_kwh: float | None = None
    price_per_kwh: float | None = None
    quality_violations: float | None = None
    """Share of the recent jobs that missed a deadline or a goal for the wait, 0 to 1."""
    quality_goal: float | None = None
    """The share that the site puts up with."""
