"""Rows of `squeue --json`, 21.08 to 25.11, to job states, with the texts of `--dependency`: pure and total."""

import re
from collections.abc import Mapping

from slurm_energy.domain.cluster import JobDependency, JobState
from slurm_energy.domain.ids import MAX_JOB_ID, JobId, NodeName, PartitionName, expand_hostlist, parse_job_id
from slurm_energy.domain.job import GpuDemand
from slurm_energy.domain.units import slurm_joules
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.conversion import (
    BadRow,
    exit_status,
    long_text,
    mebibytes,
    minutes,
    names,
    positive,
    text,
    unix_seconds,
    whole,
    words,
)
from slurm_energy.slurm.gres import TresRequest, gpu_demands, gpu_indices, held_gpus, known_types
from slurm_energy.slurm.sbatch_options import ENERGY_OPTIONS, keeps_others_out, split_arguments

BASE_STATES = frozenset(
    {
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
    }
)
"""REVOKED is a job that another cluster of the federation runs: here it has ended without having run."""
LIVE_STATES = frozenset({"PENDING", "RUNNING", "SUSPENDED"})
MAX_POSITIONED_NODES = 1000
"""Of a job over more nodes it does not matter which devices it holds: all."""
_BLOCKING_REASONS = frozenset(
    {
        "badconstraints",
        "begintime",
        "deadline",
        "dependency",
        "dependencyneversatisfied",
        "invalidaccount",
        "invalidqos",
        "jobarraytasklimit",
        "jobheldadmin",
        "jobhelduser",
        "jobholdmaxrequeue",
        "jobrequeuedinheldstate",
        "launchfailedrequeuedheld",
        "licenses",
        "reservation",
        "reservationdeleted",
    }
)
"""Why a pending job would not start if there were room, in the letters of Slurm's words."""
_LIMIT_REASONS = ("assoc", "qos", "max")
"""How Slurm's words for limits of accounts, users and QOS begin."""
_SIZE_REASONS = frozenset({"badconstraints", "partitionnodelimit", "partitiontimelimit"})
"""Slurm's words for a job that its partitions cannot take."""
_REQUEST_KEYS = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task")
MAX_DEPENDENCIES = 1000
MAX_DEPENDENCY_CHARACTERS = 65_536
_SEPARATORS = re.compile(r"[,?]")
"""`,` wants all, `?` any of them; a job waits for each until then."""
_NUMBER = re.compile(r"[0-9]{1,10}")
_NEEDS_SUCCESS = frozenset({"afterok", "aftercorr"})
_WAITS = frozenset({"after", "afterany", "afternotok", "afterburstbuffer"}) | _NEEDS_SUCCESS
_DONE = "(fulfilled)"


def convert_job(row: Mapping[str, object]) -> JobState:
    """Return one job."""
    state = job_state(row.get("job_state"))
    submitted = unix_seconds(row.get("submit_time"))
    if submitted is None:
        raise BadRow("no submit time")
    user_id = whole(row.get("user_id"))
    if user_id is None or user_id < 0:
        raise BadRow("no user id")
    pending, live = state == "PENDING", state in LIVE_STATES
    started = None if pending else unix_seconds(row.get("start_time"))
    task = whole(row.get("array_task_id"))
    array_job_id = optional_job_id(row.get("array_job_id"))
    gpus = _gpus(row, pending)
    return JobState(
        job_id=job_id(row.get("job_id")),
        user_name=text(row.get("user_name")) or str(user_id),
        user_id=user_id,
        name=text(row.get("name")),
        state=state,
        partitions=tuple(PartitionName(name) for name in names(row.get("partition"))),
        submitted_at_seconds=submitted,
        started_at_seconds=started,
        ended_at_seconds=None if live else unix_seconds(row.get("end_time")),
        account=text(row.get("account")) or None,
        qos=text(row.get("qos")) or None,
        array_job_id=array_job_id,
        array_task=None if array_job_id is None else _array_task(task, row),
        het_job_id=optional_job_id(row.get("het_job_id")),
        restart_count=positive(row.get("restart_cnt")) or 0,
        time_limit_minutes=minutes(row.get("time_limit")),
        suspended_seconds=_suspended_seconds(row, started),
        nodes="" if pending else long_text(row.get("nodes")),
        node_count=positive(row.get("node_count")) or 0,
        gpu_count=None if gpus is None else sum(demand.count for demand in gpus),
        cpus=positive(row.get("cpus")),
        priority=whole(row.get("priority")),
        exit_code=None if live else exit_status(row.get("exit_code")),
        admin_comment=text(row.get("admin_comment")),
        energy_joules=_energy_joules(row),
        dependencies=parse_dependencies(long_text(row.get("dependency"), MAX_DEPENDENCY_CHARACTERS)) if pending else (),
        deadline_seconds=unix_seconds(row.get("deadline")),
        memory_per_node_mib=_memory_per_node(row),
        gpu_types=known_types(gpus or ()),
        gpu_max_count=_gpu_max_count(gpus or ()),
        exclusive=_is_exclusive(row),
        gpu_positions=_gpu_positions(row) if live and not pending else (),
        expected_start_seconds=unix_seconds(row.get("start_time")) if pending else None,
        blocked_by_limit=pending and _blocked_by_limit(row),
        waits_for_room=not pending or _waits_for_room(row),
    )


