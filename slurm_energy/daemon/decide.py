"""From a message's fields to a decision: the job as a policy sees it, then policy and guard.

Nothing is asked for here: snapshot and history are what is at hand.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_energy.config import Config
from slurm_energy.daemon.later_starts import LaterStarts
from slurm_energy.daemon.policy.remote import RemotePolicy, remote_policy
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import DecisionEntry, EnergyDecision
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest, scaled_limit
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.policy.automatic import chosen_policy
from slurm_energy.policy.base import Policy, RehearsablePolicy
from slurm_energy.policy.guard import Guard, decision_entry
from slurm_energy.policy.registry import LEARNED, create_policy
from slurm_energy.slurm.deadline import parse_deadline
from slurm_energy.slurm.gres import TresRequest, gpu_demands
from slurm_energy.wire.messages import SubmittedFields

MAX_REHEARSED_PARTITIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision with the request it answers."""

    decision: EnergyDecision
    job: JobRequest
    entry: DecisionEntry
    """What travels inside the job to its nodes."""
    complaints: tuple[str, ...] = ()
    """What of the request could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownUser:
    """What is known of the submitting user without a query."""

    name: str | None = None
    groups: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is at hand when a job is submitted, beside its own request."""

    snapshot: ClusterSnapshot | None
    claimed_gpus: Mapping[PartitionName, float] = field(default_factory=dict)
    """GPUs of each partition that were promised away since the snapshot was taken."""
    history: JobHistory = field(default_factory=JobHistory)
    user: KnownUser = field(default_factory=KnownUser)


