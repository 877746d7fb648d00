"""The columns of what jobs run in: nodes, switches, partitions, clusters, and the constraints of a cluster."""

from dataclasses import dataclass
from math import inf, isfinite, nan

from slurm_energy.domain.cluster import ClusterState, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName
from slurm_energy.graph.device_features import finite, ratio
from slurm_energy.graph.scaling import Scaler, raw
from slurm_energy.graph.schema import CLUSTER, CONSTRAINT, LARGEST, NODE, PARTITION, SWITCH, UPLINK

NODE_SCALER = Scaler(NODE)
UPLINK_SCALER = Scaler(UPLINK)
SWITCH_SCALER = Scaler(SWITCH)
PARTITION_SCALER = Scaler(PARTITION)
CLUSTER_SCALER = Scaler(CLUSTER)
CONSTRAINT_SCALER = Scaler(CONSTRAINT)
Row = tuple[float, ...]

_MEBIBYTES_PER_GIBIBYTE = 1024.0
_LARGEST_COUNT = 1e6
"""Stands for an infinite number of GPUs, such as an array without an end asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceCounts:
    """Sums over the nodes and jobs of a partition or cluster."""

    nodes: int = 0
    suspended: int = 0
    gpus: int = 0
    gpus_free: int = 0
    waiting_gpus: float = 0.0
    claimed_gpus: float = 0.0
    waiting_jobs: int = 0
    running_jobs: int = 0


def node_row(node: NodeState) -> Row:
    """Return the unscaled NODE columns."""
    loads = [load for reading in node.gpu_readings if (load := finite(reading.utilisation)) is not None]
    heats = [heat for reading in node.gpu_readings if (heat := finite(reading.temperature_celsius)) is not None]
    gpus = node.gpu_count
    memory, used = node.memory_mib, node.memory_allocated_mib
    return (
        float(node.available),
        float(node.is_suspended),
        float(node.is_waking),
        float(node.cpus),
        ratio(max(0.0, node.cpus - node.cpus_allocated), node.cpus),
        nan if memory is None else memory / _MEBIBYTES_PER_GIBIBYTE,
        nan if memory is None else ratio(max(0.0, memory - (used or 0.0)), memory),
        float(gpus),
        ratio(node.gpus_idle, gpus),
        float(finite(node.power_watts) is not None),
        raw(node.power_watts),
        max(loads) - min(loads) if loads else nan,
        max(heats, default=nan),
        raw(node.wake_seconds),
    )


def uplink_row(node: NodeState) -> Row:
    """Return the unscaled UPLINK columns of a node's link to its switch."""
    return link_row(node.uplink_gb_per_second, node.uplink_congestion, node.uplink_latency_microseconds)


def link_row(capacity: float | None, congestion: float | None, latency: float | None = None) -> Row:
    """Return the unscaled UPLINK columns; a link is known when its capacity is."""
    return raw(capacity), raw(congestion), raw(latency), float(finite(capacity) is not None)


def switch_row(switch: SwitchState | None, *, nodes: int, available: int, is_leaf: bool) -> Row:
    """Return the unscaled SWITCH columns; without a switch they are those of a group of like nodes."""
    return (
        float(nodes),
        nan if switch is None else raw(switch.capacity_gb_per_second),
        nan if switch is None else raw(switch.congestion),
        ratio(available, nodes),
        float(is_leaf),
        float(switch is not None),
    )


def partition_row(partition: PartitionState, counts: PlaceCounts, site: ClusterState | None = None) -> Row:
    """Return the unscaled PARTITION columns; carbon and price are the partition's own, else its cluster's."""
    carbon, price = partition.carbon_grams_per_kwh, partition.price_per_kwh
    if site is not None:
        carbon = site.carbon_grams_per_kwh if carbon is None else carbon
        price = site.price_per_kwh if price is None else price
    limit = partition.max_time_minutes
    return (
        float(partition.up),
        float(partition.is_default),
        float(counts.nodes > 0 and counts.gpus == 0),
        nan if limit is None else limit * 60.0,
        float(limit is not None and isfinite(limit)),
        float(partition.priority_tier),
        float(counts.nodes),
        float(counts.gpus),
        ratio(counts.gpus_free, counts.gpus),
        min(_LARGEST_COUNT, counts.waiting_gpus),
        min(_LARGEST_COUNT, counts.claimed_gpus),
        float(counts.waiting_jobs),
        ratio(counts.suspended, counts.nodes),
        raw(carbon),
        raw(price),
    )


def cluster_row(state: ClusterState | None, counts: PlaceCounts) -> Row:
    """Return the unscaled CLUSTER columns."""
    power = None if state is None else state.power_watts
    return (
        float(counts.nodes),
        float(counts.gpus),
        ratio(counts.gpus_free, counts.gpus),
        float(counts.waiting_jobs),
        float(counts.running_jobs),
        float(finite(power) is not None),
        raw(power),
    )


def constraint_rows(state: ClusterState | None) -> tuple[Row, Row, Row, Row]:
    """Return the unscaled CONSTRAINT columns of power, cooling, carbon and quality.

    Carbon has a value but no limit. The value of quality is in jobs of a hundred that missed their goal.
    """
    if state is None:
        state = _UNLIMITED
    violations, goal = state.quality_violations, state.quality_goal
    carbon = state.carbon_grams_per_kwh
    return (
        (1.0, 0.0, 0.0, 0.0, *_against(state.power_watts, state.power_budget_watts), raw(state.power_watts)),
        (0.0, 1.0, 0.0, 0.0, *_against(state.heat_watts, state.cooling_watts), raw(state.heat_watts)),
        (0.0, 0.0, 1.0, 0.0, float(finite(carbon) is not None), nan, nan, raw(carbon)),
        (0.0, 0.0, 0.0, 1.0, *_against(violations, goal), nan if violations is None else 100.0 * violations),
    )


CONSTRAINTS_PER_CLUSTER = 4


def _against(value: float | None, limit: float | None) -> tuple[float, float, float]:
    """Return is_set, usage and slack; a limit of 0 that is passed counts as the largest usage."""
    value, limit = finite(value), finite(limit)
    if limit is None or limit < 0.0:
        return 0.0, nan, nan
    if value is None:
        return 1.0, nan, nan
    if limit == 0.0:
        return 1.0, 0.0 if value <= 0.0 else LARGEST, 0.0 if value <= 0.0 else -1.0
    return 1.0, value / limit, (limit - value) / (limit + value) if limit + value > 0.0 else -inf


_UNLIMITED = ClusterState(name=ClusterName(""))
"""Stands for a cluster that nobody describes."""
