"""The node's spool: one file per active job, settings still to be put back, reports not yet delivered.

active/JOB.json      saved settings and start readings
active/JOB.beat      the sampler's sums so far: the heartbeat
active/JOB.sampler   the sampler's process
active/JOB.ending    the epilog has begun
active/JOB.absent    repair saw no process of the job
active/JOB.shared    GPUs that another job came to share
active/JOB.trial     until when a clock that is tried is in force at the latest
pending/JOB-TIME.json  settings that could not be restored yet; its report is written
done/JOB             the report of this job's last attempt is written
reports/*.json       reports for the daemon
rejected/            files that could not be used
locks/               one lock per GPU, and two for flush
status.json          what repair saw of this node
status.sent          which status the daemon has taken, and when; its time: when the node last looked at itself
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SpoolError
from slurm_energy.files import (
    locked,
    locked_if_free,
    make_private,
    read_whole,
    remove,
    require_private,
    sync_directory,
    write_atomically,
)
from slurm_energy.node.state import ActiveJob, decode_state, encode_state

if TYPE_CHECKING:
    from slurm_energy.node.energy import Heartbeat

_FOLDERS = ("active", "pending", "done", "reports", "rejected", "locks")
MAX_DONE_MARKS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class BootMoment:
    """A point in time that no setting of the wall clock moves."""

    boot_id: str
    monotonic_seconds: float


class Spool:
    """The files under one folder; nothing is kept in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.active = root / "active"
        self.pending = root / "pending"
        self.done = root / "done"
        self.reports = root / "reports"
        self.rejected = root / "rejected"
        self.locks = root / "locks"
        self.seen_status = root / "status.json"
        self.sent_status = root / "status.sent"
        self.host_meter = root / "host.meter"
        self.host_meter_lock = root / ".host.meter.lock"
        self.host_power = root / "host-power.meter"
        self.host_power_lock = root / ".host-power.lock"

    def prepare(self) -> None:
        """Create the folders, open to root alone.

        Raises:
            SpoolError: they cannot be created, or others could write to them.
        """
        make_private(self.root, _FOLDERS)

    def require_private(self) -> None:
        """Refuse a spool that others could write to; one that is not there yet is none to refuse.

        Raises:
            SpoolError: it is refused.
        """
        try:
            require_private(self.root, _FOLDERS)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SpoolError(f"spool {self.root} cannot be used: {error.strerror}") from error

    def state_path(self, job_id: JobId) -> Path:
        """Return the file of an active job."""
        return self.active / f"{job_id}.json"

    def sampler_path(self, job_id: JobId) -> Path:
        """Return the file that names the job's sampler process."""
        return self.active / f"{job_id}.sampler"

    def beat_path(self, job_id: JobId) -> Path:
        """Return the sampler's side file."""
        return self.active / f"{job_id}.beat"

    def ending_path(self, job_id: JobId) -> Path:
        """Return the mark of an epilog that has begun."""
        return self.active / f"{job_id}.ending"

    def absent_path(self, job_id: JobId) -> Path:
        """Return the mark of a job of which no process was seen."""
        return self.active / f"{job_id}.absent"

    def shared_path(self, job_id: JobId) -> Path:
        """Return the file that names the GPUs which another job came to share."""
        return self.active / f"{job_id}.shared"

    def trial_path(self, job_id: JobId) -> Path:
        """Return the mark of a clock that is tried now."""
        return self.active / f"{job_id}.trial"

    def write_state(self, job: ActiveJob) -> None:
        """Store a job's state so that it survives the end of any process, and once it is ready a power cut too.

        Until then there is nothing that a power cut leaves to be put back: no lock of a clock survives it either.
        """
        write_atomically(self.state_path(job.job_id), encode_state(job), durable=job.ready)

    def read_state(self, job_id: JobId) -> ActiveJob | None:
        """Return a job's state, None when the job is not active here.

        Raises:
            SpoolError: the file cannot be read or used.
        """
        content = read_whole(self.state_path(job_id))
        return None if content is None else decode_state(content)

    def active_jobs(self, events: list[str]) -> tuple[ActiveJob, ...]:
        """Return every active job; a file that cannot be used is put aside and named in `events`."""
        return tuple(job for _, job in self._states(self.active, events))

    def pending_jobs(self, events: list[str]) -> tuple[tuple[Path, ActiveJob], ...]:
        """Return the jobs that ended with settings still to be put back, with their files."""
        return tuple(self._states(self.pending, events))

    def keep_pending(self, job: ActiveJob) -> None:
        """Remember that settings of an ended job are still to be put back."""
        write_atomically(self.pending / f"{job.job_id}-{job.started_at_seconds:.0f}.json", encode_state(job))

    def forget(self, job_id: JobId) -> None:
        """Remove everything of an active job; the state goes last.

        A state that a power cut brings back does no harm while the report is here, see `settle`.
        """
        marks = (
            self.beat_path,
            self.sampler_path,
            self.ending_path,
            self.absent_path,
            self.shared_path,
            self.trial_path,
        )
        for path in (*marks, self.state_path):
            remove(path(job_id))

    def settle(self) -> None:
        """Make the removal of closed jobs' states survive a power cut: before the first of their reports goes."""
        with suppress(OSError):
            sync_directory(self.active)

    def mark_ending(self, job_id: JobId, now: BootMoment) -> None:
        """Note that the epilog has begun; a full disk must not stop it."""
        self._mark(self.ending_path(job_id), now)

    def ending_age_seconds(self, job_id: JobId, now: BootMoment) -> float | None:
        """Return how long ago the epilog began, None when it has not."""
        return _mark_age_seconds(self.ending_path(job_id), now)

    def absent_age_seconds(self, job_id: JobId, now: BootMoment) -> float:
        """Return how long ago the job was first seen without a process; the first time notes it."""
        path = self.absent_path(job_id)
        age = _mark_age_seconds(path, now)
        if age is None or age == inf:
            self._mark(path, now)
            return 0.0
        return age

    def forget_absent(self, job_id: JobId) -> None:
        """Note that the job has a process again."""
        with suppress(SpoolError):
            remove(self.absent_path(job_id))

    def mark_shared(self, job_id: JobId, uuids: Iterable[str]) -> None:
        """Tell an active job's epilog that these GPUs were not its alone. The caller holds their locks."""
        known = self.shared_uuids(job_id)
        if not known.issuperset(uuids):
            with suppress(SpoolError):
                content = "".join(f"{uuid}\n" for uuid in sorted(known.union(uuids)))
                write_atomically(self.shared_path(job_id), content.encode())

    def shared_uuids(self, job_id: JobId) -> frozenset[str]:
        """Return the GPUs that another job came to share."""
        try:
            content = read_whole(self.shared_path(job_id)) or b""
        except SpoolError:
            return frozenset()
        return frozenset(content.decode("ascii", "replace").split())

    def write_heartbeat(self, heartbeat: "Heartbeat", *, durable: bool) -> None:
        """Store the sampler's sums."""
        from slurm_energy.node.energy import encode_heartbeat  # noqa: PLC0415  # most prologs have none

        write_atomically(self.beat_path(JobId(heartbeat.job_id)), encode_heartbeat(heartbeat), durable=durable)

    def read_heartbeat(self, job: ActiveJob) -> "Heartbeat | None":
        """Return the last sums of this attempt; None when there are none that can be used."""
        from slurm_energy.node.energy import decode_heartbeat  # noqa: PLC0415  # most prologs have none

        try:
            content = read_whole(self.beat_path(job.job_id))
            heartbeat = None if content is None else decode_heartbeat(content)
        except SpoolError:
            return None
        if heartbeat is None or abs(heartbeat.started_at_seconds - job.started_at_seconds) > 1e-3:
            return None
        return heartbeat

    def write_report(self, report: NodeReport, boot_id: str, started_monotonic_seconds: float) -> None:
        """Store a report for delivery, with its job's start by this boot's clock; an attempt has one file."""
        from slurm_energy.wire.report import encode_report  # noqa: PLC0415  # prologs write none

        start = {"boot_id": boot_id, "started_monotonic_seconds": started_monotonic_seconds}
        content = json.dumps({**encode_report(report), **start}, separators=(",", ":"), allow_nan=False)
        write_atomically(self._report_path(report), content.encode())

    def is_reported(self, job: ActiveJob) -> bool:
        """Return whether this attempt's report was written before: by a hook that was killed right after."""
        try:
            done = read_whole(self.done / str(job.job_id)) or b""
        except SpoolError:
            done = b""
        return done == f"{job.started_at_seconds:.3f}".encode() or os.path.lexists(self._report_path(job))

    def _report_path(self, job: NodeReport | ActiveJob) -> Path:
        return self.reports / f"{job.job_id}-{job.restart_count}-{job.started_at_seconds:.3f}.json"

    def waiting_reports(self) -> tuple[Path, ...]:
        """Return the reports to deliver, oldest first."""
        return tuple(path for _, path in sorted(_aged(self.reports)))

    def reject(self, path: Path) -> None:
        """Put aside a file that cannot be used."""
        try:
            path.replace(self.rejected / path.name)
        except OSError as error:
            raise SpoolError(f"{path} cannot be put aside: {error.strerror}") from error

    def mark_done(self, job_id: JobId, started_at_seconds: float) -> None:
        """Remember that this job's report is written, so that a second epilog adds nothing."""
        write_atomically(self.done / str(job_id), f"{started_at_seconds:.3f}".encode(), durable=False)

    def sweep(self) -> None:
        """Remove the oldest marks beyond a bound, and what atomic writes left when they were killed."""
        marks = sorted(_aged(self.done))
        for _, path in marks[: max(0, len(marks) - MAX_DONE_MARKS)]:
            remove(path)
        for path in self.root.glob("*/.*.tmp"):
            # Its name ends with the writer's process: no clock tells as surely whether it is at work.
            writer = path.name.split(".")[-2]
            if not (writer.isdecimal() and Path(f"/proc/{writer}").exists()):
                with suppress(OSError):
                    path.unlink()

    def is_done(self, job_id: JobId) -> bool:
        """Return whether the last attempt of this job was reported here."""
        return os.path.lexists(self.done / str(job_id))

    def forget_reported(self, job_id: JobId) -> None:
        """Forget that an earlier attempt was reported: a new one begins, and owes a report even without a state.

        While the earlier one's state is still here the mark stays: what closes it must not report it twice. A mark that
        cannot be removed is no reason to leave clocks of earlier jobs as they are.
        """
        if not os.path.lexists(self.state_path(job_id)):
            with suppress(SpoolError):
                remove(self.done / str(job_id))

    def clear_attempt(self, job_id: JobId) -> None:
        """Forget that an earlier attempt was ending or done: a new one begins, and is not over for that."""
        for path in (self.done / str(job_id), self.ending_path(job_id), self.absent_path(job_id)):
            remove(path)

    @contextmanager
    def gpu_locks(self, uuids: Iterable[str]) -> Iterator[None]:
        """Hold the locks of these GPUs: no two hooks set one GPU at once, not even one that hangs in the driver.

        In a spool that others can write to no lock is held: any user could keep it for ever.
        """
        with ExitStack() as stack:
            # One order for all, so that no two hooks wait for each other.
            for uuid in sorted(set(uuids)) if self._is_private() else ():
                stack.enter_context(locked(self._gpu_lock(uuid)))
            yield

    @contextmanager
    def try_locks(self, uuids: Iterable[str]) -> Iterator[bool]:
        """Hold the locks of these GPUs if all are free; yield whether they are held."""
        with locked_if_free([self._gpu_lock(uuid) for uuid in sorted(set(uuids))]) as held:
            yield held

    @contextmanager
    def try_flush_lock(self) -> Iterator[bool]:
        """Hold the lock of flush if it is free; yield whether it is held."""
        with locked_if_free([self.locks / "flush.lock"]) as held:
            yield held

    @contextmanager
    def try_turn(self) -> Iterator[Path | None]:
        """Hold the turn to flush soon if it is free; yield its file, whose time is that of the last turn."""
        path = self.locks / "soon.lock"
        with locked_if_free([path]) as held:
            yield path if held else None

    def _mark(self, path: Path, now: BootMoment) -> None:
        with suppress(SpoolError):
            write_atomically(path, f"{now.boot_id} {now.monotonic_seconds:.3f}".encode(), durable=False)

    def _is_private(self) -> bool:
        try:
            self.require_private()
        except SpoolError:
            return False
        return True

    def _gpu_lock(self, uuid: str) -> Path:
        return self.locks / f"{uuid.replace('/', '_')}.lock"

    def _states(self, folder: Path, events: list[str]) -> Iterator[tuple[Path, ActiveJob]]:
        for path in sorted(folder.glob("[0-9]*.json")):
            try:
                content = read_whole(path)
                if content is not None:
                    yield path, decode_state(content)
            except SpoolError as error:
                events.append(f"{path.name}: {error}; put aside")
                with suppress(SpoolError):
                    self.reject(path)


def _mark_age_seconds(path: Path, now: BootMoment) -> float | None:
    """Return how old a mark is, None when there is none; infinite when it is of another boot, or does not tell."""
    try:
        content = read_whole(path)
        if content is None:
            return None
        boot_id, _, seconds = content.decode("ascii").rpartition(" ")
        return max(now.monotonic_seconds - float(seconds), 0.0) if boot_id == now.boot_id else inf
    except (SpoolError, ValueError):
        return inf


def _aged(folder: Path) -> Iterator[tuple[float, Path]]:
    for path in folder.iterdir():
        if not path.name.startswith("."):
            with suppress(OSError):
                yield path.lstat().st_mtime, path
