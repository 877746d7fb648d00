"""Where the ranks of one training meet: the tasks of an `srun` step, or processes of a launcher.

Their places come from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or from what `srun` gives its tasks. They talk
through torch.distributed. Every process that reaches the port is believed: the port belongs into a cluster's own
network.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.graph.holdings import node_names

_SLURM = ("SLURM_PROCID", "SLURM_NTASKS")
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_PORT = 20_000
_PORTS = 10_000
_MAX_RANKS = 1009
JOIN_SECONDS = 120.0
"""For how long ranks wait for each other at the start."""
WAIT_SECONDS = 7200.0
"""For how long a rank waits for another later on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Which rank this process is, of how many, and where the first one listens."""

    number: int
    count: int
    address: str
    port: int
    local: int = 0
    """Which it is of those on its own machine."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _MAX_RANKS:
            raise ConfigError(f"there are {self.count} ranks: 1 to {_MAX_RANKS} can train together")
        if not 0 <= self.number < self.count:
            raise ConfigError(f"rank {self.number} is none of {self.count} ranks: they count from 0")
        if not 1 <= self.port <= 65_535:
            raise ConfigError(f"port {self.port} of rank 0 must be between 1 and 65535: set MASTER_PORT")


def rendezvous(environment: Mapping[str, str]) -> Rendezvous:
    """Return where this process stands, by a launcher's variables or by those of an `srun` step.

    Without MASTER_ADDR rank 0 is on the first host of the step; without MASTER_PORT the port follows from the job's id.

    Raises:
        ConfigError: a variable is missing or no number, or this is a batch script's own process and no step.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        _complete(environment, _LAUNCHER, "a launcher's")
        return Rendezvous(
            number=_whole(environment, "RANK"),
            count=_whole(environment, "WORLD_SIZE"),
            address=environment["MASTER_ADDR"],
            port=_whole(environment, "MASTER_PORT"),
            local=_local(environment, "LOCAL_RANK"),
        )
    if not any(name in environment for name in _SLURM):
        raise ConfigError(
            "a distributed training needs to know its ranks: start it with `srun --ntasks=N slurm-energy train ...`, "
            f"or set {', '.join(_LAUNCHER)}"
        )
    _complete(environment, _SLURM, "Slurm's")
    if "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment:
        raise ConfigError(
            "this process is no task of an srun step, so the other ranks would never come: write `srun` before "
            "`slurm-energy train` in the batch script"
        )
    return Rendezvous(
        number=_whole(environment, "SLURM_PROCID"),
        count=_whole(environment, "SLURM_NTASKS"),
        address=environment.get("MASTER_ADDR") or _first_host(environment),
        port=_whole(environment, "MASTER_PORT") if environment.get("MASTER_PORT") else _port(environment),
        local=_local(environment, "SLURM_LOCALID"),
    )


def _complete(environment: Mapping[str, str], names: Sequence[str], whose: str) -> None:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        there = [name for name in names if name not in missing]
        raise ConfigError(
            f"of {whose} variables {', '.join(there)} is set and {', '.join(missing)} is not: all of "
            f"{', '.join(names)} are needed"
        )


def _whole(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdecimal():
        raise ConfigError(f"${name} is {text[:40]!r}, it must be a whole number")
    return int(text)


def _local(environment: Mapping[str, str], name: str) -> int:
    return _whole(environment, name) if environment.get(name) else 0


def _first_host(environment: Mapping[str, str]) -> str:
    text = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    names = node_names(text)
    if not names:
        raise ConfigError(
            f"$SLURM_JOB_NODELIST is {text[:80]!r}, which names no host: set MASTER_ADDR to rank 0's address"
        )
    return names[0]


def _port(environment: Mapping[str, str]) -> int:
    """Return a port that two jobs, or two steps of one, rarely share."""
    job = environment.get("SLURM_JOB_ID", "0")
    step = environment.get("SLURM_STEP_ID", "0")
    number = 31 * int(job if job.isdecimal() else 0) + int(step if step.isdecimal() else 0)
    return _FIRST_PORT + number % _PORTS


@contextmanager
def process_group(
    place: Rendezvous,
    *,
    join_seconds: float = JOIN_SECONDS,
    wait_seconds: float = WAIT_SECONDS,
    backend: str = "gloo",
) -> Iterator[distributed.TCPStore]:  # type: ignore[name-defined]  # torch makes it public by its documentation only
    """Wait for the other ranks, and let go of them at the end; yield the store through which they met.

    Args:
        place: Which rank this is.
        join_seconds: For how long to wait at the start.
        wait_seconds: After which time a rank that sends nothing counts as lost.
        backend: Of torch.distributed; `cpu:gloo,cuda:nccl` where tensors of GPUs travel.

    Raises:
        TrainingError: they do not come in time, or rank 0's address cannot be used.
    """
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]  # likewise
            place.address,
            place.port,
            place.count,
            place.number == 0,
            timeout=timedelta(seconds=join_seconds),
        )
        distributed.init_process_group(
            backend,
            store=store,
            rank=place.number,
            world_size=place.count,
            timeout=timedelta(seconds=wait_seconds),
        )
    except (RuntimeError, ValueError, OSError) as error:  # torch's DistError is a RuntimeError
        raise TrainingError(
            f"rank {place.number} of {place.count} found no way to the others through {place.address}:{place.port} "
            f"within {join_seconds:g} s: {first_line(error)}. Set MASTER_ADDR and MASTER_PORT to where rank 0 can "
            "listen and, where a host's name is not its address in the cluster, GLOO_SOCKET_IFNAME to its interface"
        ) from error
    try:
        yield store
    finally:
        distributed.destroy_process_group()


def first_line(error: Exception) -> str:
    """Return the first 200 characters of what an error of torch says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
