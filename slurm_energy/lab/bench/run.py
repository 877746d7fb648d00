"""The whole measurement of decisions: every size and number of threads, alone and through a daemon."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.decision_speed.figures import DecisionBench, InProcess, MeasuredHost, ThroughDaemon
from slurm_energy.evaluation.decision_speed.in_process import InProcessTask
from slurm_energy.evaluation.decision_speed.synthetic_cluster import ClusterSize, default_gpus_per_node
from slurm_energy.lab.bench.daemon_bench import DaemonTask, measure_daemon
from slurm_energy.lab.bench.daemon_process import DaemonSettings
from slurm_energy.policy.registry import LEARNED

Tell = Callable[[str, int, int], None]
"""Takes what is being done, and how many steps of how many are through."""

WORKER_MODULE = "slurm_energy.evaluation.decision_speed.in_process"
_VERSIONS = ("numpy", "torch", "torch-geometric")
_SHOWN_ERROR = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What a run measures."""

    nodes: tuple[int, ...]
    gpus_per_node: int | None = None
    """None: six up to 256 nodes, eight beyond."""
    threads: tuple[int, ...] = (1,)
    """Of torch; the first is also the daemon's."""
    decisions: int = 1000
    """In process, at each size and number of threads; 0 leaves that part out."""
    seconds: float = 30.0
    """How long each daemon is asked; 0 leaves that part out."""
    pending: int = 200
    """Jobs that wait, in process."""
    queue: int = 10_000
    """Jobs that wait, for the daemon."""
    changes_per_second: float = 32.0
    interval_seconds: float = 2.0
    policy: str = "gnn"
    checkpoint: str = ""
    """Of a learned policy: a folder, or `shipped`; random weights without it."""

    def __post_init__(self) -> None:
        for name, values in (("nodes", self.nodes), ("threads", self.threads)):
            if not values:
                raise EvaluationError(f"a measurement of decisions needs at least one number of {name}")
            if len(set(values)) != len(values):
                raise EvaluationError(f"{name} {', '.join(map(str, values))}: one of them is there twice")
        self.sizes(self.pending)  # refuses what is out of bounds, before minutes are spent on the rest

    def sizes(self, pending: int) -> tuple[ClusterSize, ...]:
        """Return the clusters, smallest first."""
        return tuple(
            ClusterSize(nodes=nodes, gpus_per_node=self.gpus_per_node or default_gpus_per_node(nodes), pending=pending)
            for nodes in sorted(self.nodes)
        )

    @property
    def changes_per_reading(self) -> int:
        """Changes between two readings of the daemon, one at least."""
        return max(1, round(self.changes_per_second * self.interval_seconds))


def run_bench(plan: BenchPlan, tell: Tell | None = None) -> DecisionBench:
    """Return all figures of a plan; whatever is started has ended and every file is gone afterwards.

    Raises:
        EvaluationError: a worker failed.
        LabError: a daemon does not start, ends, or refuses.
    """
    machine, created_at = machine_of(), time.time()
    in_process: list[InProcess] = []
    through_daemon: list[ThroughDaemon] = []
    with _until_terminated(), tempfile.TemporaryDirectory(prefix="se-bench-") as name:
        folder = Path(name)
        checkpoint = _checkpoint(plan, folder)
        steps: list[InProcessTask | DaemonTask] = [
            *_in_process_tasks(plan, checkpoint),
            *_daemon_tasks(plan, checkpoint),
        ]
        for done, step in enumerate(steps):
            if tell is not None:
                tell(_words(step), done, len(steps))
            if isinstance(step, InProcessTask):
                in_process.append(InProcess.parse(_worker({"task": "measure", **asdict(step)}, step.threads)))
            else:
                with tempfile.TemporaryDirectory(prefix="d-", dir=folder) as own:
                    through_daemon.append(measure_daemon(step, Path(own)))
    return DecisionBench(
        created_at_seconds=created_at,
        machine=machine,
        changes_per_second=plan.changes_per_second,
        pending=plan.pending,
        queue=plan.queue,
        interval_seconds=plan.interval_seconds,
        in_process=tuple(in_process),
        through_daemon=tuple(through_daemon),
        checkpoint=plan.checkpoint if plan.policy in LEARNED else None,
    )


def machine_of() -> MeasuredHost:
    """Return what this machine is."""
    versions = {"Python": platform.python_version()}
    for package in _VERSIONS:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return MeasuredHost(
        cpu_cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        load=os.getloadavg()[0],
        versions=versions,
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _in_process_tasks(plan: BenchPlan, checkpoint: str) -> Iterator[InProcessTask]:
    for size in plan.sizes(plan.pending) if plan.decisions else ():
        for threads in plan.threads:
            yield InProcessTask(
                size=size,
                policy=plan.policy,
                checkpoint=checkpoint,
                threads=threads,
                decisions=plan.decisions,
                changes_per_second=plan.changes_per_second,
                changes_per_reading=plan.changes_per_reading,
                peer=plan.policy in LEARNED,
            )


def _daemon_tasks(plan: BenchPlan, checkpoint: str) -> Iterator[DaemonTask]:
    settings = DaemonSettings(
        policy=plan.policy, checkpoint=checkpoint, threads=plan.threads[0], interval_seconds=plan.interval_seconds
    )
    for size in plan.sizes(plan.queue) if plan.seconds else ():
        yield DaemonTask(
            size=size, settings=settings, seconds=plan.seconds, changes_per_reading=plan.changes_per_reading
        )


def _words(step: InProcessTask | DaemonTask) -> str:
    where = f"{step.size.nodes:,} nodes"
    return f"{where}, daemon" if isinstance(step, DaemonTask) else f"{where}, threads {step.threads}"


def _checkpoint(plan: BenchPlan, folder: Path) -> str:
    """Return the checkpoint of a learned policy, one with random weights where none is named; nothing for another."""
    if plan.checkpoint:
        return plan.checkpoint
    if plan.policy not in LEARNED:
        return ""
    checkpoint = folder / "checkpoint"
    _worker({"task": "checkpoint", "folder": str(checkpoint)}, threads=1)
    return str(checkpoint)


def _worker(task: dict[str, Any], threads: int) -> dict[str, Any]:
    """Return what a process of its own says to a task; it ends with us when we are interrupted."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", WORKER_MODULE],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-_SHOWN_ERROR:]
        raise EvaluationError(f"the worker of a measurement ended with {done.returncode}: {said}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _until_terminated() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does: through every clean-up."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
