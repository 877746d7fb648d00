"""What runs in the twin tell the daemon's policies: by job name as its database does, and nothing that Slurm lacks."""

from collections import deque
from collections.abc import Mapping

from slurm_energy.domain.decision import ClockChoice
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.run_groups import RUNS_PER_TYPE, JobName, group_runs
from slurm_energy.estimation.work_model import work_estimates
from slurm_energy.policy.placement import PlaceInfo
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.job_run import JobRun

_FAILED = frozenset({"FAILED", "TIMEOUT"})
_REFRESH_SECONDS = 3600.0
"""Between two looks at the runs. The daemon looks every few minutes; names' mean figures move more slowly."""


class ServedRuns:
    """Measured runs by name and GPU type, and what they say of each name."""

    def __init__(self) -> None:
        self._runs: dict[tuple[JobName, GpuTypeName], deque[MeasuredRun]] = {}
        self._failures: list[FailedRuns] = []
        self._estimates: Mapping[JobName, WorkEstimate] = {}
        self._looked_seconds = 0.0
        self._is_new = False

    def learn(self, run: JobRun, gpu_type: GpuTypeName, place: PlaceInfo, clock: ClockChoice | None) -> None:
        """Take in a job that completed in one go at the clock that was decided, or failed; others say nothing.

        Args:
            run: As the twin has it.
            gpu_type: On which it ran.
            place: Where it ran.
            clock: What was decided for the type, None for its default clock.
        """
        name = JobName(run.job.user, run.name)
        if run.name and run.state in _FAILED:
            self._failures.append(
                FailedRuns(user=name.user, name=name.name, gpu_type=gpu_type, runs=1, script_key=_key(run.job))
            )
            self._is_new = True
        seconds = run.ended_seconds - run.begun_seconds
        if run.state != "COMPLETED" or run.restarts or run.partner is not None or not run.name or seconds <= 0.0:
            return
        starting = place.free_watts * run.gpus * (run.begun_seconds - run.started_seconds)
        joules = run.energy_joules - starting
        if joules <= 0.0:
            return
        slowed, change = (0.0, 0.0) if clock is None else (clock.predicted_slowdown, clock.predicted_energy_change)
        at_default = seconds / (1.0 + slowed / 2.0)
        measured = MeasuredRun(
            user=name.user,
            name=name.name,
            gpu_type=gpu_type,
            gpus=run.gpus,
            seconds=at_default,
            watts=joules / (1.0 + change) / (at_default * run.gpus),
            ended_at_seconds=run.ended_seconds,
            slowed=slowed,
            script_key=_key(run.job),
        )
        self._runs.setdefault((name, gpu_type), deque(maxlen=RUNS_PER_TYPE)).append(measured)
        self._is_new = True

    def estimate(self, job: Job, now_seconds: float) -> WorkEstimate | None:
        """Return what is known of a job's name."""
        if self._is_new and now_seconds - self._looked_seconds >= _REFRESH_SECONDS:
            self._looked_seconds, self._is_new = now_seconds, False
            groups = group_runs((run for runs in self._runs.values() for run in runs), self._failures)
            self._estimates = dict(work_estimates(groups))
        group = self._estimates.get(JobName(job.user, job_group(job.name, _key(job)))) if job.name else None
        return group or (self._estimates.get(JobName(job.user, job.name)) if job.name else None)


def _key(job: Job) -> str | None:
    return None if job.script is None else job.script.key or None
