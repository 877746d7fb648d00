"""Files that are whole or absent, whenever the machine stops."""

import os
from contextlib import suppress
from pathlib import Path

from slurm_energy.errors import SpoolError

MAX_FILE_BYTES = 1_048_576


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace the file by one with this content; readers and crashes see the old or the new one, never a part.

    Args:
        path: The file; its folder must exist.
        content: The whole content.
        durable: Whether it must also survive a power cut (fsync of file and folder).

    Raises:
        SpoolError: the disk is full, read-only or not ours; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        if durable:
            sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise SpoolError(f"{path} cannot be written: {error.strerror}") from error


def read_whole(path: Path) -> bytes | None:
    """Return the content, None when there is no such file.

    Raises:
        SpoolError: it cannot be read, or is absurdly long.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpoolError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise SpoolError(f"{path} is over {MAX_FILE_BYTES} bytes")
    return content


def remove(path: Path) -> None:
    """Remove the file if it is there.

    Raises:
        SpoolError: it is there and stays.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SpoolError(f"{path} cannot be removed: {error.strerror}") from error


def sync_directory(folder: Path) -> None:
    """Make creations, renames and removals in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
