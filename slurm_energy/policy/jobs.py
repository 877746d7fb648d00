"""Jobs as a policy may know them: waiting, running and ended, and whom a waiting one could share a GPU with."""

from typing import NamedTuple, Protocol

from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.job import JobRequest


class KnownJob(Protocol):
    """Who a job is."""

    @property
    def job_id(self) -> int:
        """Slurm's number."""
        ...

    @property
    def kind(self) -> str:
        """Name of its curves, such as `training` or `bloom-backward`."""
        ...

    @property
    def account(self) -> str:
        """Account."""
        ...

    @property
    def name(self) -> str:
        """Job name; whatever the user wrote."""
        ...


class PlacedJob(Protocol):
    """What a job holds, or held."""

    @property
    def place(self) -> int:
        """Index of its place."""
        ...

    @property
    def gpus(self) -> int:
        """Devices that it holds."""
        ...

    @property
    def clock(self) -> int:
        """Index of its clock."""
        ...


class WaitingJob(KnownJob, Protocol):
    """What a rule may know of a job; the true amount of work is not among it."""

    @property
    def gpu_counts(self) -> tuple[int, ...]:
        """Device counts that it may run with, ascending."""
        ...

    @property
    def submitted_seconds(self) -> float:
        """Time of submission."""
        ...

    @property
    def estimated_units(self) -> float:
        """Work as estimated at submission; 1 unit is what `seconds_per_unit` speaks of."""
        ...

    @property
    def time_limit_seconds(self) -> float:
        """Infinite when there is none."""
        ...

    @property
    def deadline_seconds(self) -> float:
        """Absolute; infinite when there is none."""
        ...

    @property
    def max_slowdown(self) -> float:
        """Ratio to the run at the default clock; infinite when there is no bound."""
        ...

    @property
    def priority(self) -> float:
        """Higher goes first."""
        ...

    @property
    def user(self) -> str:
        """Who submitted it."""
        ...

    @property
    def routed_place(self) -> int | None:
        """Set by `route`; only this place is possible then."""
        ...


class RunningJob(PlacedJob, Protocol):
    """What a rule may know of a job that runs."""

    @property
    def job_id(self) -> int:
        """Slurm's number."""
        ...

    @property
    def started_seconds(self) -> float:
        """Time of its start."""
        ...

    @property
    def watts(self) -> float:
        """Power of its devices."""
        ...


class EndedJob(KnownJob, PlacedJob, Protocol):
    """What a rule learns when a job has ended: measured figures only."""

    @property
    def ended_seconds(self) -> float:
        """Time of its end."""
        ...

    @property
    def run_seconds(self) -> float:
        """Time that it held devices."""
        ...

    @property
    def energy_joules(self) -> float:
        """Measured energy of its devices."""
        ...

    @property
    def state(self) -> str:
        """Slurm's state in capitals: COMPLETED, TIMEOUT, FAILED, NODE_FAIL, CANCELLED."""
        ...

    @property
    def deadline_seconds(self) -> float:
        """By when it was to end; infinite when there was no deadline."""
        ...

    @property
    def units(self) -> float:
        """Work that was done, as the job itself reports it; 0 where jobs report none."""
        ...


class Submission(NamedTuple):
    """A job as it is shown by Slurm."""

    request: JobRequest
    now_seconds: float
    """Unix time."""
    runtime: RuntimeEstimate | None
    """What history says of its length at the default clock."""


class PartnerOffer(NamedTuple):
    """A job that runs alone on a GPU which the waiting job could share."""

    job_id: int
    place: int
    speed: float
    """What the waiting job would reach, relative to running alone at the same clock."""
    partner_speed: float
    """What would be left to the running job."""
    watts: float
    """Power of the GPU with both."""
    partner_watts: float
    """Its power now."""
