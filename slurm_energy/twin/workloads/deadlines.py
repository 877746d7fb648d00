"""Jobs with deadlines and time limits: the load of a day, all jobs or a share of them due some time after they came."""

from dataclasses import dataclass
from math import exp, log

import numpy as np

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads.settings import check_range
from slurm_energy.twin.workloads.streams import workload_streams
from slurm_energy.twin.workloads.time_limits import round_limit_seconds
from slurm_energy.twin.workloads.varying import DailySettings, daily_workload

_FIRST_FREE_STREAM = 4
"""Arrivals, sizes, kinds and counts have the ones before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSettings(DailySettings):
    """As `daily`; a job is due at submission + slack x its run on reference devices, as few as it asks for."""

    deadline_share: float = 1.0
    """Of the jobs that have a deadline."""
    least_slack: float = 1.5
    most_slack: float = 6.0
    """Slack is uniform in its logarithm between the two; below 1 only more devices than one can meet the deadline."""
    reference_seconds_per_unit: float = 1.0
    """Of one reference device at its default clock; n devices are n times as fast."""
    limit_seconds_per_unit: float = 0.0
    """Of the device that time limits are drawn for, as `time_limits` has it; 0 for no limits."""

    def __post_init__(self) -> None:
        DailySettings.__post_init__(self)
        check_range("deadline_share", self.deadline_share, 0.0, 1.0)
        check_range("least_slack", self.least_slack, 0.0, above=True)
        check_range("most_slack", self.most_slack, 0.0, above=True)
        check_range("limit_seconds_per_unit", self.limit_seconds_per_unit, 0.0)
        check_range("reference_seconds_per_unit", self.reference_seconds_per_unit, 0.0, above=True)
        if self.most_slack < self.least_slack:
            raise ConfigError(
                f"workload setting most_slack={self.most_slack:g} is below least_slack={self.least_slack:g}"
            )


def deadlines_workload(settings: DeadlineSettings, seed: int) -> Workload:
    """Return the jobs of `daily_workload` with deadlines; arrivals and sizes are the same as there.

    Raises:
        ConfigError: the seed is negative.
    """
    daily = daily_workload(settings, seed)
    stream = workload_streams(seed, _FIRST_FREE_STREAM + 1)[_FIRST_FREE_STREAM]
    draws = np.random.default_rng(stream).random((len(daily.jobs), 3)).tolist()
    span = log(settings.most_slack / settings.least_slack)
    for job, (share, position, limit) in zip(daily.jobs, draws, strict=True):
        if share < settings.deadline_share:
            slack = settings.least_slack * exp(span * position)
            run_seconds = job.true_units * settings.reference_seconds_per_unit / job.gpu_counts[0]
            job.deadline_seconds = job.submitted_seconds + slack * run_seconds
            job.is_plain = False
        if settings.limit_seconds_per_unit > 0.0:
            run_seconds = job.true_units * settings.limit_seconds_per_unit / job.gpu_counts[0]
            job.time_limit_seconds = round_limit_seconds(run_seconds, limit)
            job.is_plain = False
    return Workload(name="deadlines", jobs=daily.jobs, source=f"generator deadlines, seed {seed}")
