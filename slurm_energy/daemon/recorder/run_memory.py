"""The runs that estimates are made of, kept in memory: read whole once, and after that only of jobs that changed.

What a cycle reads of the database depends on how many jobs have ended since the last one, not on how many there are.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.store.past_runs import (
    RuntimeSample,
    counted_failures,
    failed_jobs,
    measured_jobs,
    timed_jobs,
)
from slurm_energy.store.session import Session

HISTORY_DAYS = 90.0
MAX_JOBS_AT_ONCE = 500
"""Numbers of jobs in one statement."""


class _EndedRun(Protocol):
    @property
    def ended_at_seconds(self) -> float:
        """When it ended."""


_Run = TypeVar("_Run", bound=_EndedRun)
_Key = tuple[object, ...]


class NewestRuns(Generic[_Run]):
    """The newest runs of each key, each of one job's row: a job that is read again takes its own place."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[_Key, dict[int, _Run]] = {}
        self._keys: dict[int, _Key] = {}

    def put(self, row_id: int, key: _Key, run: _Run) -> None:
        """Take a run in; the oldest over the limit goes."""
        self.remove(row_id)
        runs = self._runs.setdefault(key, {})
        runs[row_id] = run
        self._keys[row_id] = key
        if len(runs) > self._limit:
            self.remove(min(runs, key=lambda one: (runs[one].ended_at_seconds, one)))

    def remove(self, row_id: int) -> None:
        """Forget a job's run, if there is one."""
        key = self._keys.pop(row_id, None)
        if key is None:
            return
        del self._runs[key][row_id]
        if not self._runs[key]:
            del self._runs[key]

    def forget_before(self, seconds: float) -> None:
        """Forget what ended before."""
        for row_id in [one for runs in self._runs.values() for one in runs if runs[one].ended_at_seconds < seconds]:
            self.remove(row_id)

    def __iter__(self) -> Iterator[_Run]:
        for runs in self._runs.values():
            yield from runs.values()


class RunMemory:
    """Completed runs with their times, those that were measured, and those that failed."""

    def __init__(self, cluster: ClusterName, runs_per_name: int) -> None:
        self._cluster = cluster
        self._limit = runs_per_name
        self._timed = NewestRuns[RuntimeSample](runs_per_name)
        self._measured = NewestRuns[MeasuredRun](runs_per_name)
        self._failed: dict[int, tuple[float, FailedRuns]] = {}
        self.is_loaded = False

    def load(self, session: Session, now_seconds: float) -> None:
        """Read the whole history, in place of what was known."""
        self._timed, self._measured = NewestRuns(self._limit), NewestRuns(self._limit)
        self._failed.clear()
        self._read(session, now_seconds, None)
        self.is_loaded = True

    def read_again(self, session: Session, job_ids: Iterable[int], now_seconds: float) -> None:
        """Read the jobs of these numbers: they have changed. What is too old by now is forgotten."""
        numbers = sorted(set(job_ids))
        for begin in range(0, len(numbers), MAX_JOBS_AT_ONCE):
            self._read(session, now_seconds, numbers[begin : begin + MAX_JOBS_AT_ONCE])
        self.forget_old(now_seconds)

    def forget_old(self, now_seconds: float) -> None:
        """Forget what ended before the history begins."""
        begin = _begin(now_seconds)
        self._timed.forget_before(begin)
        self._measured.forget_before(begin)
        self._failed = {row_id: one for row_id, one in self._failed.items() if one[0] >= begin}

    def timed(self) -> list[RuntimeSample]:
        """Return the newest completed runs of every user, name and script."""
        return list(self._timed)

    def measured(self) -> list[MeasuredRun]:
        """Return the newest measured runs of every user, name, script and GPU type."""
        return list(self._measured)

    def failed(self) -> list[FailedRuns]:
        """Return how often runs of each user and name failed on GPUs of one type."""
        return list(counted_failures(failed for _, failed in self._failed.values()))

    def _read(self, session: Session, now_seconds: float, job_ids: list[int] | None) -> None:
        begin, limit = _begin(now_seconds), self._limit
        for row_id, sample in timed_jobs(session, self._cluster, begin, job_ids=job_ids, limit_per_name=limit):
            self._timed.put(row_id, (sample.user_id, sample.name, sample.script_key), sample)
        for row_id, run in measured_jobs(session, self._cluster, begin, job_ids=job_ids, limit_per_type=limit):
            self._measured.put(row_id, (run.user, run.name, run.script_key, run.gpu_type), run)
        for row_id, ended, failed in failed_jobs(session, self._cluster, begin, job_ids=job_ids):
            self._failed[row_id] = ended, failed


def _begin(now_seconds: float) -> float:
    return now_seconds - HISTORY_DAYS * 86_400.0
