"""Where the real sbatch is: never this wrapper itself, also when it is installed under the name sbatch."""

import os
import sys
from collections.abc import Iterator, Mapping

from slurm_energy.errors import SlurmError

GUARD_VARIABLE = "SLURM_ENERGY_SBATCH_CALLER"
"""Number of the wrapper's process; set only when what is found is a script, which might call us back."""
EXPLAIN_VARIABLE = "SLURM_ENERGY_EXPLAIN_CALLER"
"""Number of the wrapper's process for the SPANK plugin: it asks for a line with figures then, and takes this away."""
_MARKS = (b"slurm_energy.cli.energy_sbatch", b"energy-sbatch", b"energy_sbatch")
_HEAD_BYTES = 4096
_MAX_ANCESTORS = 64


def find_sbatch(bin_directory: str, environment: Mapping[str, str]) -> str:
    """Return the path of the real sbatch: in the configured folder, else the first on PATH that is not this wrapper.

    Raises:
        SlurmError: there is none, or this process was started by another wrapper on its way to sbatch.
    """
    _refuse_recursion(environment)
    searched = bin_directory or environment.get("PATH", os.defpath)
    for path in _candidates(searched):
        if os.access(path, os.X_OK) and os.path.isfile(path) and not is_wrapper(path):  # noqa: PTH113  # pathlib costs 10 ms at each submission
            return path
    raise SlurmError(
        f"sbatch is not found in {searched}: set cluster.slurm_bin_directory in slurm-energy.toml, or put it on PATH"
    )


def _candidates(searched: str) -> Iterator[str]:
    for directory in searched.split(os.pathsep):
        yield os.path.join(directory or ".", "sbatch")  # noqa: PTH118  # as above


def is_wrapper(path: str) -> bool:
    """Return whether the file is this wrapper, a copy of it, or a script that calls it."""
    if os.path.realpath(path) == os.path.realpath(sys.argv[0]):
        return True
    head = _head(path)
    return head.startswith(b"#!") and any(mark in head for mark in _MARKS)


def child_environment(path: str, environment: Mapping[str, str], *, explain: bool) -> dict[str, str]:
    """Return the environment for sbatch: the caller's, with the guard for a script.

    Args:
        path: sbatch.
        environment: The caller's.
        explain: Whether a line on the decision is wanted.
    """
    child = dict(environment)
    child.pop(GUARD_VARIABLE, None)
    child.pop(EXPLAIN_VARIABLE, None)
    if explain:
        child[EXPLAIN_VARIABLE] = str(os.getpid())
    if _head(path).startswith(b"#!"):
        child[GUARD_VARIABLE] = str(os.getpid())
    return child


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # as above
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def _refuse_recursion(environment: Mapping[str, str]) -> None:
    guard = environment.get(GUARD_VARIABLE)
    if guard is not None and guard in _ancestors():
        raise SlurmError(
            "energy-sbatch was called by itself: the sbatch on PATH leads back to it; "
            "set cluster.slurm_bin_directory in slurm-energy.toml to the folder of Slurm's own sbatch"
        )


def _ancestors() -> Iterator[str]:
    process = str(os.getppid())
    for _ in range(_MAX_ANCESTORS):
        if process in {"0", "1"}:
            return
        yield process
        try:
            with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123  # as above
                process = file.read().rpartition(b")")[2].split()[1].decode("ascii")
        except (OSError, IndexError):
            return
