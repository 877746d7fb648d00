"""Energy reports as a table in a terminal; the columns are one list that table and HTML share."""

import time
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from slurm_energy.domain.report import EnergyReport, EnergySum, GroupEnergyRecord, JobEnergyRecord
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.quantities import (
    duration_text,
    energy_text,
    error_note,
    moment_text,
    percent_text,
    sum_text,
)
from slurm_energy.reporting.visible import visible

NAME_WIDTH = 40
REPORT_SECONDS = 900.0
"""After its end a job's report is on its way for so long: a node that cannot reach the daemon tries every minute."""
_LIVE = frozenset({"RUNNING", "SUSPENDED"})
TITLES = {"job": "Energy by job", "user": "Energy by user", "partition": "Energy by partition"}
_SHORTEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumn:
    """Heading and whether its cells are numbers."""

    heading: str
    is_number: bool = True
    rank: int = 0
    """Where a terminal has no room, columns of the highest rank go first; 0 stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A report as texts, not yet made safe for any medium."""

    title: str
    subject: str
    """Of which cluster, and of which time."""
    columns: tuple[ReportColumn, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...]
    notes: tuple[str, ...]


def report_cells(report: EnergyReport, now_seconds: float) -> Cells:
    """Return headings, rows, total and notes of a report.

    Args:
        report: What was measured.
        now_seconds: Unix time: a report that is not there yet is another thing than one that never came.
    """
    total: tuple[str, ...]
    if report.kind == "job":
        rows = tuple(_job_row(job, now_seconds) for job in report.jobs)
        total = (f"{report.total.jobs} jobs", "", "", "", "", *_group_sums(report.total))
    else:
        rows = tuple((group.group, str(group.jobs), *_group_sums(group)) for group in report.groups)
        total = ("total", str(report.total.jobs), *_group_sums(report.total))
    columns = (*_leading_columns(report.kind), *_number_columns(report.kind))
    return Cells(
        title=TITLES[report.kind],
        subject=report_subject(report),
        columns=columns,
        rows=rows,
        total=total,
        notes=_notes(report, now_seconds),
    )


def report_subject(report: EnergyReport) -> str:
    """Return `cluster lab, 2026-03-01 00:00:00+01:00 to 2026-04-01 00:00:00+02:00`."""
    since = "the beginning" if report.since_seconds is None else moment_text(report.since_seconds)
    until = "now" if report.until_seconds is None else moment_text(report.until_seconds)
    return f"cluster {report.cluster}, {since} to {until}"


def _leading_columns(kind: str) -> tuple[ReportColumn, ...]:
    if kind != "job":
        return (ReportColumn(heading=kind.capitalize(), is_number=False), ReportColumn(heading="Jobs", rank=1))
    ranks = {"Job": 0, "User": 5, "Name": 1, "Partition": 6, "State": 2}
    return tuple(ReportColumn(heading=heading, is_number=False, rank=rank) for heading, rank in ranks.items())


def _number_columns(kind: str) -> tuple[ReportColumn, ...]:
    wait, run = ("Wait", "Run") if kind == "job" else ("Mean wait", "Mean run")
    ranks = {"GPU energy": 0, "Host energy": 9, "Covered": 8, wait: 7, run: 3, "Saving (predicted)": 4}
    return tuple(ReportColumn(heading=heading, rank=rank) for heading, rank in ranks.items())


def job_label(job: JobEnergyRecord) -> str:
    """Return `1234_7` for a task of an array, else the number."""
    if job.array_job_id is not None and job.array_task is not None and job.array_task.isdigit():
        return f"{job.array_job_id}_{job.array_task}"
    return str(job.job_id)


def _job_row(job: JobEnergyRecord, now_seconds: float) -> tuple[str, ...]:
    requeued = f" ({job.attempts} attempts)" if job.attempts > 1 else ""
    user = job.user_name or ("-" if job.user_id is None else f"uid {job.user_id}")
    return (
        job_label(job),
        user,
        job.name or "-",
        job.partition or "-",
        f"{job.state or '-'}{requeued}",
        job_energy_text(job, job.gpu, now_seconds),
        job_energy_text(job, job.host, now_seconds),
        percent_text(job.gpu.coverage_share),
        duration_text(job.wait_seconds),
        duration_text(job.run_seconds),
        "-" if job.saving_joules is None else energy_text(job.saving_joules),
    )


