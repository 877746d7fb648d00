"""Processes under another one, what they are, and the memory that they have taken: from /proc."""

import os
import re
from pathlib import Path

from slurm_energy.evaluation.decision_speed.figures import ProcessMemory

_KILOBYTES = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_CHILD = re.compile(r"slurm_energy\.daemon\.(\w+)_process")
_STOLEN = 8
"""Place of the stolen time in the first line of /proc/stat: see proc(5)."""
_BYTES_A_KB = 1024
"""What Linux calls kB."""


def process_tree(process_id: int, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Return a process and all under it that live, parents first."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found = [process_id]
    for one in found:
        found += sorted(children.get(one, ()))
    return tuple(found)


def memory_of(process_id: int, proc: Path = Path("/proc")) -> ProcessMemory | None:
    """Return the memory of a process, named by what it does for the daemon; None when it has gone."""
    folder = proc / str(process_id)
    try:
        peak = _kilobytes(folder / "status").get("VmHWM")
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return None
    if peak is None:  # a zombie has no memory
        return None
    try:
        proportional = _kilobytes(folder / "smaps_rollup").get("Pss")
    except OSError:
        proportional = None
    child = _CHILD.search(command)
    return ProcessMemory(
        name="daemon" if "slurm_energy.daemon.app" in command else child.group(1) if child else command[:40],
        peak_megabytes=_megabytes(peak),
        proportional_megabytes=None if proportional is None else _megabytes(proportional),
    )


def stolen_seconds(proc: Path = Path("/proc")) -> float | None:
    """Return the processor time that the host of this virtual machine has kept from it; None where nobody tells."""
    try:
        first = (proc / "stat").read_text(encoding="ascii", errors="replace").splitlines()[0].split()
        return int(first[_STOLEN]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def _kilobytes(path: Path) -> dict[str, int]:
    return {
        name: int(number) for name, number in _KILOBYTES.findall(path.read_text(encoding="ascii", errors="replace"))
    }


def _megabytes(kilobytes: int) -> float:
    return kilobytes * _BYTES_A_KB / 1e6


def _parent(entry: Path) -> int | None:
    """Return the parent of a process that lives."""
    try:
        state, parent = (entry / "stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[:2]
    except (OSError, IndexError, ValueError):
        return None
    return None if state == "Z" else int(parent)
