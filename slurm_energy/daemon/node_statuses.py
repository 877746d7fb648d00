"""The latest status of each node, in files that survive a restart, and who was turned away at the report port."""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.node_status import SILENT_SECONDS, ReceivedStatus
from slurm_energy.errors import SpoolError
from slurm_energy.wire.node_status import encode_received

MAX_NODES = 20_000
"""A file each, of 65 KB at most and 2 KB as a rule; the one heard of longest ago makes room."""
MAX_TURNED_AWAY = 64
"""Addresses; a stranger can fill them with his own only, and they are shown as what they are."""
MAX_NAMES = 20
FOLDER = "nodes"


class NodeStatuses:
    """Takes what nodes tell; its files are written by the thread of reports, its words read by the event loop."""

    def __init__(self, state_directory: Path) -> None:
        self.folder = state_directory / FOLDER
        self._heard: dict[str, float] | None = None
        self._turned_away: dict[str, tuple[float, str]] = {}

    def take(self, received: ReceivedStatus) -> None:
        """Keep a node's status in place of its earlier one.

        Raises:
            SpoolError: it cannot be written.
        """
        node = received.status.node
        heard = self._known()
        path = self.folder / f"{node}.json"
        temporary = self.folder / f".{node}.new"
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            temporary.write_bytes(encode_received(received))
            temporary.replace(path)
        except OSError as error:
            raise SpoolError(f"{path} cannot be written: {error.strerror}") from error
        heard.pop(node, None)
        heard[node] = received.received_at_seconds
        while len(heard) > MAX_NODES:
            oldest = next(iter(heard))
            del heard[oldest]
            with contextlib.suppress(OSError):
                (self.folder / f"{oldest}.json").unlink()

    def turn_away(self, host: str, reason: str, now_seconds: float) -> None:
        """Remember that what a host sent was not authenticated: it may be a node with another key or clock."""
        if host:
            self._turned_away.pop(host, None)
            self._turned_away[host] = (now_seconds, reason[:300])
            while len(self._turned_away) > MAX_TURNED_AWAY:
                del self._turned_away[next(iter(self._turned_away))]

    def let_in(self, host: str) -> None:
        """Forget that a host was turned away: now it is not."""
        self._turned_away.pop(host, None)

    def turned_away(self, now_seconds: float) -> dict[str, dict[str, object]]:
        """Return who was turned away, why, and how long ago."""
        found = sorted(self._turned_away.items())
        return {host: {"reason": reason, "age_seconds": round(now_seconds - when, 1)} for host, (when, reason) in found}

    def summary(self, snapshot: ClusterSnapshot | None, now_seconds: float) -> dict[str, object]:
        """Return in numbers and some names which of Slurm's GPU nodes tell how they are."""
        heard = self._known()
        wanted = [] if snapshot is None else [node.name for node in snapshot.nodes if node.gpus]
        silent = [name for name in wanted if name in heard and now_seconds - heard[name] > SILENT_SECONDS]
        never = [name for name in wanted if name not in heard]
        return {
            "reporting": len(wanted) - len(silent) - len(never),
            "with_gpus": len(wanted),
            "stopped_reporting": _some(silent),
            "never_reported": _some(never),
        }

    def _known(self) -> dict[str, float]:
        """Return when each node was heard of, the one longest ago first."""
        if self._heard is None:
            self._heard = dict(sorted(_files(self.folder).items(), key=lambda item: item[1]))
        return self._heard


def _files(folder: Path) -> Mapping[str, float]:
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(OSError):
                    found[entry.name.removesuffix(".json")] = min(entry.stat().st_mtime, time.time())
    return found


def _some(names: Iterable[str]) -> list[str] | None:
    listed = sorted(names)
    more = len(listed) - MAX_NAMES
    return [*listed[:MAX_NAMES], *([f"and {more} more"] if more > 0 else [])] or None
