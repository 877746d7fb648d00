"""Strong scaling that was measured, by model and GPU type, and what it costs to leave a node."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, Literal

from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError

Placement = Literal["packed", "spread", "unstated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """Efficiency of one model on n GPUs: its rate over n times the rate on the smallest measured number."""

    gpu: str
    """GPU name of the data set: a100, t4, v100, p100, k80."""
    model: str
    batch_size: int
    """Global batch for the A100 and T4 curves, batch of one GPU for the others."""
    placement: Placement
    """`packed`: on as few nodes as possible; `spread`: over nodes."""
    efficiency_by_count: Mapping[int, float]
    """As measured; above 1 where more GPUs were more than proportionally faster."""
    loss: float
    exponent: float
    """Of the law e(n) = 1 / (1 + loss (n / n_0 - 1)^exponent), n_0 the smallest measured number."""
    fit_error: float
    """Mean relative error of the law over the measured numbers above n_0."""

    def law(self, num_gpus: float) -> float:
        """Return the efficiency by the law, which is smooth and never above 1."""
        smallest = min(self.efficiency_by_count)
        if num_gpus < smallest:
            raise ValueRangeError(f"{num_gpus} GPUs are below the {smallest} that {self.model} was measured on")
        growth: float = (num_gpus / smallest - 1.0) ** self.exponent
        return 1.0 / (1.0 + self.loss * growth)

    def efficiency(self, num_gpus: int) -> float:
        """Return the measured efficiency, by the law where this number was not measured."""
        measured = self.efficiency_by_count.get(num_gpus)
        return self.law(num_gpus) if measured is None else measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCost:
    """Time that GPUs need to agree on a gradient: base + per_gpu (n - 2) s, inside a node and across nodes.

    The form is that of Pollux, OSDI 2021, section 3.2; the data are T4 GPUs, four to a node, 50 Gbit/s between nodes.
    """

    application: str
    inside_base_seconds: float
    inside_seconds_per_gpu: float
    across_base_seconds: float
    across_seconds_per_gpu: float
    inter_node_factor: float
    """Measured agreement time of 4 GPUs on two nodes over that of 4 GPUs on one, median over batch sizes."""
    effective_gigabytes_per_step: float
    """Data that two GPUs on two nodes would send at the full link rate in their agreement time: an upper bound."""
    inside_error: float
    across_error: float
    """Mean error of the agreement time, over the whole step's time."""

    def seconds(self, num_gpus: int, num_nodes: int) -> float:
        """Return the agreement time in s of one step."""
        if not 1 <= num_nodes <= num_gpus:
            raise ValueRangeError(f"{num_gpus} GPUs cannot lie on {num_nodes} nodes")
        if num_gpus == 1:
            return 0.0
        if num_nodes == 1:
            return self.inside_base_seconds + self.inside_seconds_per_gpu * (num_gpus - 2)
        return self.across_base_seconds + self.across_seconds_per_gpu * (num_gpus - 2)


@cache
def scaling_curves() -> tuple[ScalingCurve, ...]:
    """Return every measured curve."""
    return tuple(_curve(entry) for entry in coefficients("scaling")["curves"])


@cache
def sync_costs() -> Mapping[str, SyncCost]:
    """Return the agreement times by application: bert, cifar10, imagenet, ncf."""
    return {name: SyncCost(application=name, **entry) for name, entry in coefficients("scaling")["sync"].items()}


def scaling_curve(gpu: str, model: str, batch_size: int, placement: Placement | None = None) -> ScalingCurve | None:
    """Return one measured curve, None when nobody measured it; a placement of None takes the first there is."""
    for curve in scaling_curves():
        same = (curve.gpu, curve.model, curve.batch_size) == (gpu, model, batch_size)
        if same and placement in (None, curve.placement):
            return curve
    return None


def typical_efficiency(gpu: str, num_gpus: int, placement: Placement) -> float:
    """Return the median efficiency over the models of a GPU type, at most 1: for a program that nobody measured.

    Raises:
        ValueRangeError: nothing was measured on this GPU with this placement.
    """
    found = [curve for curve in scaling_curves() if (curve.gpu, curve.placement) == (gpu, placement)]
    if not found:
        known = sorted({f"{curve.gpu} {curve.placement}" for curve in scaling_curves()})
        raise ValueRangeError(f"no scaling was measured on {gpu} {placement}; measured: {', '.join(known)}")
    return min(1.0, median(curve.law(num_gpus) for curve in found if num_gpus >= min(curve.efficiency_by_count)))


def _curve(entry: Mapping[str, Any]) -> ScalingCurve:
    counts = {int(count): efficiency for count, efficiency in entry["efficiency_by_count"].items()}
    return ScalingCurve(**{**entry, "efficiency_by_count": counts})
