"""The daemon's policies in the twin: asked at submission with a job request and a snapshot, behind the daemon's guard.

What the daemon would answer is what happens here, so that a policy is judged by the code that serves it. The answer is
a list of partitions and a clock for each GPU type; Slurm then starts the job in the first of them that has room.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from random import Random

from slurm_energy.config import Config
from slurm_energy.domain.decision import ClockChoice, EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import DecisionId, GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.energy_model.catalog import gpu_type_from_slurm_type
from slurm_energy.errors import PolicyError
from slurm_energy.estimation.gpu_scaling import scaling_of_runs
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.run_groups import RUNS_PER_TYPE, JobName, group_runs
from slurm_energy.estimation.work_model import work_estimates
from slurm_energy.policy.base import FollowingPolicy, Policy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, PlaceInfo, Placement, PlacementRule
from slurm_energy.policy.registry import create_policy
from slurm_energy.twin.adapters.view import TwinView, job_request
from slurm_energy.twin.engine.job import Job, JobRun

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
        self._runs = ServedRuns()
        self._places: Sequence[PlaceInfo] = ()

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the last run."""
        self.reasons.clear()
        self.clamped = 0
        self._decisions.clear()
        self._runs = ServedRuns()
        self._places = view.places
        self._gpu_types = [gpu_type_from_slurm_type(place.device) for place in view.places]
        self._without_default = isinstance(view, TwinView) and not any(one.is_default for one in view.world.partitions)

    def route(self, job: WaitingJob, view: ClusterView) -> tuple[int, ...] | None:
        """Ask the policy, as the daemon does at submission; the job waits in the queue of its partitions."""
        if not isinstance(view, TwinView) or not isinstance(job, Job):
            raise PolicyError(f"policy {self.name} is served in the twin only")
        snapshot = view.snapshot_without(job)
        if isinstance(self._policy, FollowingPolicy):
            self._policy.warm_up(snapshot)
        decision = self._guard.decide(
            self._policy,
            self._request(job, view),
            snapshot,
            snapshot.taken_at_seconds,
            runtime=self._estimate(job, view),
            work=self._runs.estimate(job, view.now_seconds) if self._config.policy.learn_from_runs else None,
            scaling=self._runs.scaling(job) if job.asked_gpus else None,
        )
        if job.asked_gpus:  # as in Slurm, the number is fixed when the job is submitted
            job.range_counts, job.gpu_counts = job.gpu_counts, (decision.gpus or job.asked_gpus,)
        self.reasons.update(decision.reasons)
        self.clamped += not CLAMPING.isdisjoint(decision.reasons)
        self._decisions[job.job_id] = decision
        named = decision.partitions
        if named is None:
            return None
        return tuple(index for index, place in enumerate(view.places) if PartitionName(place.partition) in named)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Start the job in the first of its partitions with room, at the clock chosen for the GPUs found there."""
        decision = self._decisions.get(job.job_id)
        room = view.room(job)
        for index in range(len(view.places)):
            if room[index]:
                return Placement(index, room[index], self._clock(decision, index, view))
        return None

    def ended(self, job: EndedJob) -> None:
        """Learn from a job that ended, as the daemon does from its report."""
        decision = self._decisions.pop(job.job_id, None)
        gpu_type = self._gpu_types[job.place] if job.place >= 0 else None
        if decision is None or gpu_type is None or not isinstance(job, JobRun):
            return
        chosen = next((clock for clock in decision.clocks if clock.gpu_type == gpu_type), None)
        self._runs.learn(job, gpu_type, self._places[job.place], chosen)

    def _clock(self, decision: EnergyDecision | None, index: int, view: ClusterView) -> int:
        chosen = [] if decision is None else [c for c in decision.clocks if c.gpu_type == self._gpu_types[index]]
        return clock_index(chosen[0], view.places[index].relative_clocks) if chosen else -1

    def _request(self, job: Job, view: TwinView) -> JobRequest:
        """Return what Slurm would tell of a job; where no partition is the default, it is submitted to all of them."""
        request = job_request(job)
        if request.partitions or not self._without_default:
            return request
        return replace(request, partitions=tuple(PartitionName(partition.name) for partition in view.world.partitions))

    def _estimate(self, job: WaitingJob, view: ClusterView) -> RuntimeEstimate:
        """Return the job's run time at the default clock of the place where it would start first."""
        table = view.options(job)
        asked = job.asked_gpus if isinstance(job, Job) else 0
        counts = slice(None) if not asked else slice(at := table.count_index(asked), at + 1)
        seconds = table.seconds_per_unit[:, counts]
        fastest, where = inf, None
        for place in view.allowed_places(job):
            last = len(view.places[place].relative_clocks) - 1
            least = float(seconds[place, :, last].min())
            if least < fastest:
                fastest, where = least, place
        expected = job.estimated_units * fastest if fastest < inf else 0.0
        return RuntimeEstimate(
            seconds=expected,
            upper_seconds=expected,
            source="history",
            gpu_type=None if where is None else self._gpu_types[where],
            gpus=asked or None,
        )


