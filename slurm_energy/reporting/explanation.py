"""The story of one job in a terminal: asked, decided, why, applied, observed, predicted against actual."""

import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from slurm_energy.domain.decision import ClockChoice, DecisionChange
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.report import (
    ComparisonRecord,
    DecisionRecord,
    ExplainRecord,
    GpuOutcomeRecord,
    JobEnergyRecord,
    runtime_basis,
)
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.policy.detail_text import detail_sentences
from slurm_energy.reporting.energy_table import job_energy_text, job_label
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.quantities import (
    clock_text,
    duration_text,
    energy_text,
    error_note,
    moment_text,
    percent_text,
    signed_percent_text,
)
from slurm_energy.reporting.visible import visible

_TEXT_WIDTH = 200
_GPU_COLUMNS = (
    FittedColumn(heading="Node", rank=3, shortest=8),
    FittedColumn(heading="GPU", rank=4, shortest=12),
    FittedColumn(heading="Type", rank=6, shortest=8),
    FittedColumn(heading="Asked", is_number=True, rank=7),
    FittedColumn(heading="Applied", is_number=True, rank=1),
    FittedColumn(heading="Observed", is_number=True, rank=2),
    FittedColumn(heading="Default", is_number=True, rank=8),
    FittedColumn(heading="Energy", is_number=True),
    FittedColumn(heading="Source", rank=9, shortest=8),
    FittedColumn(heading="Flags", rank=5, shortest=8),
)
_DECISION_COLUMNS = (
    FittedColumn(heading="Decided at"),
    FittedColumn(heading="Job"),
    FittedColumn(heading="User", rank=2, shortest=6),
    FittedColumn(heading="Name", rank=1, shortest=8),
    FittedColumn(heading="Mode", rank=3),
    FittedColumn(heading="Decision", shortest=20),
    FittedColumn(heading="Id", rank=4),
)
_COMPARISON_COLUMNS = (
    FittedColumn(heading="", shortest=16),
    FittedColumn(heading="Predicted", is_number=True),
    FittedColumn(heading="Actual", is_number=True),
    FittedColumn(heading="From", rank=1, shortest=12),
)
_TRIAL_COLUMNS = (
    FittedColumn(heading="After", is_number=True),
    FittedColumn(heading="GPU", rank=2, shortest=4),
    FittedColumn(heading="Clock", is_number=True),
    FittedColumn(heading="Slowdown", is_number=True),
    FittedColumn(heading="Energy", is_number=True),
    FittedColumn(heading=""),
    FittedColumn(heading="Known from", rank=1, shortest=12),
)


def render_explain(record: ExplainRecord, console: Console, now_seconds: float | None = None) -> None:
    """Print what is known of one job; what is not known is said."""
    for heading, lines in _sections(record, time.time() if now_seconds is None else now_seconds):
        console.print(Text(heading, style="bold"))
        for line in lines:
            _indented(line, console)
    if record.gpus:
        console.print(Text("Applied and observed", style="bold"))
        print_fitted(_gpu_table(record.gpus), console)
        note = error_note(record.job.gpu)
        if note:
            console.print(Text(note, style="dim"))
    if record.comparisons:
        console.print(Text("Predicted against actual", style="bold"))
        print_fitted(_comparison_table(record.comparisons), console)
    if record.trials:
        console.print(Text("Clocks tried while it ran", style="bold"))
        print_fitted(_trial_table(record.trials), console)
    if record.events:
        console.print(Text("What the nodes wrote down", style="bold"))
        for event in record.events:
            _indented(event, console)


def _indented(line: str, console: Console) -> None:
    console.print(Padding(Text(visible(line, _TEXT_WIDTH)), (0, 0, 0, 2), expand=False))


