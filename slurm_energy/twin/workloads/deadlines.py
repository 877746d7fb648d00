"""Deadlines and time limits of jobs: assumptions of this package, drawn with a seed.

The generator `deadlines` is the load of a day, all jobs or a share of them due some time after they came.
"""

from dataclasses import dataclass
from math import exp, inf, log

import numpy as np

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads.arrivals import DailySettings, daily_workload
from slurm_energy.twin.workloads.generating import check_range, round_limit_seconds, round_up_limit, workload_streams
from slurm_energy.twin.workloads.habits import LONGEST_LIMIT_SECONDS
from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import DeviceModel, Load, Scaling


def with_limits_for_every_device(workload: Workload, world: World, reference: DeviceModel) -> Workload:
    """Return the workload with limits that are long enough on the world's slowest device too.

    A user whose job may land on any of several GPU types asks for the time that the slowest takes. The jobs are changed
    in place; limits stay round.

    Args:
        workload: Jobs whose limits were drawn for the reference device.
        world: Its devices.
        reference: The device for which the run times of the trace are taken.
    """
    slowest = {
        kind: max(device.loads[kind].seconds_per_unit[-1] for device in world.devices.values() if kind in device.loads)
        / load.seconds_per_unit[-1]
        for kind, load in reference.loads.items()
    }
    for job in workload.jobs:
        factor = slowest.get(job.kind, 1.0)
        if factor > 1.0 and job.time_limit_seconds < inf:
            job.time_limit_seconds = round_up_limit(job.time_limit_seconds * factor)
    return workload


def with_limits_for_asked_partitions(workload: Workload, world: World, reference: DeviceModel) -> Workload:
    """Return the workload with limits for the slowest device on which each job may land, at its default clock.

    Users know which partitions they name, and what work loses on the number of devices that they ask for. Who asks for
    the longest limit anyway keeps it. Changed in place, and round.

    Args:
        workload: Jobs whose limits were drawn for the reference device.
        world: Its partitions.
        reference: The device that users' runs were taken on.
    """
    device_of = {pool.name: world.devices[pool.device] for pool in world.pools}
    devices = {one.name: [device_of[pool] for pool in one.pools] for one in world.partitions}
    for job in workload.jobs:
        if not job.time_limit_seconds < LONGEST_LIMIT_SECONDS or job.kind not in reference.loads:
            continue
        loads = [
            device.loads[job.kind]
            for name in job.partitions or devices
            for device in devices.get(name, ())
            if job.kind in device.loads
        ]
        slowest = max((load.seconds_per_unit[-1] * _loss(load, job) for load in loads), default=0.0)
        factor = slowest / reference.loads[job.kind].seconds_per_unit[-1]
        if factor > 0.0:
            job.time_limit_seconds = round_up_limit(job.time_limit_seconds * factor)
    return workload


def _loss(load: Load, job: Job) -> float:
    """Return how much more device-time work takes on a job's own number of devices than on one."""
    gpus = job.asked_gpus or job.gpu_counts[0]
    return 1.0 if load.scaling == Scaling() else load.scaling.seconds(1.0, gpus) * gpus


_FIRST_FREE_STREAM = 4
"""Arrivals, sizes, kinds and counts have the ones before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSettings(DailySettings):
    """As `daily`; a job is due at submission + slack x its run on reference devices, as few as it asks for."""

    deadline_share: float = 1.0
    """Of the jobs that have a deadline."""
    min_slack: float = 1.5
    max_slack: float = 6.0
    """Slack is uniform in its logarithm between the two; below 1 only more devices than one can meet the deadline."""
    reference_seconds_per_unit: float = 1.0
    """Of one reference device at its default clock; n devices are n times as fast."""
    limit_seconds_per_unit: float = 0.0
    """Of the device that time limits are drawn for, see `round_limit_seconds`; 0 for no limits."""

    def __post_init__(self) -> None:
        DailySettings.__post_init__(self)
        check_range("deadline_share", self.deadline_share, 0.0, 1.0)
        check_range("min_slack", self.min_slack, 0.0, above=True)
        check_range("max_slack", self.max_slack, 0.0, above=True)
        check_range("limit_seconds_per_unit", self.limit_seconds_per_unit, 0.0)
        check_range("reference_seconds_per_unit", self.reference_seconds_per_unit, 0.0, above=True)
        if self.max_slack < self.min_slack:
            raise ConfigError(f"workload setting max_slack={self.max_slack:g} is below min_slack={self.min_slack:g}")


def deadlines_workload(settings: DeadlineSettings, seed: int) -> Workload:
    """Return the jobs of `daily_workload` with deadlines; arrivals and sizes are the same as there.

    Raises:
        ConfigError: the seed is negative.
    """
    daily = daily_workload(settings, seed)
    stream = workload_streams(seed, _FIRST_FREE_STREAM + 1)[_FIRST_FREE_STREAM]
    draws = np.random.default_rng(stream).random((len(daily.jobs), 3)).tolist()
    span = log(settings.max_slack / settings.min_slack)
    for job, (share, position, limit) in zip(daily.jobs, draws, strict=True):
        if share < settings.deadline_share:
            slack = settings.min_slack * exp(span * position)
            run_seconds = job.true_units * settings.reference_seconds_per_unit / job.gpu_counts[0]
            job.deadline_seconds = job.submitted_seconds + slack * run_seconds
            job.is_plain = False
        if settings.limit_seconds_per_unit > 0.0:
            run_seconds = job.true_units * settings.limit_seconds_per_unit / job.gpu_counts[0]
            job.time_limit_seconds = round_limit_seconds(run_seconds, limit)
            job.is_plain = False
    return Workload(name="deadlines", jobs=daily.jobs, source=f"generator deadlines, seed {seed}")
