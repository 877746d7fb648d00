"""A synthetic cluster as Slurm 22.05's commands print it, with every field of a row: reading it costs what it costs."""

import json
from collections.abc import Sequence

from slurm_energy.domain.cluster import ClusterSnapshot, JobState, NodeState
from slurm_energy.domain.ids import JobId

_HEAD = {
    "plugin": {"type": "openapi/v0.0.38", "name": "Slurm OpenAPI v0.0.38"},
    "Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"},
}
_INDENT = 2
_EMPTY = (
    "admin_comment array_task_string batch_features burst_buffer burst_buffer_state cluster_features command comment "
    "container cpus_per_tres excluded_nodes features federation_origin federation_siblings_active "
    "federation_siblings_viable licenses mcs_label memory_per_tres het_job_id_set prefer required_nodes resv_name "
    "state_description system_comment tres_bind tres_freq tres_per_job tres_per_socket tres_per_task wckey"
)
_ZERO = (
    "array_job_id array_task_id array_max_tasks association_id deadline delay_boot derived_exit_code exit_code "
    "max_cpus max_nodes tasks_per_node tasks_per_board het_job_id het_job_offset minimum_tmp_disk_per_node "
    "preempt_time pre_sus_time resize_time restart_cnt sockets_per_board suspend_time time_minimum"
)
_UNSET = (
    "core_spec thread_spec cores_per_socket cpus_per_task cpu_frequency_minimum cpu_frequency_maximum "
    "cpu_frequency_governor nice tasks_per_core tasks_per_socket memory_per_cpu profile shared sockets_per_node "
    "threads_per_core"
)
_JOB = {
    **dict.fromkeys(_EMPTY.split(), ""),
    **dict.fromkeys(_ZERO.split(), 0),
    **dict.fromkeys(_UNSET.split(), None),
} | {
    "batch_flag": True,
    "billable_tres": 1.0,
    "cluster": "bench",
    "contiguous": False,
    "current_working_directory": "/home/user/projects/training/runs",
    "flags": ["ACCRUE_COUNT_CLEARED", "USING_DEFAULT_QOS"],
    "reboot": False,
    "requeue": True,
    "show_flags": ["SHOW_ALL", "SHOW_DETAIL", "SHOW_LOCAL"],
    "standard_input": "/dev/null",
}
_NODE = {
    "architecture": "x86_64",
    "burstbuffer_network_address": "",
    "boards": 1,
    "boot_time": 1_700_000_000,
    "comment": "",
    "cpu_binding": 0,
    "cpu_load": 71,
    "extra": "",
    "free_memory": 22_499,
    "last_busy": 1_700_000_000,
    "gres_drained": "N/A",
    "mcs_label": "",
    "next_state_after_reboot": "invalid",
    "next_state_after_reboot_flags": [],
    "operating_system": "Linux",
    "owner": None,
    "port": 6818,
    "reason": "",
    "reason_changed_at": 0,
    "reason_set_by_user": None,
    "slurmd_start_time": 1_700_000_000,
    "sockets": 2,
    "state_flags": [],
    "threads": 1,
    "temporary_disk": 0,
    "weight": 1,
    "slurmd_version": "22.05.8",
}


class SlurmTexts:
    """Writes snapshots as Slurm prints them; rows of what is the same are kept."""

    def __init__(self) -> None:
        self._rows: dict[JobId, tuple[JobState, str]] = {}

    def squeue(self, snapshot: ClusterSnapshot) -> str:
        """Return `squeue --json --all --states=all`."""
        return _document("jobs", [self._row(job, snapshot.taken_at_seconds) for job in snapshot.jobs])

    def sinfo(self, snapshot: ClusterSnapshot) -> str:
        """Return `sinfo --json --all`."""
        positions = held_positions(snapshot)
        return _document("nodes", [_text(node_row(node, positions.get(node.name, ()))) for node in snapshot.nodes])

    def _row(self, job: JobState, now_seconds: float) -> str:
        known = self._rows.get(job.job_id)
        if known is None or known[0] is not job:
            known = self._rows[job.job_id] = (job, _text(job_row(job, now_seconds)))
        return known[1]


def job_row(job: JobState, now_seconds: float) -> dict[str, object]:
    """Return a row of squeue."""
    pending = job.state == "PENDING"
    submitted, limit = int(job.submitted_at_seconds), int(job.time_limit_minutes or 0)
    started = int(job.started_at_seconds or 0)
    per_node = (job.gpu_count or 0) // max(1, job.node_count)
    of_type = f":{job.gpu_types[0]}" if job.gpu_types else ""
    tres = f"cpu={job.cpus},mem={int((job.memory_per_node_mib or 0) / 1024)}G,node={job.node_count},billing={job.cpus}"
    folder = _JOB["current_working_directory"]
    return _JOB | {
        "account": job.account or "",
        "accrue_time": submitted,
        "batch_host": job.nodes,
        "cpus": job.cpus,
        "dependency": ",".join(
            f"{'afterok' if one.needs_success else 'afterany'}:{one.job_id}(unfulfilled)" for one in job.dependencies
        ),
        "eligible_time": submitted,
        "end_time": 0 if pending else started + 60 * limit,
        "gres_detail": [f"gpu{of_type}:{len(at)}(IDX:{_ranges(at)})" for _, at in job.gpu_positions],
        "group_id": job.user_id,
        "group_name": job.account or "",
        "job_id": job.job_id,
        "job_state": job.state,
        "last_sched_evaluation": int(now_seconds),
        "memory_per_node": int(job.memory_per_node_mib or 0),
        "minimum_cpus_per_node": 1,
        "name": job.name,
        "node_count": job.node_count,
        "nodes": job.nodes,
        "partition": ",".join(job.partitions),
        "priority": job.priority,
        "qos": job.qos or "",
        "standard_error": f"{folder}/slurm-{job.job_id}.out",
        "standard_output": f"{folder}/slurm-{job.job_id}.out",
        "start_time": started,
        "state_reason": "Priority" if pending else "None",
        "submit_time": submitted,
        "tasks": job.node_count,
        "time_limit": limit,
        "tres_per_node": f"gres:gpu{of_type}:{per_node}" if per_node else "",
        "tres_req_str": tres,
        "tres_alloc_str": "" if pending else tres,
        "user_id": job.user_id,
        "user_name": job.user_name,
    }


