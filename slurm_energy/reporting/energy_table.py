"""Energy reports as a table in a terminal; the columns are one list that table and HTML share."""

import time
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from slurm_energy.domain.report import EnergyReport, EnergySum, GroupEnergyRecord, JobEnergyRecord, ReportKind
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.quantities import (
    duration_text,
    energy_text,
    error_note,
    kwh_text,
    mass_text,
    moment_text,
    percent_text,
    sum_text,
)
from slurm_energy.reporting.visible import visible

NAME_WIDTH = 40
REPORT_SECONDS = 900.0
"""After its end a job's report is on its way for so long: a node that cannot reach the daemon tries every minute."""
KIND_HEADINGS: dict[ReportKind, str] = {
    "user": "User",
    "account": "Account",
    "partition": "Partition",
    "qos": "QOS",
    "name": "Name",
    "node": "Node",
    "cluster": "Cluster",
}
_LIVE = frozenset({"RUNNING", "SUSPENDED"})
TITLES: dict[ReportKind, str] = {
    "job": "Energy by job",
    "user": "Energy by user",
    "account": "Energy by account",
    "partition": "Energy by partition",
    "qos": "Energy by QOS",
    "name": "Energy by job name",
    "node": "Energy by node",
    "cluster": "Energy of the cluster",
}
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
    parts: tuple[tuple[str, str], ...]
    """What the total is made of, line by line."""
    notes: tuple[str, ...]


def report_cells(report: EnergyReport, now_seconds: float) -> Cells:
    """Return headings, rows, total and notes of a report.

    Args:
        report: What was measured.
        now_seconds: Unix time: a report that is not there yet is another thing than one that never came.
    """
    total: tuple[str, ...]
    if report.kind == "job":
        rows = tuple(_job_row(job, report, now_seconds) for job in report.jobs)
        total = (f"{report.total.jobs} jobs", "", "", "", "", "", *_group_sums(report.total, report))
    else:
        periods = _has_periods(report)
        rows = tuple(
            (*((period_text(group),) if periods else ()), group.group, str(group.jobs), *_group_sums(group, report))
            for group in report.groups
        )
        total = (*(("",) if periods else ()), "total", str(report.total.jobs), *_group_sums(report.total, report))
    columns = (*_leading_columns(report), *_number_columns(report))
    return Cells(
        title=TITLES[report.kind],
        subject=report_subject(report),
        columns=columns,
        rows=rows,
        total=total,
        parts=total_parts(report),
        notes=_notes(report, now_seconds),
    )


def report_subject(report: EnergyReport) -> str:
    """Return `cluster lab, 2026-03-01 00:00:00+01:00 to 2026-04-01 00:00:00+02:00`."""
    since = "the beginning" if report.since_seconds is None else moment_text(report.since_seconds)
    until = "now" if report.until_seconds is None else moment_text(report.until_seconds)
    return f"cluster {report.cluster}, {since} to {until}"


def _has_periods(report: EnergyReport) -> bool:
    return any(group.since_seconds is not None for group in report.groups)


def period_text(group: GroupEnergyRecord) -> str:
    """Return the local day on which a row's period begins, with the time where that is not midnight."""
    if group.since_seconds is None:
        return ""
    text = moment_text(group.since_seconds)
    return text[:10] if text[11:19] == "00:00:00" else text[:16]


def _leading_columns(report: EnergyReport) -> tuple[ReportColumn, ...]:
    if report.kind != "job":
        label = ReportColumn(heading=KIND_HEADINGS[report.kind], is_number=False)
        from_day = (ReportColumn(heading="From", is_number=False),) if _has_periods(report) else ()
        return (*from_day, label, ReportColumn(heading="Jobs", rank=1))
    ranks = {"Job": 0, "User": 5, "Account": 10, "Name": 1, "Partition": 6, "State": 2}
    return tuple(ReportColumn(heading=heading, is_number=False, rank=rank) for heading, rank in ranks.items())


def _number_columns(report: EnergyReport) -> tuple[ReportColumn, ...]:
    wait, run = ("Wait", "Run") if report.kind == "job" else ("Mean wait", "Mean run")
    currency = report.facility.currency
    ranks = {"GPU energy": 0, "Host energy": 11, "Covered": 8, wait: 9, run: 3, "Saving (predicted)": 4}
    ranks |= {"GPU use": 7, "Energy": 5}
    ranks |= {} if currency is None else {currency: 2}
    ranks |= {"CO2": 3} if _has_co2(report) else {}
    ranks |= {"Host in no job": 10} if report.total.host_in_no_job_joules is not None else {}
    return tuple(ReportColumn(heading=heading, rank=rank) for heading, rank in ranks.items())


def _has_co2(report: EnergyReport) -> bool:
    of_rows = (row.use for rows in ((report.total,), report.groups, report.jobs) for row in rows)
    return any(use.co2_grams is not None for use in of_rows)


def job_label(job: JobEnergyRecord) -> str:
    """Return `1234_7` for a task of an array, else the number."""
    if job.array_job_id is not None and job.array_task is not None and job.array_task.isdigit():
        return f"{job.array_job_id}_{job.array_task}"
    return str(job.job_id)


def _job_row(job: JobEnergyRecord, report: EnergyReport, now_seconds: float) -> tuple[str, ...]:
    requeued = f" ({job.attempts} attempts)" if job.attempts > 1 else ""
    user = job.user_name or ("-" if job.user_id is None else f"uid {job.user_id}")
    return (
        job_label(job),
        user,
        job.account or "-",
        job.name or "-",
        job.partition or "-",
        f"{job.state or '-'}{requeued}",
        job_energy_text(job, job.gpu, now_seconds),
        job_energy_text(job, job.host, now_seconds),
        percent_text(job.gpu.coverage_share),
        duration_text(job.wait_seconds),
        duration_text(job.run_seconds),
        "-" if job.saving_joules is None else energy_text(job.saving_joules),
        *_use_cells(job, report),
    )


