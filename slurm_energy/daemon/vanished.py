"""Jobs that left slurmctld's memory before their end was seen: accounting is asked, as often as it may be late."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from slurm_energy.daemon.snapshot_changes import JobChanges
from slurm_energy.domain.cluster import JobState
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.client import SlurmReader

logger = logging.getLogger(__name__)

ASK_INTERVAL_SECONDS = 10.0
GIVE_UP_SECONDS = 600.0
MAX_ASKED = 500


class VanishedJobs:
    """Keeps such jobs until their end is known, or for ten minutes."""

    def __init__(self, reader: SlurmReader, accounting: bool) -> None:
        self._reader = reader
        self._accounting = accounting
        self._waiting: dict[tuple[int, float], tuple[JobState, float]] = {}
        self._asked_at = float("-inf")

    def settle(self, vanished: Sequence[JobState], now_seconds: float) -> JobChanges:
        """Take what vanished just now and return what is settled: ended as accounting says, or lost."""
        if not self._accounting:
            return JobChanges(vanished=tuple(vanished))
        for job in vanished:
            self._waiting[job.job_id, job.submitted_at_seconds] = (job, now_seconds)
        ended: list[JobState] = []
        if self._waiting and now_seconds - self._asked_at >= ASK_INTERVAL_SECONDS:
            self._asked_at = now_seconds
            ended = self._ask()
        lost = [key for key, (_, since) in self._waiting.items() if now_seconds - since >= GIVE_UP_SECONDS]
        return JobChanges(changed=tuple(ended), vanished=tuple(self._waiting.pop(key)[0] for key in lost))

    def _ask(self) -> list[JobState]:
        asked = list(dict.fromkeys(job.job_id for job, _ in self._waiting.values()))[:MAX_ASKED]
        try:
            known = self._reader.read_ended_jobs(asked)
        except SlurmError as error:
            logger.warning("accounting not read jobs=%d error=%s", len(asked), error)
            return []
        ended: list[JobState] = []
        for job in known:
            key = (job.job_id, job.submitted_at_seconds)
            if job.ended_at_seconds is None or key not in self._waiting:
                continue
            before, _ = self._waiting.pop(key)
            comment = job.admin_comment or before.admin_comment
            restarts = max(before.restart_count, job.restart_count)
            ended.append(replace(job, user_id=before.user_id, admin_comment=comment, restart_count=restarts))
        return ended
