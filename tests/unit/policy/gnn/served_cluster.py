"""A small cluster of several GPU types, jobs that are submitted to it, and the guard that asks a policy."""

from dataclasses import replace
from itertools import count
from typing import Any

from small_clusters import NOW, make_node, make_partition, make_snapshot

from slurm_energy.config import Config, GuardConfig, PolicyConfig, RoutingConfig
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState
from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer, RuntimeEstimate
from slurm_energy.domain.ids import DecisionId, GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.guard import Guard

A100, A40, V100, H100 = map(GpuTypeName, ("a100-sxm4-80gb", "a40", "v100-sxm2-16gb", "h100-sxm5-80gb"))
SMALL = NetworkConfig(hidden=12, heads=6, quantiles=4)


def node(name: str, partition: str, slurm_type: str | None = "a100", free: int = 4, **changes: Any) -> NodeState:
    gpus = (NodeGpus(slurm_type=slurm_type, count=4, allocated=4 - free),)
    return make_node(name, partition=partition, **{"gpus": gpus, **changes})


def lab(**changes: Any) -> ClusterSnapshot:
    """Return three partitions of two nodes each: a100 is where jobs go by default, a40 and v100 are beside it."""
    names = ("a100", "a40", "v100")
    values: dict[str, Any] = {
        "nodes": tuple(node(f"{name}-{number}", name, name) for name in names for number in (1, 2)),
        "partitions": tuple(make_partition(name, is_default=name == "a100", max_time_minutes=1440.0) for name in names),
    }
    return make_snapshot(**{**values, **changes})


def submitted(gpus: int = 1, *, gpu_type: str | None = None, to: tuple[str, ...] = (), **changes: Any) -> JobRequest:
    options = {key: changes.pop(key) for key in ("mode", "max_slowdown", "deadline_seconds") if key in changes}
    values: dict[str, Any] = {
        "user_id": 1000,
        "gpus": (GpuDemand(count=gpus, slurm_type=gpu_type),) if gpus else (),
        "partitions": tuple(PartitionName(name) for name in to),
        "time_limit_minutes": 600.0,
        "options": EnergyOptions(**options),
    }
    return JobRequest(**{**values, **changes})


def site(*, routing_open: bool = True, **policy: Any) -> Config:
    """Return a site that lets everything be chosen; boards are those that were measured."""
    return Config(
        policy=replace(PolicyConfig(), **{"max_slowdown": 2.0, "min_saving_per_slowdown": 0.0, **policy}),
        guard=replace(GuardConfig(), min_energy_saving=0.01),
        routing=RoutingConfig(open=routing_open, less_gpu_memory=True, max_type_slowdown=2.0),
        gpu_power_limits_watts={"a100-sxm4-80gb": 500.0},
    )


def guarded(
    policy: Policy,
    job: JobRequest,
    snapshot: ClusterSnapshot,
    config: Config | None = None,
    runtime: RuntimeEstimate | None = None,
    **changes: Any,
) -> EnergyDecision:
    """Return what the guard makes of a policy's answer."""
    numbers = count()
    guard = Guard(config or site(), lambda: DecisionId(f"{next(numbers):08d}"))
    return guard.decide(policy, job, snapshot, NOW, runtime, **changes)


class Listener:
    """A policy that answers nothing and keeps what it was told."""

    name = "listener"
    version = "1"

    def __init__(self) -> None:
        self.case: Case | None = None

    def decide(self, case: Case) -> PolicyAnswer:
        self.case = case
        return PolicyAnswer()


def case_of(
    job: JobRequest,
    snapshot: ClusterSnapshot,
    config: Config | None = None,
    runtime: RuntimeEstimate | None = None,
    **changes: Any,
) -> Case:
    """Return what the guard tells a policy of a job."""
    listener = Listener()
    guarded(listener, job, snapshot, config, runtime, **changes)
    assert listener.case is not None
    return listener.case
