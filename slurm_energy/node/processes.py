"""Processes on this machine, read from /proc: slurmd, and the sampler and the delivery that are ours."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.files import read_whole, write_atomically
from slurm_energy.wire.fields import Fields, loads

PROC = Path("/proc")
BOOT_ID_PATH = PROC / "sys/kernel/random/boot_id"
STOP_SECONDS = 0.3
_POLL_SECONDS = 0.002
_MAX_ANCESTORS = 32
_ENVIRONMENT_KEPT = ("SLURMD_NODENAME", "SLURM_CONF", "SLURM_NODELIST", "LD_LIBRARY_PATH")
"""Beside SLURM_ENERGY_*: what a process that outlives the hook keeps of its environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    start_ticks: int
    boot_id: str


def read_boot_id(path: Path = BOOT_ID_PATH) -> str:
    """Return the name of this boot.

    Raises:
        SpoolError: the kernel does not tell.
    """
    try:
        return path.read_bytes().decode("ascii", "replace").strip() or "unknown"
    except OSError as error:
        raise SpoolError(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmdProcess:
    """The slurmd of this node."""

    pid: int
    start_ticks: int
    executable: str


def read_slurmd(node: str, proc: Path = PROC) -> SlurmdProcess | None:
    """Return the slurmd that started this process, else the one that runs for the node; None when none is found."""
    pid = os.getpid()
    found = None
    for _ in range(_MAX_ANCESTORS):
        pid = _parent(pid, proc)
        if pid <= 1:
            break
        found = _slurmd_at(pid, proc) or found  # the topmost: it forks before it starts a hook
    return found or _slurmd_of(node, proc)


def _slurmd_of(node: str, proc: Path) -> SlurmdProcess | None:
    """Return the slurmd of a node out of all that run: the one started with -N NODE, else the only one.

    Where containers are nodes and share the host's processes, it is the only one with this container's host name.
    """
    running: dict[int, SlurmdProcess] = {}
    for folder in proc.glob("[0-9]*"):
        slurmd = _slurmd_at(int(folder.name), proc)
        if slurmd is not None:
            running[slurmd.pid] = slurmd
    daemons = [slurmd for slurmd in running.values() if _parent(slurmd.pid, proc) not in running]
    named = [slurmd for slurmd in daemons if node in _node_names(slurmd.pid, proc)]
    chosen = named or [slurmd for slurmd in daemons if not _node_names(slurmd.pid, proc)]
    if len(chosen) > 1 and (here := _host_of("self", proc)) is not None:
        chosen = [slurmd for slurmd in chosen if _host_of(str(slurmd.pid), proc) == here]
    return chosen[0] if len(chosen) == 1 else None


def _host_of(pid: str, proc: Path) -> str | None:
    """Return the namespace of a process's host name."""
    try:
        return os.readlink(proc / pid / "ns/uts")  # noqa: PTH115  # as in the other readings of links here
    except OSError:
        return None


def _slurmd_at(pid: int, proc: Path) -> SlurmdProcess | None:
    try:
        program = os.readlink(proc / str(pid) / "exe").removesuffix(" (deleted)")  # noqa: PTH115  # as above
    except OSError:
        return None
    if program.rpartition("/")[2].partition("-")[0] != "slurmd":  # Debian's is slurmd-wlm
        return None
    ticks = start_ticks(pid, proc)
    return None if ticks is None else SlurmdProcess(pid=pid, start_ticks=ticks, executable=program)


def _node_names(pid: int, proc: Path) -> tuple[str, ...]:
    """Return what -N names in a slurmd's command line."""
    with suppress(OSError):
        words = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return tuple(
            words[at + 1] if word == "-N" and at + 1 < len(words) else word[2:]
            for at, word in enumerate(words)
            if word.startswith("-N")
        )
    return ()


def _parent(pid: int, proc: Path) -> int:
    try:
        return int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """Return when the process started, None when it is gone or a zombie."""
    try:
        # The second field is the command in brackets and may hold anything, brackets and blanks too.
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in {b"Z", b"X"} else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def started_at_seconds(ticks: int, proc: Path = PROC) -> float | None:
    """Return the Unix time of a process' start, None when the kernel does not tell."""
    try:
        since_boot = float((proc / "uptime").read_bytes().split()[0])
    except (OSError, IndexError, ValueError):
        return None
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


def write_identity(path: Path, boot_id: str) -> None:
    """Store this process's identity."""
    identity = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()) or 0, "boot_id": boot_id}
    write_atomically(path, json.dumps(identity).encode(), durable=False)


def read_identity(path: Path) -> ProcessIdentity | None:
    """Return the identity in the file, None when there is none that can be used."""
    try:
        content = read_whole(path)
        if content is None:
            return None
        fields = Fields(loads(content, "sampler file", 4096), "sampler file")
        return ProcessIdentity(
            pid=fields.integer("pid", 2, 1 << 31),
            start_ticks=fields.integer("start_ticks", 1, 1 << 62),
            boot_id=fields.text("boot_id", 64),
        )
    except (SpoolError, WireError):
        return None


def stop(identity: ProcessIdentity, boot_id: str, pause: Callable[[float], None]) -> bool:
    """End exactly this process: ask, wait shortly, then kill. Return whether it went by itself."""
    if identity.boot_id != boot_id:
        return True
    for number, patience_seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        if start_ticks(identity.pid) != identity.start_ticks:
            return True
        try:
            os.kill(identity.pid, number)
        except OSError:
            return False
        for _ in range(int(patience_seconds / _POLL_SECONDS)):
            if start_ticks(identity.pid) != identity.start_ticks:
                return number == signal.SIGTERM
            pause(_POLL_SECONDS)
    return False


def spawn_sampler(executable: str, job_id: JobId, node: str) -> None:
    """Start the sampler in a session of its own: slurmd kills the hook's process group afterwards.

    Raises:
        SpoolError: it cannot be started.
    """
    _spawn(executable, ["sample", str(job_id), "--node", node], blocked=[signal.SIGTERM])  # until the sampler listens


def spawn_flush(executable: str, node: str) -> None:
    """Start the delivery of a job's report, in a session of its own as well.

    Raises:
        SpoolError: it cannot be started.
    """
    _spawn(executable, ["flush", "--soon", "--node", node], blocked=[])


def hook_command(executable: str) -> list[str]:
    """Return how a hook is started with this interpreter: without `site`, with this process's own search path."""
    folders = [folder for folder in sys.path if folder.startswith("/")]
    start = f"import sys; sys.path[:] = {folders!r}; from slurm_energy.node.main import main; main()"
    return [executable, "-I", "-S", "-c", start]


def _spawn(executable: str, words: list[str], blocked: list[int]) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT_KEPT or name.startswith("SLURM_ENERGY_")
    }
    null = [(os.POSIX_SPAWN_OPEN, descriptor, "/dev/null", os.O_RDWR, 0) for descriptor in range(3)]
    try:
        os.posix_spawn(
            executable,
            [*hook_command(executable), *words],
            environment,
            file_actions=null,
            setsid=True,
            setsigmask=blocked,
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
        )
    except (OSError, NotImplementedError) as error:
        raise SpoolError(f"{words[0]} cannot be started with {executable!r}: {error}") from error
