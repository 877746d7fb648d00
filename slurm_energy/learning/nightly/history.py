"""A site's history as a night learns from it: read once, bounded, split by time, with what is odd about it said."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log
from statistics import median

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import ClusterName
from slurm_energy.errors import TrainingError
from slurm_energy.policy.candidate import TrainingData
from slurm_energy.store.past_runs import HISTORY_DAYS
from slurm_energy.store.session import Engine, store_session
from slurm_energy.store.site_history import ClockedRun, clocked_runs, ended_jobs

MAX_JOBS = 100_000
"""The newest: older ones say little of tonight, and time and memory are bounded."""
HELD_OUT_SHARE = 0.25
"""Of the time, its end: what is learned is checked there."""
DAY_SECONDS = 86_400.0
RECENT_DAYS = 14.0
_DRIFT = 0.69
"""Of the median logarithm of run times, a factor of two: then only the recent jobs are learned from."""
_MANY = 0.5
"""Share of the jobs, above which one user is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHistory:
    """What a night learns from."""

    cluster: ClusterName
    states: tuple[JobState, ...]
    """Ended jobs with GPUs, in the order of their ends."""
    runs: tuple[ClockedRun, ...]
    """Those of them whose energy and clock are known beyond doubt."""
    split_seconds: float
    """What ended before is learned from, what ended later is held out."""
    notes: tuple[str, ...]

    @property
    def learned_from(self) -> tuple[JobState, ...]:
        """Jobs that ended before the split."""
        return tuple(state for state in self.states if (state.ended_at_seconds or 0.0) < self.split_seconds)

    @property
    def held_out(self) -> tuple[JobState, ...]:
        """Jobs that were submitted after the split."""
        return tuple(state for state in self.states if state.submitted_at_seconds >= self.split_seconds)

    def data(self) -> TrainingData:
        """Return what a candidate says of it."""
        return TrainingData(
            cluster=self.cluster,
            jobs=len(self.states),
            measured_jobs=len(self.runs),
            from_seconds=self.states[0].ended_at_seconds or 0.0,
            split_seconds=self.split_seconds,
            until_seconds=self.states[-1].ended_at_seconds or 0.0,
            digest=digest_of(self.states, self.runs),
            notes=self.notes,
        )


def read_history(engine: Engine, cluster: ClusterName, now_seconds: float, min_jobs: int) -> SiteHistory:
    """Return the history of the last days.

    Raises:
        StoreError: the database cannot be read.
        TrainingError: there are fewer jobs than `min_jobs`.
    """
    since = now_seconds - HISTORY_DAYS * DAY_SECONDS
    with store_session(engine, read_only=True) as session:
        states = ended_jobs(session, cluster, since, now_seconds, MAX_JOBS)
        runs = tuple(clocked_runs(session, cluster, since, now_seconds, MAX_JOBS))
    return history_of(cluster, states, runs, min_jobs)


def history_of(
    cluster: ClusterName, states: Sequence[JobState], runs: Sequence[ClockedRun], min_jobs: int
) -> SiteHistory:
    """Return jobs and runs as a history.

    Args:
        cluster: Whose they are.
        states: Ended jobs, in the order of their ends.
        runs: Of any of them.
        min_jobs: Fewer teach nothing.

    Raises:
        TrainingError: there are fewer.
    """
    if len(states) < min_jobs:
        raise TrainingError(
            f"{len(states)} jobs with GPUs have ended on cluster {cluster} in {HISTORY_DAYS:g} days, at least "
            f"{min_jobs} are needed (nightly.min_jobs): the live policy stays; run this again when there are more"
        )
    notes = list(_notes(states, runs))
    if _has_drifted(states):
        begin = (states[-1].ended_at_seconds or 0.0) - RECENT_DAYS * DAY_SECONDS
        recent = [state for state in states if (state.ended_at_seconds or 0.0) >= begin]
        if len(recent) >= min_jobs:
            states = recent
            runs = [run for run in runs if run.ended_at_seconds >= begin]
            notes.append(
                f"run times have changed by more than half: only the last {RECENT_DAYS:g} days are learned from"
            )
        else:
            notes.append("run times have changed much, and recent jobs are too few to learn from alone")
    gone = _vanished_types(states)
    if gone:
        states = [state for state in states if not set(state.gpu_types) & gone]
        runs = [run for run in runs if run.gpu_type not in gone]
        if len(states) < min_jobs:
            raise TrainingError(
                f"{len(states)} jobs are left without GPU types that have vanished ({', '.join(sorted(gone))}), at "
                f"least {min_jobs} are needed (nightly.min_jobs): the live policy stays"
            )
    first, last = states[0].ended_at_seconds or 0.0, states[-1].ended_at_seconds or 0.0
    return SiteHistory(
        cluster=cluster,
        states=tuple(states),
        runs=tuple(runs),
        split_seconds=last - HELD_OUT_SHARE * (last - first),
        notes=tuple(notes),
    )


