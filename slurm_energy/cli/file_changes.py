"""Planned files beside those that are there: differences for people, and writing that can be undone."""

import difflib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.cli.installation import PlannedFile
from slurm_energy.cli.site import under
from slurm_energy.errors import ConfigError
from slurm_energy.reporting.visible import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One planned file and what is at its place."""

    planned: PlannedFile
    target: Path
    present: bytes | None
    present_mode: int | None

    @property
    def needed(self) -> bool:
        """Whether anything differs."""
        return self.present != self.planned.content or self.present_mode != self.planned.mode

    def difference(self) -> Iterator[str]:
        """Yield the lines of a unified diff."""
        if self.present == self.planned.content:
            yield f"mode of {self.planned.path}: {self.present_mode:04o} becomes {self.planned.mode:04o}"
            return
        if b"\0" in self.planned.content or b"\0" in (self.present or b""):
            size = "not there" if self.present is None else f"{len(self.present)} bytes"
            yield f"binary {self.planned.path}: {size} becomes {len(self.planned.content)} bytes"
            return
        before = "/dev/null" if self.present is None else str(self.planned.path)
        for line in difflib.unified_diff(
            (self.present or b"").decode("utf-8", "replace").splitlines(),
            self.planned.content.decode("utf-8", "replace").splitlines(),
            fromfile=before,
            tofile=str(self.planned.path),
            lineterm="",
        ):
            yield visible(line.expandtabs())


def file_change(root: Path, planned: PlannedFile) -> FileChange:
    """Return the change that a planned file means.

    Raises:
        ConfigError: what is there cannot be read, is no file, or is a link out of the root.
    """
    target = _resolved(root, planned.path)
    try:
        with target.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{target} is not a file: move it away first")
            return FileChange(
                planned=planned, target=target, present=file.read(), present_mode=stat.S_IMODE(status.st_mode)
            )
    except FileNotFoundError:
        return FileChange(planned=planned, target=target, present=None, present_mode=None)
    except OSError as error:
        raise ConfigError(f"{target} cannot be read: {error.strerror}: are you root?") from error


def _resolved(root: Path, path: Path) -> Path:
    """Return where a path leads: links are followed, since sites keep /etc/slurm elsewhere, but not out of the root."""
    target = under(root, path).resolve()
    if not target.is_relative_to(root.resolve()):
        raise ConfigError(f"{path} below {root} is a link to {target}, outside of it")
    return target


def write(change: FileChange, now_seconds: float) -> Path | None:
    """Write a file whole or not at all, and return the copy that was made of the old one.

    Raises:
        ConfigError: it cannot be written; the old file is as it was.
    """
    target = change.target
    temporary = None
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        backup = _backup(change, now_seconds)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(change.planned.content)
            os.fchmod(file.fileno(), change.planned.mode)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ConfigError(f"{target} cannot be written: {error.strerror}: are you root?") from error
    return backup


def _backup(change: FileChange, now_seconds: float) -> Path | None:
    if change.present is None or change.present == change.planned.content:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_seconds))
    backup = change.target.with_name(f"{change.target.name}.before-{stamp}")
    descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(change.present)
        os.fchmod(file.fileno(), change.present_mode or 0o600)
    return backup
