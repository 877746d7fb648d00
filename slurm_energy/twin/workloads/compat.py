"""Arrivals drawn as they are needed from one stream shared with the policy, as the published simulator did.

There every routing draw shifts all later sizes and gaps, so policies do not meet the same jobs: this is for repeating
published figures only. Order of draws, from `random.Random(seed)`: a first gap for each ingress in turn; then for every
arrival in the order of time its size, whatever the policy draws to route it, and the gap to the next at that ingress.
"""

from heapq import heapify, heapreplace
from math import inf
from random import Random

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Job, plain_job
from slurm_energy.twin.workloads.arrivals import PoissonSettings


class SharedStreamSource:
    """Jobs of a Poisson workload, one at a time: `take`, route the job, `after_route`."""

    name = "poisson"

    def __init__(self, settings: PoissonSettings, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # a simulation; the published figures rest on this generator
        """The one stream; the policy draws from it too."""
        self._kind, self._gpu_counts = settings.kind, settings.gpu_counts
        self._log_median, self._sigma = settings.log_median, settings.size_sigma
        self._smallest, self._horizon = settings.smallest_units, settings.horizon_seconds
        self._rates = settings.ingress_rates
        if min(self._rates) <= 0.0:
            raise ConfigError("the shared stream needs a rate above 0 at every ingress")
        if settings.kinds or settings.gpu_mix:
            raise ConfigError("the shared stream has one kind and one range of device counts: no kinds, no gpu_mix")
        self._arrivals = [(self.random.expovariate(rate), ingress) for ingress, rate in enumerate(self._rates)]
        heapify(self._arrivals)
        self._taken: tuple[float, int] | None = None
        self._last_id = 0

    def next_time(self) -> float:
        """Return the time [s] of the next arrival, infinite when none comes before the workload's end."""
        time = self._arrivals[0][0]
        return time if time <= self._horizon else inf

    def take(self) -> Job:
        """Remove and return the next job, drawing its size.

        Raises:
            RuntimeError: there is none, or `after_route` was not called since the last one.
        """
        if self._taken is not None or self.next_time() == inf:
            raise RuntimeError("the shared stream has no next job, or the last one has not been routed")
        self._taken = time, ingress = self._arrivals[0]
        self._last_id = job_id = self._last_id + 1
        drawn, smallest = self.random.lognormvariate(self._log_median, self._sigma), self._smallest
        units = drawn if drawn > smallest else smallest
        return plain_job(job_id, time, units, self._kind, self._gpu_counts, ingress)

    def after_route(self) -> float:
        """Draw the gap to the next job of the ingress whose job was taken; return the time of the next arrival.

        Raises:
            RuntimeError: no job was taken.
        """
        if self._taken is None:
            raise RuntimeError("the shared stream has no job that waits for its routing")
        time, ingress = self._taken
        self._taken = None
        heapreplace(self._arrivals, (time + self.random.expovariate(self._rates[ingress]), ingress))
        return self.next_time()
