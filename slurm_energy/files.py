"""Files that are whole or absent, whenever the machine stops, and that only root can have put there; and locks."""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_energy.errors import SpoolError

MAX_FILE_BYTES = 1_048_576
_CAUTIOUS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""A link is not followed, and a pipe not waited for."""


def write_atomically(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    owner: os.stat_result | None = None,
    durable: bool = True,
) -> None:
    """Replace the file by one with this content; readers and crashes see the old or the new one, never a part.

    A link in its place is replaced, never followed.

    Args:
        path: The file; its folder must exist.
        content: The whole content.
        mode: Its permissions.
        owner: Of the file that it replaces, where user and group are to stay: who reads it today can do so tomorrow.
        durable: Whether the content must also survive a power cut, under this name (fsync of file and folder).

    Raises:
        SpoolError: the disk is full, read-only or not ours; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = _create(temporary)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if owner is not None:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            if mode != 0o600:
                os.fchmod(descriptor, mode)
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


def _create(path: Path) -> int:
    """Open a new file; one that an earlier process of the same number left makes way, a link does not."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAUTIOUS
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        if path.is_symlink():
            raise
        path.unlink()
        return os.open(path, flags, 0o600)


def read_whole(path: Path) -> bytes | None:
    """Return the content, None when there is no such file.

    Raises:
        SpoolError: it cannot be read, is absurdly long, a link or a pipe, or belongs to another user.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _CAUTIOUS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpoolError(f"{path} cannot be read: {_link_or(path, error)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SpoolError(f"{path} is not a regular file")
        if status.st_uid not in {0, os.geteuid()}:
            raise SpoolError(f"{path} belongs to user {status.st_uid}: not read")
        content = b""
        while len(content) <= MAX_FILE_BYTES and (piece := os.read(descriptor, MAX_FILE_BYTES + 1 - len(content))):
            content += piece
    except OSError as error:
        raise SpoolError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
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


def make_private(root: Path, folders: tuple[str, ...] = ()) -> None:
    """Create a folder and those in it, open to root alone.

    Raises:
        SpoolError: they cannot be created, or are there and others could write to them.
    """
    try:
        root.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        for folder in (root, *(root / name for name in folders)):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
    except OSError as error:
        raise SpoolError(f"{root} cannot be created: {error.strerror}") from error
    require_private(root, folders)


def require_private(root: Path, folders: tuple[str, ...] = ()) -> None:
    """Refuse a folder in which another user could put files for root to follow, read or believe.

    The folder itself may be a link that root made; in it no link is followed.

    Raises:
        SpoolError: it or one of the folders in it belongs to another user, is open to others, or is no folder.
        FileNotFoundError: there is no such folder.
    """
    parent = root.parent.stat()
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise SpoolError(f"{root} is refused: every user can replace it in {root.parent}: chmod o-w {root.parent}")
    for path in (root, *(root / name for name in folders)):
        try:
            status = path.lstat()
            owners = {status.st_uid}
            if path == root and stat.S_ISLNK(status.st_mode):
                status = path.stat()
                owners.add(status.st_uid)
        except FileNotFoundError:
            if path == root:
                raise
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise SpoolError(f"{path} is refused: it is not a folder")
        if others := owners - {0, os.geteuid()}:
            raise SpoolError(
                f"{path} is refused: it belongs to user {min(others)}; look at what is in it, then chown it to root"
            )
        if status.st_mode & 0o022:
            raise SpoolError(
                f"{path} is refused: others can write to it (mode {status.st_mode & 0o7777:04o}); look at what is in "
                "it, then chmod 700"
            )


def _link_or(path: Path, error: OSError) -> str:
    return "it is a link, and none is followed here" if path.is_symlink() else str(error.strerror)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold one lock. Where no lock can be had (read-only disk) continue: restoring a GPU must not fail for that."""
    descriptor = _open_lock(path)
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def locked_if_free(paths: Sequence[Path]) -> Iterator[bool]:
    """Hold several locks if all are free; yield whether they are held."""
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptor = _open_lock(path)
            if descriptor is None:
                break
            descriptors.append(descriptor)
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                continue
            break
        else:
            yield True
            return
        yield False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _open_lock(path: Path) -> int | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with suppress(OSError):
            return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    return None