def job_energy_text(job: JobEnergyRecord, energy: EnergySum, now_seconds: float) -> str:
    """Return a job's sum, or why there is none yet: nodes report when the job ends."""
    if job.gpu.readings or job.host.readings:
        return sum_text(energy)
    if job.gpu_count == 0 and energy is job.gpu:
        return "no GPU"
    if job.state == "PENDING":
        return "not started"
    if job.ended_at_seconds is None:
        return "report at its end" if job.state in _LIVE else "report on its way"
    if job.started_at_seconds is None:
        return "never ran"
    return "report on its way" if now_seconds - job.ended_at_seconds < REPORT_SECONDS else "no report"


def _group_sums(group: GroupEnergyRecord) -> tuple[str, ...]:
    return (
        sum_text(group.gpu),
        sum_text(group.host),
        percent_text(group.gpu.coverage_share),
        duration_text(group.mean_wait_seconds),
        duration_text(group.mean_run_seconds),
        "-" if group.saving_joules is None else energy_text(group.saving_joules),
    )


def _notes(report: EnergyReport, now_seconds: float) -> tuple[str, ...]:
    total, notes = report.total, []
    if total.gpu.error_share is not None:
        notes.append(error_note(total.gpu))
    late = sum(job_energy_text(job, job.gpu, now_seconds) == "no report" for job in report.jobs)
    waiting = sum(job.missing_nodes for job in report.jobs)
    if waiting:
        notes.append(f"{waiting} nodes of ended jobs have not reported yet: they are among the unknown readings.")
    if late:
        notes.append(
            f"{late} jobs have no report although they ended more than {REPORT_SECONDS / 60:.0f} minutes ago: no hook "
            "ran there, or their node cannot reach the daemon (slurm-energy doctor on the node)."
        )
    if total.gpu.unknown_readings:
        notes.append(
            f"{total.gpu.unknown_readings} of {total.gpu.readings} GPU readings are unknown: not in the sums, not zero."
        )
    if total.jobs_without_energy:
        notes.append(f"{total.jobs_without_energy} of {total.jobs} jobs ran without any known GPU reading.")
    if total.gpu.joules is not None and total.gpu.error_share is None:
        notes.append("A part of the GPU energy is an estimate (model, MIG or shared GPU): no error bound is stated.")
    if total.saving_joules is not None:
        notes.append(
            "Saving: against the default clock, by the model's prediction for the clocks that were applied; "
            "not a measurement."
        )
    reasons = sorted({reason for job in report.jobs for reason in job.unknown_reasons})
    notes.extend(f"unknown: {reason}" for reason in reasons[:8])
    if report.rows_left_out:
        notes.append(f"{report.rows_left_out} more rows are left out; they are in the total.")
    return tuple(notes)


def render_table(report: EnergyReport, console: Console, now_seconds: float | None = None) -> None:
    """Print the report; texts of users are shown as they are, without markup or control characters."""
    cells = report_cells(report, time.time() if now_seconds is None else now_seconds)
    if not cells.rows:
        console.print(Text("No jobs match."))
        return
    table = FittedTable(
        title=f"{cells.title}: {cells.subject}",
        columns=[_column(column) for column in cells.columns],
        rows=[[visible(cell, NAME_WIDTH) for cell in row] for row in cells.rows],
        total=cells.total if len(cells.rows) > 1 else None,
    )
    print_fitted(table, console)
    for note in cells.notes:
        console.print(Text(visible(note), style="dim"))


def _column(column: ReportColumn) -> FittedColumn:
    # A job's number must stay whole: `12345_678` cut short is another job's.
    shortest = None if column.is_number or column.heading == "Job" else _SHORTEST
    return FittedColumn(heading=column.heading, is_number=column.is_number, rank=column.rank, shortest=shortest)