def served_policy(name: str, config: Config | None = None) -> ServedPolicy:
    """Return a policy of the daemon's registry, ready for the twin.

    Raises:
        PolicyError: there is no policy of that name.
    """
    settings = config or Config()
    settings = replace(settings, policy=replace(settings.policy, name=name))
    return ServedPolicy(create_policy(settings), settings)


def clock_index(choice: ClockChoice, relative_clocks: tuple[float, ...]) -> int:
    """Return the grid's clock nearest to a choice, as a share of the default clock; of two the higher."""
    wanted = choice.sm_clock_mhz / choice.default_clock_mhz * relative_clocks[-1]
    return min(range(len(relative_clocks)), key=lambda index: (abs(relative_clocks[index] - wanted), -index))


def _ids() -> Iterator[DecisionId]:
    """Yield decision ids in their order: the twin repeats itself exactly."""
    for number in count(1):
        yield DecisionId(f"{number:016x}")


_FAILED = frozenset({"FAILED", "TIMEOUT"})
_REFRESH_SECONDS = 3600.0
"""Between two looks at the runs. The daemon looks every few minutes; names' mean figures move more slowly."""


class ServedRuns:
    """Measured runs by name and GPU type, and what they say of each name."""

    def __init__(self) -> None:
        self._runs: dict[tuple[JobName, GpuTypeName], deque[MeasuredRun]] = {}
        self._failures: list[FailedRuns] = []
        self._estimates: Mapping[JobName, WorkEstimate] = {}
        self._seconds: dict[JobName, dict[int, deque[float]]] = {}
        """Run times at the default clock by number of GPUs."""
        self._looked_seconds = 0.0
        self._is_new = False

    def learn(self, run: JobRun, gpu_type: GpuTypeName, place: PlaceInfo, clock: ClockChoice | None) -> None:
        """Take in a job that completed in one go at the clock that was decided, or failed; others say nothing.

        Args:
            run: As the twin has it.
            gpu_type: On which it ran.
            place: Where it ran.
            clock: What was decided for the type, None for its default clock.
        """
        name = JobName(run.job.user, run.name)
        if run.name and run.state in _FAILED:
            self._failures.append(
                FailedRuns(user=name.user, name=name.name, gpu_type=gpu_type, runs=1, script_key=_key(run.job))
            )
            self._is_new = True
        seconds = run.ended_seconds - run.begun_seconds
        if run.state != "COMPLETED" or run.restarts or run.partner is not None or not run.name or seconds <= 0.0:
            return
        starting = place.free_watts * run.gpus * (run.begun_seconds - run.started_seconds)
        joules = run.energy_joules - starting
        if joules <= 0.0:
            return
        slowed, change = (0.0, 0.0) if clock is None else (clock.predicted_slowdown, clock.predicted_energy_change)
        at_default = seconds / (1.0 + slowed / 2.0)
        if run.job.asked_gpus:
            by_count = self._seconds.setdefault(JobName(name.user, job_group(name.name, _key(run.job))), {})
            by_count.setdefault(run.gpus, deque(maxlen=RUNS_PER_TYPE)).append(at_default)
        measured = MeasuredRun(
            user=name.user,
            name=name.name,
            gpu_type=gpu_type,
            gpus=run.gpus,
            seconds=at_default,
            watts=joules / (1.0 + change) / (at_default * run.gpus),
            ended_at_seconds=run.ended_seconds,
            slowed=slowed,
            script_key=_key(run.job),
        )
        self._runs.setdefault((name, gpu_type), deque(maxlen=RUNS_PER_TYPE)).append(measured)
        self._is_new = True

    def scaling(self, job: Job) -> GpuScaling | None:
        """Return how a job's work scales, None for a name that ran with one number of GPUs or never."""
        return scaling_of_runs(self._seconds.get(JobName(job.user, job_group(job.name, _key(job))), {}))

    def estimate(self, job: Job, now_seconds: float) -> WorkEstimate | None:
        """Return what is known of a job's name."""
        if self._is_new and now_seconds - self._looked_seconds >= _REFRESH_SECONDS:
            self._looked_seconds, self._is_new = now_seconds, False
            groups = group_runs((run for runs in self._runs.values() for run in runs), self._failures)
            self._estimates = dict(work_estimates(groups))
        group = self._estimates.get(JobName(job.user, job_group(job.name, _key(job)))) if job.name else None
        return group or (self._estimates.get(JobName(job.user, job.name)) if job.name else None)


def _key(job: Job) -> str | None:
    return None if job.script is None else job.script.key or None
