"""Reports for programs: JSON, CSV with the unit in each column's name, and weights for Slurm's fairshare."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_energy.domain.plain import to_plain
from slurm_energy.domain.report import EnergyReport, EnergySum, ExplainRecord, GroupEnergyRecord, JobEnergyRecord
from slurm_energy.policy.detail_text import costs_document
from slurm_energy.reporting.visible import spreadsheet_cell

JOB_COLUMNS = (
    "cluster", "job_id", "array_job_id", "array_task", "name", "user_id", "user_name", "account", "partition", "state",
    "submitted_at_seconds", "started_at_seconds", "ended_at_seconds", "wait_seconds", "run_seconds", "attempts",
    "gpu_count", "exit_code", "decision_id", "saving_joules", "qos", "missing_nodes",
    "slurm_energy_joules",
)  # fmt: skip
GROUP_COLUMNS = (
    "group", "jobs", "jobs_without_energy", "mean_wait_seconds", "mean_run_seconds", "saving_joules",
    "since_seconds", "until_seconds",
)  # fmt: skip
USE_COLUMNS = (
    "saving_low_joules", "saving_high_joules", "idle_gpu_joules", "utilisation", "co2_grams", "unpriced_joules",
)  # fmt: skip
SUM_COLUMNS = (
    "joules", "readings", "unknown_readings", "coverage_share", "error_share", "timing_error_share",
    "calibration_error_share",
)  # fmt: skip

MIN_GPU_HOURS = 10.0
"""Measured, under which a partition gets no weight."""


def render_json(record: object) -> str:
    """Return a record of `domain.report` as indented JSON; unknown is null. Names and units are those of its fields."""
    return json.dumps(to_plain(record), indent=2, ensure_ascii=True)


def render_explain_json(record: ExplainRecord) -> str:
    """Return a job's story as `render_json` does, with what a learned policy says of its decision; null for none.

    `attention` has shares by group; `costs` has the network's factors on the prices, and options with their parts in J.
    """
    document = to_plain(record)
    if record.decision is not None:
        details = record.decision.details
        del document["decision"]["details"]
        document["decision"]["attention"] = dict(details.attention) or None
        document["decision"]["costs"] = costs_document(details)
    return json.dumps(document, indent=2, ensure_ascii=True)


def render_csv(report: EnergyReport) -> str:
    """Return one line per job or group; unknown is an empty cell.

    Cells from users that a spreadsheet would run as a formula start with an apostrophe.
    """
    buffer = io.StringIO()
    names = JOB_COLUMNS if report.kind == "job" else GROUP_COLUMNS
    sums = [f"{prefix}_{column}" for prefix in ("gpu", "host") for column in SUM_COLUMNS]
    lists = ["flags", "unknown_reasons"] if report.kind == "job" else []
    currency = report.facility.currency
    costs = [] if currency is None else [f"cost_{currency}"]
    writer = csv.DictWriter(buffer, [*names, *sums, *USE_COLUMNS, *costs, *lists], lineterminator="\n")
    writer.writeheader()
    for row in report.jobs or report.groups:
        writer.writerow({**_row(row, names), **dict.fromkeys(costs, row.use.cost)})
    return buffer.getvalue()


def _row(record: JobEnergyRecord | GroupEnergyRecord, names: tuple[str, ...]) -> Mapping[str, Any]:
    row: dict[str, Any] = {name: _cell(getattr(record, name)) for name in names}
    for prefix, energy in (("gpu", record.gpu), ("host", record.host)):
        row.update(_sum_cells(prefix, energy))
    row.update({name: getattr(record.use, name) for name in USE_COLUMNS})
    if isinstance(record, JobEnergyRecord):
        row["flags"] = _cell(" ".join(record.flags))
        row["unknown_reasons"] = _cell("; ".join(record.unknown_reasons))
    return row


def _sum_cells(prefix: str, energy: EnergySum) -> dict[str, Any]:
    return {f"{prefix}_{name}": _cell(getattr(energy, name)) for name in SUM_COLUMNS}


def _cell(value: Any) -> Any:
    return spreadsheet_cell(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingWeight:
    """What a GPU hour of one partition is to count, in hours on the partition that draws least."""

    partition: str
    weight: float
    mean_watts: float
    gpu_hours: float


def billing_weights(report: EnergyReport) -> tuple[list[BillingWeight], list[str]]:
    """Return the weights by a report of partitions, and the partitions of which too little was measured.

    Slurm's fairshare counts billing units: with these weights an hour on a GPU costs in proportion to the joules that
    an hour on a GPU of its partition has been measured to take.
    """
    known: list[tuple[str, float, float]] = []
    left_out: list[str] = []
    for group in report.groups:
        joules, seconds = group.gpu.joules, group.use.covered_gpu_seconds
        if joules and seconds and seconds >= MIN_GPU_HOURS * 3600.0:
            known.append((group.group, joules / seconds, seconds / 3600.0))
        else:
            left_out.append(group.group)
    least = min((watts for _, watts, _ in known), default=1.0)
    weights = [
        BillingWeight(partition=name, weight=round(watts / least, 2), mean_watts=watts, gpu_hours=hours)
        for name, watts, hours in sorted(known)
    ]
    return weights, sorted(left_out)


def with_gpu_weight(present: str, weight: float) -> str:
    """Return a partition's TRESBillingWeights with another weight of GPUs; the others stay as they are.

    Weights of single GPU types are left out: they would count beside the weight of all GPUs.
    """
    kept = [
        part
        for part in present.split(",")
        if part and part != "(null)" and not part.partition("=")[0].strip().lower().startswith("gres/gpu")
    ]
    return ",".join([*kept, f"GRES/gpu={weight:g}"])
