"""Job traces that others published: Philly, Gavel, ElasticFlow, Pollux and Alibaba, each in its own columns."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from math import ceil, inf, nextafter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.generating import round_limit_seconds
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.rows import NumberedJob, Row, assembled_workload, read_rows, renamed
from slurm_energy.twin.workloads.values import BadRows, BadValue

_logger = logging.getLogger(__name__)


class TraceColumns(NamedTuple):
    """Columns of a trace's file."""

    required: tuple[str, ...]
    optional: tuple[str, ...]


PHILLY = TraceColumns(("submit_time", "duration_s", "num_gpus"), ("gpu_time_s", "vc", "user", "name"))
"""Jobs of Microsoft's Philly trace (ATC 2019): submit time, duration, GPU count and virtual cluster.

The whole trace names each job's user too; a table made from it may have columns `user` and `name`.
"""


def load_philly(path: Path, options: LoadOptions) -> Workload:
    """Return the jobs; their virtual cluster is the account, and users and names are kept where the file has them.

    The trace knows neither what a job computed nor its time limit: kinds are drawn uniformly from the given ones, and
    limits as `round_limit_seconds` says, both from the seed and in the order of the file's good rows.

    Raises:
        WorkloadError: the file or a row of it cannot be used.
    """
    bad = BadRows(path, skip=options.skip_bad)
    workload = assembled_workload(path.stem, path, _philly_jobs(path, options, bad), bad, from_first=True)
    if options.part and not workload.jobs:
        raise WorkloadError(f"workload {str(path)!r} has no job of the virtual cluster {options.part[:64]!r}")
    return workload


def _philly_jobs(path: Path, options: LoadOptions, bad: BadRows) -> Iterator[NumberedJob]:
    kinds, limits = (np.random.default_rng(part) for part in np.random.SeedSequence(options.seed).spawn(2))
    rows = list(_philly_rows(path, options, bad))
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


def _philly_rows(path: Path, options: LoadOptions, bad: BadRows) -> Iterator[tuple[Row, float, float, int]]:
    for row in read_rows(path, bad, *PHILLY):
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


GAVEL = TraceColumns(
    ("job_type", "total_steps", "arrival_time_s", "scale_factor"), ("vc", "trace", "priority_weight", "slo")
)
"""Job traces of Gavel (OSDI 2020): named training jobs with their number of steps."""


def load_gavel(path: Path, options: LoadOptions) -> Workload:
    """Return the jobs: kind = job type, units = training steps, deadline = arrival + slo where there is one.

    Virtual clusters (`vc`) ran side by side and load together, as accounts. Traces (`trace`) are runs of their own: one
    is loaded, the first if no part is named.

    Raises:
        WorkloadError: the file or a row of it cannot be used, or it lacks the part.
    """
    bad = BadRows(path, skip=options.skip_bad)
    rows = list(read_rows(path, bad, *GAVEL))
    part = options.part or next((row.cells["trace"] for row in rows if "trace" in row.cells), "")
    kept = [row for row in rows if part in ("", row.cells.get("trace"), row.cells.get("vc"))]
    if part and not kept:
        parts = dict.fromkeys(row.cells.get("trace", row.cells.get("vc", "")) for row in rows)
        raise WorkloadError(f"workload {str(path)!r} has no part {part[:64]!r}; it has {', '.join(parts)[:500]}")
    if part and not options.part and len(kept) < len(rows):
        _logger.warning("workload part chosen path=%r part=%r jobs=%d of=%d", str(path), part, len(kept), len(rows))
    workload = assembled_workload(
        path.stem, path, _jobs(kept, lambda row, number: _gavel_job(row, number, options), bad), bad
    )
    return renamed(workload, f"{path.stem}:{part}", f"part {part}") if part else workload


def _gavel_job(row: Row, number: int, options: LoadOptions) -> Job:
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


ELASTICFLOW = TraceColumns(
    ("job_id", "submit_time", "model_name", "ddl", "num_gpu", "duration"),
    ("real_iteration", "batch_size", "real_duration", "iteration"),
)
"""The trace of ElasticFlow (ASPLOS 2023): training jobs with deadlines, after the Philly trace."""


def load_elasticflow(path: Path, options: LoadOptions) -> Workload:
    """Return the jobs: kind = model, work = `duration` on `num_gpu` reference devices, deadline = `ddl`.

    Some deadlines lie before submission + duration: on the reference device nothing can meet them.

    Raises:
        WorkloadError: the file or a row of it cannot be used.
    """
    bad = BadRows(path, skip=options.skip_bad)
    rows = read_rows(path, bad, *ELASTICFLOW)
    return assembled_workload(path.stem, path, _jobs(rows, lambda row, _: _elasticflow_job(row, options), bad), bad)


def _elasticflow_job(row: Row, options: LoadOptions) -> Job:
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


