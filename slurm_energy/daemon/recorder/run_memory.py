"""The runs that estimates are made of, kept in memory: read whole once, and after that only of jobs that changed.

What a cycle reads of the database depends on how many jobs have ended since the last one, not on how many there are.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.estimation.job_groups import job_group
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
_Group = tuple[int | str, str]
"""User and the word under which runs are put together (`job_groups`)."""


class NewestRuns(Generic[_Run]):
    """The newest runs of each key, each of one job's row: a job that is read again takes its own place."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[_Key, dict[int, _Run]] = {}
        self._places: dict[int, tuple[_Group, _Key]] = {}
        self._groups: dict[_Group, set[_Key]] = {}

    def put(self, row_id: int, group: _Group, key: _Key, run: _Run) -> None:
        """Take a run in; the oldest over the limit goes.

        Args:
            row_id: The job's row.
            group: Whose runs are looked at together; every key is of one.
            key: Whose runs are counted.
            run: What is kept.
        """
        self.remove(row_id)
        runs = self._runs.setdefault(key, {})
        runs[row_id] = run
        self._places[row_id] = group, key
        self._groups.setdefault(group, set()).add(key)
        if len(runs) > self._limit:
            self.remove(min(runs, key=lambda one: (runs[one].ended_at_seconds, one)))

    def remove(self, row_id: int) -> None:
        """Forget a job's run, if there is one."""
        group, key = self._places.pop(row_id, (None, None))
        if group is None or key is None:
            return
        del self._runs[key][row_id]
        if not self._runs[key]:
            del self._runs[key]
            self._groups[group].discard(key)
            if not self._groups[group]:
                del self._groups[group]

    def forget_before(self, seconds: float) -> None:
        """Forget what ended before."""
        for row_id in [one for runs in self._runs.values() for one in runs if runs[one].ended_at_seconds < seconds]:
            self.remove(row_id)

    def of(self, groups: Collection[_Group]) -> Iterator[_Run]:
        """Yield the runs of some groups."""
        for group in groups:
            for key in self._groups.get(group, ()):
                yield from self._runs[key].values()

    def __iter__(self) -> Iterator[_Run]:
        for runs in self._runs.values():
            yield from runs.values()


class RunMemory:
    """Ended runs with their times, those that were measured, and those that failed."""

    def __init__(self, cluster: ClusterName, runs_per_name: int) -> None:
        self._cluster = cluster
        self._limit = runs_per_name
        self._timed = NewestRuns[RuntimeSample](runs_per_name)
        self._measured = NewestRuns[MeasuredRun](runs_per_name)
        self._failed: dict[int, tuple[float, FailedRuns]] = {}
        self._failed_groups: dict[_Group, set[int]] = {}
        self.is_loaded = False

    def load(self, session: Session, now_seconds: float) -> None:
        """Read the whole history, in place of what was known."""
        self._timed, self._measured = NewestRuns(self._limit), NewestRuns(self._limit)
        self._failed.clear()
        self._failed_groups.clear()
        self._read(session, now_seconds, None)
        self.is_loaded = True

    def read_again(self, session: Session, job_ids: Iterable[int], now_seconds: float) -> set[_Group]:
        """Read the jobs of these numbers: they have changed. What is too old by now is forgotten.

        Returns:
            The groups that they belong to.
        """
        numbers = sorted(set(job_ids))
        groups: set[_Group] = set()
        for begin in range(0, len(numbers), MAX_JOBS_AT_ONCE):
            groups |= self._read(session, now_seconds, numbers[begin : begin + MAX_JOBS_AT_ONCE])
        self.forget_old(now_seconds)
        return groups

    def forget_old(self, now_seconds: float) -> None:
        """Forget what ended before the history begins."""
        begin = history_begin(now_seconds)
        self._timed.forget_before(begin)
        self._measured.forget_before(begin)
        for row_id in [row_id for row_id, one in self._failed.items() if one[0] < begin]:
            _, run = self._failed.pop(row_id)
            self._failed_groups[_group(run.user, run.name, run.script_key)].discard(row_id)

    def timed(self, groups: Collection[_Group] | None = None) -> list[RuntimeSample]:
        """Return the newest runs of every user, name and script that completed or were cut off, or of some groups."""
        return list(self._timed if groups is None else self._timed.of(groups))

    def measured(self, groups: Collection[_Group] | None = None) -> list[MeasuredRun]:
        """Return the newest measured runs of every user, name, script and GPU type, or of some groups."""
        return list(self._measured if groups is None else self._measured.of(groups))

    def failed(self, groups: Collection[_Group] | None = None) -> list[FailedRuns]:
        """Return how often runs of each user and name failed on GPUs of one type, or those of some groups."""
        rows = self._failed if groups is None else {row for one in groups for row in self._failed_groups.get(one, ())}
        return list(counted_failures(self._failed[row_id][1] for row_id in rows))

    def _read(self, session: Session, now_seconds: float, job_ids: list[int] | None) -> set[_Group]:
        begin, limit = history_begin(now_seconds), self._limit
        groups: set[_Group] = set()
        for row_id, sample in timed_jobs(session, self._cluster, begin, job_ids=job_ids, limit_per_name=limit):
            group = _group(sample.user_id, sample.name, sample.script_key)
            self._timed.put(row_id, group, (sample.user_id, sample.name, sample.script_key), sample)
            groups.add(group)
        for row_id, run in measured_jobs(session, self._cluster, begin, job_ids=job_ids, limit_per_type=limit):
            group = _group(run.user, run.name, run.script_key)
            self._measured.put(row_id, group, (run.user, run.name, run.script_key, run.gpu_type), run)
            groups.add(group)
        for row_id, ended, failed in failed_jobs(session, self._cluster, begin, job_ids=job_ids):
            group = _group(failed.user, failed.name, failed.script_key)
            self._failed[row_id] = ended, failed
            self._failed_groups.setdefault(group, set()).add(row_id)
            groups.add(group)
        return groups


def history_begin(now_seconds: float) -> float:
    """Return since when ended jobs count."""
    return now_seconds - HISTORY_DAYS * 86_400.0


def _group(user: int | str, name: str, script_key: str | None) -> _Group:
    return user, job_group(name, script_key)
