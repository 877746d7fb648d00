"""Recovery from failed devices: how soon the jobs that they interrupted run again, and whether they do."""

from collections import Counter
from collections.abc import Mapping
from math import inf
from random import Random

import numpy as np

from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule, Postponement, Reroute
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import World


def can_fail(world: World) -> bool:
    """Return whether nodes or GPUs of a world fail."""
    rates = world.failures
    return bool(world.outages) or min(rates.node_mtbf_seconds, rates.gpu_mtbf_seconds) < inf


class WatchedRule(PlacementRule):
    """Another rule, with the same answers, that counts decisions about jobs that failed devices interrupted.

    The simulated cluster counts how often a job was interrupted. What is asked about it at one such count, from the
    first on, is what is asked until it runs again: answers that were put off, refused by the guard or by backfill are
    in it, what was asked before its first start is not.
    """

    def __init__(self, rule: PlacementRule) -> None:
        self._rule = rule
        self._decisions: Counter[tuple[int, int]] = Counter()
        self._copy_attributes()

    @property
    def max_decisions(self) -> int:
        """The most decisions about one job between an interruption and the restart, 0 if none was asked about."""
        return max(self._decisions.values(), default=0)

    def begin(self, view: ClusterView, random: Random) -> None:
        """Start a run."""
        self._decisions.clear()
        self._rule.begin(view, random)
        self._copy_attributes()

    def route(self, job: WaitingJob, view: ClusterView) -> int | tuple[int, ...] | Reroute | None:
        """Return the rule's answer."""
        return self._rule.route(job, view)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        """Return the rule's answer, counted where the job was interrupted."""
        assert isinstance(view, TwinView)
        interruptions = view.runs[job.job_id].restarts
        if interruptions:
            self._decisions[job.job_id, interruptions] += 1
        answer = self._rule.place(job, view)
        self.clamped = self._rule.clamped
        return answer

    def ended(self, job: EndedJob) -> None:
        """Let the rule learn."""
        self._rule.ended(job)

    def rerouted(self, view: ClusterView) -> Mapping[int, Reroute]:
        """Return the rule's answer."""
        return self._rule.rerouted(view)

    def control(self, view: ClusterView) -> Mapping[int, int]:
        """Return the rule's answer."""
        return self._rule.control(view)

    def _copy_attributes(self) -> None:
        """Take on the rule's public attributes, which `begin` may change."""
        rule = self._rule
        self.name, self.version, self.discipline, self.clamped = rule.name, rule.version, rule.discipline, rule.clamped
        self.routes, self.observes_ends, self.knowledge = rule.routes, rule.observes_ends, rule.knowledge
        self.control_interval_seconds = rule.control_interval_seconds
        self.shares_arrival_stream, self.trials = rule.shares_arrival_stream, rule.trials


def recovery_figures(rule: WatchedRule, outcome: Outcome) -> dict[str, float]:
    """Return what became of the jobs that failed devices interrupted; nothing if there was none.

    `max_decisions_until_restart` is the most that the rule was asked about one job until it ran again, over all jobs
    and all their interruptions; a job that never ran again counts with what was asked. `interrupted_jobs_not_restarted`
    is the number of those: they wait at the end of the run, or ended with their devices.
    """
    state = np.array(outcome.state)
    was_lost = (state == "NODE_FAIL") | ((state == "PENDING") & (outcome.started_seconds < inf))
    if not (was_lost | (outcome.restarts > 0)).any():
        return {}
    return {
        "max_decisions_until_restart": float(rule.max_decisions),
        "interrupted_jobs_not_restarted": float(was_lost.sum()),
    }
