"""From the fields of a message to the job that a policy sees."""

from dataclasses import dataclass

from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.deadline import parse_deadline
from slurm_energy.slurm.gres import TresRequest, gpu_demands
from slurm_energy.wire.messages import SubmittedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderstoodJob:
    """A job request and what in it could not be read."""

    request: JobRequest
    complaints: tuple[str, ...]


def job_request(job: SubmittedJob, now_seconds: float, user_name: str | None = None) -> UnderstoodJob:
    """Return the job as a policy sees it; what cannot be read is left out and told, never an error."""
    complaints = list(job.complaints)
    nodes = max(1, job.nodes_min or 1)
    tasks = job.tasks or (job.tasks_per_node * nodes if job.tasks_per_node else None)
    request = JobRequest(
        user_id=job.user_id,
        name=job.name,
        user_name=user_name,
        account=job.account,
        qos=job.qos,
        partitions=job.partitions,
        time_limit_minutes=job.time_limit_minutes,
        nodes_min=nodes,
        nodes_max=job.nodes_max,
        tasks=tasks,
        cpus_per_task=job.cpus_per_task,
        memory_per_node_mib=_memory_per_node(job, nodes, tasks),
        gpus=_gpus(job, nodes, tasks, complaints),
        features=job.features,
        prefer=job.prefer,
        reservation=job.reservation,
        array=job.array,
        exclusive=job.exclusive,
        tied=job.tied,
        starts_later=job.held or job.dependent or (job.begins_at_seconds or 0) > now_seconds,
        gpu_frequency_given="gpu" in job.tres_frequency.lower(),
        options=EnergyOptions(
            mode=job.mode,
            max_slowdown=job.max_slowdown,
            deadline_seconds=_deadline(job, now_seconds, complaints),
            quiet=job.quiet,
        ),
        submitted_at_seconds=now_seconds,
    )
    return UnderstoodJob(request=request, complaints=tuple(complaints))


def _gpus(job: SubmittedJob, nodes: int, tasks: int | None, complaints: list[str]) -> tuple[GpuDemand, ...]:
    try:
        return gpu_demands(
            TresRequest(
                per_job=job.tres_per_job,
                per_node=job.tres_per_node,
                per_socket=job.tres_per_socket,
                per_task=job.tres_per_task,
                nodes_min=nodes,
                nodes_max=job.nodes_max,
                tasks=tasks,
            )
        )
    except ValueRangeError as error:
        complaints.append(str(error))
        return ()


def _deadline(job: SubmittedJob, now_seconds: float, complaints: list[str]) -> float | None:
    """Return the deadline; one that nobody understands, or that has passed, leaves no time to run slower."""
    if job.deadline is None:
        return None
    try:
        return parse_deadline(job.deadline, now_seconds)
    except ValueRangeError as error:
        complaints.append(str(error))
        return now_seconds


def _memory_per_node(job: SubmittedJob, nodes: int, tasks: int | None) -> float | None:
    if job.memory_per_node_mib:
        return job.memory_per_node_mib
    if not job.memory_per_cpu_mib:
        return None
    cpus = max((tasks or 1) * (job.cpus_per_task or 1), job.cpus_min or 1)
    return job.memory_per_cpu_mib * -(-cpus // nodes)
