"""Processes on this machine, read from /proc: the sampler that is ours, and the jobs that are alive."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.node.files import read_whole, write_atomically
from slurm_energy.wire.fields import Fields, loads

PROC = Path("/proc")
BOOT_ID_PATH = PROC / "sys/kernel/random/boot_id"
STOP_SECONDS = 0.3
_POLL_SECONDS = 0.002
SCAN_SECONDS = (0.5, 60.0)
"""Least and most time between two searches for a job's steps."""
SCAN_SHARE = 0.1
"""Steps are searched for again after this share of the time watched: a short job's are found in time."""
_STEPD = re.compile(rb"slurmstepd: \[([0-9]+)\.(batch\])?")
_ENVIRONMENT_KEPT = re.compile(
    r"(?:SLURM_ENERGY_[A-Z0-9_]+|SLURMD_NODENAME|SLURM_CONF|SLURM_NODELIST|LD_LIBRARY_PATH)\Z"
)


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
    return frozenset(job_id for _, job_id, _ in _stepds(proc))


def _stepds(proc: Path) -> Iterator[tuple[Path, JobId, bool]]:
    """Yield each slurmstepd's folder, its job, and whether it is a batch step's."""
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            match = _STEPD.match((folder / "cmdline").read_bytes()[:64])
            if match:
                yield folder, JobId(int(match.group(1))), match.group(2) is not None


class Presence(Enum):
    """What is known of a job's steps on this machine."""

    UNSEEN = "none was ever seen"
    RUNNING = "one is alive"
    ABSENT = "none is alive; another may begin"
    OVER = "the batch step is gone, and the job with it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    batch: bool
    start_ticks: int
    pid: int


class StepWatch:
    """Tells whether a job's steps are alive; while a known one lives, a look reads one small file."""

    def __init__(self, job_id: JobId, proc: Path = PROC) -> None:
        self._job_id = job_id
        self._proc = proc
        self._step: _Step | None = None
        self._seen = False
        self._began_seconds: float | None = None
        self._next_scan_seconds = 0.0

    def look(self, now_seconds: float) -> Presence:
        """Return what is known now; `now_seconds` is monotonic."""
        known = self._step
        lost = known is not None and start_ticks(known.pid, self._proc) != known.start_ticks
        if lost or (now_seconds >= self._next_scan_seconds and not (known and known.batch)):
            # Also when one is lost: a child of slurmstepd bears its name for a moment, and may be what was known.
            self._scan(now_seconds)
        if known is not None and known.batch and not (self._step and self._step.batch):
            return Presence.OVER
        if self._step is not None:
            return Presence.RUNNING
        return Presence.ABSENT if self._seen else Presence.UNSEEN

    def _scan(self, now_seconds: float) -> None:
        if self._began_seconds is None:
            self._began_seconds = now_seconds
        least, most = SCAN_SECONDS
        wait_seconds = min(max(SCAN_SHARE * (now_seconds - self._began_seconds), least), most)
        self._next_scan_seconds = now_seconds + wait_seconds
        steps = list(self._steps())
        self._step = min(steps, key=lambda step: (not step.batch, step.start_ticks, step.pid), default=None)
        self._seen = self._seen or self._step is not None

    def _steps(self) -> Iterator[_Step]:
        for folder, job_id, batch in _stepds(self._proc):
            ticks = start_ticks(int(folder.name), self._proc) if job_id == self._job_id else None
            # Only slurmd's own: anybody can give a process this name.
            with suppress(OSError):
                if ticks is not None and folder.stat().st_uid == os.geteuid():
                    yield _Step(batch=batch, start_ticks=ticks, pid=int(folder.name))


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
    _spawn(executable, ["sample", str(job_id), "--node", node], blocked=[signal.SIGTERM])  # until the sampler listens


def spawn_flush(executable: str, node: str) -> None:
    """Start the delivery of a job's report, in a session of its own as well.

    Raises:
        SpoolError: it cannot be started.
    """
    _spawn(executable, ["flush", "--soon", "--node", node], blocked=[])


def _spawn(executable: str, words: list[str], blocked: list[int]) -> None:
    environment = {name: value for name, value in os.environ.items() if _ENVIRONMENT_KEPT.match(name)}
    null = [(os.POSIX_SPAWN_OPEN, descriptor, "/dev/null", os.O_RDWR, 0) for descriptor in range(3)]
    try:
        os.posix_spawn(
            executable,
            [executable, "-I", "-m", "slurm_energy.node.main", *words],
            environment,
            file_actions=null,
            setsid=True,
            setsigmask=blocked,
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
        )
    except (OSError, NotImplementedError) as error:
        raise SpoolError(f"{words[0]} cannot be started with {executable!r}: {error}") from error
