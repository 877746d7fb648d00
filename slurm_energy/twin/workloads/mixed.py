"""Training jobs that can wait beside inference batches that cannot: a deadline soon after submission, and priority."""

from dataclasses import dataclass

from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads.settings import check_range
from slurm_energy.twin.workloads.varying import DailySettings, daily_workload

_REQUEST_SEED_STEP = 500_000_000
"""Far beyond any seed that is used: the batches' streams are those of another seed, and not the training jobs'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSettings(DailySettings):
    """Training jobs as `daily` has them, and inference batches with a rhythm of their own."""

    request_kind: str = "inference"
    request_rate_per_second: float = 0.04
    """Mean arrivals of batches at each ingress."""
    request_amplitude: float = 0.6
    request_period_seconds: float = 86_400.0
    request_median_units: float = 20_000.0
    request_size_sigma: float = 0.3
    request_max_gpus: int = 8
    request_deadline_seconds: float = 300.0
    """After submission."""
    request_priority: float = 1.0
    """Training jobs have 0."""

    def __post_init__(self) -> None:
        DailySettings.__post_init__(self)
        check_range("request_deadline_seconds", self.request_deadline_seconds, 0.0, above=True)
        check_range("request_priority", self.request_priority, -1e9, 1e9)
        _ = self.requests

    @property
    def requests(self) -> DailySettings:
        """The batches as a workload of their own."""
        return DailySettings(
            rate_per_second=self.request_rate_per_second,
            ingresses=self.ingresses,
            hours=self.hours,
            median_units=self.request_median_units,
            size_sigma=self.request_size_sigma,
            kind=self.request_kind,
            max_gpus=self.request_max_gpus,
            amplitude=self.request_amplitude,
            period_seconds=self.request_period_seconds,
            shift_hours=self.shift_hours,
        )


def mixed_workload(settings: MixedSettings, seed: int) -> Workload:
    """Return both kinds of jobs in the order of time, numbered from 1.

    Raises:
        ConfigError: the seed is negative.
    """
    training = daily_workload(settings, seed).jobs
    requests = daily_workload(settings.requests, seed + _REQUEST_SEED_STEP).jobs
    for job in requests:
        job.deadline_seconds = job.submitted_seconds + settings.request_deadline_seconds
        job.priority = settings.request_priority
        job.is_plain = False
    ordered = sorted((*training, *requests), key=_time)
    for number, job in enumerate(ordered, start=1):
        job.job_id = number
    return Workload(name="mixed", jobs=tuple(ordered), source=f"generator mixed, seed {seed}")


def _time(job: Job) -> float:
    return job.submitted_seconds
