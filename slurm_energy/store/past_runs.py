"""Ended runs: how long jobs of one name ran, and the energy of those that were measured without doubt.

Runtimes and energies are brought to the default clock: estimates and comparisons are made of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, and_, case, func, null, or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.decision import Reason
from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.plain import from_plain
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.errors import ValueRangeError
from slurm_energy.store.sums import applied_choice
from slurm_energy.store.tables import (
    ClockTrialRow,
    DecisionClockRow,
    DecisionRow,
    GpuEnergyRow,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
)

HISTORY_DAYS = 90.0
"""Estimates learn from runs that ended so long ago at most."""
_DOUBTFUL = (
    QualityFlag.INCOMPLETE,
    QualityFlag.TRUNCATED,
    QualityFlag.COUNTER_RESET,
    QualityFlag.COUNTER_STUCK,
    QualityFlag.BELOW_RESOLUTION,
    QualityFlag.SOURCES_DISAGREE,
    QualityFlag.GPU_IDENTITY_UNKNOWN,
    QualityFlag.SHARED_GPU,
    QualityFlag.MIG,
    QualityFlag.RESCUED,
    QualityFlag.POWER_BUDGET,
    QualityFlag.IMPLAUSIBLE,
)
"""One reading with such a flag, and the whole run says nothing."""
_FAILED = ("FAILED", "OUT_OF_MEMORY", "TIMEOUT")
"""States that say something of the type a job ran on; a node that failed, and who cancelled a job, do not."""
_CUT_OFF = ("TIMEOUT", "CANCELLED", "PREEMPTED", "DEADLINE")
"""States of runs that were ended before their work was."""
_MIN_CLOCK_SHARE = 0.85
"""Of the default clock, that a busy GPU is seen at; a board's power limit takes no more. Below it the user set one."""
_MIN_COVERED_SHARE = 0.9
"""Share of the run that every GPU's readings must cover."""


def read_scripts(
    session: Session, cluster: ClusterName, since_seconds: float, limit: int = 2_000
) -> Mapping[str, ScriptFeatures]:
    """Return what was read of scripts in the latest decisions, by their keys."""
    query = (
        select(DecisionRow.script_key, DecisionRow.request)
        .where(
            DecisionRow.cluster == cluster,
            DecisionRow.decided_at_seconds >= since_seconds,
            DecisionRow.script_key.is_not(None),
        )
        .order_by(DecisionRow.decided_at_seconds.desc())
        .limit(limit)
    )
    found: dict[str, ScriptFeatures] = {}
    for key, request in session.execute(query):
        if key in found or not isinstance(request, dict) or request.get("script") is None:
            continue
        try:
            found[key] = from_plain(ScriptFeatures, request["script"])
        except ValueRangeError:  # of another release
            continue
    return found


def measured_runs(
    session: Session, cluster: ClusterName, since_seconds: float, limit_per_type: int = 20
) -> Iterator[MeasuredRun]:
    """Yield the latest measured runs of every user, name, script and GPU type since then, newest of each first.

    A run counts if it completed in its last attempt without being suspended, on GPUs of one type, each with a sound
    reading of almost all the run, and at the default clock or at the decided one: at a clock that the user set nobody
    knows what the default clock would have taken.
    """
    for _, run in measured_jobs(session, cluster, since_seconds, limit_per_type=limit_per_type):
        yield run


def measured_jobs(
    session: Session,
    cluster: ClusterName,
    since_seconds: float,
    *,
    job_ids: Sequence[int] | None = None,
    limit_per_type: int = 20,
) -> Iterator[tuple[int, MeasuredRun]]:
    """Yield what `measured_runs` does with the row of each job; with numbers, of those jobs alone."""
    inner = _runs(*_of_jobs(cluster, since_seconds, job_ids)).subquery("runs")
    rank = func.row_number().over(
        partition_by=(inner.c.user, inner.c.name, inner.c.script_key, inner.c.gpu_type),
        order_by=inner.c.ended_at_seconds.desc(),
    )
    ranked = select(*inner.c, rank.label("age_rank")).subquery("ranked")
    columns = [column for column in ranked.c if column.name != "age_rank"]
    query = select(*columns).where(ranked.c.age_rank <= limit_per_type)
    ordered = query.order_by(ranked.c.user, ranked.c.name, ranked.c.gpu_type, ranked.c.age_rank)
    for row_id, user, name, script_key, ended, gpu_type, gpus, seconds, watts, slowed in session.execute(ordered):
        if 0.0 < seconds < inf and 0.0 < watts < inf:
            yield (
                row_id,
                MeasuredRun(
                    user=user,
                    name=name,
                    gpu_type=GpuTypeName(gpu_type),
                    gpus=gpus,
                    seconds=seconds,
                    watts=watts,
                    ended_at_seconds=ended,
                    slowed=slowed,
                    script_key=script_key,
                ),
            )


