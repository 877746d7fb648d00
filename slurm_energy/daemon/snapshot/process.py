"""The snapshot child: the only process that asks Slurm, at its own pace, however many jobs are submitted."""

import grp
import logging
import os
import pwd
import random
import select
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import receive, send
from slurm_energy.daemon.ipc.children import connect_to_parent, set_up_logging, until_stopped
from slurm_energy.daemon.ipc.frames import (
    MAX_ITEMS,
    JobsEnded,
    ReaderInUse,
    SnapshotBegins,
    SnapshotComplete,
    UserGroups,
)
from slurm_energy.daemon.recorder.entries import JOBS_STREAM, JobsEntryLine, encode_entry
from slurm_energy.daemon.recorder.journal import JournalWriter, journal_bytes, journal_directory
from slurm_energy.daemon.snapshot.changes import JobChangeFinder, SnapshotDifference, UnstoredJobs
from slurm_energy.domain.cluster import JobState, NodeSize, NodeState, waiting_gpus
from slurm_energy.domain.ids import NodeName
from slurm_energy.errors import SlurmError, SpoolError
from slurm_energy.slurm.json_client import ClusterReading, SlurmReader
from slurm_energy.slurm.reader import ChosenReader, create_reader, pyslurm_is_tried

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0
MAX_JOURNAL_BYTES = 4 * 1024**3
"""With more waiting for a database that is away, job states are no longer added: decisions and reports go first."""
MAX_UNWRITTEN = 100_000
MAX_REASONS = 32
"""Why rows could not be read: so many reasons are passed on."""
_WARN_INTERVAL_SECONDS = 60.0
ASK_INTERVAL_SECONDS = 10.0
GIVE_UP_SECONDS = 600.0
MAX_ASKED = 500
"""Of jobs that vanished, in one query of accounting."""
GROUPS_KEPT_SECONDS = 600.0
MAX_LOOKUPS = 100
"""Per reading: a slow directory service must not make the snapshot old."""


class VanishedJobs:
    """Jobs that left slurmctld's memory before their end was seen, until accounting knows it, or for ten minutes.

    Accounting may be late, so it is asked again.
    """

    def __init__(self, reader: SlurmReader, accounting: bool) -> None:
        self._reader = reader
        self._accounting = accounting
        self._waiting: dict[tuple[int, float], tuple[JobState, float]] = {}
        self._asked_at = float("-inf")

    def settle(self, vanished: Sequence[JobState], now_seconds: float) -> UnstoredJobs:
        """Take what vanished just now and return what is settled: ended as accounting says, or lost."""
        if not self._accounting:
            return UnstoredJobs(vanished=tuple(vanished))
        for job in vanished:
            self._waiting[job.job_id, job.submitted_at_seconds] = (job, now_seconds)
        ended: list[JobState] = []
        if self._waiting and now_seconds - self._asked_at >= ASK_INTERVAL_SECONDS:
            self._asked_at = now_seconds
            ended = self._ask()
        lost = [key for key, (_, since) in self._waiting.items() if now_seconds - since >= GIVE_UP_SECONDS]
        return UnstoredJobs(changed=tuple(ended), vanished=tuple(self._waiting.pop(key)[0] for key in lost))

    def _ask(self) -> list[JobState]:
        asked = list(dict.fromkeys(job.job_id for job, _ in self._waiting.values()))[:MAX_ASKED]
        try:
            known = self._reader.read_ended_jobs(asked)
        except SlurmError as error:
            logger.warning("accounting not read jobs=%d error=%s", len(asked), error)
            return []
        ended: list[JobState] = []
        for job in known:
            key = (job.job_id, job.submitted_at_seconds)
            if job.ended_at_seconds is None or key not in self._waiting:
                continue
            before, _ = self._waiting.pop(key)
            comment = job.admin_comment or before.admin_comment
            restarts = max(before.restart_count, job.restart_count)
            ended.append(replace(job, user_id=before.user_id, admin_comment=comment, restart_count=restarts))
        return ended


class GroupCache:
    """Groups of the users in the queue, for partitions that admit certain groups; looked up again after ten minutes."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def frames(self, reading: ClusterReading, now_seconds: float) -> list[UserGroups]:
        """Return the groups of users not looked up lately; nothing where no partition asks for groups."""
        if not any(partition.allow_groups for partition in reading.partitions):
            return []
        users = dict.fromkeys(job.user_id for job in reading.jobs)
        due = [user for user in users if now_seconds - self._known.get(user, float("-inf")) >= GROUPS_KEPT_SECONDS]
        found = self._look_up(due[:MAX_LOOKUPS], now_seconds)
        return [UserGroups(groups=tuple(found[at : at + MAX_ITEMS])) for at in range(0, len(found), MAX_ITEMS)]

    def _look_up(self, users: Iterable[int], now_seconds: float) -> list[tuple[int, frozenset[str]]]:
        found: list[tuple[int, frozenset[str]]] = []
        for user in users:
            self._known[user] = now_seconds
            groups = groups_of(user)
            if groups is not None:
                found.append((user, groups))
        return found


def groups_of(user_id: int) -> frozenset[str] | None:
    """Return the names of a user's groups, None for an unknown user."""
    try:
        user = pwd.getpwuid(user_id)
        numbers = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError, OverflowError):
        return None
    names: set[str] = set()
    for number in numbers:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(names)


def _size(node: NodeState) -> NodeSize:
    return NodeSize(name=node.name, cpus=node.cpus, gpus=node.gpu_count)


