"""Ends of decided jobs, for a policy that corrects itself by how long they ran and whether they came in time.

An end is known where it is recorded, in the snapshot child, and reaches the policy between two answers: no submission
waits for it. Each job is passed on once, however often its last state is read.
"""

import logging
from collections.abc import Iterable
from math import inf

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import DecisionId, decision_in_comment
from slurm_energy.domain.job import JobRequest
from slurm_energy.policy.base import CorrectingPolicy, Policy
from slurm_energy.policy.submission.view import EndedSubmission

logger = logging.getLogger(__name__)

MAX_KEPT = 100_000
"""Ended jobs, and deadlines of jobs that have not ended, that are remembered; the oldest go first."""


class JobEnds:
    """What must be remembered to pass the end of each job on once, with its deadline."""

    def __init__(self, since_seconds: float) -> None:
        """Remember nothing.

        Args:
            since_seconds: Unix time before which ends are not passed on: the policy that decided has gone.
        """
        self._since_seconds = since_seconds
        self._passed_on: dict[tuple[int, float], None] = {}
        self._deadlines: dict[DecisionId, float] = {}

    def decided(self, decision: EnergyDecision, job: JobRequest) -> None:
        """Remember a job's deadline: Slurm does not know it."""
        deadline = job.options.deadline_seconds
        if deadline is not None:
            self._deadlines[decision.decision_id] = deadline
            if len(self._deadlines) > MAX_KEPT:
                del self._deadlines[next(iter(self._deadlines))]

    def ended(self, jobs: Iterable[JobState], *policies: Policy) -> int:
        """Pass ends on to the policies that correct themselves, and return how many; what they raise is logged."""
        passed_on = 0
        for job in jobs:
            end = self._new_end(job)
            correcting = [one for one in policies if isinstance(one, CorrectingPolicy) and one.observes_ends]
            if end is None or not correcting:
                continue
            passed_on += 1
            for policy in correcting:
                try:
                    policy.ended(end)
                except Exception as error:  # noqa: BLE001  # jobs are decided without corrections
                    logger.warning("policy not corrected name=%s error=%s", policy.name, error)
        return passed_on

    def _new_end(self, job: JobState) -> EndedSubmission | None:
        """Return the end of a job that was decided here and has run; None for any other, or if it was returned once."""
        decision_id = decision_in_comment(job.admin_comment)
        started, ended = job.started_at_seconds, job.ended_at_seconds
        key = (job.job_id, job.submitted_at_seconds)
        if decision_id is None or ended is None or ended < self._since_seconds or key in self._passed_on:
            return None
        self._passed_on[key] = None
        if len(self._passed_on) > MAX_KEPT:
            del self._passed_on[next(iter(self._passed_on))]
        deadline = self._deadlines.pop(decision_id, inf)
        if started is None or started > ended:
            return None
        return EndedSubmission(
            job_id=job.job_id,
            account=job.account or "",
            name=job.name,
            gpus=job.gpu_count or 0,
            state=job.state,
            ended_seconds=ended,
            run_seconds=max(0.0, ended - started - job.suspended_seconds),
            deadline_seconds=deadline,
        )
