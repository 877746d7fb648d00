"""The steps of jobs on this machine: which jobs have a slurmstepd, and what their cgroups let them open."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from slurm_energy.domain.ids import JobId, Sluid
from slurm_energy.node.processes import PROC, start_ticks

DEVICES_ROOT = Path("/sys/fs/cgroup/devices")
FIRST_OTHER_MINOR = 250
"""From here on the minors of NVIDIA's devices are no GPUs': 254 is nvidia-modeset, 255 nvidiactl."""
SCAN_SECONDS = (0.5, 60.0)
"""Minimum and maximum time between two searches for a job's steps."""
SCAN_SHARE = 0.1
"""Steps are searched for again after this share of the time watched: a short job's are found in time."""
_ALLOWED = re.compile(r"^c 195:([0-9]+) ", re.MULTILINE)
_EVERYTHING = re.compile(r"^(?:a|c) (?:\*|195):\* ", re.MULTILINE)
_STEPD = re.compile(rb"slurmstepd: \[(?:([0-9]{1,10})|(s[0-9A-Z]{13}))\.(batch\b)?")
"""`[12.batch]`, `[12.0+1]`, `[12.batch stepmgr]`; from 26.05 on `[s01ABCDEFGHJKM.batch]` where no job id is known."""
_JOB_CGROUP = re.compile(r"/job_([0-9]+)(?=/|\Z)", re.MULTILINE)
_SLUID_CGROUP = re.compile(r"/(s[0-9A-Z]{13})(?=/|\Z)", re.MULTILINE)
_REAL_USER = re.compile(rb"^Uid:\s+([0-9]+)", re.MULTILINE)
_NAMESPACE_PIDS = re.compile(rb"^NSpid:((?:\s+[0-9]+)+)", re.MULTILINE)


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
    """Yield every slurmstepd that slurmd started: any user can give a process such a title."""
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
        min_seconds, max_seconds = SCAN_SECONDS
        wait_seconds = min(max(SCAN_SHARE * (now_seconds - self._began_seconds), min_seconds), max_seconds)
        self._next_scan_seconds = now_seconds + wait_seconds
        steps = list(self._steps())
        self._step = min(steps, key=lambda step: (not step.batch, step.start_ticks, step.pid), default=None)
        self._seen = self._seen or self._step is not None

    def _steps(self) -> Iterator[_Step]:
        for stepd in _stepds(self._proc):
            ticks = start_ticks(stepd.pid, self._proc) if stepd.serves(self._names) else None
            if ticks is not None:
                yield _Step(batch=stepd.batch, start_ticks=ticks, pid=stepd.pid)


def cgroup_minors(job_id: JobId, root: Path = DEVICES_ROOT) -> frozenset[int] | None:
    """Return the minor numbers of the GPUs that the job may open, None where no cgroup limits it.

    Only cgroup v1 has a list that can be read (devices.list, where ConstrainDevices is on); with v2 it is an eBPF
    program. It exists from the job's first step on, after the prolog: it is a check on what was found then.
    """
    for path in root.glob(f"slurm*/uid_*/job_{job_id}/devices.list"):
        try:
            text = path.read_bytes().decode("ascii", "replace")
        except OSError:
            continue
        if _EVERYTHING.search(text):
            return None
        return frozenset(minor for minor in map(int, _ALLOWED.findall(text)) if minor < FIRST_OTHER_MINOR)
    return None
