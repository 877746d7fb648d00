"""Energy per job, and per user, account, partition, QOS, name or node, in periods."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, case, func, null, or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import ClusterName, DecisionId, JobId, PartitionName
from slurm_energy.domain.report import (
    EnergyReport,
    FacilityRecord,
    GroupEnergyRecord,
    JobEnergyRecord,
    ReportKind,
)
from slurm_energy.energy_model.facility import Facility
from slurm_energy.store.energy import decode_flags
from slurm_energy.store.host_counts import unused_hosts
from slurm_energy.store.rollup_rows import (
    DAY_SECONDS,
    HOUR_SECONDS,
    EnergyRollupRow,
    RollupPeriodRow,
    hour_of,
    rollup_sums,
)
from slurm_energy.store.summaries import (
    JobFilter,
    host_joules,
    job_summaries,
    joined_hosts,
    missing_nodes,
    partition_of_report,
)
from slurm_energy.store.tables import NOT_ROLLED_UP, GpuEnergyRow, JobRow, NodeEnergyRow
from slurm_energy.store.totals import (
    COUNT_NAMES,
    TIME_NAMES,
    Groups,
    Period,
    Totals,
    add_groups,
    group_keys,
    periods_with_rows,
)

DEFAULT_ROW_LIMIT = 10_000
UNKNOWN_GROUP = "(unknown)"
TOTAL_GROUP = "total"
LABEL_GAP = " / "
MAX_REASONS = 8
NO_FACILITY = Facility()
_CHUNK = 500
MAX_BACKLOG = 20_000
"""Of ended jobs that are in no roll-up yet, over which reports are made from rows alone."""
MAX_RANGES = 40
"""Runs of days in one report; what is beyond is read by hours."""

_Key = tuple[Any, ...]


def report_jobs(
    session: Session, where: JobFilter, limit: int = DEFAULT_ROW_LIMIT, facility: Facility = NO_FACILITY
) -> EnergyReport:
    """Return one row per job, newest submission first, and the total of all, also of those over the limit."""
    total = _total(session, where, _groups(session, where, (), facility))
    order = (JobRow.submitted_at_seconds.desc(), JobRow.job_id.desc())
    rows = session.execute(job_summaries(where, JobRow).order_by(*order).limit(limit)).all()
    numbers = [row.JobRow.row_id for row in rows]
    notes = _notes(session, numbers)
    sums: dict[int, Totals] = {}
    for row in rows:
        sums.setdefault(row.JobRow.row_id, Totals()).add(dict(row._mapping))
    if numbers:
        _add_prices(session, where, (NodeEnergyRow.job_row_id,), facility, {(key,): one for key, one in sums.items()})
    missing: dict[int, int] = {}
    for gap in session.execute(missing_nodes(where)):
        if gap.job_row_id in sums:
            missing[gap.job_row_id] = gap.nodes
            sums[gap.job_row_id].add_missing_nodes(
                gap.nodes, gap.gpus_per_node or 0.0, gap.device_seconds, gap.wall_seconds
            )
    jobs = tuple(
        _job(row, sums[row.JobRow.row_id], notes.get(row.JobRow.row_id, ()), missing.get(row.JobRow.row_id, 0))
        for row in rows
    )
    return EnergyReport(
        kind="job",
        cluster=where.cluster,
        total=total,
        jobs=jobs,
        since_seconds=where.since_seconds,
        until_seconds=where.until_seconds,
        rows_left_out=max(0, total.jobs - len(jobs)),
        facility=_facility(facility),
    )


def report_groups(  # noqa: PLR0913  # each is one word of the command line
    session: Session,
    where: JobFilter,
    kind: ReportKind,
    *,
    also: Sequence[ReportKind] = (),
    periods: Sequence[Period] = (),
    limit: int = DEFAULT_ROW_LIMIT,
    facility: Facility = NO_FACILITY,
) -> EnergyReport:
    """Return one row per group and period, those of a period by GPU energy, most first.

    Args:
        session: Of the database.
        where: Which jobs.
        kind: What a row is of; `cluster` is one for all.
        also: Further dimensions: a row for each combination that there is.
        periods: Without gaps, over the filter's whole time; none: one row for each group.
        limit: Rows at most; the total has them all.
        facility: What energy costs.
    """
    kinds = tuple(dict.fromkeys(one for one in (kind, *also) if one != "cluster"))
    total = Totals()
    records: list[GroupEnergyRecord] = []
    for since, until in periods_with_rows(
        session, where.cluster, periods or ((where.since_seconds, where.until_seconds),)
    ):
        chosen = replace(where, since_seconds=since, until_seconds=until)
        groups = _groups(session, chosen, kinds, facility)
        for one in groups.values():
            total.add_all(one)
        own = (since, until) if periods else (None, None)
        found = [_record(_label(kinds, key, where), one, own) for key, one in groups.items()]
        records += sorted(found, key=lambda record: (-(record.gpu.joules or 0.0), record.group))
    whole = _total(session, where, {(): total}, counted=not periods and not {"partition", "node"} & set(kinds))
    if kinds == ("node",) and where.is_of_all_jobs:
        records = _with_unused_hosts(session, where, records, periods)
        known = [row.host_in_no_job_joules for row in records if row.host_in_no_job_joules is not None]
        whole = replace(whole, host_in_no_job_joules=sum(known) if known else None)
    return EnergyReport(
        kind=kind,
        cluster=where.cluster,
        total=whole,
        groups=tuple(records[:limit]),
        since_seconds=where.since_seconds,
        until_seconds=where.until_seconds,
        rows_left_out=max(0, len(records) - limit),
        facility=_facility(facility),
    )


def report_users(session: Session, where: JobFilter, limit: int = DEFAULT_ROW_LIMIT) -> EnergyReport:
    """Return one row per user, most GPU energy first."""
    return report_groups(session, where, "user", limit=limit)


def report_partitions(session: Session, where: JobFilter, limit: int = DEFAULT_ROW_LIMIT) -> EnergyReport:
    """Return one row per partition in which attempts ran, most GPU energy first."""
    return report_groups(session, where, "partition", limit=limit)


def job_energy(session: Session, cluster: ClusterName, job_id: JobId) -> tuple[JobEnergyRecord, ...]:
    """Return the jobs of exactly that number, youngest first: several where it was used again."""
    return report_jobs(session, JobFilter(cluster=cluster, exact_job_id=job_id)).jobs


def _facility(facility: Facility) -> FacilityRecord:
    return FacilityRecord(pue=facility.pue, currency=facility.currency, sources=facility.sources)


def _groups(session: Session, where: JobFilter, kinds: Sequence[ReportKind], facility: Facility) -> Groups:
    """Return the sums of every group, from roll-ups as far as they go; without kinds, of all together."""
    groups, rest = _rolled_up(session, where, kinds)
    add_groups(session, rest, partial(group_keys, kinds), groups, of_nodes="node" in kinds)
    _add_prices(session, where, group_keys(kinds, partition_of_report(), NodeEnergyRow.node), facility, groups)
    for one in groups.values():
        one.add({"jobs_without_energy": max(0, one.count("gpu_jobs") - one.count("jobs_with_energy"))})
    return groups if kinds else {key: one for key, one in groups.items() if one.count("jobs")}


def _rolled_up(session: Session, where: JobFilter, kinds: Sequence[ReportKind]) -> tuple[Groups, JobFilter]:
    """Return what roll-ups have of a report's groups, and which rows are left to be added; all, where they are no help.

    Args:
        session: In one transaction with what reads the rest.
        where: Which jobs, and which time.
        kinds: Dimensions of the report.
    """
    one_by_one = (where.job_id, where.exact_job_id, where.name, where.node, where.row_ids)
    if any(value is not None for value in one_by_one) or {"name", "node"} & set(kinds):
        return {}, where
    since, until = where.since_seconds, where.until_seconds
    begin = None if since is None else math.ceil(since / HOUR_SECONDS) * HOUR_SECONDS
    end = None if until is None else hour_of(until)
    if (begin is not None and end is not None and begin >= end) or _backlog(session, where.cluster) > MAX_BACKLOG:
        return {}, where
    groups: Groups = {}
    row = EnergyRollupRow
    keys = _report_keys(kinds)
    for period_seconds, first, last in _ranges(session, where.cluster, begin, end):
        terms = [row.cluster == where.cluster, row.period_seconds == period_seconds, *_of_owner(where)]
        terms += [] if first is None else [row.starts_at_seconds >= first]
        terms += [] if last is None else [row.starts_at_seconds < last]
        query = select(*keys, *rollup_sums()).where(*terms)
        for found in session.execute(query.group_by(*keys) if keys else query):
            groups.setdefault(tuple(found[: len(keys)]), Totals()).add(dict(found._mapping))
    return groups, replace(where, raw_hours=_raw_hours(session, where.cluster, since, until))


def _backlog(session: Session, cluster: ClusterName) -> int:
    waiting = (
        select(JobRow.row_id)
        .where(
            JobRow.cluster == cluster, JobRow.rollup_hour == NOT_ROLLED_UP, (JobRow.ended_at_seconds + 0.0).is_not(None)
        )
        .limit(MAX_BACKLOG + 1)
        .subquery()
    )
    return session.scalar(select(func.count()).select_from(waiting)) or 0


def _report_keys(kinds: Sequence[ReportKind]) -> list[ColumnElement[Any]]:
    row = EnergyRollupRow
    of_user = (row.user_name, case((row.user_name.is_(None), row.user_id), else_=null()))
    columns: Mapping[str, tuple[Any, ...]] = {"user": of_user}
    found = [column for kind in kinds for column in columns.get(kind) or (getattr(row, kind),)]
    return [column.label(f"key{number}") for number, column in enumerate(found)]


def _of_owner(where: JobFilter) -> Iterator[ColumnElement[bool]]:
    row = EnergyRollupRow
    if where.user_id is not None:
        own = row.user_id == where.user_id
        yield or_(own, row.account.in_(where.coordinated_accounts)) if where.coordinated_accounts else own
    for name in ("user_name", "account", "qos", "partition"):
        value = getattr(where, name)
        if value is not None:
            yield getattr(row, name) == value


def _ranges(
    session: Session, cluster: ClusterName, begin: int | None, end: int | None
) -> list[tuple[int, int | None, int | None]]:
    """Return what to read of [begin, end): period's length, first start, and the start after the last one."""
    row = RollupPeriodRow
    terms = [row.cluster == cluster, row.period_seconds == DAY_SECONDS]
    terms += [] if begin is None else [row.starts_at_seconds >= begin]
    terms += [] if end is None else [row.starts_at_seconds <= end - DAY_SECONDS]
    runs: list[tuple[int, int]] = []
    for start in session.scalars(select(row.starts_at_seconds).where(*terms).order_by(row.starts_at_seconds)):
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], start + DAY_SECONDS
        else:
            runs.append((start, start + DAY_SECONDS))
    longest = sorted(runs, key=lambda run: run[0] - run[1])[:MAX_RANGES]
    found: list[tuple[int, int | None, int | None]] = []
    at = begin
    for first, last in sorted(longest):
        if at is None or at < first:
            found.append((HOUR_SECONDS, at, first))
        found.append((DAY_SECONDS, first, last))
        at = last
    if end is None or at is None or at < end:
        found.append((HOUR_SECONDS, at, end))
    return found


