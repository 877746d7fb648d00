"""Workloads of Pollux (OSDI 2021): 160 training jobs over 8 hours each."""

import logging
from collections.abc import Iterator
from pathlib import Path

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.assemble import NumberedJob, assembled_workload, renamed
from slurm_energy.twin.workloads.bad_rows import BadRows, BadValue
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.table import Row, read_rows

REQUIRED = ("kind", "workload", "name", "submit_time_s", "application", "num_replicas")
OPTIONAL = ("batch_size",)
GPU_SECONDS = {
    "cifar10": 0.3 * 3600.0,
    "ncf": 0.3 * 3600.0,
    "deepspeech2": 3.0 * 3600.0,
    "bert": 3.0 * 3600.0,
    "yolov3": 30.0 * 3600.0,
    "imagenet": 300.0 * 3600.0,
}
"""Work by application on one reference GPU: about the middle, in the logarithm, of the GPU times of the Philly jobs
that each stands for: below 1 h, 1 to 10, 10 to 100, 100 to 1000 (simulator/workload.py of petuum/adaptdl, branch
osdi21-artifact)."""
_logger = logging.getLogger(__name__)


def load_pollux(path: Path, options: LoadOptions) -> Workload:
    """Return one workload, named such as `synthetic-1` (the first, if none is named): kind = application.

    The file has no lengths: work is a stated figure for each application, `GPU_SECONDS`, in seconds on one reference
    device, and the same for all jobs of an application.

    Raises:
        WorkloadError: the file or a row of it cannot be used, or it lacks the part.
    """
    bad = BadRows(path, skip=options.skip_bad)
    rows = list(read_rows(path, bad, REQUIRED, OPTIONAL))
    parts = dict.fromkeys(_part(row) for row in rows)
    part = options.part or next(iter(parts), "")
    if part and part not in parts:
        raise WorkloadError(f"workload {str(path)!r} has no part {part[:64]!r}; it has {', '.join(parts)[:500]}")
    if len(parts) > 1 and not options.part:
        _logger.warning("workload part chosen path=%r part=%r of=%d", str(path), part, len(parts))
    kept = [row for row in rows if _part(row) == part]
    workload = assembled_workload(path.stem, path, _jobs(kept, options, bad), bad)
    return renamed(workload, f"{path.stem}:{part}", f"part {part}") if part else workload


def _part(row: Row) -> str:
    return f"{row.cells['kind']}-{row.cells['workload']}"


def _jobs(rows: list[Row], options: LoadOptions, bad: BadRows) -> Iterator[NumberedJob]:
    for number, row in enumerate(rows, start=1):
        try:
            yield row.line, _job(row, number, options)
        except BadValue as error:
            bad.add(row.line, error)


def _job(row: Row, number: int, options: LoadOptions) -> Job:
    cells = row.cells
    application = values.text("application", cells["application"])
    gpu_seconds = GPU_SECONDS.get(application)
    if gpu_seconds is None:
        raise BadValue("application", application, f"has no known length; known are {', '.join(GPU_SECONDS)}")
    kind = options.kind_named(application)
    return Job(
        job_id=number,
        submitted_seconds=values.number("submit_time_s", cells["submit_time_s"], 0.0, values.MAX_SECONDS),
        true_units=kind.units(gpu_seconds, 1),
        kind=kind.name,
        gpu_counts=(values.whole("num_replicas", cells["num_replicas"], 1, values.MAX_COUNT),),
        name=values.text("name", cells["name"]),
    )
