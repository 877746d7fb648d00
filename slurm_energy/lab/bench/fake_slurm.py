"""Slurm's commands as small scripts that print files: a cluster of any size that is different at every reading."""

import threading
from pathlib import Path
from types import TracebackType

from slurm_energy.evaluation.decision_speed.synthetic_cluster import ChangingCluster
from slurm_energy.evaluation.decision_speed.synthetic_slurm import (
    SlurmTexts,
    accounting_text,
    partition_text,
    topology_text,
)

READINGS = 4
"""Made beforehand and shown forth and back: making them meanwhile would be taken for the daemon's slowness."""
_LOOK_SECONDS = 0.05

_PRINTS_A_FILE = """\
#!/bin/sh
exec cat '{folder}/{name}.json'
"""
_SQUEUE = """\
#!/bin/sh
exec < '{folder}/squeue.json'
echo x >> '{folder}/read'
exec cat
"""
_SCONTROL = """\
#!/bin/sh
case "$*" in
*topology*) exec cat '{folder}/topology' ;;
*partition*) exec cat '{folder}/partitions' ;;
esac
exit 1
"""


class FakeSlurm:
    """The scripts and files in one folder; as a context manager it shows the next reading after each one.

    Args:
        folder: Where to write, an existing folder.
        cluster: The cluster at first.
        changes: Steps from one reading to the next.
    """

    def __init__(self, folder: Path, cluster: ChangingCluster, changes: int) -> None:
        self.bin_directory = folder / "bin"
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._turn, name="fake-slurm", daemon=True)
        self._write_scripts()
        self._write_readings(cluster, changes)

    @property
    def readings(self) -> int:
        """How often the queue was read."""
        try:
            return (self._folder / "read").stat().st_size // len("x\n")
        except FileNotFoundError:
            return 0

    def __enter__(self) -> "FakeSlurm":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _write_scripts(self) -> None:
        self.bin_directory.mkdir()
        texts = {name: _PRINTS_A_FILE.format(folder=self._folder, name=name) for name in ("sinfo", "sacct")}
        texts["squeue"] = _SQUEUE.format(folder=self._folder)
        texts["scontrol"] = _SCONTROL.format(folder=self._folder)
        for name, text in texts.items():
            script = self.bin_directory / name
            script.write_text(text, encoding="ascii")
            script.chmod(0o755)

    def _write_readings(self, cluster: ChangingCluster, changes: int) -> None:
        texts = SlurmTexts()
        snapshot = cluster.snapshot
        (self._folder / "partitions").write_text(partition_text(snapshot), encoding="ascii")
        (self._folder / "topology").write_text(topology_text(snapshot), encoding="ascii")
        (self._folder / "sacct.json").write_text(accounting_text(), encoding="ascii")
        for number in range(READINGS):
            for _ in range(changes if number else 0):
                snapshot = cluster.step()
            (self._folder / f"squeue.{number}").write_text(texts.squeue(snapshot), encoding="ascii")
            (self._folder / f"sinfo.{number}").write_text(texts.sinfo(snapshot), encoding="ascii")
        self._show(0)

    def _turn(self) -> None:
        shown = 0
        while not self._stop.wait(_LOOK_SECONDS):
            readings = self.readings
            if readings > shown:
                # squeue is the last of the commands that print a reading, and opens its file before it says so.
                shown = readings
                self._show(shown)

    def _show(self, number: int) -> None:
        """Let the commands print a reading: 0 1 2 3 2 1 0 and so on, each as far from the one before."""
        place = number % (2 * READINGS - 2)
        place = min(place, 2 * READINGS - 2 - place)
        for name in ("squeue", "sinfo"):
            link = self._folder / f"{name}.new"
            link.symlink_to(f"{name}.{place}")
            link.replace(self._folder / f"{name}.json")
