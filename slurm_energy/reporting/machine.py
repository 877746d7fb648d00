"""Reports for programs: JSON, and CSV with the unit in each column's name."""

import csv
import io
import json
from collections.abc import Mapping
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
    "since_seconds", "until_seconds", "host_in_no_job_joules",
)  # fmt: skip
USE_COLUMNS = (
    "saving_low_joules", "saving_high_joules", "idle_gpu_joules", "utilisation", "co2_grams", "unpriced_joules",
)  # fmt: skip
SUM_COLUMNS = (
    "joules", "readings", "unknown_readings", "coverage_share", "error_share", "timing_error_share",
    "calibration_error_share",
)  # fmt: skip


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
