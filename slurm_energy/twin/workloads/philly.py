"""Jobs of Microsoft's Philly trace (ATC 2019), as a table of submit time, duration, GPU count and virtual cluster.

The whole trace names each job's user too; a table made from it may have columns `user` and `name`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.assemble import NumberedJob, assembled_workload
from slurm_energy.twin.workloads.bad_rows import BadRows, BadValue
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.table import Row, read_rows
from slurm_energy.twin.workloads.time_limits import round_limit_seconds

REQUIRED = ("submit_time", "duration_s", "num_gpus")
OPTIONAL = ("gpu_time_s", "vc", "user", "name")


def load_philly(path: Path, options: LoadOptions) -> Workload:
    """Return the jobs; their virtual cluster is the account, and users and names are kept where the file has them.

    The trace knows neither what a job computed nor its time limit: kinds are drawn uniformly from the given ones, and
    limits as `time_limits` says, both from the seed and in the order of the file's good rows.

    Raises:
        WorkloadError: the file or a row of it cannot be used.
    """
    bad = BadRows(path, skip=options.skip_bad)
    workload = assembled_workload(path.stem, path, _jobs(path, options, bad), bad, from_first=True)
    if options.part and not workload.jobs:
        raise WorkloadError(f"workload {str(path)!r} has no job of the virtual cluster {options.part[:64]!r}")
    return workload


def _jobs(path: Path, options: LoadOptions, bad: BadRows) -> Iterator[NumberedJob]:
    kinds, limits = (np.random.default_rng(part) for part in np.random.SeedSequence(options.seed).spawn(2))
    rows = list(_good_rows(path, options, bad))
    kind_draws = kinds.integers(0, len(options.kinds), len(rows)).tolist()
    limit_draws = limits.random(len(rows)).tolist()
    for number, ((row, submitted, seconds, gpus), kind_draw, limit_draw) in enumerate(
        zip(rows, kind_draws, limit_draws, strict=True), start=1
    ):
        kind = options.kinds[kind_draw]
        job = Job(
            job_id=number,
            submitted_seconds=submitted,
            true_units=kind.units(seconds, gpus),
            kind=kind.name,
            gpu_counts=(gpus,),
            account=row.cells.get("vc", ""),
            user=row.cells.get("user", ""),
            name=row.cells.get("name", ""),
        )
        if options.time_limits:
            job.time_limit_seconds = round_limit_seconds(seconds, limit_draw)
        yield row.line, job


def _good_rows(path: Path, options: LoadOptions, bad: BadRows) -> Iterator[tuple[Row, float, float, int]]:
    for row in read_rows(path, bad, REQUIRED, OPTIONAL):
        try:
            account = values.text("vc", row.cells.get("vc", ""))
            if options.part and account != options.part:
                continue
            for column in ("user", "name"):
                values.text(column, row.cells.get(column, ""))
            seconds = values.number("duration_s", row.cells["duration_s"], 0.0, values.MAX_SECONDS)
            gpus = values.whole("num_gpus", row.cells["num_gpus"], 1, values.MAX_COUNT)
            yield row, _seconds_of(row.cells["submit_time"]), seconds, gpus
        except BadValue as error:
            bad.add(row.line, error)


def _seconds_of(cell: str) -> float:
    """Return seconds from a wall-clock time without a zone; differences across a change of the clock are 1 h off."""
    try:
        moment = datetime.fromisoformat(cell)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        raise BadValue("submit_time", cell, "is not a time such as 2017-10-03 08:15:00") from None
