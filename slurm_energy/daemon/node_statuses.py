"""The latest status of each node and who was turned away at the report port, in files that survive a restart.

The door's process writes them; the answering process and `slurm-energy doctor` read them.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.node_status import SILENT_SECONDS, ReceivedStatus
from slurm_energy.errors import SpoolError
from slurm_energy.wire.node_status import encode_received

MAX_NODES = 20_000
"""A file each, of 65 KB at most and 2 KB as a rule; the one heard of longest ago makes room."""
MAX_TURNED_AWAY = 64
"""Addresses; a stranger can fill them with his own only, and they are shown as what they are."""
TURNED_AWAY_SECONDS = 5.0
"""Between two writes of the file, however many are turned away."""
MAX_NAMES = 20
FOLDER = "nodes"
TURNED_AWAY = "turned-away.json"


class NodeStatuses:
    """Takes what nodes tell; used by the threads that authenticate messages."""

    def __init__(self, state_directory: Path) -> None:
        self._directory = state_directory
        self._folder = state_directory / FOLDER
        self._lock = threading.Lock()
        self._heard: dict[str, float] | None = None
        self._turned_away: dict[str, tuple[float, str]] = {}
        self._written_at = 0.0

    def take(self, received: ReceivedStatus) -> None:
        """Keep a node's status in place of its earlier one.

        Raises:
            SpoolError: it cannot be written.
        """
        with self._lock:
            node = received.status.node
            if self._heard is None:
                self._heard = dict(sorted(heard_at(self._folder).items(), key=lambda item: item[1]))
            _write(self._folder / f"{node}.json", encode_received(received))
            self._heard.pop(node, None)
            self._heard[node] = received.received_at_seconds
            while len(self._heard) > MAX_NODES:
                oldest = next(iter(self._heard))
                del self._heard[oldest]
                with contextlib.suppress(OSError):
                    (self._folder / f"{oldest}.json").unlink()

    def turn_away(self, host: str, reason: str, now_seconds: float) -> None:
        """Remember that what a host sent was not authenticated: it may be a node with another key or clock."""
        if not host:
            return
        with self._lock:
            self._turned_away.pop(host, None)
            self._turned_away[host] = (now_seconds, reason[:300])
            while len(self._turned_away) > MAX_TURNED_AWAY:
                del self._turned_away[next(iter(self._turned_away))]
            self._keep_turned_away(now_seconds)

    def let_in(self, host: str, now_seconds: float) -> None:
        """Forget that a host was turned away: now it is not."""
        with self._lock:
            if self._turned_away.pop(host, None) is not None:
                self._written_at = 0.0
                self._keep_turned_away(now_seconds)

    def _keep_turned_away(self, now_seconds: float) -> None:
        if 0.0 <= now_seconds - self._written_at < TURNED_AWAY_SECONDS:
            return
        self._written_at = now_seconds
        document = {host: {"at_seconds": at, "reason": reason} for host, (at, reason) in self._turned_away.items()}
        with contextlib.suppress(SpoolError):  # a full disk is told of by those who need it
            _write(self._directory / TURNED_AWAY, json.dumps(document).encode())


def nodes_summary(state_directory: Path, snapshot: ClusterSnapshot | None, now_seconds: float) -> dict[str, object]:
    """Return in numbers and some names which of Slurm's GPU nodes tell how they are."""
    heard = heard_at(state_directory / FOLDER)
    wanted = [] if snapshot is None else [node.name for node in snapshot.nodes if node.gpus]
    silent = [name for name in wanted if name in heard and now_seconds - heard[name] > SILENT_SECONDS]
    never = [name for name in wanted if name not in heard]
    return {
        "with_gpus": len(wanted),
        "reporting": len(wanted) - len(silent) - len(never),
        "stopped_reporting": _some(silent),
        "never_reported": _some(never),
    }


def heard_at(folder: Path) -> dict[str, float]:
    """Return when each node was heard of last, Unix seconds."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(OSError):
                    found[entry.name.removesuffix(".json")] = entry.stat().st_mtime
    return found


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise SpoolError(f"{path} cannot be written: {error.strerror}") from error


def _some(names: Iterable[str]) -> list[str] | None:
    listed = sorted(names)
    more = len(listed) - MAX_NAMES
    return [*listed[:MAX_NAMES], *([f"and {more} more"] if more > 0 else [])] or None