class Decider:
    """The live policy behind the guard; replaced as a whole when the configuration changes."""

    def __init__(self, policy: Policy, guard: Guard, later: LaterStarts | None = None, *, leaves_trace: bool = True):
        self.policy = policy
        self._guard = guard
        self._later = later
        self._leaves_trace = leaves_trace
        self._rehearsed: type | None = None
        """Kind of policy for which what a decision needs has been worked out."""

    def with_policy(self, policy: Policy) -> "Decider":
        """Return another policy behind the same guard."""
        return Decider(policy, self._guard, self._later)

    def without_trace(self, snapshot: ClusterSnapshot | None) -> "Decider":
        """Return a decider that answers alike, for a question that is no submission: its policy remembers nothing."""
        policy = self.policy
        if snapshot is not None and isinstance(policy, RehearsablePolicy):
            policy = policy.for_rehearsal(snapshot)
        return Decider(policy, self._guard, self._later, leaves_trace=False)

    def decide(self, job: SubmittedFields, known: Known, now_seconds: float) -> Decided:
        """Return the decision for one job; total, whatever the job holds."""
        understood = job_request(job, now_seconds, known.user.name)
        decided = self.decide_request(understood.request, known, now_seconds, understood.complaints)
        if self._later is None or understood.request.options.start_before_seconds is None:
            return decided
        snapshot = known.snapshot
        gpus = 0 if snapshot is None else sum(gpu.count for node in snapshot.nodes for gpu in node.gpus)
        later = self._later.applied(decided.decision, decided.job, gpus, is_submission=self._leaves_trace)
        return replace(decided, decision=later)

    def decide_request(
        self, request: JobRequest, known: Known, now_seconds: float, complaints: tuple[str, ...] = ()
    ) -> Decided:
        """Return the decision for one job that has been understood; total, whatever the job holds."""
        snapshot = known.snapshot
        limit = request.time_limit_minutes
        runtime, work = known.history.expected(
            request.user_id, request.name, request.script, None if limit is None else 60.0 * limit
        )
        decision = self._guard.decide(
            self.policy,
            request,
            snapshot,
            now_seconds,
            runtime,
            known.user.groups,
            known.claimed_gpus,
            work,
            known.history.clocks_of(request.user_id, request.name, request.script),
            known.history.scaling_of(request.user_id, request.name, request.script),
            known.history.site_clocks,
            known.history.predicted_of(request.user_id, request.name, request.script),
        )
        if complaints:
            decision = replace(decision, notes=(*decision.notes, *complaints))
        entry = decision_entry(decision, time_limit_minutes(request, decision, snapshot))
        if request.count_options:
            least = time_limit_minutes(request, replace(decision, gpus=request.gpu_count), snapshot)  # longer for fewer
            entry = replace(entry, gpus=decision.gpus or request.gpu_count or None, min_limit_minutes=least)
        return Decided(decision=decision, job=request, entry=entry, complaints=complaints)

    def rehearse(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Decide on made-up jobs, one a step: what a policy does for the first time takes it longest.

        A policy in another process is rehearsed there, and not asked: what answers for it here is.
        """
        policy = self.policy.answering_here if isinstance(self.policy, RemotePolicy) else self.policy
        kind = type(policy)
        if kind is self._rehearsed:
            return
        if isinstance(policy, RehearsablePolicy):
            policy = policy.for_rehearsal(snapshot)
        now_seconds = snapshot.taken_at_seconds
        for partition in snapshot.partitions[:MAX_REHEARSED_PARTITIONS]:
            job = JobRequest(user_id=0, partitions=(partition.name,), gpus=(GpuDemand(count=1),))
            self._guard.decide(policy, job, snapshot, now_seconds)
            yield
        self._rehearsed = kind


def create_decider(config: Config) -> Decider:
    """Return the decider that the configuration asks for; a learned policy has no process yet.

    Raises:
        PolicyError: the policy does not exist or refuses its settings.
    """
    config = chosen_policy(config).config
    policy: Policy = remote_policy(config) if config.policy.name in LEARNED else create_policy(config)
    later = LaterStarts(config.facility)
    later.follow()
    return Decider(policy, Guard(config), later)


def time_limit_minutes(job: JobRequest, decision: EnergyDecision, snapshot: ClusterSnapshot | None) -> int | None:
    """Return the time limit the job will have: its own, else the shortest of the partitions it may start in.

    Those are its own partitions too: an answer is only put before them.
    """
    asked, gpus = job.gpu_count, decision.gpus or job.gpu_count
    if job.time_limit_minutes is not None:
        return max(1, math.ceil(scaled_limit(job.time_limit_minutes, asked, gpus) or 0.0))
    if snapshot is None:
        return None
    default = snapshot.default_partition
    own = job.partitions or (() if default is None else (default.name,))
    names = tuple(dict.fromkeys((*(decision.partitions or ()), *own)))
    known = [snapshot.partition_by_name[name] for name in names if name in snapshot.partition_by_name]
    limits = [partition.default_time_minutes or partition.max_time_minutes for partition in known]
    finite = [limit for limit in limits if limit is not None]
    if not finite or len(finite) != len(names):
        return None
    return max(1, math.ceil(scaled_limit(min(finite), asked, gpus) or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderstoodJob:
    """A job request and what in it could not be read."""

    request: JobRequest
    complaints: tuple[str, ...]


def job_request(job: SubmittedFields, now_seconds: float, user_name: str | None = None) -> UnderstoodJob:
    """Return the job as a policy sees it; what cannot be read is left out and listed, never an error."""
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
            start_before_seconds=_start_before(job, now_seconds, complaints),
            quiet=job.quiet,
            trials=job.trials,
            open=job.open,
            gpu_counts=job.gpu_counts,
        ),
        submitted_at_seconds=now_seconds,
        script=job.script,
    )
    counts = _counts(job, request)
    request = replace(request, **counts) if counts else request
    return UnderstoodJob(request=request, complaints=tuple(complaints))


def _counts(job: SubmittedFields, request: JobRequest) -> dict[str, Any]:
    """Return what Slurm's side offers of the numbers that the user named; it never offers another one."""
    if not job.gpu_counts:
        return {}
    named = tuple(option for option in job.count_options if option.gpus in job.gpu_counts)
    if len(request.gpus) != 1 or request.gpu_count not in {option.gpus for option in named}:
        return {"count_refusal": job.count_refusal or "the plugin of slurmctld offers no other number"}
    return {"count_options": named}


def _gpus(job: SubmittedFields, nodes: int, tasks: int | None, complaints: list[str]) -> tuple[GpuDemand, ...]:
    try:
        found = gpu_demands(
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
        if not found and job.tasks_per_gpu and job.tasks:  # --ntasks-per-gpu alone: Slurm works out the GPUs from it
            return (GpuDemand(count=job.tasks // job.tasks_per_gpu),)
        return found
    except ValueRangeError as error:
        complaints.append(str(error))
        return ()


def _deadline(job: SubmittedFields, now_seconds: float, complaints: list[str]) -> float | None:
    """Return the deadline; one that cannot be read, or that has passed, leaves no time to run slower."""
    if job.deadline is None:
        return None
    try:
        return parse_deadline(job.deadline, now_seconds)
    except ValueRangeError as error:
        complaints.append(str(error))
        return now_seconds


def _start_before(job: SubmittedFields, now_seconds: float, complaints: list[str]) -> float | None:
    """Return by when the job is to begin; None where that cannot be read: it begins as soon as it can."""
    if job.start_before is None:
        return None
    try:
        return parse_deadline(job.start_before, now_seconds, option="--energy-start-before")
    except ValueRangeError as error:
        complaints.append(str(error))
        return None


def _memory_per_node(job: SubmittedFields, nodes: int, tasks: int | None) -> float | None:
    if job.memory_per_node_mib:
        return job.memory_per_node_mib
    if not job.memory_per_cpu_mib:
        return None
    cpus = max((tasks or 1) * (job.cpus_per_task or 1), job.cpus_min or 1)
    return job.memory_per_cpu_mib * -(-cpus // nodes)
