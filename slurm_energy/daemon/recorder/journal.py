"""An append-only journal in segments: what the daemon must not lose while the database is away.

One stream has one writer and one reader, in different processes. A segment is `STREAM-NUMBER.jsonl`; a line counts
once its line feed is there. The reader's position is kept in `STREAM.position`, moved after the database's commit, and
in the database itself. Segments that are stored as a whole move to `stored/` and stay there for some days: a database
that was restored from a backup is given again what it lacks.
"""

import contextlib
import os
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.errors import SpoolError
from slurm_energy.files import write_atomically

SEGMENT_BYTES = 8 * 1024 * 1024
BATCH_BYTES = 512 * 1024
MAX_LINE_BYTES = 32 * 1024 * 1024
TAIL_BYTES = 65_536
MAX_STORED_BYTES = 1024**3
"""Of a stream, that are kept although they are stored."""
STORED_FOLDER = "stored"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """A place in a stream: a segment's number and the bytes before the place."""

    segment: int
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One journal line and the place right before it."""

    start: Position
    end: Position
    text: bytes


class JournalWriter:
    """The writing end of a stream; starts a new segment each time, so a torn line of a crash stays behind."""

    def __init__(self, directory: Path, stream: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._stream = stream
        self._segment_bytes = segment_bytes
        self._number = 0
        self._descriptor: int | None = None
        self._size = 0

    def append(self, lines: list[bytes], durable: bool) -> None:
        """Append whole lines; with `durable` they are on the disk on return.

        Raises:
            SpoolError: not all could be written (disk full, no permission); send all again: entries are idempotent.
        """
        try:
            descriptor = self._open_segment()
            block = b"".join(line + b"\n" for line in lines)
            self._write(descriptor, block)
            if durable:
                os.fdatasync(descriptor)
        except OSError as error:
            self.close()  # whatever lies at its end now, the next line begins in a segment of its own
            raise SpoolError(f"journal {self._directory}/{self._stream} cannot be written: {error}") from error

    def sync(self) -> None:
        """Put on the disk what was appended."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the segment; the next append begins another."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open_segment(self) -> int:
        if self._descriptor is not None and self._size < self._segment_bytes:
            return self._descriptor
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        last = max([self._number, read_position(self._directory, self._stream).segment, *self._numbers()])
        path = segment_path(self._directory, self._stream, last + 1)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._number, self._size = last + 1, 0
        _sync_directory(self._directory)
        return self._descriptor

    def _write(self, descriptor: int, block: bytes) -> None:
        written = 0
        try:
            while written < len(block):
                written += os.write(descriptor, block[written:])
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise
        self._size += written

    def _numbers(self) -> list[int]:
        return segment_numbers(self._directory, self._stream)


