"""Journal lines into the database: in batches, each entry stored once however often it is read."""

import logging
import pwd
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby, zip_longest
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.daemon.recorder.entries import (
    ChangeEntryLine,
    DecisionEntryLine,
    EntryLine,
    JobsEntryLine,
    ReportsEntryLine,
    decode_entry,
)
from slurm_energy.daemon.recorder.journal import BATCH_BYTES, JournalReader, Line, Position, journal_id
from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.job import JobRequest
from slurm_energy.errors import DaemonUnavailable, StoreError, ValueRangeError, WireError
from slurm_energy.store.database_file import check_database_file, stamp_database
from slurm_energy.store.decisions import record_change, record_decisions
from slurm_energy.store.energy import record_reports
from slurm_energy.store.job_rows import Arrival
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.nodes import record_node_sizes
from slurm_energy.store.promotion import record_assignments
from slurm_energy.store.schema import check_session_version
from slurm_energy.store.session import (
    Engine,
    Session,
    StoredPosition,
    is_about_the_values,
    run_in_transaction,
    store_position,
    store_session,
    stored_position,
)

logger = logging.getLogger(__name__)

BATCH_LINES = 200
REJECTED_NAME = "rejected.jsonl"
MAX_LOGIN_NAMES = 10_000
MAX_CHANGED_JOBS = 100_000
QUERY_WAIT_SECONDS = 10.0
"""How long a question waits for a database that is away."""

_login_names: dict[int, str] = {}
"""Of users whom no snapshot has named yet."""


class Every:
    """Says when a repeated task is due."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._last: float | None = None

    def due(self, now_seconds: float, soon_seconds: float | None = None) -> bool:
        """Return whether it is time, and take it as done; `soon_seconds` shortens the interval this once."""
        interval = self._interval_seconds if soon_seconds is None else soon_seconds
        if self._last is not None and now_seconds - self._last < interval:
            return False
        self._last = now_seconds
        return True


class Condition:
    """Whether the database can be used, and if not, why: set by the recording, read by queries."""

    def __init__(self) -> None:
        self._usable = threading.Event()
        self.problem = "it is being opened"

    def good(self) -> None:
        """Note that it can be used."""
        self.problem = ""
        self._usable.set()

    def bad(self, problem: str, *, for_questions: bool) -> None:
        """Note why nothing is recorded; `for_questions`: why nothing can be read either."""
        self.problem = problem
        if for_questions:
            self._usable.clear()

    def wait(self, limit_seconds: float) -> None:
        """Return once the database can be read.

        Raises:
            DaemonUnavailable: it cannot, within the limit.
        """
        if not self._usable.wait(limit_seconds):
            raise DaemonUnavailable(f"the database cannot be used at the moment: {self.problem}")


class ChangedJobs:
    """Numbers of jobs whose rows changed since they were taken last, by another thread than the recording's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: set[int] | None = None
        """None: any may have changed."""

    def add(self, job_ids: Iterable[int]) -> None:
        """Note jobs, after the commit; of too many, that all have changed."""
        with self._lock:
            if self._numbers is not None:
                self._numbers.update(job_ids)
                if len(self._numbers) > MAX_CHANGED_JOBS:
                    self._numbers = None

    def all_changed(self) -> None:
        """Note that any job may have changed: it is another database."""
        with self._lock:
            self._numbers = None

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return self._numbers is None or bool(self._numbers)

    def take(self) -> set[int] | None:
        """Return the numbers, None for all, and start again with none."""
        with self._lock:
            taken, self._numbers = self._numbers, set()
            return taken


