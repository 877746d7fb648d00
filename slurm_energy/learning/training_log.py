"""Figures of each round on disk: a CSV file, or event files for TensorBoard."""

import csv
import os
from collections.abc import Mapping
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Literal, Protocol

from slurm_energy.errors import SpoolError, TrainingError
from slurm_energy.files import write_atomically

LogFormat = Literal["csv", "tensorboard"]
CSV_FILE = "log.csv"
EVENTS_FOLDER = "events"
_ROUND = "round"


class TrainingLog(Protocol):
    """Where figures go."""

    def write(self, number: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a round, on disk when it returns."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class NoLog:
    """Writes nothing: of the ranks beside the first."""

    def write(self, number: int, figures: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class CsvLog:
    """One row a round; a figure that a later round brings becomes a column, empty before."""

    def __init__(self, path: Path, *, done: int) -> None:
        """Open the file; rows of rounds after `done`, which will be run again, are dropped.

        Raises:
            TrainingError: the file is no such log, or cannot be read or written.
        """
        self._path = path
        self._columns, rows = _read(path)
        self._rewrite([row for row in rows if int(row[_ROUND]) <= done])

    def write(self, number: int, figures: Mapping[str, float]) -> None:
        """Add a row."""
        new = [name for name in figures if name not in self._columns]
        if new:
            _, rows = _read(self._path)
            self._columns += new
            self._rewrite(rows)
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                self._writer(file).writerow(
                    {_ROUND: number, **{name: f"{value:.9g}" for name, value in figures.items()}}
                )
        except OSError as error:
            raise TrainingError(f"log {self._path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Do nothing: the file is open only while a row is written."""

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = StringIO(newline="")
        writer = self._writer(text)
        if len(self._columns) > 1:
            writer.writeheader()
        writer.writerows(rows)
        try:
            write_atomically(self._path, text.getvalue().encode("utf-8"), mode=0o644)
        except SpoolError as error:
            raise TrainingError(f"log {error}") from error

    def _writer(self, file: Any) -> "csv.DictWriter[str]":
        return csv.DictWriter(file, self._columns, restval="", lineterminator="\n")


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            columns = list(reader.fieldnames or [_ROUND])
    except FileNotFoundError:
        return [_ROUND], []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TrainingError(f"log {path} cannot be read: {error}") from error
    # A last row that broke off, as when the disk was full, has no or a cut round's number, or too few columns.
    whole = [row for row in rows if (row.get(_ROUND) or "").isdigit() and None not in row and None not in row.values()]
    if columns[0] != _ROUND or len(whole) < len(rows) - 1:
        raise TrainingError(f"log {path} is no log of a training: move it away to continue without it")
    return columns, whole


class TensorBoardLog:
    """Event files that TensorBoard shows."""

    def __init__(self, folder: Path, *, done: int) -> None:
        """Open a new event file; TensorBoard drops what older ones have of rounds after `done`.

        Raises:
            TrainingError: the package tensorboard is not installed.
        """
        check_format("tensorboard")
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # not every installation has it

        self._writer: Any = SummaryWriter(os.fspath(folder), purge_step=done + 1 if done else None)

    def write(self, number: int, figures: Mapping[str, float]) -> None:
        """Add a scalar for each figure."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def check_format(log_format: LogFormat) -> None:
    """Refuse a format that needs a package that is missing.

    Raises:
        TrainingError: it does.
    """
    if log_format == "tensorboard" and find_spec("tensorboard") is None:
        raise TrainingError(
            "the log format tensorboard needs the Python package tensorboard: "
            "pip install tensorboard, or take --log-format csv"
        )


def open_log(folder: Path, log_format: LogFormat, *, done: int) -> TrainingLog:
    """Return the log of a training's folder, to be continued after round `done`.

    Raises:
        TrainingError: it cannot be read or written, or needs a package that is missing.
    """
    if log_format == "tensorboard":
        return TensorBoardLog(folder / EVENTS_FOLDER, done=done)
    return CsvLog(folder / CSV_FILE, done=done)
