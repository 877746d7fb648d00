"""How far the recorder has read a journal, kept with the rows it made of it."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from slurm_energy.store.tables import JournalPositionRow


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPosition:
    """The first byte that was not yet stored."""

    segment: str
    offset_bytes: int


def journal_position(session: Session, stream: str) -> JournalPosition | None:
    """Return the position of a journal, None before its first one."""
    row = session.get(JournalPositionRow, stream)
    return None if row is None else JournalPosition(segment=row.segment, offset_bytes=row.offset_bytes)


def move_journal_position(session: Session, stream: str, position: JournalPosition) -> None:
    """Set the position of a journal; it holds once the session commits, with all that was stored before."""
    row = session.get(JournalPositionRow, stream)
    if row is None:
        row = JournalPositionRow(stream=stream)
        session.add(row)
    row.segment, row.offset_bytes = position.segment, position.offset_bytes
    session.flush()