class Recorder:
    """Reads streams of the journal and stores what they hold."""

    def __init__(
        self, config: Config, directory: Path, streams: Sequence[str], changed: ChangedJobs | None = None
    ) -> None:
        self._cluster = ClusterName(config.cluster.name)
        self._policy_settings = asdict(config.policy)
        self._directory = directory
        keep_seconds = config.daemon.journal_days * 86_400.0
        self._readers = [JournalReader(directory, stream, keep_seconds) for stream in streams]
        self._journal_id = journal_id(directory)
        self._changed = changed or ChangedJobs()
        self._ended: set[int] = set()
        """Jobs of the lines being stored that have ended, or of which a node has reported."""
        self.has_more = False
        """Whether the last step took as much as a step takes: more lies there already."""
        self.went_back = False
        """Whether the database was found to be behind since this was last set to False: what is open may be stale."""

    def step(self, engine: Engine) -> int:
        """Store the next batch of each stream; return how many lines that were. `has_more` says whether more is left.

        Raises:
            StoreError: the database is away, locked or full; the lines come again.
            SpoolError: the journal cannot be read or its position not kept.
        """
        self.has_more = False
        return sum(self._step(engine, reader) for reader in self._readers)

    def look(self, engine: Engine) -> None:
        """See whether the database still has all that it was given; what it lacks comes with the next steps.

        Raises:
            StoreError: it is away, or has another schema by now.
        """
        for reader in self._readers:
            try:
                with store_session(engine, read_only=True) as session:
                    self._check_database(session, reader)
            except _Behind as behind:
                self._go_back(reader, behind.stored)

    def _step(self, engine: Engine, reader: JournalReader) -> int:
        before = reader.position
        lines = reader.read(BATCH_LINES)
        if not lines:
            return 0
        self.has_more |= len(lines) >= BATCH_LINES or sum(len(line.text) for line in lines) >= BATCH_BYTES
        try:
            self._store(engine, reader, lines)
            # What was committed into a file that lies elsewhere by now is given to the one at its place.
            check_database_file(engine)
            self._changed.add(self._ended)
            self._ended.clear()
            reader.commit(lines[-1].end)
        except _Behind as behind:
            self._go_back(reader, behind.stored)
            self.has_more = True
            return 0
        except BaseException:
            reader.position = before
            raise
        return len(lines)

    def _store(self, engine: Engine, reader: JournalReader, lines: Sequence[Line]) -> None:
        entries = [(line, entry) for line in lines if (entry := self._decoded(line)) is not None]
        end = lines[-1].end

        def all_at_once(session: Session) -> None:
            self._check_database(session, reader)
            self._apply(session, [entry for _, entry in entries])
            self._note(session, reader, end)

        try:
            run_in_transaction(engine, all_at_once)
        except (StoreError, ValueRangeError) as error:
            if not _is_about_one_entry(error):
                raise
            self._store_one_by_one(engine, reader, entries)
            run_in_transaction(engine, lambda session: self._note(session, reader, end))

    def _store_one_by_one(
        self, engine: Engine, reader: JournalReader, entries: Sequence[tuple[Line, EntryLine]]
    ) -> None:
        for line, entry in entries:

            def one(session: Session, entry: EntryLine = entry) -> None:
                self._check_database(session, reader)
                self._apply(session, [entry])

            try:
                run_in_transaction(engine, one)
            except (StoreError, ValueRangeError) as error:
                if not _is_about_one_entry(error):
                    raise
                self._set_aside(line, error)

    def _check_database(self, session: Session, reader: JournalReader) -> None:
        """Return if the database has this code's schema, and all that it was given before.

        Raises:
            SchemaVersionError: it has another schema by now.
            _Behind: it is another database, or an older state of this one.
        """
        check_session_version(session)
        stored = stored_position(session, self._journal_id, reader.stream)
        known = None if stored is None else Position(segment=stored.segment, offset=stored.byte_offset)
        if reader.committed > Position(segment=0) and (known is None or known < reader.committed):
            raise _Behind(known)

    def _note(self, session: Session, reader: JournalReader, end: Position) -> None:
        position = StoredPosition(segment=end.segment, byte_offset=end.offset)
        store_position(session, self._journal_id, reader.stream, position)
        stamp_database(session)

    def _go_back(self, reader: JournalReader, stored: Position | None) -> None:
        """Give a database again what it lacks, as far as it is kept."""
        self.went_back = True
        was, begin = reader.committed, reader.rewind(stored or Position(segment=0))
        logger.warning(
            "database lacks what it was given before: restored or replaced? It is stored again from the journal "
            "stream=%s from_segment=%d to_segment=%d",
            reader.stream,
            begin.segment,
            was.segment,
        )
        if stored is not None and begin > stored:
            logger.error("journal does not go back so far: entries are lost stream=%s", reader.stream)

    def _apply(self, session: Session, entries: Sequence[EntryLine]) -> None:
        """Store entries: decisions all at once, since most lines of a burst are such, and reports in a row.

        A job's states and its reports stay in order: a number that is used again is another job's.
        """
        decided = [
            (entry.decision, with_login_name(entry.job)) for entry in entries if isinstance(entry, DecisionEntryLine)
        ]
        if decided:
            record_decisions(session, decided, self._cluster, self._policy_settings)
        assigned = [
            (str(entry.decision.decision_id), entry.decision.decided_at_seconds, entry.assignment)
            for entry in entries
            if isinstance(entry, DecisionEntryLine) and entry.assignment is not None
        ]
        if assigned:
            record_assignments(session, self._cluster, assigned)
        others = [entry for entry in entries if not isinstance(entry, DecisionEntryLine)]
        for are_reports, some in groupby(others, key=lambda entry: isinstance(entry, ReportsEntryLine)):
            if are_reports:
                arrived = [one for entry in some if isinstance(entry, ReportsEntryLine) for one in _arrived(entry)]
                self._ended.update(report.job_id for report, _ in arrived)
                record_reports(session, arrived)
                continue
            for entry in some:
                if not isinstance(entry, ReportsEntryLine):
                    self._apply_other(session, entry)

    def _apply_other(self, session: Session, entry: JobsEntryLine | ChangeEntryLine) -> None:
        if isinstance(entry, ChangeEntryLine):
            record_change(session, entry.change)
        else:
            upsert_jobs(session, self._cluster, (*entry.jobs, *entry.vanished))
            self._ended.update(job.job_id for job in entry.jobs if job.ended_at_seconds is not None)
            record_node_sizes(session, self._cluster, entry.node_sizes, entry.seen_at_seconds)

    def _decoded(self, line: Line) -> EntryLine | None:
        try:
            return decode_entry(line.text)
        except WireError as error:
            self._set_aside(line, error)
            return None

    def _set_aside(self, line: Line, error: Exception) -> None:
        """Keep an entry that no database takes, to be looked at by an administrator, and continue."""
        path = self._directory / REJECTED_NAME
        logger.error("journal entry set aside path=%s error=%s", path, error)
        with path.open("ab") as file:
            file.write(line.text + b"\n")


