"""The story of one job in a terminal: asked, decided, why, applied, observed, predicted against actual."""

from collections.abc import Iterator
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.report import ComparisonRecord, DecisionRecord, ExplainRecord, GpuOutcomeRecord
from slurm_energy.policy.attention_note import shares_of
from slurm_energy.policy.cost_note import is_cost_note
from slurm_energy.reporting.cells import job_label
from slurm_energy.reporting.quantities import (
    clock_text,
    duration_text,
    energy_text,
    percent_text,
    signed_percent_text,
    sum_text,
)
from slurm_energy.reporting.visible import visible

_TEXT_WIDTH = 200


def render_explain(record: ExplainRecord, console: Console) -> None:
    """Print what is known of one job; what is not known is said."""
    for heading, lines in _sections(record):
        console.print(Text(heading, style="bold"))
        for line in lines:
            console.print(Text(f"  {visible(line, _TEXT_WIDTH)}"))
    if record.gpus:
        console.print(Text("Applied and observed", style="bold"))
        console.print(_gpu_table(record.gpus))
    if record.comparisons:
        console.print(Text("Predicted against actual", style="bold"))
        console.print(_comparison_table(record.comparisons))
    if record.events:
        console.print(Text("What the nodes wrote down", style="bold"))
        for event in record.events:
            console.print(Text(f"  {visible(event, _TEXT_WIDTH)}"))


def _sections(record: ExplainRecord) -> Iterator[tuple[str, list[str]]]:
    job = record.job
    yield (
        f"Job {job_label(job)} on {visible(job.cluster)}",
        [
            f"{job.name or '(no name)'}, {job.user_name or 'uid ' + str(job.user_id)}, {job.state or 'state unknown'}",
            f"partition {job.partition or 'unknown'}, waited {duration_text(job.wait_seconds)}, "
            f"ran {duration_text(job.run_seconds)}" + (f" in {job.attempts} attempts" if job.attempts > 1 else ""),
            (
                f"GPU energy {sum_text(job.gpu)}, host energy {sum_text(job.host)}, "
                f"covered {percent_text(job.gpu.coverage_share)}"
            ),
            *(f"unknown because: {reason}" for reason in job.unknown_reasons),
            *([f"flags: {', '.join(job.flags)}"] if job.flags else []),
        ],
    )
    if record.decision is not None:
        yield from _decision_sections(record.decision)
    elif job.decision_id is not None:
        yield "Decided", [f"decision {job.decision_id} has not reached the database"]
    else:
        yield "Decided", ["nothing: this job carries no decision"]


def _decision_sections(decision: DecisionRecord) -> Iterator[tuple[str, list[str]]]:
    yield "Asked", _asked(decision.asked)
    yield "Decided", _decided(decision)
    sentences = (note for note in decision.notes if shares_of(note) is None and not is_cost_note(note))
    yield "Why", [*(f"{reason.sentence} ({reason.code})" for reason in decision.reasons), *sentences]


def _asked(request: JobRequest) -> list[str]:
    gpus = ", ".join(f"{demand.count} x {demand.slurm_type or 'any GPU'}" for demand in request.gpus) or "no GPU"
    limit = "none" if request.time_limit_minutes is None else duration_text(request.time_limit_minutes * 60.0)
    options = request.options
    slowdown = "" if options.max_slowdown is None else f", at most {percent_text(options.max_slowdown)} longer"
    deadline = "" if options.deadline_seconds is None else f", ended by {_moment(options.deadline_seconds)}"
    return [
        f"{gpus}, partitions {', '.join(request.partitions) or 'none named'}, time limit {limit}",
        f"mode {options.mode.value if options.mode else 'left to the site'}{slowdown}{deadline}",
    ]


def _decided(decision: DecisionRecord) -> list[str]:
    age = decision.snapshot_age_seconds
    known = "without a picture of the cluster" if age is None else f"on a picture of the cluster {age:.1f} s old"
    lines = [
        (
            f"{decision.decision_id} by {decision.policy} {decision.policy_version} at "
            f"{_moment(decision.decided_at_seconds)}, {known}, mode {decision.mode.value}"
        )
    ]
    if decision.partitions is not None:
        lines.append(f"partitions tried first: {', '.join(decision.partitions)}")
    if decision.prefer is not None:
        lines.append(f"prefers nodes with feature {decision.prefer}")
    lines.extend(
        f"{choice.gpu_type} at {choice.sm_clock_mhz} of {choice.default_clock_mhz} MHz: predicted "
        f"{signed_percent_text(choice.predicted_energy_change)} energy, "
        f"{signed_percent_text(choice.predicted_slowdown)} run time"
        + ("" if choice.power_limit_watts is None else f" on boards of {choice.power_limit_watts:g} W")
        for choice in decision.clocks
    )
    if decision.partitions is None and decision.prefer is None and not decision.clocks:
        lines.append("nothing was changed")
    if decision.estimate is not None:
        lines.append(
            f"run time at the default clock {duration_text(decision.estimate.seconds)}, at most "
            f"{duration_text(decision.estimate.upper_seconds)} (from {decision.estimate.source})"
        )
    return lines


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _gpu_table(gpus: tuple[GpuOutcomeRecord, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("Node", "GPU", "Type", "Asked", "Applied", "Observed", "Default", "Energy", "Source", "Flags"):
        table.add_column(heading, overflow="fold")
    for gpu in gpus:
        attempt = f" (attempt {gpu.restart_count + 1})" if gpu.restart_count else ""
        energy = energy_text(gpu.joules, gpu.error_share)
        table.add_row(
            *(
                Text(visible(cell, _TEXT_WIDTH))
                for cell in (
                    f"{gpu.node}{attempt}",
                    gpu.gpu_uuid,
                    gpu.gpu_type or gpu.gpu_name,
                    clock_text(gpu.asked_clock_mhz),
                    clock_text(gpu.applied_clock_mhz),
                    clock_text(gpu.observed_clock_mhz),
                    clock_text(gpu.default_clock_mhz),
                    energy if gpu.reason is None else f"{energy}: {gpu.reason}",
                    gpu.source.value if gpu.scope.value == "gpu" else f"{gpu.source.value}, {gpu.scope.value}",
                    ", ".join(gpu.flags) or "-",
                )
            )
        )
    return table


def _comparison_table(comparisons: tuple[ComparisonRecord, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "Predicted", "Actual", "From"):
        table.add_column(heading, overflow="fold")
    for item in comparisons:
        cells = (item.quantity, _value(item.predicted, item.unit), _value(item.actual, item.unit), item.basis)
        table.add_row(*(Text(visible(cell, _TEXT_WIDTH)) for cell in cells))
    return table


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    match unit:
        case "s":
            return duration_text(value)
        case "share":
            return signed_percent_text(value)
        case "MHz":
            return clock_text(value)
        case _:
            return f"{value:g} {unit}"