def node_row(node: NodeState, held: Sequence[int]) -> dict[str, object]:
    """Return a row of sinfo; `held` are the places of the GPUs that jobs hold."""
    gpus = node.gpus[0] if node.gpus else None
    memory, used = int(node.memory_mib or 0), int(node.memory_allocated_mib or 0)
    at = _ranges(held) if gpus is not None and len(held) == gpus.allocated and held else "N/A"
    return _NODE | {
        "cores": node.cpus // 2,
        "cpus": node.cpus,
        "features": ",".join(node.features),
        "active_features": ",".join(node.features),
        "gres": "" if gpus is None else f"gpu:{gpus.slurm_type}:{gpus.count}(S:0-1)",
        "gres_used": "" if gpus is None else f"gpu:{gpus.slurm_type}:{gpus.allocated}(IDX:{at})",
        "name": node.name,
        "address": node.name,
        "hostname": node.name,
        "state": node.states[0].lower(),
        "partitions": list(node.partitions),
        "real_memory": memory,
        "tres": f"cpu={node.cpus},mem={memory // 1024}G,billing={node.cpus}",
        "alloc_memory": used,
        "alloc_cpus": node.cpus_allocated,
        "idle_cpus": node.cpus - node.cpus_allocated,
        "tres_used": f"cpu={node.cpus_allocated},mem={used // 1024}G",
        "tres_weighted": float(node.cpus_allocated),
    }


def partition_text(snapshot: ClusterSnapshot) -> str:
    """Return `scontrol --all show partition -o`."""
    lines = [
        f"PartitionName={one.name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL "
        f"Default={'YES' if one.is_default else 'NO'} QoS=N/A DefaultTime=NONE DisableRootJobs=NO Hidden=NO "
        f"MaxNodes=UNLIMITED MaxTime={_days(one.max_time_minutes)} MinNodes=0 PriorityJobFactor=1 "
        f"PriorityTier={one.priority_tier} RootOnly=NO ReqResv=NO OverSubscribe=NO State={'UP' if one.up else 'DOWN'}"
        for one in snapshot.partitions
    ]
    return "".join(line + "\n" for line in lines)


def topology_text(snapshot: ClusterSnapshot) -> str:
    """Return `scontrol show topology`."""
    nodes: dict[str, list[str]] = {}
    for node in snapshot.nodes:
        nodes.setdefault(node.switch or "", []).append(node.name)
    children = [switch.name for switch in snapshot.switches if switch.parent is not None]
    everything = ",".join(node.name for node in snapshot.nodes)
    lines = [
        f"SwitchName={switch.name} Level=0 LinkSpeed=1 Nodes={','.join(nodes[switch.name])}"
        if switch.parent is not None
        else f"SwitchName={switch.name} Level=1 LinkSpeed=1 Nodes={everything} Switches={','.join(children)}"
        for switch in snapshot.switches
    ]
    return "".join(line + "\n" for line in lines)


def accounting_text() -> str:
    """Return an answer of `sacct --json` that knows no job."""
    return _document("jobs", [])


def held_positions(snapshot: ClusterSnapshot) -> dict[str, tuple[int, ...]]:
    """Return the places of the GPUs that jobs hold, by node."""
    held: dict[str, list[int]] = {}
    for job in snapshot.jobs:
        for name, at in job.gpu_positions:
            held.setdefault(name, []).extend(at)
    return {name: tuple(sorted(at)) for name, at in held.items()}


def _document(key: str, rows: list[str]) -> str:
    return f'{{"meta": {json.dumps(_HEAD)}, "errors": [], "{key}": [\n' + ",\n".join(rows) + "\n]}\n"


def _text(row: dict[str, object]) -> str:
    return json.dumps(row, indent=_INDENT)


def _days(minutes: float | None) -> str:
    return (
        "UNLIMITED"
        if minutes is None
        else f"{int(minutes) // 1440}-{int(minutes) % 1440 // 60:02d}:{int(minutes) % 60:02d}:00"
    )


def _ranges(places: Sequence[int]) -> str:
    """Return ascending numbers as Slurm writes them: `0-2,5`."""
    parts: list[list[int]] = []
    for place in places:
        if parts and parts[-1][1] == place - 1:
            parts[-1][1] = place
        else:
            parts.append([place, place])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
