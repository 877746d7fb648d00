"""Journal lines into the database: in batches, each entry stored once however often it is read."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.daemon.entries import DecisionEntryLine, EntryLine, JobsEntryLine, ReportsEntryLine, decode_entry
from slurm_energy.daemon.journal import JournalReader, Line
from slurm_energy.daemon.user_names import with_login_name
from slurm_energy.domain.energy import JobKey, NodeReport
from slurm_energy.domain.ids import ClusterName
from slurm_energy.errors import StoreError, ValueRangeError, WireError
from slurm_energy.store.access import Engine, Session, is_about_the_values
from slurm_energy.store.decisions import record_decision
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import resolve_submit_time, upsert_jobs
from slurm_energy.store.session import run_in_transaction

logger = logging.getLogger(__name__)

BATCH_LINES = 200
REJECTED_NAME = "rejected.jsonl"


class Recorder:
    """Reads streams of the journal and stores what they hold."""

    def __init__(self, config: Config, directory: Path, streams: Sequence[str]) -> None:
        self._cluster = ClusterName(config.cluster.name)
        self._policy_settings = asdict(config.policy)
        self._directory = directory
        self._readers = [JournalReader(directory, stream) for stream in streams]
        self.jobs_ended = False
        """Whether a finished job was stored since this was last set to False."""

    def step(self, engine: Engine) -> int:
        """Store the next batch of each stream and return how many lines that were.

        Raises:
            StoreError: the database is away, locked or full; the lines come again.
            SpoolError: the journal cannot be read or its position not kept.
        """
        return sum(self._step(engine, reader) for reader in self._readers)

    def _step(self, engine: Engine, reader: JournalReader) -> int:
        before = reader.position
        lines = reader.read(BATCH_LINES)
        if not lines:
            return 0
        try:
            self._store(engine, lines)
            reader.commit(lines[-1].end)
        except BaseException:
            reader.position = before
            raise
        return len(lines)

    def _store(self, engine: Engine, lines: Sequence[Line]) -> None:
        entries = [(line, entry) for line in lines if (entry := self._decoded(line)) is not None]
        try:
            run_in_transaction(engine, lambda session: self._apply_all(session, [entry for _, entry in entries]))
        except (StoreError, ValueRangeError) as error:
            if not _is_about_one_entry(error):
                raise
            self._store_one_by_one(engine, entries)

    def _store_one_by_one(self, engine: Engine, entries: Sequence[tuple[Line, EntryLine]]) -> None:
        for line, entry in entries:
            try:
                run_in_transaction(engine, lambda session, entry=entry: self._apply(session, entry))  # type: ignore[misc]  # a default argument binds the loop's value
            except (StoreError, ValueRangeError) as error:
                if not _is_about_one_entry(error):
                    raise
                self._set_aside(line, error)

    def _apply_all(self, session: Session, entries: Sequence[EntryLine]) -> None:
        for entry in entries:
            self._apply(session, entry)

    def _apply(self, session: Session, entry: EntryLine) -> None:
        if isinstance(entry, DecisionEntryLine):
            job = with_login_name(entry.job)
            record_decision(session, entry.decision, job, self._cluster, self._policy_settings)
        elif isinstance(entry, JobsEntryLine):
            upsert_jobs(session, self._cluster, (*entry.jobs, *entry.vanished))
            self.jobs_ended = self.jobs_ended or any(job.ended_at_seconds is not None for job in entry.jobs)
        elif isinstance(entry, ReportsEntryLine):
            for report in entry.reports:
                self._apply_report(session, report, entry.received_at_seconds)

    def _apply_report(self, session: Session, report: NodeReport, received_at_seconds: float) -> None:
        """Store a report under its job; one that Slurm has not told of yet gets a stand-in until it has."""
        submitted = resolve_submit_time(
            session, report.cluster, report.job_id, report.started_at_seconds, report.restart_count
        )
        key = JobKey(
            cluster=report.cluster,
            job_id=report.job_id,
            submitted_at_seconds=submitted.seconds,
            restart_count=report.restart_count,
        )
        outcome = record_report(
            session, report, key, submit_time_known=submitted.known, received_at_seconds=received_at_seconds
        )
        logger.debug("report stored job_id=%d node=%s outcome=%s", report.job_id, report.node, outcome)

    def _decoded(self, line: Line) -> EntryLine | None:
        try:
            return decode_entry(line.text)
        except WireError as error:
            self._set_aside(line, error)
            return None

    def _set_aside(self, line: Line, error: Exception) -> None:
        """Keep an entry that no database takes, for a person to look at, and go on."""
        path = self._directory / REJECTED_NAME
        logger.error("journal entry set aside path=%s error=%s", path, error)
        with path.open("ab") as file:
            file.write(line.text + b"\n")


def _is_about_one_entry(error: Exception) -> bool:
    """Return whether the entry itself is at fault, so that trying again is of no use."""
    return isinstance(error, ValueRangeError) or (isinstance(error, StoreError) and is_about_the_values(error))
