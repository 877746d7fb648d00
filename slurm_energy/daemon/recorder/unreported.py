"""Closes jobs whose nodes never reported: their energy is unknown, with a reason, not silently absent."""

import logging

from slurm_energy.domain.energy import HostEnergy, JobKey, NodeReport, QualityFlag
from slurm_energy.domain.ids import ClusterName, NodeName, expand_hostlist
from slurm_energy.errors import ValueRangeError
from slurm_energy.store.energy import finish_reports, record_report, stored_reports
from slurm_energy.store.job_rows import KnownJobs
from slurm_energy.store.jobs import StoredAttempt, UnreportedJob, job_attempts, jobs_lacking_reports
from slurm_energy.store.session import Session

logger = logging.getLogger(__name__)

GRACE_SECONDS = 900.0
LOOK_BACK_SECONDS = 86_400.0
OVERLAP_SECONDS = 3600.0
"""Ends that accounting shows late are still found this long after."""
MAX_NODES = 1024
REASON = "no report came from the node within 900 s of the job's end"


class UnreportedJobs:
    """Remembers how far it has looked."""

    def __init__(self, cluster: ClusterName, time_scale: float) -> None:
        self._cluster = cluster
        self._time_scale = time_scale
        self._looked_until: float | None = None
        self._done: dict[tuple[int, float], float] = {}

    def close(self, session: Session, now_seconds: float) -> int:
        """Write a row for each node that owes a report for longer than the grace time; return how many."""
        until = now_seconds - GRACE_SECONDS
        earliest = now_seconds - LOOK_BACK_SECONDS
        since = earliest if self._looked_until is None else max(earliest, self._looked_until - OVERLAP_SECONDS)
        closed = 0
        for job in jobs_lacking_reports(session, self._cluster, since, until):
            key = (job.job_id, job.submitted_at_seconds)
            if key in self._done:
                continue
            closed += self._close_job(session, job)
            self._done[key] = job.ended_at_seconds
        self._looked_until = until
        self._done = {key: ended for key, ended in self._done.items() if ended >= since - OVERLAP_SECONDS}
        return closed

    def _close_job(self, session: Session, record: UnreportedJob) -> int:
        """Close every attempt: a node that was lost in an earlier one owes its report too."""
        there = {
            (report.restart_count, report.node)
            for report in stored_reports(session, self._cluster, record.job_id, record.submitted_at_seconds)
        }
        known = KnownJobs.load(session, self._cluster, [record.job_id], with_reports=True)
        closed = 0
        for attempt in job_attempts(session, self._cluster, record.job_id, record.submitted_at_seconds):
            started, ended = attempt.started_at_seconds, attempt.ended_at_seconds
            if started is None or ended is None or not attempt.nodes:
                continue
            try:
                nodes = expand_hostlist(attempt.nodes)[:MAX_NODES]
            except ValueRangeError as error:
                logger.warning("node list not understood job_id=%d error=%s", record.job_id, error)
                continue
            for node in nodes:
                if (attempt.restart_count, node) not in there:
                    self._write(session, record, attempt, NodeName(node), (started, max(ended, started)), known)
                    closed += 1
        if closed:
            finish_reports(session, self._cluster, [record.job_id])
        return closed

    def _write(
        self,
        session: Session,
        record: UnreportedJob,
        attempt: StoredAttempt,
        node: NodeName,
        window_seconds: tuple[float, float],
        known: KnownJobs,
    ) -> None:
        report = NodeReport(
            cluster=self._cluster,
            job_id=record.job_id,
            restart_count=attempt.restart_count,
            node=node,
            user_id=None,
            partition=attempt.partition,
            decision_id=None,
            started_at_seconds=window_seconds[0],
            ended_at_seconds=window_seconds[1],
            time_scale=self._time_scale,
            gpus=(),
            host=HostEnergy(
                joules=None,
                reason=REASON,
                coverage_seconds=0.0,
                flags=(QualityFlag.INCOMPLETE, QualityFlag.TRUNCATED),
            ),
            events=(REASON,),
        )
        key = JobKey(
            cluster=self._cluster,
            job_id=record.job_id,
            submitted_at_seconds=record.submitted_at_seconds,
            restart_count=attempt.restart_count,
        )
        record_report(session, report, key, known=known)
