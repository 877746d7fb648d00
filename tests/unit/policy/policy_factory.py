"""Clusters, jobs and answers for the policy tests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slurm_energy.config import Config, GuardConfig, PolicyConfig, RoutingConfig
from slurm_energy.domain.cluster import ClusterSnapshot, JobState, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.decision import ClockChoice, EnergyDecision
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, JobId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest

NOW = 1_800_000_000.0
A100, A40, V100, H100 = map(GpuTypeName, ("a100-sxm4-80gb", "a40", "v100-sxm2-16gb", "h100-sxm5-80gb"))

MEASURED_BOARDS = {"a100-sxm4-80gb": 500.0}
"""Where the boards that were measured are not the catalogue's."""


def ids() -> Callable[[], DecisionId]:
    """Return a source of ids that counts."""
    count = iter(range(10**9))
    return lambda: DecisionId(f"{next(count):08d}")


def make_partition(name: str, **changes: Any) -> PartitionState:
    values: dict[str, Any] = {"is_default": False, "up": True, "max_time_minutes": 1440.0}
    return PartitionState(name=PartitionName(name), **{**values, **changes})


def make_node(name: str, partition: str, slurm_type: str | None, **changes: Any) -> NodeState:
    count, allocated = changes.pop("count", 4), changes.pop("allocated", 0)
    values: dict[str, Any] = {
        "states": ("IDLE",),
        "available": True,
        "cpus": 64,
        "cpus_allocated": 0,
        "memory_mib": 256_000.0,
        "memory_allocated_mib": 0.0,
        "gpus": (NodeGpus(slurm_type=slurm_type, count=count, allocated=allocated),),
    }
    return NodeState(name=NodeName(name), partitions=(PartitionName(partition),), **{**values, **changes})


def make_snapshot(*nodes: NodeState, partitions: tuple[PartitionState, ...] = (), **changes: Any) -> ClusterSnapshot:
    """Return the lab's cluster: a100 (default), a40 and v100, two nodes each, all idle; or what is given."""
    default_partitions = (make_partition("a100", is_default=True), make_partition("a40"), make_partition("v100"))
    default_nodes = tuple(make_node(f"{name}-{i}", name, name) for name in ("a100", "a40", "v100") for i in (1, 2))
    values: dict[str, Any] = {
        "cluster": ClusterName("lab"),
        "taken_at_seconds": NOW - 2.0,
        "partitions": partitions or default_partitions,
        "nodes": nodes or default_nodes,
    }
    return ClusterSnapshot(**{**values, **changes})


def make_job(
    gpus: int = 1, *, gpu_type: str | None = None, partitions: tuple[str, ...] = (), **changes: Any
) -> JobRequest:
    options = {key: changes.pop(key) for key in ("mode", "max_slowdown", "deadline_seconds", "quiet") if key in changes}
    values: dict[str, Any] = {
        "user_id": 1000,
        "gpus": (GpuDemand(count=gpus, slurm_type=gpu_type),) if gpus else (),
        "partitions": tuple(PartitionName(name) for name in partitions),
        "time_limit_minutes": 600.0,
        "options": EnergyOptions(**options),
    }
    return JobRequest(**{**values, **changes})


def make_waiting_job(job_id: int, partition: str, gpu_count: int | None = 1, **changes: Any) -> JobState:
    values: dict[str, Any] = {
        "job_id": JobId(job_id),
        "user_name": "ann",
        "user_id": 1001,
        "name": "train",
        "state": "PENDING",
        "partitions": (PartitionName(partition),),
        "submitted_at_seconds": NOW - 60.0,
        "gpu_count": gpu_count,
    }
    return JobState(**{**values, **changes})


def make_config(*, routing_open: bool = False, node_hints: bool = False, **changes: Any) -> Config:
    margins = ("unknown_runtime_share", "time_limit_margin", "min_energy_saving")
    # Low enough that every measured GPU type gets a clock; the shipped values would leave the A40 out.
    guard = {"min_energy_saving": 0.01} | {key: changes.pop(key) for key in margins if key in changes}
    gpu_types = changes.pop("gpu_types", {})
    limits = changes.pop("gpu_power_limits_watts", MEASURED_BOARDS)
    routed = tuple(changes.pop("routing_partitions", ()))
    max_type = changes.pop("max_type_slowdown", RoutingConfig().max_type_slowdown)
    less = changes.pop("less_gpu_memory", False)
    return Config(
        policy=replace(PolicyConfig(), **{"min_saving_per_slowdown": 0.0, **changes}),
        guard=replace(GuardConfig(), **guard),
        routing=RoutingConfig(
            open=routing_open,
            partitions=routed,
            node_hints=node_hints,
            less_gpu_memory=less,
            max_type_slowdown=max_type,
        ),
        gpu_types=gpu_types,
        gpu_power_limits_watts=dict(limits),
    )


def make_clock(gpu_type: GpuTypeName, mhz: int, **changes: Any) -> ClockChoice:
    values: dict[str, Any] = {"default_clock_mhz": 1410, "predicted_slowdown": 0.0, "predicted_energy_change": -0.5}
    return ClockChoice(gpu_type=gpu_type, sm_clock_mhz=mhz, **{**values, **changes})


def changes_job(decision: EnergyDecision) -> bool:
    """Return whether anything is to be applied."""
    return decision.partitions is not None or decision.prefer is not None or bool(decision.clocks)
