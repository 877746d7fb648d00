"""Where a job may start: which partitions, with which GPU types, and whether there is room this moment."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from slurm_energy.config import Config, RoutingConfig
from slurm_energy.domain.cluster import NodeState, PartitionState
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.energy_model.catalog import CATALOG, gpu_type_from_slurm_type
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import Candidate

UNTYPED_GRES = "gpu"
"""Key in [gpu_types] for GPUs whose GRES has no type."""


def catalogue_name(slurm_type: str | None, configured: Mapping[str, str]) -> GpuTypeName | None:
    """Return the catalogue name of a GRES type: the site's mapping first, then the catalogue's own names."""
    key = UNTYPED_GRES if slurm_type is None else slurm_type
    if key in configured:
        name = GpuTypeName(configured[key])
        return name if name in CATALOG else None
    return None if slurm_type is None else gpu_type_from_slurm_type(slurm_type)


def asked_partitions(case: Case) -> tuple[PartitionState, ...]:
    """Return the partitions the job goes to without an answer: the user's list, else the default one."""
    known = case.snapshot.partition_by_name
    if case.job.partitions:
        return tuple(known[name] for name in dict.fromkeys(case.job.partitions) if name in known)
    default = case.snapshot.default_partition
    return () if default is None else (default,)


def is_opened(job: JobRequest, routing: RoutingConfig) -> bool:
    """Return whether partitions that the user named are a preference among all those that he may use."""
    if not job.partitions or not routing.open:
        return False
    return routing.open_by_default if job.options.open is None else job.options.open


def routable_partitions(case: Case, routing: RoutingConfig) -> tuple[PartitionState, ...]:
    """Return the partitions among which a choice is open; one or none means that there is nothing to choose.

    Of a user's list some may be put first, a single partition that he named is kept unless it is a preference
    (`is_opened`), and a job that named none is tried in others than the default partition only where the site has
    opened routing.
    """
    if case.job.tied or case.job.reservation is not None or case.job.array is not None:
        # A reservation belongs to its nodes, and room for one task says nothing about room for a whole array.
        return ()
    if case.job.partitions and not is_opened(case.job, routing):
        return asked_partitions(case)
    if not routing.open:
        return ()
    known = case.snapshot.partition_by_name
    listed = tuple(known[name] for name in map(PartitionName, routing.partitions) if name in known)
    others = listed if routing.partitions else case.snapshot.partitions
    return tuple({partition.name: partition for partition in (*asked_partitions(case), *others)}.values())


def refusal(case: Case, partition: PartitionState) -> str | None:
    """Return why the job must not be sent to a partition, None if it may; what is unknown counts as a no."""
    job = case.job
    checks = (
        (not partition.up, "is down"),
        (partition.root_only and job.user_id != 0, "is for root only"),
        (partition.needs_reservation and job.reservation is None, "needs a reservation"),
        (not _time_fits(job, partition), "has a shorter time limit"),
        (partition.max_nodes is not None and job.nodes_min > partition.max_nodes, "allows fewer nodes"),
        (job.nodes_min < partition.min_nodes, "is for jobs of more nodes"),
        (not _cpus_fit(job, partition), "allows fewer CPUs on a node"),
        (not _memory_allowed(job, partition), "allows less memory on a node"),
        (not _listed(job.account, partition.allow_accounts, partition.deny_accounts), "is closed to the account"),
        (not _listed(job.qos, partition.allow_qos, partition.deny_qos), "is closed to the QOS"),
        (not _group_allowed(case, partition), "is closed to the user's groups"),
        (not slurm_types(case, partition), "has no GPU of the type asked for"),
    )
    return next((reason for failed, reason in checks if failed), None)


