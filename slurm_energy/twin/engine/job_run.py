"""A job's life in one run of the twin."""

from math import inf

from slurm_energy.twin.engine.job import Job

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
