"""The daemon's policies in the twin: asked at submission with a job request and a snapshot, behind the daemon's guard.

What the daemon would answer is what happens here, so that a policy is judged by the code that serves it. The answer is
a list of partitions and a clock for each GPU type; Slurm then starts the job in the first of them that has room. It
knows of a job what the daemon would know in any world: request, limit, and what ended runs of its name say; never its
kind, its length or its own curves.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import NamedTuple

from slurm_energy.config import Config
from slurm_energy.domain.decision import ClockChoice, EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.ids import DecisionId, GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.energy_model.catalog import BoardLimits, gpu_type_from_slurm_type
from slurm_energy.errors import PolicyError
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.job_history import RUNS_PER_NAME, CompareTypes, runtime_estimates
from slurm_energy.estimation.run_groups import RUNS_PER_TYPE, JobName, group_runs
from slurm_energy.estimation.work_model import work_estimates
from slurm_energy.policy.base import FollowingPolicy, Policy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, PlaceInfo, Placement, PlacementRule
from slurm_energy.policy.registry import create_policy
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.twin.adapters.knowledge import KnownEnd, known_end
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Job, JobRun
from slurm_energy.twin.snapshot.source import SnapshotSource

CLAMPING = frozenset(
    {
        Reason.SLOWDOWN_BOUND,
        Reason.TIME_LIMIT,
        Reason.DEADLINE,
        Reason.CLOCK_TABLE,
        Reason.PARTITION_NOT_ALLOWED,
        Reason.POLICY_ERROR,
    }
)
"""Reasons with which the guard says that it changed an answer."""
_FIRST_SECOND = 1.0
"""The twin's time 0 as the daemon's clock has it: Unix times begin above 0."""


class ServedPolicy(PlacementRule):
    """A policy of the daemon behind its guard; `reasons` counts what the guard said."""

    routes = True
    observes_ends = True

    def __init__(self, policy: Policy, config: Config) -> None:
        self.name = policy.name
        self.version = policy.version
        self.reasons: Counter[Reason] = Counter()
        self._policy = policy
        self._config = config
        self._guard = Guard(config, ids=partial(next, _ids()))
        self._decisions: dict[int, EnergyDecision] = {}
        self._gpu_types: list[GpuTypeName | None] = []
        self._without_default = False
        self._snapshots = SnapshotSource()
        self._limits = site_board_limits(config)
        self._runs = ServedRuns(self._limits)
        self._places: Sequence[PlaceInfo] = ()

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the last run."""
        self.reasons.clear()
        self.clamped = 0
        self._decisions.clear()
        self._snapshots = SnapshotSource()
        self._runs = ServedRuns(self._limits)
        self._places = view.places
        self._gpu_types = [gpu_type_from_slurm_type(place.device) for place in view.places]
        self._without_default = isinstance(view, TwinView) and not any(one.is_default for one in view.world.partitions)

    def route(self, job: WaitingJob, view: ClusterView) -> tuple[int, ...] | None:
        """Ask the policy, as the daemon does at submission; the job waits in the queue of its partitions."""
        if not isinstance(view, TwinView) or not isinstance(job, Job):
            raise PolicyError(f"policy {self.name} is served in the twin only")
        now = view.now_seconds + _FIRST_SECOND
        snapshot = self._snapshots.snapshot(view, now, without=job.job_id)
        if isinstance(self._policy, FollowingPolicy):
            self._policy.warm_up(snapshot)
        known = self._runs.about(job, view.now_seconds)
        decision = self._guard.decide(
            self._policy,
            self._request(job, view),
            snapshot,
            now,
            runtime=known.runtime,
            work=known.work if self._config.policy.learn_from_runs else None,
        )
        self.reasons.update(decision.reasons)
        self.clamped += not CLAMPING.isdisjoint(decision.reasons)
        self._decisions[job.job_id] = decision
        named = decision.partitions
        if named is None:
            return None
        # Named ones are only put before the job's own: where they have no room after all, it starts in one of those.
        own = view.allowed_places(job)
        return tuple(
            index for index, place in enumerate(view.places) if index in own or PartitionName(place.partition) in named
        )

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Start the job in the first of its partitions with room, at the clock chosen for the GPUs found there."""
        decision = self._decisions.get(job.job_id)
        room = view.room(job)
        named = () if decision is None else decision.partitions or ()
        later = len(named)
        order = {name: position for position, name in enumerate(named)}
        places = sorted(range(len(room)), key=lambda at: order.get(PartitionName(view.places[at].partition), later))
        for index in places:
            if room[index]:
                return Placement(index, room[index], self._clock(decision, index, view))
        return None

    def ended(self, job: EndedJob) -> None:
        """Learn from a job that ended, as the daemon does from its report."""
        decision = self._decisions.pop(job.job_id, None)
        gpu_type = self._gpu_types[job.place] if job.place >= 0 else None
        if gpu_type is None:
            return
        end = known_end(job) if isinstance(job, JobRun) else job
        if not isinstance(end, KnownEnd):
            return
        clocks = () if decision is None else decision.clocks  # runs from before the daemon was there had none
        chosen = next((clock for clock in clocks if clock.gpu_type == gpu_type), None)
        self._runs.learn(end, gpu_type, self._places[job.place], chosen)

    def _clock(self, decision: EnergyDecision | None, index: int, view: ClusterView) -> int:
        chosen = [] if decision is None else [c for c in decision.clocks if c.gpu_type == self._gpu_types[index]]
        return clock_index(chosen[0], view.places[index].relative_clocks) if chosen else -1

    def _request(self, job: Job, view: TwinView) -> JobRequest:
        """Return what Slurm would tell of a job; where no partition is the default, it is submitted to all of them."""
        request = job_request(job)
        if request.partitions or not self._without_default:
            return request
        return replace(request, partitions=tuple(PartitionName(partition.name) for partition in view.world.partitions))


def served_policy(name: str, config: Config | None = None) -> ServedPolicy:
    """Return a policy of the daemon's registry, ready for the twin.

    Raises:
        PolicyError: there is no policy of that name.
    """
    settings = config or Config()
    settings = replace(settings, policy=replace(settings.policy, name=name))
    return ServedPolicy(create_policy(settings), settings)


def job_request(job: Job) -> JobRequest:
    """Return a job of the twin as the daemon would get it from Slurm."""
    least, most = job.gpu_counts[0], job.gpu_counts[-1]
    return JobRequest(
        user_id=1000,
        name=job.name,
        script=job.script,
        user_name=job.user or None,
        account=job.account or None,
        partitions=tuple(PartitionName(name) for name in job.partitions),
        time_limit_minutes=job.time_limit_seconds / 60.0 if job.time_limit_seconds < inf else None,
        cpus_per_task=job.cpus or None,
        gpus=(
            GpuDemand(
                count=least,
                max_count=most if most > least else None,
                slurm_type=job.devices[0] if len(job.devices) == 1 else None,
            ),
        ),
        exclusive=job.exclusive,
        options=EnergyOptions(
            max_slowdown=min(job.max_slowdown, 2.0) if job.max_slowdown < inf else None,
            deadline_seconds=job.deadline_seconds + _FIRST_SECOND if job.deadline_seconds < inf else None,
        ),
        submitted_at_seconds=job.submitted_seconds + _FIRST_SECOND,
    )


def clock_index(choice: ClockChoice, relative_clocks: tuple[float, ...]) -> int:
    """Return the grid's clock nearest to a choice, as a share of the default clock; of two the higher."""
    wanted = choice.sm_clock_mhz / choice.default_clock_mhz * relative_clocks[-1]
    return min(range(len(relative_clocks)), key=lambda index: (abs(relative_clocks[index] - wanted), -index))


