"""The reader for sites with a pyslurm built for their Slurm: the only importer of pyslurm.

pyslurm's objects become the same rows as the JSON of Slurm's commands, so that one set of converters serves both.
It does not tell what `--gpus` and `--gpus-per-socket` asked for: squeue is asked for jobs whose GPUs are unknown, once
for each state of a job and once more a minute later.

One that was built for another series through bridging headers (scripts/pyslurm-for-root.sh) says so in its
distribution, in a file `slurm-series`. Of it no call is made that reads Slurm's inner structures: in 26.05
`get_resource_layout_per_node()` of a running job ends the process. The devices of running jobs are then squeue's too.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.conversion import convert_rows
from slurm_energy.slurm.convert_cluster import convert_node
from slurm_energy.slurm.convert_job import LIVE_STATES, convert_job
from slurm_energy.slurm.json_client import ClusterReading, JsonReader

_SERIES = re.compile(r"[0-9]{2}\.[0-9]{2}")
_SERIES_FILE = "slurm-series"
ASK_AGAIN_SECONDS = 60.0
MAX_NAMED_JOBS = 2000
"""Of more jobs than these squeue is asked for all."""
_GPU_FIELDS = ("gpu_count", "gpu_types", "gpu_max_count", "gpu_positions")

logger = logging.getLogger(__name__)


_SHARED: dict[str, list[str]] = {"NO": ["none"], "USER": ["user"], "MCS": ["mcs"], "TOPO": ["topo"]}
"""Slurm's words for how a job shares nodes, as pyslurm has them and as squeue's JSON has them."""


class PyslurmReader:
    """Reads through pyslurm's `Nodes` and `Jobs`; partitions, switches and accounting through Slurm's commands."""

    def __init__(
        self,
        pyslurm: Any,
        commands: JsonReader,
        *,
        layouts: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            pyslurm: The module.
            commands: What reads all else.
            layouts: Whether `get_resource_layout_per_node()` may be called: not of one built through bridging headers.
            clock: Seconds that only grow.
        """
        self._pyslurm = pyslurm
        self._commands = commands
        self._layouts = layouts
        self._clock = clock
        self._cleared_at = float("-inf")
        self._gpus: dict[tuple[object, ...], dict[str, Any]] = {}
        """What squeue said of the GPUs of jobs, by job and state."""

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        try:
            job_rows: list[object] = [job_row(job, layouts=self._layouts) for job in self._pyslurm.Jobs.load().values()]
            node_objects = list(self._pyslurm.Nodes.load().values())
        except (self._pyslurm.RPCError, AttributeError, TypeError) as error:
            raise SlurmError(f"pyslurm cannot read the cluster: {error}") from error
        jobs = convert_rows(job_rows, convert_job)
        jobs = replace(jobs, items=self._with_gpus(jobs.items))
        held = _gpus_held_by_node(job_rows) if self._layouts else _held_positions(jobs.items)
        nodes = convert_rows([node_row(node, held) for node in node_objects], convert_node)
        return self._commands.reading(self._commands.read_partitions(), nodes, jobs)

    def _with_gpus(self, jobs: tuple[JobState, ...]) -> tuple[JobState, ...]:
        """Return the jobs with the GPUs that squeue knows of those whose GPUs are not known."""
        now = self._clock()
        if now - self._cleared_at >= ASK_AGAIN_SECONDS:
            self._cleared_at, self._gpus = now, {}
        unknown = {_moment(job): job.job_id for job in jobs if self._lacks_gpus(job)}
        self._gpus = {moment: gpus for moment, gpus in self._gpus.items() if moment in unknown}
        asked = [job_id for moment, job_id in unknown.items() if moment not in self._gpus]
        if asked:
            try:
                found = self._commands.read_jobs(asked if len(asked) <= MAX_NAMED_JOBS else ()).items
            except SlurmError as error:
                logger.debug("GPUs of jobs not read jobs=%d error=%s", len(asked), error)
                found = ()
            self._gpus.update({_moment(job): {name: getattr(job, name) for name in _GPU_FIELDS} for job in found})
        return tuple(replace(job, **self._gpus.get(_moment(job), {})) if self._lacks_gpus(job) else job for job in jobs)

    def _lacks_gpus(self, job: JobState) -> bool:
        return job.gpu_count is None or (not self._layouts and job.state in LIVE_STATES and job.state != "PENDING")

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of some jobs."""
        return self._commands.read_ended_jobs(job_ids)


def pyslurm_release() -> str:
    """Return the release of the installed pyslurm without importing it; empty where there is none."""
    try:
        return metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return ""


def bridged_series() -> str:
    """Return the series that the installed pyslurm was built for through bridging headers; empty where it was not."""
    try:
        found = metadata.distribution("pyslurm").read_text(_SERIES_FILE)
    except metadata.PackageNotFoundError:
        return ""
    series = _SERIES.findall(found or "")
    return series[0] if series else ""


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
    if not series or (bridged_series() or made_for[:5]) != series[0]:
        raise SlurmError(
            f"pyslurm {made_for} is not made for this Slurm ({slurm_version or 'unknown'}): install the one of its "
            "series, or set cluster.reader = 'commands'"
        )
    try:
        import pyslurm  # noqa: PLC0415  # optional: only where cluster.reader asks for it
    except ImportError as error:
        raise SlurmError(f"pyslurm cannot be used ({error}): set cluster.reader = 'commands'") from error
    return pyslurm


def job_row(job: Any, *, layouts: bool = True) -> dict[str, object]:
    """Return the row of squeue's JSON that this job would be."""
    signal = getattr(job, "exit_code_signal", None)
    layout = (job.get_resource_layout_per_node() or {}) if layouts else {}
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
        "array_task_string": _array_text(job),
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
        "memory_per_node": getattr(job, "memory_per_node", None),
        "memory_per_cpu": getattr(job, "memory_per_cpu", None),
        "deadline": getattr(job, "deadline", None),
        "dependency": _dependency_text(getattr(job, "dependencies", None)),
        "hold": getattr(job, "hold", None),
        "tasks": getattr(job, "ntasks", None),
        "sockets_per_node": getattr(job, "sockets_per_node", None),
        "shared": _SHARED.get(str(getattr(job, "resource_sharing", "")), []),
        "submit_line": getattr(job, "submit_line", None),
    }
    per_node, per_task = _gres_text(job.gres_per_node), _tres_text(getattr(job, "tres_per_task", None))
    if per_node:
        row["tres_per_node"] = per_node
    if per_task:
        row["tres_per_task"] = per_task
    allocated = _tres_text(getattr(job, "allocated_tres", None))
    if allocated:
        row["tres_alloc_str"] = allocated
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


