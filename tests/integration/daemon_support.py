"""A real slurm-energyd on private paths, with Slurm's commands replaced by scripts that print files."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.errors import SlurmEnergyError
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message

KEY = "0123456789abcdef0123456789abcdef"
RELEASE = "25.11.2"
"""Of the Slurm that is replaced."""
DATABASE_SECONDS = 180.0
"""Until a daemon that has just started has opened its database; a busy machine takes its time."""
STOP_SECONDS = 45.0
"""As in the unit file: what has not ended by then is killed."""
PATIENCE_SECONDS = 60.0
"""For an answer whose time is not what a test is about."""
FIRST_PORT, PORT_COUNT = 10_000, 20_000

PARTITIONS = (
    "PartitionName=a100 AllowGroups=ALL Default=YES DefaultTime=NONE MaxTime=01:00:00 MaxNodes=UNLIMITED "
    "PriorityTier=1 RootOnly=NO ReqResv=NO State=UP\n"
    "PartitionName=a40 AllowGroups=ALL Default=NO DefaultTime=NONE MaxTime=UNLIMITED MaxNodes=UNLIMITED "
    "PriorityTier=1 RootOnly=NO ReqResv=NO State=UP\n"
)


_ports = itertools.count()


@dataclass
class FakeSlurm:
    """Scripts named squeue, sinfo, scontrol and sacct, which print what the test wrote and count their calls."""

    directory: Path
    bin_directory: Path = field(init=False)

    def __post_init__(self) -> None:
        self.bin_directory = self.directory / "bin"
        self.bin_directory.mkdir(parents=True)
        for name in ("squeue", "sinfo", "scontrol", "sacct"):
            script = self.bin_directory / name
            script.write_text(
                f'#!/bin/sh\n[ "$*" != --version ] || exec echo slurm {RELEASE}\n'
                f"echo x >> {self.directory}/{name}.calls\nexec cat {self.directory}/{name}.out\n"
            )
            script.chmod(0o755)
        self.set_jobs([])
        self.set_nodes([make_node("n1", "a100"), make_node("n2", "a40")])
        self._write("scontrol", PARTITIONS)
        self._write("sacct", json.dumps({"jobs": [], "errors": []}))

    def set_jobs(self, jobs: list[dict[str, Any]]) -> None:
        """Make squeue print these rows."""
        self._write("squeue", json.dumps({"jobs": jobs, "errors": []}))

    def set_nodes(self, nodes: list[dict[str, Any]]) -> None:
        """Make sinfo print these rows."""
        self._write("sinfo", json.dumps({"nodes": nodes, "errors": []}))

    def set_accounting(self, jobs: list[dict[str, Any]]) -> None:
        """Make sacct print these rows."""
        self._write("sacct", json.dumps({"jobs": jobs, "errors": []}))

    def calls(self, name: str) -> int:
        """Return how often a command was run."""
        path = self.directory / f"{name}.calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def _write(self, name: str, text: str) -> None:
        path = self.directory / f"{name}.out"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)


def make_job(job_id: int, **fields: Any) -> dict[str, Any]:
    """Return a row of 22.05's squeue."""
    row: dict[str, Any] = {
        "account": "acct",
        "admin_comment": "",
        "array_job_id": 0,
        "array_task_id": None,
        "array_task_string": "",
        "cpus": 1,
        "end_time": 0,
        "exit_code": 0,
        "gres_detail": [],
        "het_job_id": 0,
        "job_id": job_id,
        "job_state": "PENDING",
        "name": f"job{job_id}",
        "node_count": 1,
        "nodes": "",
        "partition": "a100",
        "pre_sus_time": 0,
        "priority": 1000,
        "qos": "normal",
        "restart_cnt": 0,
        "start_time": 0,
        "submit_time": 1_795_800_000,
        "suspend_time": 0,
        "tasks": 1,
        "time_limit": 60,
        "tres_alloc_str": "",
        "tres_per_job": "",
        "tres_per_node": "gres:gpu:1",
        "tres_per_socket": "",
        "tres_per_task": "",
        "user_id": 1000,
        "user_name": "alice",
    }
    return {**row, **fields}


def make_node(name: str, partition: str, **fields: Any) -> dict[str, Any]:
    """Return a row of 22.05's sinfo."""
    row: dict[str, Any] = {
        "name": name,
        "partitions": [partition],
        "state": "idle",
        "state_flags": [],
        "cpus": 8,
        "alloc_cpus": 0,
        "real_memory": 4000,
        "alloc_memory": 0,
        "gres": f"gpu:{partition}:4",
        "gres_used": f"gpu:{partition}:0(IDX:N/A)",
        "features": "",
        "active_features": "",
    }
    return {**row, **fields}


