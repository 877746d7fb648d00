"""Start a lab, and find those that run."""

import time
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab import inside
from slurm_energy.lab.host import Host, inspect_host
from slurm_energy.lab.inside import Progress, follow, launch
from slurm_energy.lab.layout import Layout, claimed_folder, find_folder, labs_root, remove_folder
from slurm_energy.lab.prepare import prepare, recall
from slurm_energy.lab.running import Lab, LabNode, LabStatus
from slurm_energy.lab.spec import LabSpec, PartitionSpec, parse_partition

__all__ = [
    "Lab",
    "LabNode",
    "LabSpec",
    "LabStatus",
    "PartitionSpec",
    "find_labs",
    "open_lab",
    "parse_partition",
    "start_lab",
]

_START_LIMIT_SECONDS = 120.0
_KILL_LIMIT_SECONDS = 5.0


def start_lab(spec: LabSpec, progress: Progress | None = None, *, owned: bool = False, host: Host | None = None) -> Lab:
    """Start a lab and return it when every node is idle and the daemon answers.

    Args:
        spec: What it should be.
        progress: Told each step in a few words.
        owned: Whether the lab ends with this process, even when this process is killed.
        host: What to use of this machine; None: the best that it offers.

    Raises:
        LabError: something is missing on this machine, a lab of this name runs already, or a start failed.
    """
    tell = progress or (lambda _step: None)
    tell("looking at this machine")
    host = host or inspect_host(accounting=spec.accounting, energy=spec.energy)
    if (running := _opened(find_folder(spec.name))) is not None:
        raise LabError(f"lab {spec.name} runs already in {running.directory}; stop it with: slurm-energy lab down")
    with claimed_folder(spec) as layout:
        launcher = None
        try:
            tell("preparing files")
            prepare(spec, layout, host)
            launcher = launch(layout, owned=owned, keep=spec.keep)
            follow(layout, launcher, _START_LIMIT_SECONDS, tell)
            lab = Lab(spec=spec, layout=layout, init_pid=int(layout.init_pid.read_text()), launcher=launcher)
            if spec.energy and spec.daemon:
                tell("waiting for a snapshot of the cluster")
                lab.await_daemon()
        except BaseException:
            if launcher is not None:
                launcher.kill()
                _await_end(layout)
            if not spec.keep:
                remove_folder(spec, layout)
            raise
    return lab


def _await_end(layout: Layout) -> None:
    """Wait until nothing writes to a folder any more whose launcher was killed."""
    try:
        pid = int(layout.init_pid.read_text())
    except (OSError, ValueError):
        return
    end = time.monotonic() + _KILL_LIMIT_SECONDS
    while not inside.has_ended(pid) and time.monotonic() < end:
        time.sleep(0.02)


def find_labs() -> list[Lab]:
    """Return this user's labs that run, by name."""
    try:
        entries = sorted(labs_root().iterdir())
    except FileNotFoundError:
        return []
    return [lab for entry in entries if (lab := _opened(entry.resolve())) is not None]


def open_lab(name: str) -> Lab:
    """Return the lab of this name that runs.

    Raises:
        LabError: there is none.
    """
    lab = _opened(find_folder(name))
    if lab is None:
        running = ", ".join(lab.name for lab in find_labs()) or "none"
        raise LabError(f"no lab {name!r} runs; running: {running}; start one with: slurm-energy lab up")
    return lab


def _opened(directory: Path) -> Lab | None:
    layout = Layout(directory)
    try:
        pid = int(layout.init_pid.read_text())
        description = layout.description.read_text()
    except (OSError, ValueError):
        return None
    return Lab(spec=recall(description), layout=layout, init_pid=pid) if inside.is_init_of(pid, directory) else None