class SnapshotLoop:
    """Reads, sends the answering process what changed, and journals what the database needs."""

    def __init__(
        self,
        config: Config,
        reader: ChosenReader,
        journal: JournalWriter,
        connection: socket.socket,
    ) -> None:
        self._config = config
        self._reader = reader
        self._journal = journal
        self._journal_directory = journal_directory(config)
        self._connection = connection
        self._in_use = ReaderInUse(reader.name, reader.note)
        self._difference = SnapshotDifference()
        self._history = JobChangeFinder()
        self._groups = GroupCache()
        self._sizes: dict[NodeName, NodeSize] = {}
        """Of nodes, as they were journalled last."""
        self._unwritten: list[JobsEntryLine] = []
        self._vanished = VanishedJobs(reader, config.cluster.accounting)
        self._failures = 0
        self._warned_at = -_WARN_INTERVAL_SECONDS

    def run(self) -> None:
        """Refresh until the daemon is gone."""
        send(self._connection, SnapshotBegins())
        send(self._connection, self._in_use)
        while True:
            began = time.monotonic()
            try:
                self._refresh()
                self._failures = 0
            except SlurmError as error:
                self._failures += 1
                self._warn("cluster not read failures=%d error=%s", self._failures, error)
            except SpoolError as error:
                self._warn("job states kept in memory waiting=%d error=%s", len(self._unwritten), error)
            self._pause(began)

    def _refresh(self) -> None:
        began = time.monotonic()
        taken_at = time.time()
        reading = self._reader.read_cluster()
        if self._in_use != (in_use := ReaderInUse(self._reader.name, self._reader.note)):
            self._in_use = in_use
            send(self._connection, in_use)
        for part in (*self._difference.parts(reading), *self._groups.frames(reading, taken_at)):
            send(self._connection, part)
        waiting = waiting_gpus(reading.jobs)
        send(
            self._connection,
            SnapshotComplete(
                taken_at_seconds=taken_at,
                read_seconds=time.monotonic() - began,
                skipped=dict(list(reading.skipped.items())[:MAX_REASONS]),
                waiting_gpus=waiting,
            ),
        )
        if reading.skipped:
            self._warn("rows skipped count=%d reasons=%s", sum(reading.skipped.values()), reading.skipped)
        self._record(reading, taken_at)

    def _record(self, reading: ClusterReading, taken_at: float) -> None:
        changes = self._history.changes(reading.jobs)
        settled = self._vanished.settle(changes.vanished, taken_at)
        changed = (*changes.changed, *settled.changed)
        ended = [job for job in changed if job.ended_at_seconds is not None and job.admin_comment]
        for begin in range(0, len(ended), MAX_ITEMS):
            send(self._connection, JobsEnded(tuple(ended[begin : begin + MAX_ITEMS])))
        for begin in range(0, len(changed), MAX_ITEMS):
            self._keep(JobsEntryLine(seen_at_seconds=taken_at, jobs=changed[begin : begin + MAX_ITEMS]))
        sizes = [size for size in map(_size, reading.nodes) if self._sizes.get(size.name) != size]
        self._sizes.update({size.name: size for size in sizes})
        for begin in range(0, len(sizes), MAX_ITEMS):
            part = tuple(sizes[begin : begin + MAX_ITEMS])
            self._keep(JobsEntryLine(seen_at_seconds=taken_at, jobs=(), node_sizes=part))
        if settled.vanished:
            self._keep(JobsEntryLine(seen_at_seconds=taken_at, jobs=(), vanished=settled.vanished))
        if self._unwritten and journal_bytes(self._journal_directory) < MAX_JOURNAL_BYTES:
            self._journal.append([encode_entry(entry) for entry in self._unwritten], durable=False)
            self._unwritten = []

    def _keep(self, entry: JobsEntryLine) -> None:
        self._unwritten.append(entry)
        del self._unwritten[: -MAX_UNWRITTEN // MAX_ITEMS]

    def _pause(self, began: float) -> None:
        """Wait for the next refresh, longer after failures, and end when the daemon does."""
        interval = self._config.daemon.snapshot_interval_seconds
        if self._failures:
            interval = min(interval * 2.0**self._failures, max(LONGEST_PAUSE_SECONDS, interval))
        else:
            slowest = max(interval, self._config.daemon.snapshot_max_age_seconds / 2)
            interval = min(interval * self._reader.slowing(), slowest)
        interval *= random.uniform(0.95, 1.05)  # noqa: S311  # keeps several daemons from asking in step
        wait = max(0.0, began + interval - time.monotonic())
        readable, _, _ = select.select([self._connection], [], [], wait)
        if readable:
            raise EOFError

    def _warn(self, text: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARN_INTERVAL_SECONDS:
            self._warned_at = now
            logger.warning(text, *values)


def main(argv: list[str] | None = None) -> int:
    """Run the child; the argument is the number of its socket."""
    with until_stopped():
        try:
            connection = connect_to_parent(sys.argv[1:] if argv is None else argv)
            config: Config = receive(connection)
            set_up_logging(config.daemon.log_level, "snapshot")
            journal = JournalWriter(journal_directory(config), JOBS_STREAM)
            send(connection, ReaderInUse("pyslurm" if pyslurm_is_tried(config) else "commands"))
            SnapshotLoop(config, create_reader(config), journal, connection).run()
        except SlurmError as error:
            logger.error("cluster cannot be read error=%s", error)
            return 1
    return 0