def _ids() -> Iterator[DecisionId]:
    """Yield decision ids in their order: the twin repeats itself exactly."""
    for number in count(1):
        yield DecisionId(f"{number:016x}")


_FAILED = frozenset({"FAILED", "TIMEOUT"})
_REFRESH_SECONDS, _LONGEST_SECONDS = 3600.0, 6 * 3600.0
_NEW_SHARE = 0.05
"""Between two looks at the runs, and how many new ones make a look worth its time before the longest pause is over. The
daemon looks every few minutes; names' mean figures move more slowly."""


class AboutJob(NamedTuple):
    """What the daemon knows of a job that is being submitted."""

    runtime: RuntimeEstimate | None
    work: WorkEstimate | None


class _TimedRun(NamedTuple):
    """A completed run, as the daemon finds it in the database."""

    user_id: int
    name: str
    script_key: str | None
    ended_at_seconds: float
    default_clock_seconds: float
    gpu_type: GpuTypeName | None


class ServedRuns:
    """Measured runs by name and GPU type, and what the daemon's own estimators say of each name."""

    def __init__(self, limits: BoardLimits) -> None:
        self._limits = limits
        self._runs: dict[tuple[JobName, GpuTypeName], deque[MeasuredRun]] = {}
        self._timed: dict[tuple[str, str, str | None], deque[_TimedRun]] = {}
        self._failures: list[FailedRuns] = []
        self._user_ids: dict[str, int] = {}
        self._work: Mapping[JobName, WorkEstimate] = {}
        self._runtimes: Mapping[tuple[int, str], RuntimeEstimate] = {}
        self._looked_seconds = -inf
        self._new, self._known = 0, 0
        """Runs since the last look, and all."""

    def learn(self, end: KnownEnd, gpu_type: GpuTypeName, place: PlaceInfo, clock: ClockChoice | None) -> None:
        """Take in a job that completed in one go at the clock that was decided, or failed; others say nothing.

        Args:
            end: What is known of it.
            gpu_type: On which it ran.
            place: Where it ran.
            clock: What was decided for the type, None for its default clock.
        """
        job = end.job
        name = JobName(job.user, job.name)
        if job.name and end.state in _FAILED:
            self._failures.append(
                FailedRuns(user=name.user, name=name.name, gpu_type=gpu_type, runs=1, script_key=_key(job))
            )
            self._new += 1
        seconds = end.ended_seconds - end.begun_seconds
        if end.state != "COMPLETED" or end.restarts or end.shared_gpu or not job.name or seconds <= 0.0:
            return
        joules = end.energy_joules - place.free_watts * end.gpus * (end.begun_seconds - end.started_seconds)
        if joules <= 0.0:
            return
        slowed, change = (0.0, 0.0) if clock is None else (clock.predicted_slowdown, clock.predicted_energy_change)
        at_default = seconds / (1.0 + slowed / 2.0)
        measured = MeasuredRun(
            user=name.user,
            name=name.name,
            gpu_type=gpu_type,
            gpus=end.gpus,
            seconds=at_default,
            watts=joules / (1.0 + change) / (at_default * end.gpus),
            ended_at_seconds=end.ended_seconds,
            slowed=slowed,
            script_key=_key(job),
        )
        self._runs.setdefault((name, gpu_type), deque(maxlen=RUNS_PER_TYPE)).append(measured)
        timed = _TimedRun(
            user_id=self._user_id(job.user),
            name=job.name,
            script_key=_key(job),
            ended_at_seconds=end.ended_seconds,
            default_clock_seconds=end.run_seconds / (1.0 + slowed),
            gpu_type=gpu_type,
        )
        key = (job.user, job.name, _key(job))
        self._timed.setdefault(key, deque(maxlen=RUNS_PER_NAME)).append(timed)
        self._new += 1

    def about(self, job: Job, now_seconds: float) -> AboutJob:
        """Return what is known of a job: from runs of its script's group, else of its name alone."""
        pause = _REFRESH_SECONDS if self._new > _NEW_SHARE * self._known else _LONGEST_SECONDS
        if self._new and now_seconds - self._looked_seconds >= pause:
            self._looked_seconds = now_seconds
            self._known, self._new = self._known + self._new, 0
            groups = group_runs((run for runs in self._runs.values() for run in runs), self._failures)
            self._work = dict(work_estimates(groups))
            samples = (run for runs in self._timed.values() for run in runs)
            self._runtimes = {
                (user, name): found for user, name, found in runtime_estimates(samples, self._compare_for)
            }
        if not job.name:
            return AboutJob(None, None)
        user_id = self._user_id(job.user)
        group = job_group(job.name, _key(job))
        runtime = self._runtimes.get((user_id, group)) or self._runtimes.get((user_id, job.name))
        work = self._work.get(JobName(job.user, group)) or self._work.get(JobName(job.user, job.name))
        return AboutJob(runtime, work)

    def _compare_for(self, user_id: int, name: str) -> CompareTypes:
        user = next((user for user, number in self._user_ids.items() if number == user_id), "")
        return TypeComparison(limits=self._limits, work=self._work.get(JobName(user, name))).cost

    def _user_id(self, user: str) -> int:
        return self._user_ids.setdefault(user, 1000 + len(self._user_ids))


def _key(job: Job) -> str | None:
    return None if job.script is None else job.script.key or None
