"""The trace of ElasticFlow (ASPLOS 2023): training jobs with deadlines, after the Philly trace."""

from collections.abc import Iterator
from pathlib import Path

from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.assemble import NumberedJob, assembled_workload
from slurm_energy.twin.workloads.bad_rows import BadRows, BadValue
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.table import Row, read_rows

REQUIRED = ("job_id", "submit_time", "model_name", "ddl", "num_gpu", "duration")
OPTIONAL = ("real_iteration", "batch_size", "real_duration", "iteration")


def load_elasticflow(path: Path, options: LoadOptions) -> Workload:
    """Return the jobs: kind = model, work = `duration` on `num_gpu` reference devices, deadline = `ddl`.

    Some deadlines lie before submission + duration: on the reference device nothing can meet them.

    Raises:
        WorkloadError: the file or a row of it cannot be used.
    """
    bad = BadRows(path, skip=options.skip_bad)
    return assembled_workload(path.stem, path, _jobs(path, options, bad), bad)


def _jobs(path: Path, options: LoadOptions, bad: BadRows) -> Iterator[NumberedJob]:
    for row in read_rows(path, bad, REQUIRED, OPTIONAL):
        try:
            yield row.line, _job(row, options)
        except BadValue as error:
            bad.add(row.line, error)


def _job(row: Row, options: LoadOptions) -> Job:
    cells = row.cells
    label = values.text("model_name", cells["model_name"])
    if not label:
        raise BadValue("model_name", label, "is needed")
    kind = options.kind_named(label)
    gpus = values.whole("num_gpu", cells["num_gpu"], 1, values.MAX_COUNT)
    submitted = values.number("submit_time", cells["submit_time"], 0.0, values.MAX_SECONDS)
    deadline = values.number("ddl", cells["ddl"], 0.0, values.MAX_SECONDS)
    if deadline < submitted:
        raise BadValue("ddl", cells["ddl"], f"is before the submission at {submitted:g} s")
    return Job(
        job_id=values.whole("job_id", cells["job_id"]),
        submitted_seconds=submitted,
        true_units=kind.units(values.number("duration", cells["duration"], 0.0, values.MAX_SECONDS), gpus),
        kind=kind.name,
        gpu_counts=(gpus,),
        deadline_seconds=deadline,
        name=f"{label}-{cells['batch_size']}" if cells.get("batch_size") else label,
    )