def _raw_hours(session: Session, cluster: ClusterName, since: float | None, until: float | None) -> tuple[int, ...]:
    """Return the hours whose jobs are read themselves: stale ones, and those that are only partly in the period."""
    row = RollupPeriodRow
    terms = [row.cluster == cluster, row.period_seconds == HOUR_SECONDS, row.is_stale]
    terms += [] if since is None else [row.starts_at_seconds >= hour_of(since)]
    terms += [] if until is None else [row.starts_at_seconds < until]
    hours = set(session.scalars(select(row.starts_at_seconds).where(*terms)))
    hours.update(hour_of(edge) for edge in (since, until) if edge is not None and edge % HOUR_SECONDS)
    return tuple(sorted(hours))


def _add_prices(session: Session, where: JobFilter, keys: Sequence[Any], facility: Facility, groups: Groups) -> None:
    """Add money and CO2: of sums where they never change, else of each node's report over its own time."""
    if facility.price is None and facility.intensity is None:
        return
    if facility.is_constant:
        for one in groups.values():
            _price(one, one["gpu_joules"], one["host_joules"], (0.0, 0.0), facility)
        return
    started = NodeEnergyRow.started_at_seconds + func.coalesce(NodeEnergyRow.clock_offset_seconds, 0.0)
    query = joined_hosts(*keys, NodeEnergyRow.gpu_joules, host_joules(), started, NodeEnergyRow.counted_at_seconds)
    for *key, gpu, host, begin, end in session.execute(query.where(*where.of_jobs(), *where.of_reports())):
        found = groups.get(tuple(key))
        if found is not None:
            _price(found, gpu, host, (begin, end), facility)