@dataclass
class RunningDaemon:
    """A started daemon and its paths."""

    directory: Path
    slurm: FakeSlurm
    process: "subprocess.Popen[bytes]"
    port: int

    @property
    def socket_path(self) -> Path:
        """Where it listens for people and Slurm."""
        return self.directory / "sock"

    @property
    def plugin_socket_path(self) -> Path:
        """Where it listens for slurmctld."""
        return self.directory / "sock.ctl"

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return (self.directory / "log").read_text(errors="replace")

    @property
    def database_path(self) -> Path:
        """Its SQLite file."""
        return self.directory / "energy.sqlite"

    def ask(
        self, verb: str, fields: Mapping[str, str] | None = None, deadline_seconds: float = PATIENCE_SECONDS
    ) -> Message:
        """Return the reply to one request."""
        return exchange(self.socket_path, Message(verb, fields or {}), deadline_seconds)

    def decide(self, deadline_seconds: float = PATIENCE_SECONDS, **fields: str) -> Message:
        """Return the reply to a decide request of a small GPU job."""
        request = Message("decide", {"uid": "1000", "name": "train", "tres_per_node": "gres:gpu:1", **fields})
        return exchange(self.plugin_socket_path, request, deadline_seconds)

    def query(self, what: str, **fields: str) -> Any:
        """Return the JSON document of a query."""
        end = time.monotonic() + DATABASE_SECONDS
        while True:
            reply = self.ask("query", {"what": what, **fields}, PATIENCE_SECONDS)
            if reply.verb == "ok":
                return json.loads(reply.fields["json"])
            assert "is being opened" in reply.fields.get("reason", "") and time.monotonic() < end, reply
            time.sleep(0.05)

    def stop(self) -> int:
        """Stop it as systemd does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_SECONDS)


def free_port() -> int:
    """Return a TCP port that no other test has.

    Each process of the tests has numbers of its own, below those that the kernel gives to whoever asks for any: between
    this look and the bind of a daemon nobody else takes it.
    """
    first = os.getpid() * 997 % PORT_COUNT
    for number in _ports:
        port = FIRST_PORT + (first + number) % PORT_COUNT
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise AssertionError("there is always another number")


def write_config(directory: Path, slurm: FakeSlurm, port: int, *, store_url: str = "", **daemon: object) -> Path:
    """Write a configuration with short times and the exact policy, last, and return its path."""
    store_url = store_url or f"sqlite:///{directory}/energy.sqlite"
    key = directory / "report.key"
    if not key.exists():
        key.write_text(KEY)
        key.chmod(0o600)
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in daemon.items())
    interval = "" if "snapshot_interval_seconds" in daemon else "snapshot_interval_seconds = 0.2\n"
    path = directory / "energy.toml"
    path.write_text(
        f"""
[cluster]
name = "lab"
slurm_bin_directory = "{slurm.bin_directory}"
accounting = true
[daemon]
socket_path = "{directory}/sock"
report_host = "127.0.0.1"
report_port = {port}
state_directory = "{directory}/state"
{interval}{more}
[store]
url = "{store_url}"
busy_timeout_seconds = 1.0
[node]
authentication = "hmac"
hmac_key_path = "{key}"
[policy]
name = "oracle"
min_saving_per_slowdown = 0.0
"""
    )
    return path


def start_daemon(directory: Path, slurm: FakeSlurm, port: int, config: Path) -> RunningDaemon:
    """Start a daemon and return once it answers."""
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slurm_energy.daemon.app", "--config", str(config)], stderr=log, stdout=log
        )
    daemon = RunningDaemon(directory, slurm, process, port)
    try:
        wait_until(lambda: answers(daemon), "the daemon answers", daemon)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return daemon


def answers(daemon: RunningDaemon) -> bool:
    """Return whether the daemon answers a ping."""
    if daemon.process.poll() is not None:
        raise AssertionError(f"the daemon ended with {daemon.process.returncode}:\n{daemon.log}")
    try:
        return daemon.ask("ping", deadline_seconds=1.0).verb == "ok"
    except SlurmEnergyError:
        return False


def has_snapshot(daemon: RunningDaemon) -> bool:
    """Return whether the daemon has read the cluster."""
    return "snapshot_age_seconds" in daemon.ask("ping").fields


@contextmanager
def running_daemon(directory: Path, *, store_url: str = "", **daemon_settings: object) -> Iterator[RunningDaemon]:
    """Yield a daemon with a fake Slurm; it is stopped at the end and must end cleanly."""
    slurm = FakeSlurm(directory / "slurm")
    port = free_port()
    config = write_config(directory, slurm, port, store_url=store_url, **daemon_settings)
    daemon = start_daemon(directory, slurm, port, config)
    try:
        wait_until(lambda: has_snapshot(daemon), "a snapshot", daemon)
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGTERM)
            try:
                daemon.process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.process.kill()
                daemon.process.wait()
                raise


def wait_until(condition: Any, what: str, daemon: RunningDaemon | None = None, limit_seconds: float = 180.0) -> None:
    """Return once the condition holds."""
    end = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > end:
            log = "" if daemon is None else daemon.log
            raise AssertionError(f"no {what} within {limit_seconds:g} s\n{log}")
        time.sleep(0.05)


def children_of(process_id: int) -> list[int]:
    """Return the process ids of a process's children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(stat[1]) == process_id:
                found.append(int(entry.name))
    return found


def command_line(process_id: int) -> bytes:
    """Return how a process was called, nothing when it has ended meanwhile."""
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(process_id: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        os.kill(process_id, 0)
        return (Path("/proc") / str(process_id) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


@contextmanager
def until_it_ends(daemon: RunningDaemon) -> Iterator[None]:
    """Wait until a daemon has seen the cluster; afterwards it must end cleanly, with its children."""
    process = daemon.process
    try:
        wait_until(lambda: answers(daemon), "the daemon answers", daemon)
        wait_until(lambda: has_snapshot(daemon), "a snapshot", daemon)
        yield
        children = children_of(process.pid)
        assert daemon.stop() == 0, daemon.log
        wait_until(
            lambda: not any(alive(child) for child in children), "end of the children", limit_seconds=STOP_SECONDS
        )
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
