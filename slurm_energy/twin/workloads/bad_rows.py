"""Rows that cannot be used: the first one is an error, or all are counted and the first few logged."""

import logging
from pathlib import PurePath

from slurm_energy.errors import WorkloadError

_LOGGED_ROWS = 5
_logger = logging.getLogger(__name__)


class BadValue(Exception):  # control flow inside the readers, never seen outside
    """One value of a row cannot be used."""

    def __init__(self, column: str, value: str, reason: str) -> None:
        super().__init__(column, value, reason)
        shown = value if len(value) <= 64 else f"{value[:60]}..."
        self.message = f"column {column}: {shown!r} {reason}"


class BadRows:
    """What happens to the bad rows of one file."""

    def __init__(self, path: PurePath, *, skip: bool, unit: str = "line") -> None:
        self.count = 0
        self._unit = unit
        self._path = path
        self._skip = skip

    def add(self, line: int, error: BadValue) -> None:
        """Count a bad row, or refuse the file for it.

        Raises:
            WorkloadError: rows are not to be skipped.
        """
        message = f"{str(self._path)!r}, {self._unit} {line}, {error.message}"
        if not self._skip:
            raise WorkloadError(message)
        self.count += 1
        if self.count <= _LOGGED_ROWS:
            _logger.warning("workload row left out %s", message)

    def close(self) -> None:
        """Log how many there were, if not all were logged."""
        if self.count > _LOGGED_ROWS:
            _logger.warning("workload rows left out path=%r rows=%d", str(self._path), self.count)