class JournalReader:
    """The reading end of a stream."""

    def __init__(self, directory: Path, stream: str, keep_seconds: float = 0.0) -> None:
        """Begin where the reader before ended.

        Args:
            directory: The journal's folder.
            stream: Which of its streams.
            keep_seconds: How long segments stay after they are stored.
        """
        self._directory = directory
        self.stream = stream
        self._keep_seconds = keep_seconds
        self.position = self.committed = read_position(directory, stream)
        """`committed` is the last position that was committed; `position` is where `read` continues."""

    def rewind(self, stored: Position) -> Position:
        """Read again from `stored`, up to which a database has everything, or from where the journal is still kept."""
        numbers = [number for number in self._all_numbers() if number >= stored.segment]
        behind = bool(numbers) and numbers[0] > stored.segment
        self.position = Position(segment=numbers[0]) if behind else stored
        self.committed = stored
        return self.position

    def read(self, max_lines: int, max_bytes: int = BATCH_BYTES) -> list[Line]:
        """Return the next whole lines, at most `max_lines` and about `max_bytes`; none when there is nothing new.

        Raises:
            SpoolError: a segment cannot be read.
        """
        lines: list[Line] = []
        numbers = [number for number in self._all_numbers() if number >= self._segment]
        for number in numbers:
            offset = self.position.offset if number == self._segment else 0
            self.position = Position(segment=number, offset=offset)
            lines += self._read_segment(number, offset, max_lines - len(lines), max_bytes)
            max_bytes -= sum(len(line.text) for line in lines)
            if len(lines) >= max_lines or max_bytes <= 0:
                break
        return lines

    def commit(self, position: Position) -> None:
        """Remember that everything before `position` is in the database, and put aside what is thereby finished."""
        path = self._directory / f"{self.stream}.position"
        write_atomically(path, f"{position.segment} {position.offset}\n".encode("ascii"))
        self.committed = position
        try:
            finished = [n for n in segment_numbers(self._directory, self.stream) if n < position.segment]
            if finished:
                self._put_aside(finished)
        except OSError as error:
            raise SpoolError(f"stored segments of journal {self._directory} cannot be put aside: {error}") from error

    def _put_aside(self, finished: list[int]) -> None:
        """Keep segments that are stored for a while, and remove those that were kept long enough."""
        stored = self._directory / STORED_FOLDER
        stored.mkdir(mode=0o700, exist_ok=True)
        for number in finished:
            path = segment_path(self._directory, self.stream, number)
            path.replace(segment_path(stored, self.stream, number))
        left = MAX_STORED_BYTES
        oldest = time.time() - self._keep_seconds
        for number in reversed(segment_numbers(stored, self.stream)):
            path = segment_path(stored, self.stream, number)
            status = path.stat()
            left -= status.st_size
            if number < self.committed.segment and (left < 0 or status.st_mtime <= oldest):
                path.unlink(missing_ok=True)

    def _all_numbers(self) -> list[int]:
        folders = (self._directory, self._directory / STORED_FOLDER)
        return sorted({number for folder in folders for number in segment_numbers(folder, self.stream)})

    @property
    def _segment(self) -> int:
        return self.position.segment

    def _read_segment(self, number: int, offset: int, max_lines: int, max_bytes: int) -> list[Line]:
        lines: list[Line] = []
        end = offset + max_bytes
        path = segment_path(self._directory, self.stream, number)
        if not path.exists():
            path = segment_path(self._directory / STORED_FOLDER, self.stream, number)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                while len(lines) < max_lines and offset < end:
                    text = file.readline(MAX_LINE_BYTES)
                    if not text.endswith(b"\n"):
                        break
                    start = Position(segment=number, offset=offset)
                    offset += len(text)
                    lines.append(Line(start=start, end=Position(segment=number, offset=offset), text=text[:-1]))
        except OSError as error:
            raise SpoolError(f"journal segment {path} cannot be read: {error}") from error
        self.position = Position(segment=number, offset=offset)
        return lines


def journal_directory(config: Config) -> Path:
    """Return the folder of the journal."""
    return Path(config.daemon.state_directory) / "journal"


def segment_path(directory: Path, stream: str, number: int) -> Path:
    """Return the path of a segment."""
    return directory / f"{stream}-{number:012d}.jsonl"


def segment_numbers(directory: Path, stream: str) -> list[int]:
    """Return the numbers of a stream's segments in order."""
    names = (path.stem.removeprefix(f"{stream}-") for path in directory.glob(f"{stream}-*.jsonl"))
    return sorted(int(name) for name in names if name.isdigit())


def waiting_bytes(directory: Path, streams: Iterable[str]) -> int:
    """Return how much of the journal is not in the database yet, a line that a crash tore left out."""
    total = 0
    for stream in streams:
        position = read_position(directory, stream)
        for number in segment_numbers(directory, stream):
            if number >= position.segment:
                offset = position.offset if number == position.segment else 0
                with contextlib.suppress(OSError):
                    total += _whole_lines_bytes(segment_path(directory, stream, number), offset)
    return total


def journal_id(directory: Path) -> str:
    """Return what a database knows the journal by; made when there is none.

    Raises:
        SpoolError: it can be neither read nor written.
    """
    path = directory / "id"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), path.open("x", encoding="ascii") as file:
            file.write(uuid.uuid4().hex)
            file.flush()
            os.fsync(file.fileno())
        found = path.read_text(encoding="ascii")
        if re.fullmatch("[0-9a-f]{32}", found):
            return found
        path.unlink()  # cut off by a power cut: as good as none
    except (OSError, ValueError) as error:
        raise SpoolError(f"journal's name {path} cannot be used: {error}") from error
    return journal_id(directory)


def journal_bytes(directory: Path) -> int:
    """Return how much the journal holds on the disk, without what is kept although it is stored."""
    total = 0
    for path in directory.glob("*.jsonl"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _whole_lines_bytes(path: Path, offset: int) -> int:
    """Return the bytes of a segment's whole lines behind an offset: a line that a crash tore is never read."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(offset, size - TAIL_BYTES)
        file.seek(begin)
        at = file.read(TAIL_BYTES).rfind(b"\n")
        return max(0, begin + at + 1 - offset) if at >= 0 else max(0, begin - offset)


def read_position(directory: Path, stream: str) -> Position:
    """Return the position last committed; the beginning when there is none or it cannot be read."""
    try:
        segment, offset = (directory / f"{stream}.position").read_text(encoding="ascii").split()
        return Position(segment=int(segment), offset=int(offset))
    except (OSError, ValueError):
        return Position(segment=0)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
