"""Planned files beside those that are there: differences for people, and writing that can be undone."""

import difflib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.cli.site import under
from slurm_energy.errors import ConfigError, SpoolError
from slurm_energy.files import write_atomically
from slurm_energy.reporting.visible import visible

_READ_BY_PATTERN = ("/etc/cron.d",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """One file as it should be.

    Attributes:
        path: Where, seen from the host's own root.
        content: What is in it; of one that is to go, what we had written there.
        mode: Its permissions.
        link_to: Where it leads when it is a symbolic link.
        absent: Whether it should not be there.
        is_generated: Whether it is generated and never edited, so that no copy of an old one is kept.
    """

    path: Path
    content: bytes = b""
    mode: int = 0o644
    link_to: Path | None = None
    absent: bool = False
    is_generated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One planned file and what is at its place."""

    planned: PlannedFile
    target: Path
    present: bytes | None
    present_mode: int | None
    present_link: Path | None = None

    @property
    def needed(self) -> bool:
        """Whether anything differs."""
        if self.planned.absent:
            return self.present is not None or self.present_link is not None
        if self.planned.link_to is not None:
            return self.present_link != self.planned.link_to
        return self.present != self.planned.content or self.present_mode != self.planned.mode

    @property
    def verb(self) -> str:
        """What happens to the file: `new`, `changed`, `mode` or `removed`."""
        if self.planned.absent:
            return "removed"
        if self.present is None and self.present_link is None:
            return "new"
        return "mode" if self.planned.link_to is None and self.present == self.planned.content else "changed"

    @property
    def line_counts(self) -> tuple[int, int]:
        """Lines added and removed; (0, 0) for links and binaries."""
        lines = list(self.difference())[2:]
        return sum(line[:1] == "+" for line in lines), sum(line[:1] == "-" for line in lines)

    def difference(self) -> Iterator[str]:
        """Yield the lines of a unified diff."""
        planned = b"" if self.planned.absent else self.planned.content
        if self.planned.link_to is not None or self.present_link is not None:
            after = "not there" if self.planned.absent else str(self.planned.link_to)
            yield visible(f"link {self.planned.path}: {self.present_link or 'not there'} becomes {after}")
            return
        if self.present == planned and not self.planned.absent:
            yield f"mode of {self.planned.path}: {self.present_mode:04o} becomes {self.planned.mode:04o}"
            return
        if b"\0" in planned or b"\0" in (self.present or b""):
            before = "not there" if self.present is None else f"{len(self.present)} bytes"
            after = "not there" if self.planned.absent else f"{len(planned)} bytes"
            yield f"binary {self.planned.path}: {before} becomes {after}"
            return
        for line in difflib.unified_diff(
            (self.present or b"").decode("utf-8", "replace").splitlines(),
            planned.decode("utf-8", "replace").splitlines(),
            fromfile="/dev/null" if self.present is None else str(self.planned.path),
            tofile="/dev/null" if self.planned.absent else str(self.planned.path),
            lineterm="",
        ):
            yield visible(line.expandtabs())


def file_change(root: Path, planned: PlannedFile) -> FileChange:
    """Return the change that a planned file means.

    Raises:
        ConfigError: what is there cannot be read, is no file, or is a link out of the root.
    """
    if planned.link_to is not None:
        return _link_change(root, planned)
    target = _resolved(root, planned.path)
    try:
        with target.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{target} is not a file: move it away first")
            return FileChange(
                planned=planned, target=target, present=file.read(), present_mode=stat.S_IMODE(status.st_mode)
            )
    except (FileNotFoundError, NotADirectoryError):
        return FileChange(planned=planned, target=target, present=None, present_mode=None)
    except OSError as error:
        raise ConfigError(f"{target} cannot be read: {error.strerror}: are you root?") from error


def _link_change(root: Path, planned: PlannedFile) -> FileChange:
    target = _resolved(root, planned.path.parent) / planned.path.name
    if not target.is_symlink() and target.exists():
        raise ConfigError(f"{target} is not ours: move it away first")
    present = target.readlink() if target.is_symlink() else None
    return FileChange(planned=planned, target=target, present=None, present_mode=None, present_link=present)


def _resolved(root: Path, path: Path) -> Path:
    """Return where a path leads: links are followed, since sites keep /etc/slurm elsewhere, but not out of the root."""
    target = under(root, path).resolve()
    if not target.is_relative_to(root.resolve()):
        raise ConfigError(f"{path} below {root} is a link to {target}, outside of it")
    return target


def write(change: FileChange, now_seconds: float) -> Path | None:
    """Write a file whole or not at all, or remove it, and return the copy that was made of the old one.

    Raises:
        ConfigError: it cannot be written; the old file is as it was.
    """
    target, planned = change.target, change.planned
    temporary = None
    try:
        if planned.absent:
            backup = None if planned.content in {b"", change.present} else _backup(change, now_seconds)
            target.unlink(missing_ok=True)
            return backup
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        backup = _backup(change, now_seconds)
        if planned.link_to is not None:
            temporary = tempfile.mktemp(prefix=f".{target.name}.", dir=target.parent)  # noqa: S306  # symlink_to fails when it exists
            Path(temporary).symlink_to(planned.link_to)
        else:
            edited = change.present is not None and not planned.is_generated
            write_atomically(target, planned.content, mode=planned.mode, owner=target.stat() if edited else None)
            return backup
        Path(temporary).replace(target)
    except SpoolError as error:
        raise ConfigError(f"{error}: are you root?") from error
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ConfigError(f"{target} cannot be written: {error.strerror}: are you root?") from error
    return backup


def remove_empty_folder(folder: Path) -> None:
    """Remove a folder that nothing is left in."""
    with suppress(OSError):
        folder.rmdir()


def _backup(change: FileChange, now_seconds: float) -> Path | None:
    if change.present is None or change.present == change.planned.content or change.planned.is_generated:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_seconds))
    # A pattern such as prolog.d/* would run a copy, too: patterns pass over names that begin with a dot.
    executable = bool((change.present_mode or 0) & 0o111)
    hidden = "." if executable or str(change.planned.path.parent) in _READ_BY_PATTERN else ""
    backup = change.target.with_name(f"{hidden}{change.target.name}.before-{stamp}")
    descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    owner = change.target.stat()
    with os.fdopen(descriptor, "wb") as file:
        file.write(change.present)
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        os.fchmod(file.fileno(), change.present_mode or 0o600)
    return backup
