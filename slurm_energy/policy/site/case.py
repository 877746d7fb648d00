"""What the guard works out before it asks a policy: where the job may start and what the site lets be chosen."""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.config import Config
from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.site.candidates import (
    JobOnCluster,
    asked_partitions,
    catalogue_name,
    has_idle_room,
    known_gpu_types,
    order_objections,
    refusal,
    routable_partitions,
    slurm_types,
    unfitness,
)
from slurm_energy.policy.site.comparison import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Candidates and what is open to choice, with the reasons found on the way."""

    candidates: tuple[Candidate, ...]
    may_route: bool
    gpu_type_by_slurm_type: Mapping[str, GpuTypeName]
    shown_names: Mapping[GpuTypeName, str]
    """Slurm's name of each GPU type, as users write it."""
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]


def situation_of(case: JobOnCluster, config: Config) -> Situation:
    """Return where a job may start.

    Candidates are the partitions that the job goes to anyway, since it can land on any of their GPUs whatever we think
    of them, and the others that it may be sent to. It is sent nowhere else from GPUs that the catalogue does not know:
    they may be the faster ones.
    """
    routable = routable_partitions(case, config.routing)
    objections = order_objections(case, routable)
    refusals = {
        partition.name: refusal(case, partition) or unfitness(case, partition, config) or objections.get(partition.name)
        for partition in routable
    }
    allowed = tuple(partition for partition in routable if refusals[partition.name] is None)
    asked = asked_partitions(case)
    comparable = all(catalogue_name(one, config.gpu_types) for where in asked for one in slurm_types(case, where))
    may_route = len(allowed) > 1 and comparable
    reasons = _reasons(case, config, may_route=may_route)
    notes = tuple(f"partition {name} {why}" for name, why in refusals.items() if why is not None)
    if may_route and notes:
        reasons = (*reasons, Reason.PARTITION_NOT_ALLOWED)
    partitions = tuple({partition.name: partition for partition in (*asked, *(allowed if may_route else ()))}.values())
    # Names, since comparing whole partitions with one another would take quadratic time.
    allowed_names, asked_names = ({one.name for one in some} for some in (allowed, asked))
    names = _mapped_types(case, partitions, config.gpu_types)
    unknown = sorted(str(slurm_type) for slurm_type, name in names.items() if name is None)
    if unknown:
        reasons = (*reasons, Reason.UNKNOWN_GPU_TYPE)
        notes = (*notes, *(f"GPU type {name} is not in the catalogue: see [gpu_types]" for name in unknown))
    return Situation(
        candidates=tuple(
            Candidate(
                partition=partition,
                gpu_types=known_gpu_types(case, partition, config.gpu_types),
                has_idle_room=has_idle_room(case, partition),
                may_be_named=may_route
                and partition.name in allowed_names
                and all(names[slurm_type] is not None for slurm_type in slurm_types(case, partition)),
                is_submitted_to=partition.name in asked_names,
            )
            for partition in partitions
        ),
        may_route=may_route,
        gpu_type_by_slurm_type={key: name for key, name in names.items() if key is not None and name is not None},
        shown_names=_shown_names(names),
        reasons=reasons,
        notes=notes,
    )


def _reasons(case: JobOnCluster, config: Config, *, may_route: bool) -> tuple[Reason, ...]:
    if may_route:
        return ()
    if case.job.partitions:
        return (Reason.USER_PARTITION,)
    return () if config.routing.open else (Reason.ROUTING_CLOSED,)


def _mapped_types(
    case: JobOnCluster, partitions: tuple[PartitionState, ...], configured: Mapping[str, str]
) -> dict[str | None, GpuTypeName | None]:
    return {
        slurm_type: catalogue_name(slurm_type, configured)
        for partition in partitions
        for slurm_type in slurm_types(case, partition)
    }


def _shown_names(names: Mapping[str | None, GpuTypeName | None]) -> dict[GpuTypeName, str]:
    shown: dict[GpuTypeName, str] = {}
    for slurm_type in sorted(key for key in names if key is not None):
        name = names[slurm_type]
        if name is not None:
            shown.setdefault(name, slurm_type)
    return shown
