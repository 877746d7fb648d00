"""The reader for sites with a pyslurm built for their Slurm (25.11): the only importer of pyslurm.

pyslurm's objects become the same rows as the JSON of Slurm's commands, so that one set of converters serves both.
It does not tell what `--gpus` and its like asked for: such a waiting job has an unknown number of GPUs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.conversion import convert_rows
from slurm_energy.slurm.convert_cluster import convert_node
from slurm_energy.slurm.convert_job import convert_job
from slurm_energy.slurm.json_client import ClusterReading, JsonReader

_SERIES = re.compile(r"[0-9]{2}\.[0-9]{2}")


class PyslurmReader:
    """Reads through pyslurm's `Nodes` and `Jobs`; partitions, switches and accounting through Slurm's commands."""

    def __init__(self, pyslurm: Any, commands: JsonReader) -> None:
        self._pyslurm = pyslurm
        self._commands = commands

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        try:
            job_rows: list[object] = [job_row(job) for job in self._pyslurm.Jobs.load().values()]
            node_objects = list(self._pyslurm.Nodes.load().values())
        except (self._pyslurm.RPCError, AttributeError, TypeError) as error:
            raise SlurmError(f"pyslurm cannot read the cluster: {error}") from error
        held = _gpus_held_by_node(job_rows)
        nodes = convert_rows([node_row(node, held) for node in node_objects], convert_node)
        return self._commands.reading(self._commands.read_partitions(), nodes, convert_rows(job_rows, convert_job))

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of some jobs."""
        return self._commands.read_ended_jobs(job_ids)


def pyslurm_release() -> str:
    """Return the release of the installed pyslurm without importing it; empty where there is none."""
    try:
        return metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return ""


def load_pyslurm(slurm_version: str) -> Any:
    """Return the module; not even imported where it was made for another Slurm, in which some of its calls crash.

    Args:
        slurm_version: What Slurm's commands say of their release.

    Raises:
        SlurmError: it is not installed, or was made for another Slurm.
    """
    made_for = pyslurm_release()
    if not made_for:
        raise SlurmError("pyslurm is not installed: install it, or set cluster.reader = 'commands'")
    series = _SERIES.findall(slurm_version)
    if not series or _SERIES.findall(made_for)[:1] != series[:1]:
        raise SlurmError(
            f"pyslurm {made_for} is not made for this Slurm ({slurm_version or 'unknown'}): install the one of its "
            "series, or set cluster.reader = 'commands'"
        )
    try:
        import pyslurm  # noqa: PLC0415  # optional: only where cluster.reader asks for it
    except ImportError as error:
        raise SlurmError(f"pyslurm cannot be used ({error}): set cluster.reader = 'commands'") from error
    return pyslurm


def job_row(job: Any) -> dict[str, object]:
    """Return the row of squeue's JSON that this job would be."""
    signal = getattr(job, "exit_code_signal", None)
    layout = job.get_resource_layout_per_node() or {}
    row: dict[str, object] = {
        "job_id": job.id,
        "user_id": job.user_id,
        "user_name": job.user_name,
        "name": job.name,
        "job_state": job.state,
        "partition": job.partition,
        "submit_time": job.submit_time,
        "start_time": job.start_time,
        "end_time": job.end_time,
        "account": job.account,
        "qos": job.qos,
        "array_job_id": job.array_id,
        "array_task_id": job.array_task_id,
        "array_task_string": job.array_tasks_waiting,
        "het_job_id": job.heterogeneous_id,
        "restart_cnt": job.requeue_count,
        "time_limit": job.time_limit,
        "suspend_time": job.suspend_time,
        "pre_sus_time": job.pre_suspension_time,
        "nodes": job.allocated_nodes,
        "node_count": job.num_nodes,
        "cpus": job.cpus,
        "priority": job.priority,
        "state_reason": getattr(job, "state_reason", None),
        "exit_code": {"return_code": job.exit_code, "signal": {"id": signal}},
        "admin_comment": job.admin_comment,
        "gres_detail": [_gres_text(node.get("gres")) for node in layout.values()],
        "gres_by_node": {name: _gres_text(node.get("gres")) for name, node in layout.items()},
    }
    per_node = _gres_text(job.gres_per_node)
    if per_node:
        row["tres_per_node"] = per_node
    return row


def node_row(node: Any, held: Mapping[str, str]) -> dict[str, object]:
    """Return the row of sinfo's JSON that this node would be; GPUs in use are counted from the jobs."""
    return {
        "name": node.name,
        "partitions": list(node.partitions or ()),
        "state": node.state,
        "cpus": node.total_cpus,
        "alloc_cpus": node.allocated_cpus,
        "real_memory": node.real_memory,
        "alloc_memory": node.allocated_memory,
        "gres": _gres_text(node.configured_gres),
        "gres_used": held.get(node.name, ""),
        "features": list(node.active_features or node.available_features or ()),
    }


def _gpus_held_by_node(rows: Iterable[object]) -> dict[str, str]:
    """Return what the jobs hold on each node: pyslurm's own figure of a node was empty while a job held GPUs."""
    held: dict[str, list[str]] = {}
    for row in rows:
        if not isinstance(row, dict) or not str(row.get("job_state", "")).startswith("RUNNING"):
            continue
        by_node = row.get("gres_by_node")
        if isinstance(by_node, dict):
            for name, text in by_node.items():
                held.setdefault(name, []).append(text)
    return {name: ",".join(filter(None, texts)) for name, texts in held.items()}


def _gres_text(gres: object) -> str:
    """Return `gpu:a100:4` for pyslurm's {"gpu:a100": 4} or {"gpu:a100": {"count": 4, ...}}."""
    if gres is None or gres == {}:
        return ""
    if isinstance(gres, str):
        return gres
    if not isinstance(gres, dict):
        return "gpu:unreadable:?"
    counts = {name: item.get("count") if isinstance(item, dict) else item for name, item in gres.items()}
    return ",".join(f"{name}:{count}" for name, count in counts.items())
