"""A call of sbatch in the fields of the wire's `decide` and `preview`."""

import math

from slurm_energy.slurm.sbatch import SbatchJob
from slurm_energy.slurm.sbatch_values import (
    memory_mib,
    node_range,
    slowdown_from_percent,
    time_limit_minutes,
    tres_request,
    whole_number,
)


def decide_fields(job: SbatchJob) -> dict[str, str]:
    """Return the job in the fields of the wire's `decide` and `preview`; absent where sbatch would send nothing.

    Raises:
        ValueRangeError: an option's argument cannot be read.
    """
    options = job.options
    nodes_min, nodes_max = node_range(options.get("nodes"))
    tres = tres_request(options, nodes_min, nodes_max, None)
    limit = time_limit_minutes(options)
    found: dict[str, object] = {
        "name": job.name,
        "account": options.get("account"),
        "qos": options.get("qos"),
        "partition": options.get("partition"),
        "time_limit": _minutes_field(options.get("time"), limit),
        "min_nodes": nodes_min,
        "max_nodes": nodes_max or nodes_min,
        "num_tasks": whole_number("--ntasks", options.get("ntasks")),
        "ntasks_per_node": whole_number("--ntasks-per-node", options.get("ntasks-per-node")),
        "cpus_per_task": whole_number("--cpus-per-task", options.get("cpus-per-task")),
        "min_cpus": whole_number("--mincpus", options.get("mincpus")),
        "mem_per_node_mib": memory_mib("--mem", options.get("mem")),
        "mem_per_cpu_mib": memory_mib("--mem-per-cpu", options.get("mem-per-cpu")),
        "tres_per_job": tres.per_job,
        "tres_per_node": tres.per_node,
        "tres_per_socket": tres.per_socket,
        "tres_per_task": tres.per_task,
        "tres_freq": f"gpu:{options['gpu-freq']}" if options.get("gpu-freq") else None,
        "features": options.get("constraint"),
        "prefer": options.get("prefer"),
        "array": options.get("array"),
        "reservation": options.get("reservation"),
        "dependency": options.get("dependency"),
        "licenses": options.get("licenses"),
        "exclusive": "1" if "exclusive" in options else None,
        "contiguous": "1" if "contiguous" in options else None,
        "energy_mode": (options.get("energy") or "").lower(),
        "energy_max_slowdown": _percent_field(options.get("energy-max-slowdown")),
        "energy_deadline": options.get("energy-deadline"),
        "energy_quiet": "1" if "energy-quiet" in options else None,
    }
    return {key: _field(value) for key, value in found.items() if value not in (None, "")}


def _minutes_field(text: str | None, limit: float | None) -> str | None:
    if text is None:
        return None
    if limit is None:  # sbatch takes 0 for no limit, as it takes UNLIMITED
        return None if text.lower() == "partition_limit" else "infinite"
    return str(math.ceil(limit))


def _percent_field(text: str | None) -> str | None:
    slowdown = slowdown_from_percent(text)
    return None if slowdown is None else f"{slowdown * 100:.10g}"


def _field(value: object) -> str:
    return str(math.ceil(value)) if isinstance(value, float) else str(value)