def _sections(record: ExplainRecord, now_seconds: float) -> Iterator[tuple[str, list[str]]]:
    job = record.job
    yield (
        f"Job {job_label(job)} on {visible(job.cluster)}",
        [
            f"{job.name or '(no name)'}, {job.user_name or 'uid ' + str(job.user_id)}, {job.state or 'state unknown'}",
            f"partition {job.partition or 'unknown'}, waited {duration_text(job.wait_seconds)}, "
            f"ran {duration_text(job.run_seconds)}" + (f" in {job.attempts} attempts" if job.attempts > 1 else ""),
            (
                f"GPU energy {job_energy_text(job, job.gpu, now_seconds)}, host energy "
                f"{job_energy_text(job, job.host, now_seconds)}, covered {percent_text(job.gpu.coverage_share)}"
            ),
            *_slurms_own(job),
            *_times(job),
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
    if decision.changes:
        yield "Decided again while it waited", [_changed(change) for change in decision.changes]
    reasons = (f"{reason.sentence} ({reason.code})" for reason in decision.reasons)
    yield "Why", [*reasons, *detail_sentences(decision.details), *decision.notes]


def _asked(request: JobRequest) -> list[str]:
    gpus = ", ".join(f"{demand.count} x {demand.slurm_type or 'any GPU'}" for demand in request.gpus) or "no GPU"
    limit = "none" if request.time_limit_minutes is None else duration_text(request.time_limit_minutes * 60.0)
    said = "" if request.script is None else request.script.sentence()
    options = request.options
    slowdown = "" if options.max_slowdown is None else f", at most {percent_text(options.max_slowdown)} longer"
    deadline = "" if options.deadline_seconds is None else f", ended by {moment_text(options.deadline_seconds)}"
    return [
        f"{gpus}, partitions {', '.join(request.partitions) or 'none named'}, time limit {limit}",
        f"mode {options.mode.value if options.mode else 'left to the site'}{slowdown}{deadline}",
        *([f"may run with {', '.join(map(str, options.gpu_counts))} GPUs"] if options.gpu_counts else []),
        *([f"its script: {said}"] if said else []),
    ]


def _figures_from(choice: ClockChoice) -> str:
    if choice.known_runs:
        return f"known from {choice.known_runs} run{'' if choice.known_runs == 1 else 's'} of this name:"
    return "assumed, from another GPU:" if choice.is_assumed else "predicted, by other programs:"


def _decided(decision: DecisionRecord) -> list[str]:
    age = decision.snapshot_age_seconds
    known = "without a picture of the cluster" if age is None else f"on a picture of the cluster {age:.1f} s old"
    lines = [
        (
            f"{decision.decision_id} by {decision.policy} {decision.policy_version} at "
            f"{moment_text(decision.decided_at_seconds)}, {known}, mode {decision.mode.value}"
        )
    ]
    if decision.partitions is not None:
        lines.append(f"partitions tried first: {', '.join(decision.partitions)}")
    if decision.prefer is not None:
        lines.append(f"prefers nodes with feature {decision.prefer}")
    lines.extend(
        f"{choice.gpu_type} at {choice.sm_clock_mhz} of {choice.default_clock_mhz} MHz: "
        f"{_figures_from(choice)} "
        f"{signed_percent_text(choice.predicted_energy_change)} energy, "
        f"{signed_percent_text(choice.predicted_slowdown)} run time"
        + ("" if choice.power_limit_watts is None else f" on boards of {choice.power_limit_watts:g} W")
        for choice in decision.clocks
    )
    if decision.gpus is not None:
        lines.insert(1, f"{decision.gpus} GPUs, {decision.asked.gpu_count} asked for")
    is_as_asked = decision.gpus is None or decision.gpus == decision.asked.gpu_count
    if is_as_asked and decision.partitions is None and decision.prefer is None and not decision.clocks:
        lines.append("nothing was changed")
    if decision.estimate is not None:
        basis = runtime_basis(decision.estimate, decision.asked.script)
        lines.append(
            f"run time at the default clock {duration_text(decision.estimate.seconds)}, at most "
            f"{duration_text(decision.estimate.upper_seconds)} ({basis})"
        )
    return lines


def _slurms_own(job: JobEnergyRecord) -> Iterator[str]:
    """Yield Slurm's own figure beside ours: of whole nodes, with everything that our two parts have not."""
    if job.slurm_energy_joules is None:
        return
    text = f"Slurm's own acct_gather_energy {energy_text(job.slurm_energy_joules)}"
    parts = [energy.joules for energy in (job.gpu, job.host) if energy.readings]
    if parts and None not in parts and not job.gpu.unknown_readings and not job.host.unknown_readings:
        ours = sum(part for part in parts if part is not None)
        what = "GPUs and processors" if len(parts) > 1 else "GPUs"
        text += f": {signed_percent_text(job.slurm_energy_joules / ours - 1.0) if ours else '-'} against {what} here"
    yield text


def _changed(change: DecisionChange) -> str:
    """Return one change in a line: where, how many, at which clocks, and what became of it."""
    refused = change.outcome == "refused"
    clocks = "" if refused else ", ".join(f"{one.gpu_type} at {one.sm_clock_mhz} MHz" for one in change.clocks)
    wanted = "wanted: " if refused else ""
    parts = (
        f"partitions {', '.join(change.partitions)}" if change.partitions else "",
        "" if change.gpus is None else f"{change.gpus} GPU{'' if change.gpus == 1 else 's'}",
        clocks or ("" if refused else "default clocks"),
    )
    what = "; ".join(part for part in parts if part)
    return f"{moment_text(change.decided_at_seconds)}: {wanted}{what} ({change.note})"


def _times(job: JobEnergyRecord) -> list[str]:
    known = (
        ("submitted", job.submitted_at_seconds if job.submit_time_known else None),
        ("started", job.started_at_seconds),
        ("ended", job.ended_at_seconds),
    )
    parts = [f"{word} {moment_text(seconds)}" for word, seconds in known if seconds is not None]
    return [", ".join(parts)] if parts else []


def _gpu_table(gpus: tuple[GpuOutcomeRecord, ...]) -> FittedTable:
    rows = []
    for gpu in gpus:
        attempt = f" (attempt {gpu.restart_count + 1})" if gpu.restart_count else ""
        parts = [*([] if gpu.reason is None else [gpu.reason]), ", ".join(gpu.flags)]
        rows.append(
            (
                f"{gpu.node}{attempt}",
                gpu.gpu_uuid,
                gpu.gpu_type or gpu.gpu_name,
                clock_text(gpu.asked_clock_mhz),
                clock_text(gpu.applied_clock_mhz),
                clock_text(gpu.observed_clock_mhz),
                clock_text(gpu.default_clock_mhz),
                energy_text(gpu.joules, gpu.error_share),
                gpu.source.value if gpu.scope.value == "gpu" else f"{gpu.source.value}, {gpu.scope.value}",
                "; ".join(filter(None, parts)) or "-",
            )
        )
    return FittedTable(columns=_GPU_COLUMNS, rows=rows)


def render_decisions(records: Sequence[DecisionRecord], console: Console) -> None:
    """Print decisions as a table, one in a line."""
    rows = [
        (
            moment_text(record.decided_at_seconds),
            ",".join(map(str, record.job_ids)) or "-",
            visible(record.asked.user_name or f"uid {record.asked.user_id}", 16),
            visible(record.asked.name or "(no name)", 24),
            record.mode.value,
            visible(record.message or " ".join(reason.sentence for reason in record.reasons), 160),
            record.decision_id,
        )
        for record in records
    ]
    print_fitted(FittedTable(columns=_DECISION_COLUMNS, rows=rows), console)


def _comparison_table(comparisons: tuple[ComparisonRecord, ...]) -> FittedTable:
    rows = [
        (item.quantity, _value(item.predicted, item.unit), _value(item.actual, item.unit), item.basis)
        for item in comparisons
    ]
    return FittedTable(columns=_COMPARISON_COLUMNS, rows=rows)


def _trial_table(trials: tuple[ClockTrial, ...]) -> FittedTable:
    rows = [
        (
            duration_text(trial.at_seconds),
            trial.gpu_type,
            clock_text(trial.sm_clock_mhz),
            "not known" if trial.slowdown is None else f"{trial.slowdown:+.1%} ± {2.0 * (trial.error or 0.0):.1%}",
            signed_percent_text(trial.energy_change),
            "kept" if trial.kept else "",
            _known_from(trial),
        )
        for trial in trials
    ]
    return FittedTable(columns=_TRIAL_COLUMNS, rows=rows)


def _known_from(trial: ClockTrial) -> str:
    if not trial.source:
        return trial.reason
    source = f"by its {'own steps' if trial.source == 'progress' else trial.source}"
    return f"{source}, {trial.reason}" if trial.is_outdated else source


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
