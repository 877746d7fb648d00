"""A daemon of its own on private paths, with the synthetic cluster in place of Slurm, and the memory it takes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.errors import DaemonUnavailable, LabError
from slurm_energy.evaluation.decision_speed.figures import ProcessMemory
from slurm_energy.evaluation.decision_speed.synthetic_cluster import CATALOGUE_NAMES
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message

STOP_SECONDS = 10.0
DEADLINE_SECONDS = 10.0
_LOG_BYTES = 4000
_KILOBYTES = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_CHILD = re.compile(r"slurm_energy\.daemon\.(\w+?)s?\.process")
_STOLEN = 8
"""Place of the stolen time in the first line of /proc/stat: see proc(5)."""
_BYTES_A_KB = 1024
"""What Linux calls kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """What a daemon is started with."""

    policy: str
    checkpoint: str
    threads: int
    interval_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchDaemon:
    """A daemon that was started."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    started_at: float
    """By `time.monotonic`, just before the process was started."""

    def ask(self, verb: str, fields: dict[str, str]) -> Message:
        """Return the reply to one request.

        Raises:
            LabError: the daemon has ended, or does not answer with ok.
            DaemonUnavailable: it does not listen yet.
        """
        if self.process.poll() is not None:
            raise LabError(f"the measured daemon ended with {self.process.returncode}: {self.log}")
        reply = exchange(socket_path(self.folder), Message(verb, fields), DEADLINE_SECONDS)
        if reply.verb != "ok":
            raise LabError(f"the measured daemon answered {verb} with {reply.verb}: {reply.fields.get('reason', '')}")
        return reply

    def status(self) -> dict[str, Any]:
        """Return what the daemon says of itself."""
        document: dict[str, Any] = json.loads(self.ask("query", {"what": "status"}).fields["json"])
        state: dict[str, Any] = document["daemon"]
        return state

    def wait_until_it_answers(self, fields: dict[str, str], limit_seconds: float) -> float:
        """Return the seconds from the start to the first answer to a `decide` request.

        Raises:
            LabError: there is none in time.
        """
        while True:
            with suppress(DaemonUnavailable):
                self.ask("decide", fields)
                return time.monotonic() - self.started_at
            self.give_up_after(limit_seconds, "no answer")
            time.sleep(0.005)

    def give_up_after(self, limit_seconds: float, what: str) -> None:
        """Raise LabError when so much time has passed since the start."""
        if time.monotonic() - self.started_at > limit_seconds:
            raise LabError(f"the measured daemon: {what} within {limit_seconds:.0f} s: {self.log}")

    @property
    def log(self) -> str:
        """The end of what it has logged."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-_LOG_BYTES:]


@contextmanager
def bench_daemon(folder: Path, bin_directory: Path, settings: DaemonSettings) -> Iterator[BenchDaemon]:
    """Yield a daemon that has just been started; at the end it and every process under it have ended.

    Args:
        folder: For its configuration, socket, state and database.
        bin_directory: Of Slurm's commands.
        settings: What it serves.
    """
    config = folder / "slurm-energy.toml"
    config.write_text(_config_text(folder, bin_directory, settings), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_ENERGY_")}
    command = [sys.executable, "-P", "-m", "slurm_energy.daemon.app", "--config", str(config)]
    with (folder / "log").open("wb") as log:
        started_at = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        yield BenchDaemon(folder=folder, process=process, started_at=started_at)
    finally:
        _end(process)


def socket_path(folder: Path) -> Path:
    """Return where the daemon listens."""
    return folder / "sock"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a daemon as systemd does, by force if it must be, and see that what it started has ended too."""
    under = process_tree(process.pid)[1:] if process.poll() is None else ()
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end = time.monotonic() + STOP_SECONDS
    left = {one for one in under if _lives(one)}
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = {one for one in left if _lives(one)}
    for one in left:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _lives(process_id: int) -> bool:
    try:
        return (
            Path(f"/proc/{process_id}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1][1] != "Z"
        )
    except (OSError, IndexError):
        return False


def _config_text(folder: Path, bin_directory: Path, settings: DaemonSettings) -> str:
    sections: dict[str, dict[str, object]] = {
        "cluster": {"name": "bench", "slurm_bin_directory": str(bin_directory)},
        "daemon": {
            "socket_path": str(socket_path(folder)),
            "report_host": "",
            "state_directory": str(folder / "state"),
            "snapshot_interval_seconds": settings.interval_seconds,
        },
        "store": {"url": f"sqlite:///{folder}/energy.sqlite"},
        "policy": {"name": settings.policy, "checkpoint": settings.checkpoint, "threads": settings.threads},
        "routing": {"open": True},
        "gpu_types": dict(CATALOGUE_NAMES),
    }
    lines: list[str] = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        # A JSON text, number or boolean is one of TOML as well.
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


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
    """Return the processor time that the host of this virtual machine has kept from it; None if unknown."""
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
