"""Read the files that a job's script names: regular files only, within a budget, and nothing that could wait or act.

Everything is read with the rights of the process, which is the submitting user's own.
"""

import os
import stat
from pathlib import Path

MAX_TOTAL_BYTES = 1_000_000
MAX_FILE_BYTES = 131_072
"""Of a file that is read at all: programs people write are smaller, and a larger one would take all the time."""
MAX_FILES = 16


class SourceReader:
    """Reads text files until the budget is spent.

    Args:
        directory: What relative names are relative to: where the job will run.
        reads_programs: Whether any file may be read; else everything is as if it were not there.
        reads_configurations: Whether files that hold a program's settings may be read too.
    """

    def __init__(self, directory: Path, *, reads_programs: bool = True, reads_configurations: bool = False) -> None:
        self.directory = directory
        self.reads_configurations = reads_configurations
        self._files_left = MAX_FILES if reads_programs else 0
        self._bytes_left = MAX_TOTAL_BYTES
        self._seen: set[tuple[int, int]] = set()

    def read(self, name: str, directory: Path | None = None) -> str | None:
        """Return a file's text; None where it is missing, no text, too large, no regular file, or was read before."""
        raw = self.read_bytes(name, directory)
        return None if raw is None or b"\x00" in raw else raw.decode("utf-8", "replace")

    def read_bytes(self, name: str, directory: Path | None = None) -> bytes | None:
        """Return a file's bytes, None as `read` does."""
        if self._files_left <= 0 or not name or len(name) > 1024 or "\x00" in name:
            return None
        path = os.path.join(directory or self.directory, name)  # noqa: PTH118  # a name may hold any bytes
        try:
            # Looked at before it is opened: to open a device or a FIFO can act or wait.
            found = os.stat(path)  # noqa: PTH116  # as above
            if not self._may_read(found):
                return None
            self._files_left -= 1
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            opened = os.fstat(descriptor)
            if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino) or not self._may_read(opened):
                return None
            raw = os.read(descriptor, min(MAX_FILE_BYTES, self._bytes_left) + 1)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if len(raw) > min(MAX_FILE_BYTES, self._bytes_left):
            return None
        self._seen.add((opened.st_dev, opened.st_ino))
        self._bytes_left -= len(raw)
        return raw

    def spend(self, size_bytes: int) -> bool:
        """Take bytes that came otherwise off the budget; return whether there was room for them."""
        self._bytes_left -= size_bytes
        return self._bytes_left >= 0

    def _may_read(self, found: os.stat_result) -> bool:
        """Return whether it is a file with text in it; those of /proc and /sys say that they are empty, and are not."""
        is_new = (found.st_dev, found.st_ino) not in self._seen
        return is_new and stat.S_ISREG(found.st_mode) and 0 < found.st_size <= min(MAX_FILE_BYTES, self._bytes_left)
