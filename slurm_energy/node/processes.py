"""Processes on this machine, read from /proc: slurmd, the sampler that is ours, and the jobs that are alive."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from slurm_energy.domain.ids import JobId, Sluid
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
_STEPD = re.compile(rb"slurmstepd: \[(?:([0-9]{1,10})|(s[0-9A-Z]{13}))\.(batch\b)?")
"""`[12.batch]`, `[12.0+1]`, `[12.batch stepmgr]`; from 26.05 on `[s01ABCDEFGHJKM.batch]` where no job id is known."""
_JOB_CGROUP = re.compile(r"/job_([0-9]+)(?=/|\Z)", re.MULTILINE)
_SLUID_CGROUP = re.compile(r"/(s[0-9A-Z]{13})(?=/|\Z)", re.MULTILINE)
_REAL_USER = re.compile(rb"^Uid:\s+([0-9]+)", re.MULTILINE)
_NAMESPACE_PIDS = re.compile(rb"^NSpid:((?:\s+[0-9]+)+)", re.MULTILINE)
_SLURMD = re.compile(r"slurmd(?:-[A-Za-z0-9._-]+)?\Z")
"""Debian's is slurmd-wlm."""
_MAX_ANCESTORS = 32
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


class SlurmdProcess(NamedTuple):
    """The slurmd of this node."""

    pid: int
    start_ticks: int
    executable: str


class _Stepd(NamedTuple):
    """One slurmstepd, by the number or the SLUID of its job, whichever is known."""

    pid: int
    job_id: JobId | None
    sluid: Sluid | None
    batch: bool

    def serves(self, names: frozenset[JobId | Sluid]) -> bool:
        return self.job_id in names if self.job_id is not None else self.sluid in names


def live_jobs(proc: Path = PROC) -> frozenset[JobId | Sluid]:
    """Return the jobs that have a slurmstepd on this machine, by number and by SLUID as far as each is known."""
    names: set[JobId | Sluid] = set()
    for stepd in _stepds(proc):
        names.update(name for name in (stepd.job_id, stepd.sluid) if name is not None)
    return frozenset(names)


def _stepds(proc: Path) -> Iterator[_Stepd]:
    """Yield every slurmstepd that slurmd started: anybody can give a process such a title."""
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            match = _STEPD.match((folder / "cmdline").read_bytes()[:64])
            stepd = None if match is None else _checked_stepd(folder, match)
            if stepd is not None:
                yield stepd


def _checked_stepd(folder: Path, match: re.Match[bytes]) -> _Stepd | None:
    """Return the slurmstepd behind a title, None when user, program or cgroup say that it is none.

    Raises:
        OSError: the process is gone.
    """
    if not _is_slurmds_own(folder):
        return None
    job_id = None if match[1] is None else JobId(int(match[1]))
    sluid = None if match[2] is None else Sluid(match[2].decode("ascii"))
    try:
        cgroup = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        cgroup = ""
    # No cgroup of a job is no objection: without the cgroup plugin, and at its start, it is in slurmd's own.
    jobs = {JobId(int(number)) for number in _JOB_CGROUP.findall(cgroup)}
    sluids = {Sluid(text) for text in _SLUID_CGROUP.findall(cgroup)}
    if len(jobs) > 1 or len(sluids) > 1 or (job_id is not None and jobs - {job_id}):
        return None
    if sluid is not None and sluids - {sluid}:
        return None
    job_id, sluid = job_id or next(iter(jobs), None), sluid or next(iter(sluids), None)
    return _Stepd(pid=int(folder.name), job_id=job_id, sluid=sluid, batch=match[3] is not None)


def _is_slurmds_own(folder: Path) -> bool:
    """Return whether the process was started as our own user, outside any container, from slurmstepd's program."""
    try:
        status = (folder / "status").read_bytes()
    except FileNotFoundError:
        return folder.stat().st_uid == os.geteuid()
    # The real user: slurmstepd takes its job's as the effective one for moments, and a set-uid program has root's.
    user, pids = _REAL_USER.search(status), _NAMESPACE_PIDS.search(status)
    if user is None or int(user[1]) != os.geteuid() or (pids is not None and len(pids[1].split()) > 1):
        return False
    try:
        program = os.readlink(folder / "exe")  # noqa: PTH115  # the text, " (deleted)" and all
    except OSError:
        return True
    return Path(program).name.startswith("slurmstepd")


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
    if _SLURMD.match(Path(program).name) is None:
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

    def __init__(self, job_id: JobId, proc: Path = PROC, sluid: Sluid | None = None) -> None:
        self._names = frozenset[JobId | Sluid]({job_id} if sluid is None else {job_id, sluid})
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
        for stepd in _stepds(self._proc):
            ticks = start_ticks(stepd.pid, self._proc) if stepd.serves(self._names) else None
            if ticks is not None:
                yield _Step(batch=stepd.batch, start_ticks=ticks, pid=stepd.pid)


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
        since_boot = float((proc / "uptime").read_text(encoding="ascii").split()[0])
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
