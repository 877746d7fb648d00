"""How far a daemon's journal is in the database: written with the rows themselves, and so restored with them."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from slurm_energy.store.tables import JournalPositionRow


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StoredPosition:
    """Everything before this place of a stream is stored."""

    segment: int
    byte_offset: int


def stored_position(session: Session, journal_id: str, stream: str) -> StoredPosition | None:
    """Return how far a stream of a journal is stored, None when this database has never seen it."""
    row = session.get(JournalPositionRow, (journal_id, stream), populate_existing=True)
    return None if row is None else StoredPosition(segment=row.segment, byte_offset=row.byte_offset)


def store_position(session: Session, journal_id: str, stream: str, position: StoredPosition) -> None:
    """Note how far a stream is stored; one daemon alone writes its rows."""
    row = session.get(JournalPositionRow, (journal_id, stream))
    if row is None:
        row = JournalPositionRow(journal_id=journal_id, stream=stream)
        session.add(row)
    row.segment, row.byte_offset = position.segment, position.byte_offset