def _use_cells(row: JobEnergyRecord | GroupEnergyRecord, report: EnergyReport) -> tuple[str, ...]:
    """Return how far GPUs were used, all energy with the building's share, and what it cost."""
    joules = whole_joules(row, report)
    cells = [percent_text(row.use.utilisation), "-" if joules is None else kwh_text(joules)]
    if report.facility.currency is not None:
        cells.append("-" if row.use.cost is None else f"{row.use.cost:.2f}")
    if _has_co2(report):
        cells.append("-" if row.use.co2_grams is None else mass_text(row.use.co2_grams))
    if report.total.host_in_no_job_joules is not None and isinstance(row, GroupEnergyRecord):
        unused = row.host_in_no_job_joules
        cells.append("-" if unused is None else energy_text(unused))
    return tuple(cells)


def whole_joules(row: JobEnergyRecord | GroupEnergyRecord, report: EnergyReport) -> float | None:
    """Return GPUs and hosts with the building's share; None where neither is known."""
    known = [energy.joules for energy in (row.gpu, row.host) if energy.joules is not None]
    return sum(known) * report.facility.pue if known else None


def total_parts(report: EnergyReport) -> tuple[tuple[str, str], ...]:
    """Return what the total is made of, each part in a line of its own; parts that are not known are left out."""
    total, facility = report.total, report.facility
    gpu, host, idle = total.gpu.joules, total.host.joules, total.use.idle_gpu_joules
    lines: list[tuple[str, str]] = []
    if gpu is not None and idle is not None:
        lines.append(("GPUs at work", kwh_text(max(0.0, gpu - idle))))
        lines.append(("GPUs idle in jobs", kwh_text(idle)))
    elif gpu is not None:
        lines.append(("GPUs", kwh_text(gpu)))
    if host is not None:
        lines.append(("Jobs' part of hosts", kwh_text(host)))
    if total.host_in_no_job_joules is not None:
        lines.append(("Hosts, in no job", kwh_text(total.host_in_no_job_joules)))
    whole = whole_joules(total, report)
    if whole is None:
        return tuple(lines)
    if facility.pue > 1.0:
        lines.append((f"Building (PUE {facility.pue:g})", kwh_text(whole * (1.0 - 1.0 / facility.pue))))
    lines.append(("Together", kwh_text(whole)))
    use = total.use
    if use.cost is not None:
        lines.append(("Cost", f"{use.cost:.2f} {facility.currency}"))
    if use.co2_grams is not None:
        lines.append(("CO2", mass_text(use.co2_grams)))
    if total.saving_joules is not None and use.saving_low_joules is not None and use.saving_high_joules is not None:
        interval = f"{kwh_text(use.saving_low_joules)} to {kwh_text(use.saving_high_joules)}"
        lines.append(("Saved (predicted)", f"{kwh_text(total.saving_joules)}, {interval}"))
    return tuple(lines)


def job_energy_text(job: JobEnergyRecord, energy: EnergySum, now_seconds: float) -> str:
    """Return a job's sum, or why there is none yet: nodes report when the job ends, and only jobs with GPUs."""
    if job.gpu.readings or job.host.readings:
        return sum_text(energy)
    if job.gpu_count == 0 and energy is job.gpu:
        return "no GPU"
    if job.state == "PENDING":
        return "not started"
    ended = job.ended_at_seconds
    if ended is not None and job.started_at_seconds is None:
        return "never ran"
    if job.gpu_count == 0:
        return "not measured: no GPU"
    if ended is None:
        return "report at its end" if job.state in _LIVE else "report on its way"
    return "report on its way" if now_seconds - ended < REPORT_SECONDS else "no report"


def _group_sums(group: GroupEnergyRecord, report: EnergyReport) -> tuple[str, ...]:
    return (
        sum_text(group.gpu),
        sum_text(group.host),
        percent_text(group.gpu.coverage_share),
        duration_text(group.mean_wait_seconds),
        duration_text(group.mean_run_seconds),
        "-" if group.saving_joules is None else energy_text(group.saving_joules),
        *_use_cells(group, report),
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
            "not a measurement. Decisions that were not applied and the time of idle GPUs count as none."
        )
    if total.use.unpriced_joules:
        notes.append(
            f"{kwh_text(total.use.unpriced_joules)} were used when the tariff or the CO2 file has no row: "
            "they are not in money and CO2."
        )
    notes.extend(f"Source: {source}" for source in report.facility.sources[:8])
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
    console.print(Text(cells.title, style="italic"))
    table = FittedTable(
        title=cells.subject,
        columns=[_column(column) for column in cells.columns],
        rows=[[visible(cell, NAME_WIDTH) for cell in row] for row in cells.rows],
        total=cells.total if len(cells.rows) > 1 else None,
    )
    print_fitted(table, console)
    if cells.parts and len(cells.rows) > 1:
        widths = [max(len(part[column]) for part in cells.parts) for column in (0, 1)]
        for label, value in cells.parts:
            console.print(Text(f" {label.ljust(widths[0])}  {value.rjust(widths[1])}"))
    for note in cells.notes:
        console.print(Text(visible(note), style="dim"))


def _column(column: ReportColumn) -> FittedColumn:
    # A job's number must stay whole: `12345_678` cut short is another job's.
    shortest = None if column.is_number or column.heading == "Job" else _SHORTEST
    return FittedColumn(heading=column.heading, is_number=column.is_number, rank=column.rank, shortest=shortest)
