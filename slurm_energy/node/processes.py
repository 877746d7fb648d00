"""Processes on this machine, read from /proc: the sampler that is ours, and the jobs that are alive."""

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.node.files import read_whole, write_atomically
from slurm_energy.wire.fields import Fields, loads

PROC = Path("/proc")
BOOT_ID_PATH = PROC / "sys/kernel/random/boot_id"
STOP_SECONDS = 0.3
_POLL_SECONDS = 0.002
_STEPD = re.compile(rb"slurmstepd: \[([0-9]+)\.")
_ENVIRONMENT_KEPT = re.compile(r"(?:SLURM_ENERGY_[A-Z0-9_]+|SLURMD_NODENAME|SLURM_CONF|LD_LIBRARY_PATH)\Z")


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
        return path.read_text(encoding="ascii").strip() or "unknown"
    except OSError as error:
        raise SpoolError(f"{path} cannot be read: {error.strerror}") from error


def live_jobs(proc: Path = PROC) -> frozenset[JobId]:
    """Return the jobs that have a slurmstepd on this machine."""
    jobs: set[JobId] = set()
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            match = _STEPD.match((folder / "cmdline").read_bytes()[:64])
            if match:
                jobs.add(JobId(int(match.group(1))))
    return frozenset(jobs)


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """Return when the process started, None when it is gone or a zombie."""
    try:
        # The second field is the command in brackets and may hold anything, brackets and blanks too.
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in {b"Z", b"X"} else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


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
    environment = {name: value for name, value in os.environ.items() if _ENVIRONMENT_KEPT.match(name)}
    arguments = [executable, "-I", "-m", "slurm_energy.node.main", "sample", str(job_id), "--node", node]
    null = [(os.POSIX_SPAWN_OPEN, descriptor, "/dev/null", os.O_RDWR, 0) for descriptor in range(3)]
    try:
        os.posix_spawn(
            executable,
            arguments,
            environment,
            file_actions=null,
            setsid=True,
            setsigmask=[signal.SIGTERM],  # waits until the sampler listens
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
        )
    except (OSError, NotImplementedError) as error:
        raise SpoolError(f"sampler {executable!r} cannot be started: {error}") from error
