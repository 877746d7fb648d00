"""Where an answer may really send a job: partitions open to it with room now, and a node feature as a hint.

A hint must neither stop a job nor replace its own wish. Slurm's --prefer is softer for a job that waits than for one
that is submitted: Slurm 22.05 refuses a submission with a feature that no node has, and one that the nodes with the
feature could not run even if they were free. So a hint is let through only where it would be accepted as a constraint
too.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy.config import GuardConfig, RoutingConfig
from slurm_energy.domain.cluster import NodeState
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import GpuDemand, JobRequest
from slurm_energy.policy.base import Case
from slurm_energy.policy.guard.clocks import slowdown_room
from slurm_energy.policy.site.comparison import Candidate, landing_types


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """The partitions that were allowed, None to leave the job where it is, and why not those proposed."""

    partitions: tuple[PartitionName, ...] | None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


def allowed_partitions(proposed: tuple[PartitionName, ...] | None, case: Case, guard: GuardConfig) -> PartitionVerdict:
    """Return the proposal if every partition in it may be named, else nothing with the first reason against it."""
    if proposed is None:
        return PartitionVerdict(partitions=None)
    open_to_job = {candidate.partition.name: candidate for candidate in case.candidates if candidate.may_be_named}
    if not case.may_route or not open_to_job.keys() >= set(proposed):
        note = "the policy named a partition that this job may not be sent to"
        return PartitionVerdict(partitions=None, reasons=(Reason.PARTITION_NOT_ALLOWED,), notes=(note,))
    chosen = [open_to_job[name] for name in proposed]
    if not all(candidate.has_idle_room for candidate in chosen):
        note = "the policy named a partition in which the job would wait"
        return PartitionVerdict(partitions=None, reasons=(Reason.NO_IDLE_PARTITION,), notes=(note,))
    if not all(candidate.gpu_types for candidate in chosen):
        note = "the policy named a partition whose GPU types are unknown"
        return PartitionVerdict(partitions=None, reasons=(Reason.UNKNOWN_GPU_TYPE,), notes=(note,))
    for gpu_type in landing_types(chosen):
        where = [candidate for candidate in chosen if gpu_type in candidate.gpu_types]
        broken = slowdown_room(gpu_type, case, where, guard, is_sent=True).broken_by(0.0)
        if broken:
            note = f"the policy named a partition of {gpu_type}, which is too slow for this job or cannot be compared"
            return PartitionVerdict(partitions=None, reasons=broken, notes=(note,))
    return PartitionVerdict(partitions=proposed)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintVerdict:
    """The feature that was allowed, None for no hint, and why not the one proposed."""

    prefer: str | None
    notes: tuple[str, ...] = ()


def allowed_hint(proposed: str | None, case: Case, landing: Iterable[Candidate], routing: RoutingConfig) -> HintVerdict:
    """Return the proposed feature if the job may have it, else nothing with the first reason against it.

    Args:
        proposed: A feature's name, None for no hint.
        case: The job on its cluster.
        landing: Where the job can start.
        routing: What the site has opened.
    """
    if proposed is None:
        return HintVerdict(prefer=None)
    job = case.job
    names = (candidate.partition.name for candidate in landing)
    pools = (case.snapshot.nodes_by_partition.get(name, ()) for name in names)
    objections = (
        (not routing.node_hints, "this site has not opened (routing.node_hints)"),
        (bool(job.features), "is not added to the job's own constraint"),
        (bool(job.prefer), "is not put in place of the job's own preference"),
        (job.reservation is not None, "is not added to a job with a reservation"),
        (not any(_could_run(job, proposed, nodes) for nodes in pools), "too few nodes have where the job may start"),
    )
    against = next((objection for holds, objection in objections if holds), None)
    if against is None:
        return HintVerdict(prefer=proposed)
    return HintVerdict(prefer=None, notes=(f"the policy preferred node feature {proposed}, which {against}",))


def _could_run(job: JobRequest, feature: str, nodes: tuple[NodeState, ...]) -> bool:
    """Return whether the available nodes of a partition with the feature, all of them free, could run the job."""
    able = [node for node in nodes if node.available]
    # A default that is not in the request may ask for as much as the largest node has.
    largest_mib = max((node.memory_mib or math.inf for node in able), default=0.0)
    memory_mib = largest_mib if job.memory_per_node_mib is None else job.memory_per_node_mib
    holding = sum(feature in node.features and _could_hold(job, node, memory_mib) for node in able)
    return holding >= max(1, job.nodes_min)


def _could_hold(job: JobRequest, node: NodeState, memory_mib: float) -> bool:
    """Return whether a node, when it is free, is large enough for the job's share on each of its nodes."""
    share = max(1, job.nodes_min)
    cpus = math.ceil((job.tasks or 1) * (job.cpus_per_task or 1) / share)
    return (
        node.cpus >= cpus
        and (node.memory_mib or 0.0) >= memory_mib
        and node.gpu_count >= math.ceil(job.gpu_count / share)
        and all(_has_gpus(node, demand, share) for demand in job.gpus)
    )


def _has_gpus(node: NodeState, demand: GpuDemand, share: int) -> bool:
    fitting = (gpus.count for gpus in node.gpus if demand.slurm_type in {None, gpus.slurm_type})
    return sum(fitting) >= math.ceil(demand.count / share)
