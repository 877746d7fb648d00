"""What a decision is charged with: all that passes until the next one, or what the job is expected to cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, NamedTuple

from slurm_energy.policy.prices import BALANCED_WEIGHTS, JobWeights
from slurm_energy.twin.engine.job import COMPUTING, ENDED, STARTING, JobRun
from slurm_energy.twin.episode import Passage, RewardWeights
from slurm_energy.twin.world import World

Bookkeeping = Literal["passage", "assigned"]
"""`passage`: the cluster's energy and the jobs' time between two decisions, the reward of the environment; the sum over
an episode is the true total. `assigned`: what the started job is expected to draw beyond free devices and how long it
is expected to run count at once, at its start; what is left of the cluster's energy and all waiting count as it
passes. When the job ends, what it really drew and ran beyond that is settled. So its sum is the true total too, less a
constant power and up to jobs that still run where an episode is cut off, and most of what a choice costs stands beside
the choice."""


def weighted(rewards: RewardWeights, weights: JobWeights) -> RewardWeights:
    """Return the reward of jobs with these weights; balanced ones leave it as it is.

    Section 3.4 of the hierarchical GNN paper: a weighted sum of time and energy.
    """
    time, energy = weights[0] / BALANCED_WEIGHTS[0], weights[1] / BALANCED_WEIGHTS[1]
    return replace(
        rewards,
        energy=energy * rewards.energy,
        waiting_watts=time * rewards.waiting_watts,
        running_watts=time * rewards.running_watts,
    )


def empty_watts(world: World) -> float:
    """Return what the world draws with every node awake and nothing running, W: no choice changes it."""
    return sum(
        pool.nodes * (pool.host_idle_watts + pool.gpus_per_node * world.devices[pool.device].free_watts)
        for pool in world.pools
    )


def mean_weights(weights: Sequence[JobWeights]) -> JobWeights:
    """Return the mean of some weights, at least one."""
    return fmean(time for time, _ in weights), fmean(energy for _, energy in weights)


class Charge(NamedTuple):
    """What a started job is expected to cost; or, when it has ended, what it cost beyond that."""

    joules: float
    """Beyond what its devices draw when they are free."""
    seconds: float
    """Run time."""
    weights: JobWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAccounting:
    """Turns what passed between decisions into rewards."""

    bookkeeping: Bookkeeping
    rewards: RewardWeights
    scale_joules: float
    common_weights: JobWeights
    """What all jobs together are weighed with: the mean over those that jobs draw, since neither the order of the queue
    nor the base power depends on a job's own."""
    empty_watts: float
    """See the function."""

    def reward(self, passage: Passage, active_joules: float, charges: Sequence[Charge]) -> float:
        """Return minus the cost of a decision.

        Args:
            passage: Until the next decision.
            active_joules: What jobs drew in it beyond what their devices draw when they are free.
            charges: Of the job that the decision started, and of those that ended in it.
        """
        common = weighted(self.rewards, self.common_weights)
        if self.bookkeeping == "passage":
            return passage.reward(common, self.scale_joules)
        left = passage.joules - active_joules - self.empty_watts * passage.elapsed_seconds
        reward = passage._replace(joules=left, running_job_seconds=0.0).reward(common, self.scale_joules)
        for charge in charges:
            own = Passage(0.0, charge.joules, 0.0, charge.seconds)
            reward += own.reward(weighted(self.rewards, charge.weights), self.scale_joules)
        return reward


class _MeteredJob:
    """One started job: what has been read of it, and what it has been charged with."""

    __slots__ = ("active_joules", "charge", "free_watts", "gpu_seconds", "joules", "run")

    def __init__(self, run: JobRun, free_watts: float) -> None:
        self.run = run
        self.free_watts = free_watts
        self.joules = self.gpu_seconds = self.active_joules = 0.0
        self.charge: Charge | None = None
        """Of all its starts together."""


class ActiveMeter:
    """Reads what jobs draw beyond what their devices draw when they are free, also over restarts elsewhere."""

    def __init__(self) -> None:
        self._held: dict[int, _MeteredJob] = {}
        self._over: list[Charge] = []

    def started(self, run: JobRun, free_watts: float, charge: Charge | None = None) -> None:
        """Count a job from its start on; call it before the next reading.

        Args:
            run: The job.
            free_watts: Of one free device where it started.
            charge: What the start is charged with, to be settled when the job has ended.
        """
        known = self._held.setdefault(run.job_id, _MeteredJob(run, free_watts))
        known.free_watts = free_watts
        if charge is not None:
            before = known.charge or charge._replace(joules=0.0, seconds=0.0)
            known.charge = charge._replace(
                joules=before.joules + charge.joules, seconds=before.seconds + charge.seconds
            )

    def read(self, now: float) -> float:
        """Return what was added since the last reading, J."""
        added, over = 0.0, []
        for job_id, held in self._held.items():
            run = held.run
            joules, gpu_seconds = run.energy_joules, run.gpu_seconds
            if run.phase in {STARTING, COMPUTING}:
                joules += run.watts * (now - run.updated_seconds)
                gpu_seconds += run.gpus * (now - run.started_seconds)
            elif run.phase == ENDED:
                over.append(job_id)
            new = joules - held.joules - held.free_watts * (gpu_seconds - held.gpu_seconds)
            added += new
            held.active_joules += new
            held.joules, held.gpu_seconds = joules, gpu_seconds
        for job_id in over:
            self._settle(self._held.pop(job_id))
        return added

    def settled(self) -> list[Charge]:
        """Return what jobs that ended before the last reading cost beyond what they were charged with, each once."""
        over, self._over = self._over, []
        return over

    def _settle(self, held: _MeteredJob) -> None:
        charge = held.charge
        if charge is not None:
            self._over.append(
                charge._replace(
                    joules=held.active_joules - charge.joules, seconds=held.run.run_seconds - charge.seconds
                )
            )