def _moment(job: JobState) -> tuple[object, ...]:
    """Return what tells a job with its GPUs from the same job at another time."""
    return (job.job_id, job.submitted_at_seconds, job.state, job.restart_count)


def _held_positions(jobs: Iterable[JobState]) -> dict[str, str]:
    """Return what running jobs hold on each node, counted from their devices."""
    held: dict[str, list[str]] = {}
    for job in jobs:
        kind = f"gpu:{job.gpu_types[0]}" if len(job.gpu_types) == 1 else "gpu"
        for node, devices in job.gpu_positions if job.state == "RUNNING" else ():
            held.setdefault(node, []).append(f"{kind}:{len(devices)}")
    return {node: ",".join(texts) for node, texts in held.items()}


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


def _tres_text(tres: Any) -> str:
    """Return `gres/gpu:a100=2` of pyslurm's TrackableResources, GPUs alone; empty where it names none."""
    gres = getattr(tres, "gres", None)
    if not isinstance(gres, dict):
        return ""
    counts = {str(name): getattr(item, "count", None) for name, item in gres.items()}
    gpus = {name.removeprefix("gres/"): count for name, count in counts.items() if "gpu" in name}
    return ",".join(f"gres/{name}={count}" for name, count in gpus.items() if isinstance(count, int))


def _array_text(job: Any) -> str | None:
    """Return `1-5%2` of the tasks that wait and how many of them may run at once."""
    at_once = getattr(job, "array_tasks_parallel", None)
    return f"{job.array_tasks_waiting}%{at_once}" if job.array_tasks_waiting and at_once else job.array_tasks_waiting


def _dependency_text(dependencies: object) -> str:
    """Return `afterok:1:2,after:3` of pyslurm's {"afterok": [1, 2], "after": [3], "satisfy": "all"}."""
    if not isinstance(dependencies, dict):
        return ""
    separator = "?" if dependencies.get("satisfy") == "any" else ","
    lists = {kind: jobs for kind, jobs in dependencies.items() if isinstance(jobs, list) and jobs}
    parts = [":".join((str(kind), *map(str, jobs))) for kind, jobs in lists.items()]
    return separator.join([*parts, *(["singleton"] if dependencies.get("singleton") is True else [])])


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
