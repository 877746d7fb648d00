"""Pods of Alibaba's GPU cluster (openb, ATC 2023): GPU types, shares of a GPU, CPU cores and memory."""

from collections import Counter
from collections.abc import Iterator
from math import ceil, inf, nextafter
from pathlib import Path

from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.assemble import NumberedJob, assembled_workload, renamed
from slurm_energy.twin.workloads.bad_rows import BadRows, BadValue
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.table import Row, read_rows

REQUIRED = ("name", "cpu_milli", "memory_mib", "num_gpu", "creation_time", "deletion_time", "scheduled_time")
OPTIONAL = ("gpu_milli", "gpu_spec", "qos", "pod_phase")


def load_alibaba(path: Path, options: LoadOptions) -> Workload:
    """Return the pods that ran with GPUs: run time = deletion - scheduling, on the first kind or that of the pod's qos.

    Pods that never ran and pods without a GPU are left aside, and counted in the workload's source. A share of a GPU
    becomes a whole GPU that may be shared; a pod that failed is a job that fails; the QoS class is the account.

    Raises:
        WorkloadError: the file or a row of it cannot be used.
    """
    bad = BadRows(path, skip=options.skip_bad)
    aside: Counter[str] = Counter()
    workload = assembled_workload(path.stem, path, _jobs(path, options, bad, aside), bad)
    return renamed(workload, workload.name, ", ".join(f"{count} {reason}" for reason, count in aside.items()))


def _jobs(path: Path, options: LoadOptions, bad: BadRows, aside: Counter[str]) -> Iterator[NumberedJob]:
    for number, row in enumerate(read_rows(path, bad, REQUIRED, OPTIONAL), start=1):
        try:
            gpus = values.whole("num_gpu", row.cells["num_gpu"], 0, values.MAX_COUNT)
            if not row.cells["scheduled_time"]:
                aside["never ran"] += 1
            elif not gpus:
                aside["without GPU"] += 1
            else:
                yield row.line, _job(row, number, gpus, options)
        except BadValue as error:
            bad.add(row.line, error)


def _job(row: Row, number: int, gpus: int, options: LoadOptions) -> Job:
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
