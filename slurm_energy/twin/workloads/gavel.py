"""Job traces of Gavel (OSDI 2020): named training jobs with their number of steps."""

import logging
from collections.abc import Iterator
from math import inf
from pathlib import Path

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.assemble import NumberedJob, assembled_workload, renamed
from slurm_energy.twin.workloads.bad_rows import BadRows, BadValue
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.table import Row, read_rows

REQUIRED = ("job_type", "total_steps", "arrival_time_s", "scale_factor")
OPTIONAL = ("vc", "trace", "priority_weight", "slo")
_logger = logging.getLogger(__name__)


def load_gavel(path: Path, options: LoadOptions) -> Workload:
    """Return the jobs: kind = job type, units = training steps, deadline = arrival + slo where there is one.

    Virtual clusters (`vc`) ran side by side and load together, as accounts. Traces (`trace`) are runs of their own: one
    is loaded, the first if no part is named.

    Raises:
        WorkloadError: the file or a row of it cannot be used, or it lacks the part.
    """
    bad = BadRows(path, skip=options.skip_bad)
    rows = list(read_rows(path, bad, REQUIRED, OPTIONAL))
    part = options.part or next((row.cells["trace"] for row in rows if "trace" in row.cells), "")
    kept = [row for row in rows if part in ("", row.cells.get("trace"), row.cells.get("vc"))]
    if part and not kept:
        parts = dict.fromkeys(row.cells.get("trace", row.cells.get("vc", "")) for row in rows)
        raise WorkloadError(f"workload {str(path)!r} has no part {part[:64]!r}; it has {', '.join(parts)[:500]}")
    if part and not options.part and len(kept) < len(rows):
        _logger.warning("workload part chosen path=%r part=%r jobs=%d of=%d", str(path), part, len(kept), len(rows))
    workload = assembled_workload(path.stem, path, _jobs(kept, options, bad), bad)
    return renamed(workload, f"{path.stem}:{part}", f"part {part}") if part else workload


def _jobs(rows: list[Row], options: LoadOptions, bad: BadRows) -> Iterator[NumberedJob]:
    for number, row in enumerate(rows, start=1):
        try:
            yield row.line, _job(row, number, options)
        except BadValue as error:
            bad.add(row.line, error)


def _job(row: Row, number: int, options: LoadOptions) -> Job:
    cells = row.cells
    label = values.text("job_type", cells["job_type"])
    if not label:
        raise BadValue("job_type", label, "is needed")
    submitted = values.number("arrival_time_s", cells["arrival_time_s"], 0.0, values.MAX_SECONDS)
    slo = values.number("slo", cells.get("slo") or "-1", -1.0, values.MAX_SECONDS)
    return Job(
        job_id=number,
        submitted_seconds=submitted,
        true_units=values.number("total_steps", cells["total_steps"], 0.0, values.MAX_UNITS),
        kind=options.kind_by_label.get(label, label),
        gpu_counts=(values.rounded("scale_factor", cells["scale_factor"], 1, values.MAX_COUNT),),
        priority=values.number("priority_weight", cells.get("priority_weight") or "0", -1e15, 1e15),
        deadline_seconds=submitted + slo if slo >= 0.0 else inf,
        shareable=True,
        account=values.text("vc", cells.get("vc", "")),
        name=label,
    )
