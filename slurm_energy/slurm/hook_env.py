"""What slurmd tells a prolog or epilog through its environment; every value may be missing or hostile."""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.domain.decision import ENTRY_NAME
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName, Sluid, parse_job_id
from slurm_energy.errors import SlurmError, ValueRangeError
from slurm_energy.forms import is_plain

MAX_GPUS_PER_NODE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEnvironment:
    """One job on one node as slurmd describes it to a hook."""

    job_id: JobId
    sluid: Sluid | None = None
    restart_count: int = 0
    user_id: int | None = None
    partition: PartitionName | None = None
    cluster: ClusterName | None = None
    node: NodeName | None = None
    gpu_numbers: tuple[int, ...] = ()
    """SLURM_JOB_GPUS, else the plain numbers of CUDA_VISIBLE_DEVICES: positions in slurmd's list of GPUs."""
    gpu_uuids: tuple[str, ...] = ()
    """Full GPU and MIG identifiers of CUDA_VISIBLE_DEVICES."""
    visible_count: int | None = None
    """Devices that CUDA_VISIBLE_DEVICES names, in whatever way; None when it is not set."""
    entry: str | None = None
    """The decision as it travelled; not yet checked."""
    slurm_conf: str | None = None
    on_one_node: bool = False
    """Whether this node is all that the job has; False where slurmd does not tell."""
    exit_code: int | None = None
    """Exit code of the job, 128 + N when signal N ended it; only an epilog knows."""
    problems: tuple[str, ...] = ()
    """Values that were dropped, and why."""

    @property
    def has_gpus(self) -> bool:
        """Whether the job holds any GPU or slice of one."""
        return bool(self.gpu_numbers or self.gpu_uuids)


def parse_hook_environment(environment: Mapping[str, str]) -> HookEnvironment:
    """Return the job that the hook runs for; a value that cannot be used is dropped and named in `problems`.

    Raises:
        SlurmError: there is no usable job id, so this is not a job's hook.
    """
    try:
        job_id = parse_job_id(environment.get("SLURM_JOB_ID", environment.get("SLURM_JOBID", "")))
    except ValueRangeError as error:
        raise SlurmError(f"SLURM_JOB_ID: {error}; is this run by slurmd as Prolog or Epilog?") from error
    problems: list[str] = []
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    uuids = tuple(dict.fromkeys(part for part in _parts(visible) if _is_uuid(part)))
    numbers = _numbers("SLURM_JOB_GPUS", environment.get("SLURM_JOB_GPUS", ""), problems)
    if not numbers and "SLURM_JOB_GPUS" not in environment and not uuids:
        numbers = _numbers("CUDA_VISIBLE_DEVICES", visible, problems)
    cluster = _name("SLURM_CLUSTER_NAME", environment, problems)
    node = _name("SLURMD_NODENAME", environment, problems)
    partition = _name("SLURM_JOB_PARTITION", environment, problems)
    sluid = environment.get("SLURM_JOB_SLUID", "")
    return HookEnvironment(
        job_id=job_id,
        sluid=Sluid(sluid) if _is_sluid(sluid) else None,
        restart_count=_integer("SLURM_JOB_RESTART_COUNT", environment, problems) or 0,
        user_id=_integer("SLURM_JOB_UID", environment, problems),
        partition=None if partition is None else PartitionName(partition),
        cluster=None if cluster is None else ClusterName(cluster),
        node=None if node is None else NodeName(node),
        gpu_numbers=numbers,
        gpu_uuids=uuids,
        visible_count=len(dict.fromkeys(_parts(visible))) or None,
        entry=environment.get(f"SPANK_{ENTRY_NAME}") or None,
        slurm_conf=environment.get("SLURM_CONF") or None,
        on_one_node=_on_one_node(environment),
        exit_code=_exit_code(environment),
        problems=tuple(problems),
    )


def is_node_name(text: str) -> bool:
    """Return whether the text can be a node's name and, so, part of a path."""
    return is_plain(text, "._-", 255) and text[0].isalnum() and ".." not in text


def _is_uuid(text: str) -> bool:
    return text[:4] in {"GPU-", "MIG-"} and is_plain(text[4:], "/-", 100)


def _is_sluid(text: str) -> bool:
    return len(text) == 14 and text[0] == "s" and is_plain(text, "", 14) and text[1:] == text[1:].upper()


def _parts(text: str) -> list[str]:
    return [part for part in text[:65_536].split(",") if part]


def _numbers(name: str, text: str, problems: list[str]) -> tuple[int, ...]:
    numbers: dict[int, None] = {}
    if text.strip().lower() in {"", "nodevfiles", "no_dev_files", "(null)"}:
        return ()
    for part in _parts(text):
        low, dash, high = part.partition("-")
        first = _small_number(low)
        last = _small_number(high) if dash else first
        if not 0 <= first <= last < MAX_GPUS_PER_NODE:
            problems.append(f"{name} has {part[:64]!r}, a number from 0 to {MAX_GPUS_PER_NODE - 1} is needed")
            continue
        numbers.update(dict.fromkeys(range(first, last + 1)))
    return tuple(numbers)


def _small_number(text: str) -> int:
    """Return a number of at most four digits, -1 for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else -1


def _name(variable: str, environment: Mapping[str, str], problems: list[str]) -> str | None:
    text = environment.get(variable)
    if text is None or is_node_name(text):
        return text
    problems.append(f"{variable} is {text[:64]!r}, letters, digits, '.', '_' and '-' are needed")
    return None


def _on_one_node(environment: Mapping[str, str]) -> bool:
    """Return whether slurmd's list of nodes is one name: prologs are given no number of nodes."""
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
    return is_node_name(nodes) if nodes else False


def _integer(variable: str, environment: Mapping[str, str], problems: list[str]) -> int | None:
    text = environment.get(variable)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 0xFFFFFFFE:
        return int(text)
    problems.append(f"{variable} is {text[:64]!r}, a number from 0 to 4294967293 is needed")
    return None


def _exit_code(environment: Mapping[str, str]) -> int | None:
    code, separator, signal_text = environment.get("SLURM_JOB_EXIT_CODE2", "").partition(":")
    if separator and code.isdecimal() and signal_text.isdecimal() and len(code + signal_text) < 8:
        return 128 + int(signal_text) if int(signal_text) else int(code)
    status = environment.get("SLURM_JOB_EXIT_CODE", "")
    if not status.isdecimal() or len(status) > 8:
        return None
    number = int(status)
    return 128 + (number & 0x7F) if number & 0x7F else number >> 8
