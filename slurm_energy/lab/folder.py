"""Take and give back a lab's folder: one process at a time, and never what is no lab's."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.layout import ROOT_VARIABLE, Layout, labs_root, make_labs_root
from slurm_energy.lab.spec import LabSpec


def find_folder(name: str) -> Path:
    """Return where this user's lab of this name lies or would lie, links followed."""
    return (labs_root() / name).resolve()


@contextmanager
def claimed_folder(spec: LabSpec) -> Iterator[Layout]:
    """Make the lab's empty folder and hold it while the lab starts; what a dead lab left there is removed.

    A lab that lies elsewhere gets a link among this user's labs, by which it is found.

    Raises:
        LabError: another process starts this lab, or the folder holds what is no lab's.
    """
    root = labs_root()
    make_labs_root(root)
    entry = root / spec.name
    directory = (spec.directory or entry).absolute()
    layout = Layout(directory)
    if directory.is_relative_to("/run") or directory.is_relative_to("/var/run"):
        raise LabError(f"lab folder {directory} is below /run, which a lab covers: choose another")
    if entry.is_symlink():
        entry.unlink()
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Again: the end of somebody's last lab may have removed it meanwhile.
        make_labs_root(root)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"lab folder {directory} cannot be made: {error.strerror}") from error
    try:
        _lock(descriptor, directory)
        _empty(layout)
        if directory != entry:
            entry.symlink_to(directory)
        yield layout
    finally:
        os.close(descriptor)


def remove_folder(spec: LabSpec, layout: Layout) -> None:
    """Remove a lab's folder and its link among this user's labs; with the last lab their common folder goes."""
    shutil.rmtree(layout.directory, ignore_errors=True)
    root = labs_root()
    entry = root / spec.name
    if entry.is_symlink():
        entry.unlink()
    # A folder that somebody chose is his to remove; another lab's start makes the usual one anew.
    if ROOT_VARIABLE not in os.environ:
        with suppress(OSError):
            root.rmdir()


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LabError(
            f"another process is about to start a lab in {directory}: wait, or choose another name"
        ) from None


def _empty(layout: Layout) -> None:
    entries = list(layout.directory.iterdir())
    if entries and not layout.environment.exists():
        raise LabError(f"lab folder {layout.directory} exists and is no lab's: remove it or choose another")
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
