"""The node feature that an answer may really prefer: a hint to Slurm, which must neither stop a job nor change its wish."""

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy.config import RoutingConfig
from slurm_energy.policy.base import Candidate
from slurm_energy.policy.candidates import JobOnCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class HintVerdict:
    """The feature that was allowed, None for no hint, and why not the one proposed."""

    prefer: str | None
    notes: tuple[str, ...] = ()


def allowed_hint(
    proposed: str | None, case: JobOnCluster, landing: Iterable[Candidate], routing: RoutingConfig
) -> HintVerdict:
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
    # Slurm refuses a job whose feature no node has, so one that only a lost node had is none.
    objections = (
        (not routing.node_hints, "this site has not opened (routing.node_hints)"),
        (bool(job.features), "is not added to the job's own constraint"),
        (bool(job.prefer), "is not put in place of the job's own preference"),
        (job.reservation is not None, "is not added to a job with a reservation"),
        (not _exists(proposed, case, landing), "no available node has where the job may start"),
    )
    against = next((objection for holds, objection in objections if holds), None)
    if against is None:
        return HintVerdict(prefer=proposed)
    return HintVerdict(prefer=None, notes=(f"the policy preferred node feature {proposed}, which {against}",))


def _exists(feature: str, case: JobOnCluster, landing: Iterable[Candidate]) -> bool:
    """Return whether an available node of those partitions has the feature."""
    return any(
        node.available and feature in node.features
        for candidate in landing
        for node in case.snapshot.nodes_by_partition.get(candidate.partition.name, ())
    )