def job_state(value: object) -> str:
    """Return the base state of a state or list of states with flags such as COMPLETING.

    Raises:
        BadRow: none of them is a state.
    """
    found = words(value)
    state = next((word for word in found if word in BASE_STATES), None)
    if state is not None:
        return state
    if "COMPLETING" in found or "STAGE_OUT" in found:
        return "COMPLETED"
    if found and found[0] in {"CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"}:
        return "RUNNING"
    if found and found[0].startswith(("REQUEUE", "SPECIAL_EXIT", "RESV_DEL_HOLD")):
        return "PENDING"
    raise BadRow("no known state")


def _reason(row: Mapping[str, object]) -> str:
    return "".join(letter for letter in text(row.get("state_reason")).lower() if letter.isalpha())


def _blocked_by_limit(row: Mapping[str, object]) -> bool:
    """Return whether a pending job asks for more than a limit ever lets start; not one that is held or dependent.

    A limit on what a user, an account or a QOS has at a time passes when others of their jobs end: it is none.
    """
    reason, held = _reason(row), whole(row.get("priority")) == 0 or row.get("hold") is True
    is_of_size = "perjob" in reason or ("max" in reason and "pernode" in reason) or reason.startswith("qosmin")
    is_limit = is_of_size or reason in _SIZE_REASONS
    return is_limit and not held and not text(row.get("dependency"))


def _waits_for_room(row: Mapping[str, object]) -> bool:
    """Return whether a pending job would start if there were room; what cannot be read counts as a yes."""
    reason = _reason(row)
    held = whole(row.get("priority")) == 0 or row.get("hold") is True
    dependent = bool(text(row.get("dependency")))
    return not (held or dependent or reason in _BLOCKING_REASONS or reason.startswith(_LIMIT_REASONS))


def job_id(value: object) -> JobId:
    """Return a job's number.

    Raises:
        BadRow: there is none.
    """
    try:
        return parse_job_id(whole(value))
    except ValueRangeError:
        raise BadRow("no job id") from None


def optional_job_id(value: object) -> JobId | None:
    """Return the number of an array or heterogeneous job, None when the job belongs to none."""
    found = positive(value)
    return None if found is None or found > 0xFFFFFFFF else JobId(found)


def _array_task(task: int | None, row: Mapping[str, object]) -> str | None:
    return text(row.get("array_task_string")) or None if task is None else str(task)


def _gpus(row: Mapping[str, object], pending: bool) -> tuple[GpuDemand, ...] | None:
    """Return GPUs from what is held, else from what was asked for; None when neither can be read."""
    try:
        detail = row.get("gres_detail")
        if isinstance(detail, list) and detail and not pending:
            return held_gpus(item for item in detail if isinstance(item, str))
        allocated = row.get("tres_alloc_str")
        if isinstance(allocated, str) and "gres/gpu" in allocated and not pending:
            return held_gpus([allocated])
        if not any(key in row for key in _REQUEST_KEYS):
            return None
        return gpu_demands(_tres_request(row))
    except ValueRangeError:
        return None


def _gpu_max_count(gpus: tuple[GpuDemand, ...]) -> int | None:
    """Return the upper end of a request such as `--gpus=2-8`, None for a fixed number."""
    if all(demand.max_count is None for demand in gpus):
        return None
    return sum(demand.max_count or demand.count for demand in gpus)


def _gpu_positions(row: Mapping[str, object]) -> tuple[tuple[NodeName, tuple[int, ...]], ...]:
    """Return the devices held on each node; `gres_detail` has one text per node, in the order of `nodes`."""
    detail = row.get("gres_detail")
    if not isinstance(detail, list) or not 0 < len(detail) <= MAX_POSITIONED_NODES:
        return ()
    try:
        nodes = expand_hostlist(long_text(row.get("nodes")))
    except ValueRangeError:
        return ()
    if len(nodes) != len(detail):
        return ()
    indices = [gpu_indices(item) if isinstance(item, str) else () for item in detail]
    return tuple((NodeName(name), found) for name, found in zip(nodes, indices, strict=True) if found)