def order_objections(case: Case, partitions: Iterable[PartitionState], *, adds: bool) -> dict[PartitionName, str]:
    """Return why slurmctld's side would not put a partition before the job's own ones, for those that it would not.

    That side looks again, at slurmctld's own records: this only keeps us from announcing what it will leave out.

    Args:
        case: The job's.
        partitions: Those that may go first.
        adds: Whether some of them are none of the job's own.
    """
    own = asked_partitions(case)
    if not own:
        return {}
    home = own[0]
    terms = {one.list_terms for one in own}
    tier = max(one.priority_tier for one in own)
    factor = max(one.priority_job_factor for one in own)
    closed = any(one.root_only or one.needs_reservation for one in own)
    unknown = len(own) < len(set(case.job.partitions))
    no_limit = case.job.time_limit_minutes is None

    def objection(one: PartitionState) -> str | None:
        checks = (
            (unknown, "stands in a list with a partition that is not known"),
            (one.priority_tier < tier or one.priority_job_factor < factor, "comes after another one by its priority"),
            (terms != {one.list_terms}, "is open to others than the job's own ones"),
            (closed, "stands in a list with one that is closed"),
            (not home.up, "stands behind one that is down"),
            (home.default_terms != one.default_terms, "has other defaults than the job's own first one"),
            (
                no_limit and home.default_time_minutes != one.default_time_minutes,
                "has another default time limit than the job's own first one",
            ),
            (adds and (one.priority_tier > tier or one.priority_job_factor > factor), "comes before the default one"),
            (adds and home.placing_terms != one.placing_terms, "places jobs otherwise than the default one"),
        )
        return next((reason for failed, reason in checks if failed), None)

    found = ((one.name, objection(one)) for one in partitions if one.name != home.name)
    return {name: why for name, why in found if why is not None}


def soft_rejection(case: Case, partition: PartitionState, config: Config) -> str | None:
    """Return why the job might not run through in a partition that it could be sent to, None if nothing says so.

    Its user knows what his program needs: a partition that he named himself is unfit only where its runs have failed.
    """
    work = case.work
    names = known_gpu_types(case, partition, config.gpu_types)
    if work is not None and not work.failed_types.isdisjoint(names):
        return "has GPUs on which runs of this name have only failed"
    if config.routing.less_gpu_memory or partition.name in case.job.partitions:
        return None
    asked = asked_partitions(case)
    if any(partition.name == one.name for one in asked):
        return None
    before = [_memory_gib(name) for one in asked for name in known_gpu_types(case, one, config.gpu_types)]
    least = min((gib for gib in before if gib is not None), default=0.0)
    proven = {} if work is None else work.runs_by_type
    unproven = (name for name in names if not proven.get(name))
    if any((_memory_gib(name) or 0.0) < least for name in unproven):
        return "has GPUs of less memory, and no run of this name has run through on them"
    return None


def _memory_gib(name: GpuTypeName) -> float | None:
    row = CATALOG.get(name)
    return None if row is None else row.memory_gib


def slurm_types(case: Case, partition: PartitionState) -> tuple[str | None, ...]:
    """Return the GRES types in a partition that would serve the job."""
    found = case.snapshot.slurm_gpu_types_by_partition.get(partition.name, ())
    asked = case.job.gpu_types
    return tuple(slurm_type for slurm_type in found if not asked or slurm_type in asked)


def known_gpu_types(case: Case, partition: PartitionState, configured: Mapping[str, str]) -> tuple[GpuTypeName, ...]:
    """Return the catalogue's names of the GPU types in a partition that would serve the job."""
    names = (catalogue_name(slurm_type, configured) for slurm_type in slurm_types(case, partition))
    return tuple(dict.fromkeys(name for name in names if name is not None))


def has_idle_room(case: Case, partition: PartitionState) -> bool:
    """Return whether the job could start in a partition now, as far as the snapshot tells; in doubt it could not.

    GPUs that waiting jobs, or jobs decided since the snapshot, ask for there are counted as gone, and a job of several
    nodes needs its share on each.
    """
    job = case.job
    if job.array is not None or job.reservation is not None or len(job.gpus) != 1 or not partition.up:
        return False
    nodes_needed = max(1, job.nodes_min)
    gpus_per_node = math.ceil(job.gpu_count / nodes_needed)
    waiting = case.snapshot.waiting_gpus_by_partition.get(partition.name, 0.0)
    left = job.gpu_count + waiting + case.claimed_gpus.get(partition.name, 0.0)
    if left > case.snapshot.idle_gpus_by_partition.get(partition.name, 0):
        return False
    for idle in _idle_gpus(case, partition):
        left -= idle
        if idle >= gpus_per_node:
            nodes_needed -= 1
        if nodes_needed <= 0 and left <= 0.0:
            return True
    return False