def _of_jobs(
    cluster: ClusterName, since_seconds: float, job_ids: Sequence[int] | None
) -> tuple[ColumnElement[bool], ...]:
    ended = (JobRow.cluster == cluster, JobRow.ended_at_seconds >= since_seconds)
    return ended if job_ids is None else (*ended, JobRow.job_id.in_(job_ids))


def failed_runs(session: Session, cluster: ClusterName, since_seconds: float) -> Iterator[FailedRuns]:
    """Yield how often runs of each user and name failed, ran out of memory or out of time on GPUs of one type."""
    return counted_failures(failed for _, _, failed in failed_jobs(session, cluster, since_seconds))


def failed_jobs(
    session: Session, cluster: ClusterName, since_seconds: float, *, job_ids: Sequence[int] | None = None
) -> Iterator[tuple[int, float, FailedRuns]]:
    """Yield each such run by itself, with its job's row and its end."""
    gpu_type = func.max(GpuEnergyRow.gpu_type)
    columns: list[ColumnElement[Any]] = [
        JobRow.row_id.label("job_row_id"),
        JobRow.ended_at_seconds.label("ended_at_seconds"),
        JobRow.user_id.label("user"),
        JobRow.name.label("name"),
        DecisionRow.script_key.label("script_key"),
        gpu_type.label("gpu_type"),
    ]
    query = (
        select(*columns)
        .join(NodeEnergyRow, NodeEnergyRow.job_row_id == JobRow.row_id)
        .join(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .where(
            *_of_jobs(cluster, since_seconds, job_ids),
            JobRow.state.in_(_FAILED),
            NodeEnergyRow.restart_count == JobRow.restart_count,
            JobRow.user_id.is_not(None),
            JobRow.name.is_not(None),
        )
        .group_by(JobRow.row_id, DecisionRow.script_key)
        .having(func.min(GpuEnergyRow.gpu_type) == gpu_type, func.count(GpuEnergyRow.gpu_type) == func.count())
    )
    for row_id, ended, user, name, script_key, found in session.execute(query):
        yield (
            row_id,
            ended,
            FailedRuns(user=user, name=name, script_key=script_key, gpu_type=GpuTypeName(found), runs=1),
        )


def counted_failures(failures: Iterable[FailedRuns]) -> Iterator[FailedRuns]:
    """Yield the sum of each user, name, script and type, in this order."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for one in failures:
        counts[one.user, one.name, one.script_key or "", one.gpu_type] += one.runs
    for (user, name, script_key, gpu_type), number in sorted(counts.items()):
        yield FailedRuns(user=user, name=name, script_key=script_key or None, gpu_type=gpu_type, runs=number)


def _runs(*jobs: ColumnElement[bool]) -> Select[Any]:
    """Return one row for each run: who, which type, how many GPUs, and a GPU's figures at the default clock."""
    reading, attempt, choice = GpuEnergyRow, JobAttemptRow, DecisionClockRow
    run = attempt.ended_at_seconds - attempt.started_at_seconds
    slowed = func.max(func.coalesce(choice.predicted_slowdown, 0.0))
    # The prediction is the worst over workloads: half of it is the middle of what it may have been.
    seconds = run / (1.0 + slowed / 2.0)
    joules = func.sum(reading.joules / (1.0 + func.coalesce(choice.predicted_energy_change, 0.0)))
    # The device's seconds are not the wall's in a laboratory that runs faster.
    watts = joules / (seconds * func.max(NodeEnergyRow.time_scale) * JobRow.gpu_count)
    columns: list[ColumnElement[Any]] = [
        JobRow.row_id.label("job_row_id"),
        JobRow.user_id.label("user"),
        JobRow.name.label("name"),
        DecisionRow.script_key.label("script_key"),
        attempt.ended_at_seconds.label("ended_at_seconds"),
        func.max(reading.gpu_type).label("gpu_type"),
        JobRow.gpu_count.label("gpus"),
        seconds.label("seconds"),
        watts.label("watts"),
        slowed.label("slowed"),
    ]
    return (
        select(*columns)
        .join(attempt, (attempt.job_row_id == JobRow.row_id) & (attempt.restart_count == JobRow.restart_count))
        .join(
            NodeEnergyRow,
            (NodeEnergyRow.job_row_id == JobRow.row_id) & (NodeEnergyRow.restart_count == JobRow.restart_count),
        )
        .join(reading, reading.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(
            choice, and_(applied_choice(), choice.predicted_slowdown > -1.0, choice.predicted_energy_change > -1.0)
        )
        .outerjoin(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .where(
            *jobs,
            JobRow.state == "COMPLETED",
            JobRow.user_id.is_not(None),
            JobRow.name.is_not(None),
            JobRow.gpu_count > 0,
            attempt.suspended_seconds == 0.0,
            run > 0.0,
            or_(DecisionRow.decision_id.is_(None), DecisionRow.reasons.not_like(f"%{Reason.USER_CLOCK.value}%")),
        )
        .group_by(
            JobRow.row_id,
            attempt.ended_at_seconds,
            attempt.started_at_seconds,
            DecisionRow.script_key,
        )
        .having(
            func.count() == JobRow.gpu_count,
            func.min(reading.gpu_type) == func.max(reading.gpu_type),
            func.count(reading.gpu_type) == JobRow.gpu_count,
            func.sum(case((_is_sound(run), 0), else_=1)) == 0,
        )
    )


def _is_sound(run_seconds: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return whether a GPU's reading can be relied on, and at which clock it was is known."""
    reading = GpuEnergyRow
    observed = reading.observed_clock_mhz
    is_seen_there = or_(observed.is_(None), observed >= _MIN_CLOCK_SHARE * reading.default_clock_mhz)
    at_default = or_(
        and_(
            or_(
                reading.applied_clock_mhz.is_(None),
                reading.applied_clock_mhz == reading.default_clock_mhz,
            ),
            or_(reading.default_clock_mhz.is_(None), is_seen_there),
        ),
        DecisionClockRow.decision_id.is_not(None),
    )
    return and_(is_sound_reading(run_seconds), at_default)


def is_sound_reading(run_seconds: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return whether a GPU's energy can be relied on, for almost all of a run."""
    reading = GpuEnergyRow
    return and_(
        reading.joules.is_not(None),
        reading.source.in_([EnergySource.COUNTER.value, EnergySource.POLLED.value]),
        reading.scope.in_([EnergyScope.GPU.value, EnergyScope.MODULE.value]),
        *(reading.flags.not_like(f"%,{flag.value},%") for flag in _DOUBTFUL),
        reading.coverage_seconds >= _MIN_COVERED_SHARE * run_seconds * NodeEnergyRow.time_scale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSample:
    """One run that completed or was cut off."""

    user_id: int
    name: str
    """The job's name as stored: over 512 characters it is cut and marked (`stored_text`)."""
    ended_at_seconds: float
    run_seconds: float
    """Measured, without suspension; of the last attempt."""
    default_clock_seconds: float
    """What it would have been at the default clock, by the slowdown that was predicted for the applied one."""
    clock_slowdown: float = 0.0
    """Ratio by which its clock made it longer, measured by its trials of that clock, else predicted."""
    gpu_count: int | None
    script_key: str | None = None
    """What its script shared with others of the same work."""
    gpu_type: GpuTypeName | None
    """None where its GPUs were of several types, or they were not reported."""
    submitted_at_seconds: float
    limit_seconds: float | None
    """None where there was none."""
    cut_off: bool
    """Whether it was ended before its work was: at its limit, or cancelled."""


def all_recent_runtimes(
    session: Session, cluster: ClusterName, since_seconds: float, limit_per_name: int = 20
) -> Iterator[RuntimeSample]:
    """Yield the latest runs of every user, name and script that ended since then, newest of each first.

    They completed, or were cut off: a run that failed says nothing of how long the work takes.
    """
    for _, sample in timed_jobs(session, cluster, since_seconds, limit_per_name=limit_per_name):
        yield sample


def timed_jobs(
    session: Session,
    cluster: ClusterName,
    since_seconds: float,
    *,
    job_ids: Sequence[int] | None = None,
    limit_per_name: int = 20,
) -> Iterator[tuple[int, RuntimeSample]]:
    """Yield the same with the row of each job; with numbers, of those jobs alone."""
    inner = _samples(*_of_jobs(cluster, since_seconds, job_ids))
    rank = func.row_number().over(
        partition_by=(JobRow.user_id, JobRow.name, DecisionRow.script_key),
        order_by=JobAttemptRow.ended_at_seconds.desc(),
    )
    ranked = inner.add_columns(rank.label("age_rank")).subquery("ranked")
    columns = [column for column in ranked.c if column.name != "age_rank"]
    query = select(*columns).where(ranked.c.age_rank <= limit_per_name)
    for row in session.execute(query.order_by(ranked.c.user_id, ranked.c.name, ranked.c.age_rank)):
        values = dict(row._mapping)
        values["cut_off"] = bool(values["cut_off"])
        yield values.pop("job_row_id"), RuntimeSample(**values)


def _samples(*jobs: ColumnElement[bool]) -> Select[Any]:
    attempt = JobAttemptRow
    run = attempt.ended_at_seconds - attempt.started_at_seconds - attempt.suspended_seconds
    slowdown, tried, types = _slowdowns(*jobs), _tried_slowdowns(*jobs), _types(*jobs)
    columns: list[ColumnElement[Any]] = [
        JobRow.row_id.label("job_row_id"),
        JobRow.user_id.label("user_id"),
        JobRow.name.label("name"),
        attempt.ended_at_seconds.label("ended_at_seconds"),
        run.label("run_seconds"),
        (run / (1.0 + func.coalesce(slowdown.c.slowdown, 0.0))).label("default_clock_seconds"),
        func.coalesce(tried.c.slowdown, slowdown.c.slowdown, 0.0).label("clock_slowdown"),
        JobRow.gpu_count.label("gpu_count"),
        DecisionRow.script_key.label("script_key"),
        types.c.gpu_type.label("gpu_type"),
        JobRow.submitted_at_seconds.label("submitted_at_seconds"),
        (60.0 * JobRow.time_limit_minutes).label("limit_seconds"),
        case((JobRow.state == "COMPLETED", 0), else_=1).label("cut_off"),
    ]
    return (
        select(*columns)
        .join(attempt, (attempt.job_row_id == JobRow.row_id) & (attempt.restart_count == JobRow.restart_count))
        .outerjoin(slowdown, slowdown.c.job_row_id == JobRow.row_id)
        .outerjoin(tried, tried.c.job_row_id == JobRow.row_id)
        .outerjoin(types, types.c.job_row_id == JobRow.row_id)
        .outerjoin(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .where(
            *jobs,
            JobRow.state.in_(("COMPLETED", *_CUT_OFF)),
            JobRow.user_id.is_not(None),
            JobRow.name.is_not(None),
            run > 0.0,
        )
    )


def _slowdowns(*jobs: ColumnElement[bool]) -> Subquery:
    """Return the predicted slowdown of each job's last attempt: its slowest GPU holds the others up."""
    query = (
        select(NodeEnergyRow.job_row_id, func.max(DecisionClockRow.predicted_slowdown).label("slowdown"))
        .select_from(GpuEnergyRow)
        .join(NodeEnergyRow, NodeEnergyRow.row_id == GpuEnergyRow.node_energy_row_id)
        .join(
            JobRow, (JobRow.row_id == NodeEnergyRow.job_row_id) & (JobRow.restart_count == NodeEnergyRow.restart_count)
        )
        .join(DecisionClockRow, applied_choice())
        .where(*jobs, DecisionClockRow.predicted_slowdown > -1.0)
        .group_by(NodeEnergyRow.job_row_id)
    )
    return query.subquery("slowdowns")


def _tried_slowdowns(*jobs: ColumnElement[bool]) -> Subquery:
    """Return the slowdown that trials measured of the clock each job's last attempt had, in the mean of its windows."""
    query = (
        select(NodeEnergyRow.job_row_id, func.avg(ClockTrialRow.slowdown).label("slowdown"))
        .select_from(ClockTrialRow)
        .join(NodeEnergyRow, NodeEnergyRow.row_id == ClockTrialRow.node_energy_row_id)
        .join(
            GpuEnergyRow,
            (GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
            & (GpuEnergyRow.gpu_type == ClockTrialRow.gpu_type)
            & (GpuEnergyRow.applied_clock_mhz == ClockTrialRow.sm_clock_mhz),
        )
        .join(
            JobRow, (JobRow.row_id == NodeEnergyRow.job_row_id) & (JobRow.restart_count == NodeEnergyRow.restart_count)
        )
        .where(*jobs, ClockTrialRow.slowdown > -1.0, ClockTrialRow.reason == "")
        .group_by(NodeEnergyRow.job_row_id)
    )
    return query.subquery("tried_slowdowns")


def _types(*jobs: ColumnElement[bool]) -> Subquery:
    """Return the one GPU type of each job's last attempt; NULL where there were several, or one without a name."""
    gpu_type = GpuEnergyRow.gpu_type
    same = (func.min(gpu_type) == func.max(gpu_type)) & (func.count(gpu_type) == func.count())
    query = (
        select(NodeEnergyRow.job_row_id, case((same, func.min(gpu_type)), else_=null()).label("gpu_type"))
        .select_from(GpuEnergyRow)
        .join(NodeEnergyRow, NodeEnergyRow.row_id == GpuEnergyRow.node_energy_row_id)
        .join(
            JobRow, (JobRow.row_id == NodeEnergyRow.job_row_id) & (JobRow.restart_count == NodeEnergyRow.restart_count)
        )
        .where(*jobs)
        .group_by(NodeEnergyRow.job_row_id)
    )
    return query.subquery("types")