def _arrived(entry: ReportsEntryLine) -> Iterator[tuple[NodeReport, Arrival]]:
    for report, offset in zip_longest(entry.reports, entry.clock_offsets_seconds[: len(entry.reports)]):
        yield report, Arrival(clock_offset_seconds=offset, received_at_seconds=entry.received_at_seconds)


class _Behind(Exception):
    """The database lacks what it was given before."""

    def __init__(self, stored: Position | None) -> None:
        super().__init__()
        self.stored = stored


def _is_about_one_entry(error: Exception) -> bool:
    """Return whether the entry itself is at fault, so that trying again is of no use."""
    return isinstance(error, ValueRangeError) or (isinstance(error, StoreError) and is_about_the_values(error))


def login_name(user_id: int) -> str | None:
    """Return the name that this host knows for a user id, None when it knows none or its directory does not answer."""
    if user_id not in _login_names:
        try:
            name = pwd.getpwuid(user_id).pw_name
        except (KeyError, OSError, OverflowError):
            return None
        if len(_login_names) >= MAX_LOGIN_NAMES:
            _login_names.clear()
        _login_names[user_id] = name
    return _login_names[user_id]


def with_login_name(job: JobRequest) -> JobRequest:
    """Return the job with its user's name, where it has none or only the number."""
    if job.user_name not in {None, "", str(job.user_id)}:
        return job
    return replace(job, user_name=login_name(job.user_id) or job.user_name)
