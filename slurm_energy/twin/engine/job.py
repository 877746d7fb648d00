"""Jobs as a workload has them, and the life of each in one run of the twin."""

from dataclasses import dataclass
from math import inf, isfinite, isnan
from operator import le
from sys import float_info

from slurm_energy.domain.job import scaled_limit
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import ValueRangeError


@dataclass(kw_only=True, eq=False)
class Job:
    """One job (an array task is one). The engine alone reads `true_units`; rules see the rest.

    Dependencies name other jobs of the same workload by id. What was not given lies in the class, so that `plain_job`
    need not store it: a week of arrivals is made in a fraction of a second.
    """

    job_id: int
    submitted_seconds: float
    true_units: float
    """Work, in units of its kind's `seconds_per_unit`."""
    kind: str = "training"
    gpu_counts: tuple[int, ...] = (1,)
    """Ascending; more than one for a malleable request."""
    asked_gpus: int = 0
    """Of a malleable request, what it asks for beside the range, as --energy-gpus has it; 0: nothing is said."""
    range_counts: tuple[int, ...] = ()
    """Of such a request whose number was fixed at submission in this run: what it may run with in the next one."""
    asked_limit_seconds: float = 0.0
    """Its limit as it was submitted, where that follows a number that was fixed in this run; 0: it does not."""
    estimated_units: float = -1.0
    """As the submission's estimate has it; negative stands for the truth."""
    time_limit_seconds: float = inf
    """Slurm's limit: longer runs end TIMEOUT."""
    deadline_seconds: float = inf
    """Absolute time by which it should have ended."""
    max_slowdown: float = inf
    priority: float = 0.0
    """Higher goes first."""
    partitions: tuple[str, ...] = ()
    """Asked for; empty for the default partition, or for all where the world has no default."""
    open: bool | None = None
    """Whether the partitions asked for are a preference, as --energy-open has it; None: as the site has it."""
    devices: tuple[str, ...] = ()
    """GPU types asked for; empty for any."""
    cpus: int = 0
    memory_gib: float = 0.0
    exclusive: bool = False
    """Takes whole nodes."""
    spread: bool = False
    """May take single GPUs of any nodes; else it packs onto as few nodes as hold it."""
    shareable: bool = False
    """May share one GPU with another job."""
    after_ok: tuple[int, ...] = ()
    after_any: tuple[int, ...] = ()
    input_gigabytes: float = 0.0
    """Staged in before the run, from the ingress or from the jobs it depends on when those ran on other nodes."""
    array_id: int | None = None
    array_limit: int = 0
    """Tasks of the array that may run at once (--array=…%N); 0 for no limit."""
    requeue: bool = True
    fails_after_units: float = inf
    """The job itself fails (exit code not 0) after so much work."""
    checkpoint_units: float = inf
    """A requeued job repeats at most so much work; infinite starts over."""
    user: str = ""
    account: str = ""
    name: str = ""
    script: ScriptFeatures | None = None
    """What was read of its script at submission."""
    ingress: int = 0
    routed_place: int | None = None
    is_plain = False
    """Made by `plain_job` and not changed since: no limit, deadline, dependency, constraint or data."""

    def __post_init__(self) -> None:
        if self.estimated_units < 0.0:
            self.estimated_units = self.true_units


def plain_job(
    job_id: int, submitted_seconds: float, true_units: float, kind: str, gpu_counts: tuple[int, ...], ingress: int
) -> Job:
    """Return a job with nothing but these, faster than the constructor; the engine too has less to look at."""
    job = _new_job(Job)
    job.is_plain = True
    job.job_id = job_id
    job.submitted_seconds = submitted_seconds
    job.true_units = job.estimated_units = true_units
    job.kind = kind
    job.gpu_counts = gpu_counts
    job.ingress = ingress
    return job


_new_job = object.__new__


def fix_gpus(job: Job, gpus: int) -> None:
    """Give a job one number of GPUs for the rest of this run, and the time limit that goes with it, as in Slurm."""
    job.range_counts, job.gpu_counts = job.range_counts or job.gpu_counts, (gpus,)
    asked_seconds = job.asked_limit_seconds or job.time_limit_seconds
    if job.asked_gpus and asked_seconds < inf:
        minutes = scaled_limit(asked_seconds / 60.0, job.asked_gpus, gpus)
        assert minutes is not None
        job.asked_limit_seconds, job.time_limit_seconds = asked_seconds, 60.0 * minutes