def _idle_gpus(case: Case, partition: PartitionState) -> Iterator[int]:
    """Yield the idle GPUs that serve the job on each node with idle GPUs where its other needs are met."""
    job = case.job
    nodes = max(1, job.nodes_min)
    cpus = math.ceil((job.tasks or 1) * (job.cpus_per_task or 1) / nodes)
    asked = job.gpu_types
    features = None if not job.features else frozenset(job.features.split("&"))
    for node in case.snapshot.nodes_with_idle_gpus.get(partition.name, ()):
        if node.cpus - node.cpus_allocated < cpus or not _memory_fits(job, node):
            continue
        if job.exclusive and node.cpus_allocated > 0:
            continue
        if features is not None and not features <= set(node.features):
            continue
        yield sum(gpus.idle for gpus in node.gpus if not asked or gpus.slurm_type in asked)


def _memory_fits(job: JobRequest, node: NodeState) -> bool:
    if job.memory_per_node_mib is None or node.memory_mib is None:
        return True
    return node.memory_mib - (node.memory_allocated_mib or 0.0) >= job.memory_per_node_mib


def _cpus_fit(job: JobRequest, partition: PartitionState) -> bool:
    limit = partition.max_cpus_per_node
    return limit is None or (job.tasks or 1) * (job.cpus_per_task or 1) <= limit * max(1, job.nodes_min)


def _memory_allowed(job: JobRequest, partition: PartitionState) -> bool:
    limit, asked = partition.max_memory_per_node_mib, job.memory_per_node_mib
    return limit is None or asked is None or asked <= limit


def _time_fits(job: JobRequest, partition: PartitionState) -> bool:
    limit = partition.max_time_minutes
    return limit is None or job.time_limit_minutes is None or job.time_limit_minutes <= limit


def _listed(name: str | None, allowed: tuple[str, ...], denied: tuple[str, ...]) -> bool:
    """Return whether a name passes both lists; an unknown one passes only where there is no list."""
    if name is None:
        return not allowed and not denied
    return (not allowed or name in allowed) and name not in denied


def _group_allowed(case: Case, partition: PartitionState) -> bool:
    if not partition.allow_groups or case.job.user_id == 0:
        return True
    return case.user_groups is not None and not set(partition.allow_groups).isdisjoint(case.user_groups)


def at_site(case: Case, config: Config) -> Case:
    """Return the case with where the job may start and what the site lets be chosen.

    Candidates are the partitions that the job goes to anyway, since it can land on any of their GPUs whatever we think
    of them, and the others that it may be sent to. It is sent nowhere else from GPUs that the catalogue does not know:
    they may be the faster ones.
    """
    routable = routable_partitions(case, config.routing)
    opened = is_opened(case.job, config.routing)
    objections = order_objections(case, routable, adds=opened or not case.job.partitions)
    refusals = {
        partition.name: refusal(case, partition)
        or soft_rejection(case, partition, config)
        or objections.get(partition.name)
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
    return replace(
        case,
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


def _reasons(case: Case, config: Config, *, may_route: bool) -> tuple[Reason, ...]:
    if may_route:
        return ()
    if case.job.partitions:
        closed = case.job.options.open is True and not config.routing.open
        return (Reason.USER_PARTITION, Reason.ROUTING_CLOSED) if closed else (Reason.USER_PARTITION,)
    return () if config.routing.open else (Reason.ROUTING_CLOSED,)


def _mapped_types(
    case: Case, partitions: tuple[PartitionState, ...], configured: Mapping[str, str]
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
