"""Time limits and estimates for traces that lack them: assumptions of this package, drawn with a seed."""

from math import ceil, exp, inf, log

import numpy as np

from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import DeviceModel

ROUND_SECONDS = tuple(
    value * 60.0
    for value in (15, 30, 60, 120, 240, 480, 720, 1440, 2880, 4320, 7200, 10_080, 20_160, 43_200)  # minutes
)
"""Limits that users write: 15 minutes to 30 days; users prefer few round values (Tsafrir et al., 2007)."""
MIN_MARGIN, MAX_MARGIN = 1.1, 5.0


def round_limit_seconds(run_seconds: float, draw: float) -> float:
    """Return a limit for a run: a margin of 1.1 to 5, uniform in its logarithm, rounded up to a round value.

    Args:
        run_seconds: At the default clock of the reference device.
        draw: In [0, 1).
    """
    return _round_up(run_seconds * MIN_MARGIN * exp(draw * log(MAX_MARGIN / MIN_MARGIN)))


def _round_up(seconds: float) -> float:
    days_30 = ROUND_SECONDS[-1]
    return next((value for value in ROUND_SECONDS if value >= seconds), ceil(seconds / days_30) * days_30)


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
            job.time_limit_seconds = _round_up(job.time_limit_seconds * factor)
    return workload


def with_estimate_errors(workload: Workload, sigma: float, seed: int) -> Workload:
    """Return the workload with estimates that are wrong: the truth times a log-normal factor of median 1.

    The jobs are changed in place.

    Args:
        workload: Its jobs' estimates are replaced.
        sigma: Standard deviation of the factor's logarithm; 0 gives the truth.
        seed: Of the factors.
    """
    factors = np.random.default_rng(seed).lognormal(0.0, sigma, len(workload.jobs))
    for job, factor in zip(workload.jobs, factors.tolist(), strict=True):
        job.estimated_units = job.true_units * factor
        job.is_plain = False
    return workload