def check_job(job: Job) -> None:
    """Raise ValueRangeError naming what cannot be, for jobs from files; generators make only good ones."""
    if not (isfinite(job.submitted_seconds) and job.submitted_seconds >= 0.0):
        raise ValueRangeError(f"job {job.job_id}: submit time {job.submitted_seconds} s is not a number from 0 up")
    if not (isfinite(job.true_units) and job.true_units >= 0.0):
        raise ValueRangeError(f"job {job.job_id}: work {job.true_units} is not a finite number from 0 up")
    if not job.gpu_counts or list(job.gpu_counts) != sorted(set(job.gpu_counts)) or job.gpu_counts[0] < 1:
        raise ValueRangeError(f"job {job.job_id}: device counts {job.gpu_counts[:8]} are not ascending from 1 up")
    if not job.time_limit_seconds > 0.0:
        raise ValueRangeError(f"job {job.job_id}: time limit {job.time_limit_seconds} s is not above 0")
    if not job.checkpoint_units > 0.0:
        raise ValueRangeError(f"job {job.job_id}: {job.checkpoint_units} units between checkpoints are not above 0")
    for name in (
        "cpus",
        "memory_gib",
        "input_gigabytes",
        "array_limit",
        "ingress",
        "max_slowdown",
        "fails_after_units",
    ):
        if not getattr(job, name) >= 0.0:
            raise ValueRangeError(f"job {job.job_id}: {name}={getattr(job, name)} is not a number from 0 up")
    if not isfinite(job.priority) or isnan(job.deadline_seconds) or not isfinite(job.estimated_units):
        raise ValueRangeError(
            f"job {job.job_id}: priority {job.priority}, estimate {job.estimated_units} or deadline "
            f"{job.deadline_seconds} is no number that can be compared"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in the order of their submission.

    Raises:
        ValueRangeError: a job comes before the one in front of it.
    """

    name: str
    jobs: tuple[Job, ...]
    source: str = ""
    bad_rows: int = 0
    """Rows of the source that were left out because they could not be read."""

    def __post_init__(self) -> None:
        times = [job.submitted_seconds for job in self.jobs]
        if all(map(le, [0.0, *times], [*times, float_info.max])):
            return
        before = 0.0
        for job in self.jobs:
            if not before <= job.submitted_seconds < inf:
                raise ValueRangeError(
                    f"workload {self.name}: job {job.job_id} is submitted at {job.submitted_seconds} s, which is not a "
                    f"finite time from {before} s up: jobs are ordered by their submission, from time 0"
                )
            before = job.submitted_seconds


WAITING, STARTING, COMPUTING, ENDED, HELD = range(5)
"""HELD waits for a dependency, a slot of its array or its way; STARTING has its devices and does not compute yet."""

Allocation = list[tuple[int, int, int]]
"""(node, devices used, devices taken out of use) by node; empty in pools that do not tell nodes apart."""

_NO_NODES: Allocation = []


class JobRun:
    """State and record of one job; what rules see of running and ended jobs are its attributes.

    What most jobs never need lies in the class and gets a place of its own only when it is set.
    """

    __slots__ = (
        "__dict__",
        "allowed",
        "begun_seconds",
        "clock",
        "eligible_seconds",
        "ended_seconds",
        "energy_joules",
        "first_started_seconds",
        "gpus",
        "job",
        "job_id",
        "limit_at_seconds",
        "phase",
        "place",
        "queue_key",
        "set_clock",
        "started_seconds",
        "state",
        "units_done",
        "units_per_second",
        "updated_seconds",
        "version",
        "watts",
    )

    run_seconds_before = gpu_seconds_before = 0.0
    """Of the starts that failed devices cut short."""
    allocation: Allocation = _NO_NODES
    partner: "JobRun | None" = None
    """The job with which it shares a GPU."""
    starting_watts = 0.0
    """Of each device that it holds on a node that is up, until it computes."""
    coming_watts = 0.0
    """What computing will add to its power; 0 once it computes."""
    expected_end_seconds = inf
    units_kept = 0.0
    """Saved by checkpoints before the last start."""
    units_lost = 0.0
    restarts = 0
    parents_left = 0
    power_cap_watts = inf
    """Per device, while heat limits it."""
    temperature_celsius = 0.0

    def __init__(self, job: Job) -> None:
        self.job = job
        self.job_id = job.job_id
        self.eligible_seconds = job.submitted_seconds
        self.phase = HELD
        self.state = "PENDING"
        """Slurm's state; of a job that runs, the state in which it will end if nothing changes."""
        never = inf  # a local, and no chains of `=`: these lines are run for every job
        self.place = -1
        self.gpus = 0
        self.clock = -1
        """What the board keeps: at or below the one that was set."""
        self.set_clock = -1
        self.first_started_seconds = never
        self.started_seconds = never
        self.begun_seconds = never
        self.ended_seconds = never
        self.limit_at_seconds = never
        self.updated_seconds = 0.0
        self.watts = 0.0
        self.units_per_second = 0.0
        self.units_done = 0.0
        """Since the last start."""
        self.energy_joules = 0.0
        """Of all starts together."""
        self.version = 0
        """Grows with every change of the job's future: an event of an older version means nothing."""
        self.allowed: tuple[int, ...] = ()
        """Places that request, partition and device allow."""
        self.queue_key: tuple[float, float, int]
        """What orders its queue, once it waits."""

    @property
    def kind(self) -> str:
        """Kind of its work."""
        return self.job.kind

    @property
    def account(self) -> str:
        """The job's account."""
        return self.job.account

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def deadline_seconds(self) -> float:
        """By when it is to end; infinite when there is no deadline."""
        return self.job.deadline_seconds

    @property
    def units(self) -> float:
        """Work that was done and kept."""
        return self.units_kept + self.units_done

    @property
    def run_seconds(self) -> float:
        """Time that it held devices in all starts that are over, staging and waking in it."""
        return self.run_seconds_before + self._last_held_seconds

    @property
    def gpu_seconds(self) -> float:
        """The same times its devices."""
        return self.gpu_seconds_before + self.gpus * self._last_held_seconds

    @property
    def _last_held_seconds(self) -> float:
        """Of the start with which it ended; 0 for a job that runs or holds nothing."""
        return self.ended_seconds - self.started_seconds if self.phase == ENDED and self.place >= 0 else 0.0

    def settle(self, now: float) -> None:
        """Account energy and work since the last change."""
        seconds = now - self.updated_seconds
        if seconds > 0.0:
            self.energy_joules += self.watts * seconds
            self.units_done += self.units_per_second * seconds
        self.updated_seconds = now


class Staging:
    """Data that a job waits for before it computes."""

    __slots__ = ("joules", "seconds")

    def __init__(self, seconds: float = 0.0, joules: float = 0.0) -> None:
        self.seconds, self.joules = seconds, joules


NO_STAGING = Staging()