def digest_of(states: Sequence[JobState], runs: Sequence[ClockedRun]) -> str:
    """Return what differs as soon as a row does."""
    found = hashlib.sha256()
    for state in states:
        found.update(f"{state.job_id},{state.submitted_at_seconds},{state.ended_at_seconds},{state.state};".encode())
    for run in runs:
        found.update(f"{run.user_id},{run.ended_at_seconds},{run.joules},{run.sm_clock_mhz};".encode())
    return found.hexdigest()


def _notes(states: Sequence[JobState], runs: Sequence[ClockedRun]) -> Iterator[str]:
    users = Counter(state.user_id for state in states)
    user, jobs = users.most_common(1)[0]
    if jobs > _MANY * len(states):
        yield (
            f"user {user} has {jobs / len(states):.0%} of the jobs: what is learned from them is weighed by name, not "
            "by job, and a canary needs days of other users"
        )
    days = {int((state.ended_at_seconds or 0.0) // DAY_SECONDS) for state in states}
    missing = [day for day in range(min(days), max(days) + 1) if day not in days]
    if missing:
        first = datetime.fromtimestamp(missing[0] * DAY_SECONDS, UTC).date()
        yield f"{len(missing)} days without an ended job, the first {first}"
    for gpu_type in sorted(_vanished_types(states)):
        yield f"GPU type {gpu_type} has had no job for {RECENT_DAYS:g} days: what it measured is left out"
    for gpu_type in sorted(_new_types(states)):
        yield f"GPU type {gpu_type} is new: its curves stay as they are until it has been measured for a while"
    if not runs:
        yield "no run has a reading of energy of sufficient quality: estimates stay as they are"


def _has_drifted(states: Sequence[JobState]) -> bool:
    """Return whether names that ran before and lately take more than twice or less than half the time."""
    begin = (states[-1].ended_at_seconds or 0.0) - RECENT_DAYS * DAY_SECONDS
    old: dict[tuple[int, str], list[float]] = defaultdict(list)
    new: dict[tuple[int, str], list[float]] = defaultdict(list)
    for state in states:
        seconds = (state.ended_at_seconds or 0.0) - (state.started_at_seconds or 0.0)
        if state.state == "COMPLETED" and seconds > 0.0:
            group = new if (state.ended_at_seconds or 0.0) >= begin else old
            group[state.user_id, state.name].append(log(seconds))
    shifts = [median(new[name]) - median(old[name]) for name in old.keys() & new.keys()]
    return bool(shifts) and abs(median(shifts)) > _DRIFT


def _last_seen(states: Sequence[JobState]) -> dict[str, tuple[float, float]]:
    """Return first and last end of a job on each GPU type."""
    found: dict[str, tuple[float, float]] = {}
    for state in states:
        ended = state.ended_at_seconds or 0.0
        for name in state.gpu_types:
            first, last = found.get(name, (ended, ended))
            found[name] = min(first, ended), max(last, ended)
    return found


def _vanished_types(states: Sequence[JobState]) -> set[str]:
    last = states[-1].ended_at_seconds or 0.0
    return {name for name, (_, seen) in _last_seen(states).items() if seen < last - RECENT_DAYS * DAY_SECONDS}


def _new_types(states: Sequence[JobState]) -> set[str]:
    first = states[0].ended_at_seconds or 0.0
    last = states[-1].ended_at_seconds or 0.0
    if last - first < RECENT_DAYS * DAY_SECONDS:
        return set()
    return {name for name, (seen, _) in _last_seen(states).items() if seen > last - RECENT_DAYS / 2.0 * DAY_SECONDS}