def _price(one: Totals, gpu: float | None, host: float | None, time: tuple[float, float], facility: Facility) -> None:
    if gpu is None and host is None:
        return  # what is not known has no price either, and is not free
    joules = (gpu or 0.0) + (host or 0.0)
    cost, co2 = facility.cost(joules, *time), facility.co2_grams(joules, *time)
    lacks = (facility.price is not None and cost is None) or (facility.intensity is not None and co2 is None)
    one.add({"cost": cost, "co2_grams": co2, "unpriced_joules": joules if lacks else None})


def _total(session: Session, where: JobFilter, groups: Groups, *, counted: bool = True) -> GroupEnergyRecord:
    """Return the sum of all groups; unless `counted`, jobs and times are counted again: a job may be in several."""
    total = groups.get(()) or Totals()
    if total.count("jobs") and not counted:
        total.replace(_groups(session, where, (), NO_FACILITY).get((), total), (*COUNT_NAMES, *TIME_NAMES))
    return _record(TOTAL_GROUP, total, (None, None))


def _with_unused_hosts(
    session: Session, where: JobFilter, records: list[GroupEnergyRecord], periods: Sequence[Period]
) -> list[GroupEnergyRecord]:
    """Return the rows of nodes with the host energy that is in no job; a node without any job has a row too then."""
    found = unused_hosts(session, where.cluster, periods or [(where.since_seconds, where.until_seconds)], where.node)
    unused = {
        (period, node): joules
        for period, nodes in zip(periods or [(None, None)], found, strict=True)
        for node, joules in nodes.items()
    }
    filled = [
        replace(
            record,
            host_in_no_job_joules=unused.pop(((record.since_seconds, record.until_seconds), record.group), None),
        )
        for record in records
    ]
    idle = (
        replace(_record(node, Totals(), period), host_in_no_job_joules=joules)
        for (period, node), joules in unused.items()
    )
    return sorted([*filled, *idle], key=lambda record: record.since_seconds or -math.inf)


