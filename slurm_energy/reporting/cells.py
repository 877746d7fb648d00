"""The columns of an energy report: one list that table and HTML share."""

from dataclasses import dataclass

from slurm_energy.domain.report import EnergyReport, GroupEnergyRecord, JobEnergyRecord
from slurm_energy.reporting.quantities import duration_text, energy_text, percent_text, sum_text

NAME_WIDTH = 40
TITLES = {"job": "Energy by job", "user": "Energy by user", "partition": "Energy by partition"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Heading and whether its cells are numbers."""

    heading: str
    is_number: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A report as texts, not yet made safe for any medium."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...]
    notes: tuple[str, ...]


def report_cells(report: EnergyReport) -> Cells:
    """Return headings, rows, total and notes of a report."""
    texts: tuple[str, ...]
    total: tuple[str, ...]
    if report.kind == "job":
        texts = ("Job", "User", "Name", "Partition", "State")
        rows = tuple(_job_row(job) for job in report.jobs)
        total = (f"{report.total.jobs} jobs", "", "", "", "", *_group_sums(report.total))
    else:
        texts = (report.kind.capitalize(),)
        rows = tuple((group.group, str(group.jobs), *_group_sums(group)) for group in report.groups)
        total = ("total", str(report.total.jobs), *_group_sums(report.total))
    counts = () if report.kind == "job" else (Column(heading="Jobs"),)
    waits = ("Wait", "Run") if report.kind == "job" else ("Mean wait", "Mean run")
    numbers = ("GPU energy", "Host energy", "Covered", *waits, "Saving (predicted)")
    columns = (
        *(Column(heading=text, is_number=False) for text in texts),
        *counts,
        *(Column(heading=number) for number in numbers),
    )
    return Cells(title=TITLES[report.kind], columns=columns, rows=rows, total=total, notes=_notes(report))


def job_label(job: JobEnergyRecord) -> str:
    """Return `1234_7` for a task of an array, else the number."""
    if job.array_job_id is not None and job.array_task is not None and job.array_task.isdigit():
        return f"{job.array_job_id}_{job.array_task}"
    return str(job.job_id)


def _job_row(job: JobEnergyRecord) -> tuple[str, ...]:
    requeued = f" ({job.attempts} attempts)" if job.attempts > 1 else ""
    user = job.user_name or ("-" if job.user_id is None else f"uid {job.user_id}")
    return (
        job_label(job),
        user,
        job.name or "-",
        job.partition or "-",
        f"{job.state or '-'}{requeued}",
        sum_text(job.gpu),
        sum_text(job.host),
        percent_text(job.gpu.coverage_share),
        duration_text(job.wait_seconds),
        duration_text(job.run_seconds),
        "-" if job.saving_joules is None else energy_text(job.saving_joules),
    )


def _group_sums(group: GroupEnergyRecord) -> tuple[str, ...]:
    return (
        sum_text(group.gpu),
        sum_text(group.host),
        percent_text(group.gpu.coverage_share),
        duration_text(group.mean_wait_seconds),
        duration_text(group.mean_run_seconds),
        "-" if group.saving_joules is None else energy_text(group.saving_joules),
    )


def _notes(report: EnergyReport) -> tuple[str, ...]:
    total, notes = report.total, []
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
