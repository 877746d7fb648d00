"""Start a lab, find those that run, and what can be done with one: commands inside, its daemons, its state, its end."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.errors import DaemonUnavailable, LabError, WireError
from slurm_energy.lab import inside
from slurm_energy.lab.host import Host, inspect_host
from slurm_energy.lab.inside import SCRIPTS, Launcher, Progress, follow, launch, log_paths
from slurm_energy.lab.layout import Layout, claimed_folder, find_folder, labs_root, remove_folder
from slurm_energy.lab.prepare import describe, prepare, python_path, recall
from slurm_energy.lab.products import command_path, open_gpus
from slurm_energy.lab.root import ROOT_PYTHON, entry_argv, prepare_in_root
from slurm_energy.lab.simgpu.state import NodeGpuState
from slurm_energy.lab.spec import LabSpec, PartitionSpec, parse_partition
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message

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

DEFAULT_TIMEOUT_SECONDS = 30.0
_DAEMON_LIMIT_SECONDS = 90.0
_STOP_LIMIT_SECONDS = 15.0
_PING_SECONDS = 2.0
_START_LIMIT_SECONDS = 120.0
_KILL_LIMIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabNode:
    """One node as Slurm sees it."""

    name: str
    partition: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """A lab at this moment.

    Attributes:
        nodes: Every node; empty when slurmctld gives no answer.
        daemon: The daemon's answer to a ping; None when the lab has none or it gives no answer.
        problem: What gave no answer, or nothing.
    """

    name: str
    directory: Path
    log_directory: Path
    nodes: tuple[LabNode, ...]
    daemon: Mapping[str, str] | None
    problem: str = ""


@dataclass(slots=True)
class Lab:
    """A lab that runs. As a context manager it stops at the end."""

    spec: LabSpec
    layout: Layout
    init_pid: int
    launcher: Launcher | None = field(default=None, repr=False)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.spec.name

    @property
    def directory(self) -> Path:
        """The lab's folder."""
        return self.layout.directory

    @property
    def alive(self) -> bool:
        """Whether the lab still runs."""
        return inside.is_init_of(self.init_pid, self.directory)

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        input: str | None = None,  # noqa: A002  # as subprocess.run calls it
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, in the user's home and with a fresh environment; no user means root.

        Raises:
            LabError: the lab has ended, the command did not end in time, or, with `check`, it failed.
        """
        done = inside.run_with_limit(
            [*self._entry(), *inside.user_argv(user, self._home(user), argv)],
            inside.user_environment(user, self._home(user), self.environment(), env or {}),
            timeout,
            input,
        )
        if check and done.returncode != 0:
            raise LabError(f"{' '.join(argv)} failed in lab {self.name} ({done.returncode}): {done.stderr[-1000:]}")
        return done

    def command(self, argv: Sequence[str], user: str | None = None) -> tuple[list[str], dict[str, str]]:
        """Return command line and environment with which a caller runs a command inside by itself."""
        home = self._home(user)
        environment = inside.user_environment(user, home, self.environment(), {})
        return [*self._entry(), *inside.user_argv(user, home, argv)], environment

    def shell(self, user: str | None = None) -> int:
        """Open an interactive shell inside and return its exit code."""
        argv = [*self._entry(), *inside.user_argv(user, self._home(user), ["/bin/bash", "--norc", "-i"])]
        prompt = {"PS1": f"[{self.name}] \\u:\\w\\$ "}
        environment = inside.user_environment(user, self._home(user), self.environment(), prompt)
        return subprocess.run(argv, env=environment, check=False).returncode

    def environment(self) -> dict[str, str]:
        """Return the variables that every command inside gets."""
        python = python_path() if self.spec.root is None else ROOT_PYTHON
        return {
            "PATH": command_path(self.layout, python),
            "SLURM_CONF": str(self.layout.slurm_conf),
            "SLURM_ENERGY_CONFIG": str(self.layout.energy_config),
        }

    def status(self) -> LabStatus:
        """Return nodes and daemon as they answer now."""
        problems = []
        nodes: tuple[LabNode, ...] = ()
        answer = None
        try:
            said = self.run(["sinfo", "-h", "-N", "-o", "%N %R %T"], timeout=10, check=True).stdout
            nodes = tuple(
                LabNode(name=name, partition=partition, state=state)
                for name, partition, state in (line.split() for line in said.splitlines())
            )
        except LabError as error:
            problems.append(str(error))
        if self.spec.energy and self.spec.daemon:
            try:
                answer = self.ping()
            except (DaemonUnavailable, WireError) as error:
                problems.append(str(error))
        return LabStatus(
            name=self.name,
            directory=self.directory,
            log_directory=self.layout.log,
            nodes=nodes,
            daemon=answer,
            problem="; ".join(problems),
        )

    def ping(self) -> dict[str, str]:
        """Return the daemon's answer to a ping.

        Raises:
            DaemonUnavailable: nothing listens.
            WireError: no whole answer in time, or a malformed one.
        """
        return dict(exchange(self.layout.energyd_socket, Message("ping"), _PING_SECONDS).fields)

    def log_paths(self) -> tuple[Path, ...]:
        """Return every log, the lab's own first."""
        return log_paths(self.layout)

    def stop(self) -> None:
        """End every process of the lab and remove its folder, unless the specification keeps it."""
        if self.alive:
            os.kill(self.init_pid, signal.SIGTERM)
            if not self._ended_within(_STOP_LIMIT_SECONDS):
                os.kill(self.init_pid, signal.SIGKILL)
                if not self._ended_within(_STOP_LIMIT_SECONDS):
                    raise LabError(f"process {self.init_pid} of lab {self.name} does not end, even when killed")
        if self.launcher is not None:
            self.launcher.close()
        if not self.spec.keep:
            remove_folder(self.spec, self.layout)

    def start_daemon(self, *, snapshot: bool = True) -> None:
        """Start slurm-energyd and wait until it answers and, with `snapshot`, knows the cluster."""
        self._service("start", "energyd")
        self.await_daemon(snapshot=snapshot)

    def stop_daemon(self) -> None:
        """Stop slurm-energyd and wait for its end."""
        self._service("stop", "energyd")

    def kill_daemon(self) -> None:
        """End slurm-energyd's answering process with SIGKILL."""
        self._service("kill", "energyd")

    def pause_daemon(self) -> None:
        """Make slurm-energyd hang: it still accepts connections and answers none."""
        self._service("pause", "energyd")

    def resume_daemon(self) -> None:
        """Let a paused slurm-energyd continue."""
        self._service("resume", "energyd")

    def restart_slurmctld(self) -> None:
        """Stop and start slurmctld and wait until it knows the state of every node; jobs stay."""
        for action in ("stop", "start", "wait"):
            self._service(action, "slurmctld")

    def kill_slurmd(self, node: str) -> None:
        """End a node's slurmd with SIGKILL; its job's steps stay."""
        self.spec.partition_of(node)
        self._service("kill", "slurmd", node)

    def start_slurmd(self, node: str) -> None:
        """Start a node's slurmd."""
        self.spec.partition_of(node)
        self._service("start", "slurmd", node)

    def gpu_state(self, node: str) -> NodeGpuState:
        """Return the open state of a node's simulated GPUs: a context manager.

        Example: `with lab.gpu_state("a100-1") as state: state.gpus[0].reading().energy_joules`.
        """
        self.spec.partition_of(node)
        return open_gpus(self.layout, node, built_elsewhere=self.spec.root is not None)

    def _service(self, action: str, name: str, node: str = "") -> None:
        argv = ["/bin/sh", str(SCRIPTS / "service.sh"), action, name, *([node] if node else [])]
        self.run(argv, env={"LAB_DIRECTORY": str(self.directory)}, check=True)

    def await_daemon(self, *, snapshot: bool = True) -> None:
        """Wait until slurm-energyd answers and, with `snapshot`, knows the cluster.

        Raises:
            LabError: it does not within 90 s; what reads the cluster is a process of low priority.
        """
        end = time.monotonic() + _DAEMON_LIMIT_SECONDS
        while True:
            try:
                answer = self.ping()
                if not snapshot or "snapshot_age_seconds" in answer:
                    return
                problem = "it has no snapshot of the cluster yet"
            except (DaemonUnavailable, WireError) as error:
                problem = str(error)
            if time.monotonic() > end:
                raise LabError(f"slurm-energyd of lab {self.name} is not ready: {problem}; see {self.layout.log}")
            time.sleep(0.05)

    def _entry(self) -> list[str]:
        if not self.alive:
            raise LabError(f"lab {self.name} has ended; its folder is {self.directory}")
        return inside.namespace_argv(self.init_pid)

    def _home(self, user: str | None) -> Path:
        return self.layout.home(user or "root")

    def _ended_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not inside.has_ended(self.init_pid):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