def _label(kinds: Sequence[ReportKind], key: _Key, where: JobFilter) -> str:
    values, labels = iter(key), []
    for kind in kinds:
        name = next(values)
        number = next(values) if kind == "user" else None
        labels.append(name if name is not None else UNKNOWN_GROUP if number is None else f"uid {number}")
    return LABEL_GAP.join(labels) or where.cluster


def _record(label: str, one: Totals, period: Period) -> GroupEnergyRecord:
    return GroupEnergyRecord(
        group=label,
        jobs=one.count("jobs"),
        jobs_without_energy=one.count("jobs_without_energy"),
        gpu=one.energy_sum("gpu"),
        host=one.energy_sum("host"),
        mean_wait_seconds=one.mean("wait_seconds", "waits"),
        mean_run_seconds=one.mean("run_seconds", "runs"),
        saving_joules=one["saving_joules"],
        use=one.use(),
        since_seconds=period[0],
        until_seconds=period[1],
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _notes(session: Session, row_ids: Sequence[int]) -> dict[int, list[tuple[str, str | None]]]:
    """Return (flags, reason) of every reading, by job row."""
    notes: dict[int, list[tuple[str, str | None]]] = {}
    for begin in range(0, len(row_ids), _CHUNK):
        chunk = row_ids[begin : begin + _CHUNK]
        node = NodeEnergyRow
        of_gpus = (
            select(node.job_row_id, GpuEnergyRow.flags, GpuEnergyRow.reason)
            .join(node, node.row_id == GpuEnergyRow.node_energy_row_id)
            .where(node.job_row_id.in_(chunk))
            .distinct()
        )
        # That a node has no reading of its processors at all is no news in a GPU report.
        host_reason = case((node.host_measured, node.host_reason), else_=null())
        of_hosts = select(node.job_row_id, node.host_flags, host_reason).where(node.job_row_id.in_(chunk)).distinct()
        for query in (of_gpus, of_hosts):
            for row_id, flags, reason in session.execute(query):
                notes.setdefault(row_id, []).append((flags, reason))
    return notes


def _job(row: Row[Any], sums: Totals, notes: Iterable[tuple[str, str | None]], missing: int) -> JobEnergyRecord:
    job: JobRow = row.JobRow
    flags = {flag for text, _ in notes for flag in decode_flags(text)}
    if not job.submit_time_known:
        flags.add(QualityFlag.SUBMIT_TIME_UNKNOWN)
    return JobEnergyRecord(
        cluster=ClusterName(job.cluster),
        job_id=JobId(job.job_id),
        submitted_at_seconds=job.submitted_at_seconds,
        submit_time_known=job.submit_time_known,
        gpu=sums.energy_sum("gpu"),
        host=sums.energy_sum("host"),
        attempts=int(row.attempts),
        name=job.name,
        user_id=job.user_id,
        user_name=job.user_name,
        account=job.account,
        qos=job.qos,
        partition=None if job.partition is None else PartitionName(job.partition),
        array_job_id=None if job.array_job_id is None else JobId(job.array_job_id),
        array_task=job.array_task,
        state=job.state,
        started_at_seconds=_number(row.first_start),
        ended_at_seconds=job.ended_at_seconds,
        wait_seconds=_number(row.wait_seconds),
        run_seconds=_number(row.run_seconds),
        gpu_count=job.gpu_count,
        exit_code=job.exit_code,
        decision_id=None if job.decision_id is None else DecisionId(job.decision_id),
        saving_joules=sums["saving_joules"],
        use=sums.use(),
        missing_nodes=missing,
        slurm_energy_joules=job.slurm_energy_joules,
        flags=tuple(sorted(flags)),
        unknown_reasons=tuple(sorted({reason for _, reason in notes if reason is not None})[:MAX_REASONS]),
    )