POLLUX = TraceColumns(("kind", "workload", "name", "submit_time_s", "application", "num_replicas"), ("batch_size",))
"""Workloads of Pollux (OSDI 2021): 160 training jobs over 8 hours each."""
POLLUX_GPU_SECONDS = {
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


def load_pollux(path: Path, options: LoadOptions) -> Workload:
    """Return one workload, named such as `synthetic-1` (the first, if none is named): kind = application.

    The file has no lengths: work is a stated figure for each application, `POLLUX_GPU_SECONDS`, in seconds on one
    reference device, and the same for all jobs of an application.

    Raises:
        WorkloadError: the file or a row of it cannot be used, or it lacks the part.
    """
    bad = BadRows(path, skip=options.skip_bad)
    rows = list(read_rows(path, bad, *POLLUX))
    parts = dict.fromkeys(_pollux_part(row) for row in rows)
    part = options.part or next(iter(parts), "")
    if part and part not in parts:
        raise WorkloadError(f"workload {str(path)!r} has no part {part[:64]!r}; it has {', '.join(parts)[:500]}")
    if len(parts) > 1 and not options.part:
        _logger.warning("workload part chosen path=%r part=%r of=%d", str(path), part, len(parts))
    kept = [row for row in rows if _pollux_part(row) == part]
    workload = assembled_workload(
        path.stem, path, _jobs(kept, lambda row, number: _pollux_job(row, number, options), bad), bad
    )
    return renamed(workload, f"{path.stem}:{part}", f"part {part}") if part else workload


def _pollux_part(row: Row) -> str:
    return f"{row.cells['kind']}-{row.cells['workload']}"


def _pollux_job(row: Row, number: int, options: LoadOptions) -> Job:
    cells = row.cells
    application = values.text("application", cells["application"])
    gpu_seconds = POLLUX_GPU_SECONDS.get(application)
    if gpu_seconds is None:
        raise BadValue("application", application, f"has no known length; known are {', '.join(POLLUX_GPU_SECONDS)}")
    kind = options.kind_named(application)
    return Job(
        job_id=number,
        submitted_seconds=values.number("submit_time_s", cells["submit_time_s"], 0.0, values.MAX_SECONDS),
        true_units=kind.units(gpu_seconds, 1),
        kind=kind.name,
        gpu_counts=(values.whole("num_replicas", cells["num_replicas"], 1, values.MAX_COUNT),),
        name=values.text("name", cells["name"]),
    )


ALIBABA = TraceColumns(
    ("name", "cpu_milli", "memory_mib", "num_gpu", "creation_time", "deletion_time", "scheduled_time"),
    ("gpu_milli", "gpu_spec", "qos", "pod_phase"),
)
"""Pods of Alibaba's GPU cluster (openb, ATC 2023): GPU types, shares of a GPU, CPU cores and memory."""


def load_alibaba(path: Path, options: LoadOptions) -> Workload:
    """Return the pods that ran with GPUs: run time = deletion - scheduling, on the first kind or that of the pod's qos.

    Pods that never ran and pods without a GPU are left aside, and counted in the workload's source. A share of a GPU
    becomes a whole GPU that may be shared; a pod that failed is a job that fails; the QoS class is the account.

    Raises:
        WorkloadError: the file or a row of it cannot be used.
    """
    bad = BadRows(path, skip=options.skip_bad)
    aside: Counter[str] = Counter()
    workload = assembled_workload(path.stem, path, _alibaba_jobs(path, options, bad, aside), bad)
    return renamed(workload, workload.name, ", ".join(f"{count} {reason}" for reason, count in aside.items()))


def _alibaba_jobs(path: Path, options: LoadOptions, bad: BadRows, aside: Counter[str]) -> Iterator[NumberedJob]:
    for number, row in enumerate(read_rows(path, bad, *ALIBABA), start=1):
        try:
            gpus = values.whole("num_gpu", row.cells["num_gpu"], 0, values.MAX_COUNT)
            if not row.cells["scheduled_time"]:
                aside["never ran"] += 1
            elif not gpus:
                aside["without GPU"] += 1
            else:
                yield row.line, _alibaba_job(row, number, gpus, options)
        except BadValue as error:
            bad.add(row.line, error)


def _alibaba_job(row: Row, number: int, gpus: int, options: LoadOptions) -> Job:
    cells = row.cells
    submitted = values.number("creation_time", cells["creation_time"], 0.0, values.MAX_SECONDS)
    started = values.number("scheduled_time", cells["scheduled_time"], submitted, values.MAX_SECONDS)
    ended = values.number("deletion_time", cells["deletion_time"], 0.0, values.MAX_SECONDS)
    if ended < started:
        raise BadValue("deletion_time", cells["deletion_time"], f"is before the start at {started:g} s")
    share = values.whole("gpu_milli", cells.get("gpu_milli") or "1000", 0, 1000)
    account = values.text("qos", cells.get("qos", ""))
    kind = options.kind_of(account)
    units = kind.units(ended - started, gpus)
    failed = cells.get("pod_phase") == "Failed"
    return Job(
        job_id=number,
        submitted_seconds=submitted,
        true_units=nextafter(units, inf) if failed else units,
        fails_after_units=units if failed else inf,
        kind=kind.name,
        gpu_counts=(gpus,),
        devices=tuple(dict.fromkeys(values.names("gpu_spec", cells.get("gpu_spec", ""), "|"))),
        cpus=ceil(values.whole("cpu_milli", cells["cpu_milli"], 0, 10**12) / 1000),
        memory_gib=values.number("memory_mib", cells["memory_mib"], 0.0, 1e15) / 1024.0,
        shareable=gpus == 1 and share < 1000,
        account=account,
        name=values.text("name", cells["name"]),
    )


def _jobs(rows: Iterable[Row], job_of: Callable[[Row, int], Job], bad: BadRows) -> Iterator[NumberedJob]:
    """Yield the jobs of rows, numbered from 1; rows that cannot be used are counted."""
    for number, row in enumerate(rows, start=1):
        try:
            yield row.line, job_of(row, number)
        except BadValue as error:
            bad.add(row.line, error)