def start_lab(spec: LabSpec, progress: Progress | None = None, *, owned: bool = False, host: Host | None = None) -> Lab:
    """Start a lab and return it when every node is idle and the daemon answers.

    Args:
        spec: What it should be.
        progress: Called with each step in a few words.
        owned: Whether the lab ends with this process, even when this process is killed.
        host: What to use of this machine; None: the best that it offers.

    Raises:
        LabError: something is missing on this machine, a lab of this name runs already, the one that it is to be beside
            does not, or a start failed.
    """
    tell = progress or (lambda _step: None)
    tell("looking at this machine")
    if spec.root is None:
        host = host or inspect_host(accounting=spec.accounting, energy=spec.energy)
    if (running := _opened(find_folder(spec.name))) is not None:
        raise LabError(f"lab {spec.name} runs already in {running.directory}; stop it with: slurm-energy lab down")
    if spec.beside:
        open_lab(spec.beside)
    with claimed_folder(spec) as layout:
        launcher = None
        try:
            tell("preparing files")
            entry: list[str] = []
            if spec.root is not None:
                prepare_in_root(spec.root, layout, describe(spec))
                entry = entry_argv(spec.root, layout)
            elif host is not None:
                prepare(spec, layout, host)
            launcher = launch(layout, owned=owned, keep=spec.keep, entry=entry)
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
