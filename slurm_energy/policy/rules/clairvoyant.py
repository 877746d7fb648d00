"""The adaptive price of one who knows how much work every job really has."""

from typing import Protocol, cast

from slurm_energy.policy.placement import WaitingJob
from slurm_energy.policy.rules.adaptive_price import AdaptivePriceRule
from slurm_energy.policy.rules.bounds import Bounds, bounds_of


class _KnownJob(Protocol):
    true_units: float


class ClairvoyantRule(AdaptivePriceRule):
    """`adaptive-price` with true work in place of estimates, and so without a margin on time limits and deadlines.

    It knows nothing of the future: not which jobs will come, nor what will fail. Outside the twin, where no job tells
    its true work, it takes the estimate.
    """

    name = "clairvoyant"

    def bounds(self, job: WaitingJob, now_seconds: float) -> Bounds | None:
        """Return the bounds for the true work, with no more margin than rounding needs."""
        return bounds_of(job, now_seconds, units=self.units(job), margin=1e-6)

    def units(self, job: WaitingJob) -> float:
        """Return the true work."""
        known = cast(_KnownJob, job)
        return known.true_units if hasattr(job, "true_units") else job.estimated_units