def _memory_per_node(row: Mapping[str, object]) -> float | None:
    """Return the memory that the job has, or asks for, on each node.

    With `--mem-per-cpu`, Slurm's own total (`mem=` of its TRES) is right: the memory is that of the CPUs that were
    asked for, and `cpus` may count more of them (both threads of a core, a whole node).
    """
    per_node, per_cpu = mebibytes(row.get("memory_per_node")), mebibytes(row.get("memory_per_cpu"))
    if per_node or per_cpu is None:
        return per_node or None
    nodes = positive(row.get("node_count")) or 1
    tres = text(row.get("tres_alloc_str")) or text(row.get("tres_req_str"))
    total = mebibytes(next((item[4:] for item in tres.split(",") if item.startswith("mem=")), None))
    return (total or per_cpu * (positive(row.get("cpus")) or 1)) / nodes


def _is_exclusive(row: Mapping[str, object]) -> bool:
    """Return whether no other job gets onto its nodes: `shared` is `none` then, or it was given nodes as a whole.

    26.05 leaves `shared` empty, and calls nodes whole also where other jobs of the user get onto them: then their cores
    tell, and of a job that waits what was typed, which is all that is left.
    """
    shared = {*words(row.get("shared")), *words(row.get("exclusive"))}
    if shared & {"NONE", "TRUE", "TOPO", "USER", "MCS"}:
        return not shared & {"USER", "MCS"}
    resources = row.get("job_resources")
    nodes = resources.get("nodes") if isinstance(resources, dict) else None
    if isinstance(nodes, dict):
        return nodes.get("whole") is True and "UNALLOCATED" not in str(nodes.get("allocation"))
    return row.get("shared") == [] and _typed_exclusive(text(row.get("submit_line")))


def _typed_exclusive(submit_line: str) -> bool:
    """Return whether sbatch's command line asks for nodes alone; an #SBATCH line of the script is not in it."""
    command, *typed = submit_line.partition(" --wrap")[0].split() or [""]
    if command.rpartition("/")[2] != "sbatch" or "--excl" not in submit_line:
        return False
    try:
        given = split_arguments(typed, ENERGY_OPTIONS).components[0]
    except ValueRangeError:  # blanks inside an argument cannot be distinguished from those between two
        return False
    return any(option.name == "exclusive" and keeps_others_out(option.value) for option in given)


def _tres_request(row: Mapping[str, object]) -> TresRequest:
    return TresRequest(
        per_job=text(row.get("tres_per_job")),
        per_node=text(row.get("tres_per_node")),
        per_socket=text(row.get("tres_per_socket")),
        per_task=text(row.get("tres_per_task")),
        nodes_min=positive(row.get("node_count")) or 1,
        tasks=positive(row.get("tasks")),
        sockets_per_node=positive(row.get("sockets_per_node")),
    )


def _suspended_seconds(row: Mapping[str, object], started: float | None) -> float:
    """Return the time the job stood still, up to the last time it was suspended or resumed.

    `suspend_time` is that last time and `pre_sus_time` how long the job had run before it.
    """
    changed = unix_seconds(row.get("suspend_time"))
    ran = whole(row.get("pre_sus_time"))
    if started is None or changed is None or ran is None:
        return 0.0
    return max(0.0, changed - started - ran)


def _energy_joules(row: Mapping[str, object]) -> float | None:
    for item in text(row.get("tres_alloc_str")).split(","):
        if item.startswith("energy="):
            return slurm_joules(whole(item[7:])) or None
    return None


def parse_dependencies(text: str) -> tuple[JobDependency, ...]:
    """Return the jobs that a job still waits for, at most `MAX_DEPENDENCIES`, each once.

    An array (`13_*`) and its tasks (`13_5`) stand under the array's number, a heterogeneous job's parts (`13+1`) under
    its leader's. `singleton` and `expand` name no job to wait for, and what cannot be read is left out.
    """
    needs_success: dict[int, bool] = {}
    for part in _SEPARATORS.split(text[:MAX_DEPENDENCY_CHARACTERS]):
        kind, _, jobs = part.strip().lower().partition(":")
        if kind not in _WAITS:
            continue
        for item in jobs.split(":"):
            match = _NUMBER.match(item)
            number = 0 if match is None or item.endswith(_DONE) else int(match.group())
            if 0 < number <= MAX_JOB_ID:
                needs_success[number] = needs_success.get(number, False) or kind in _NEEDS_SUCCESS
                if len(needs_success) == MAX_DEPENDENCIES:
                    return _dependencies(needs_success)
    return _dependencies(needs_success)


def _dependencies(needs_success: dict[int, bool]) -> tuple[JobDependency, ...]:
    return tuple(JobDependency(job_id=JobId(number), needs_success=needed) for number, needed in needs_success.items())
