"""Decisions over a daemon's socket, with Slurm's commands faked: how long they take, how soon, in what memory."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from slurm_energy.domain.decision import AnswerDetails, Reason
from slurm_energy.domain.plain import from_plain
from slurm_energy.evaluation.decision_speed.figures import ProcessMemory, ThroughDaemon, spread_of
from slurm_energy.evaluation.decision_speed.in_process import AskedJob, asked_jobs
from slurm_energy.evaluation.decision_speed.synthetic_cluster import ChangingCluster, ClusterSize, synthetic_cluster
from slurm_energy.evaluation.decision_speed.synthetic_slurm import (
    SlurmTexts,
    accounting_text,
    partition_text,
    topology_text,
)
from slurm_energy.lab.bench.daemon_process import (
    BenchDaemon,
    DaemonSettings,
    bench_daemon,
    memory_of,
    process_tree,
    stolen_seconds,
)
from slurm_energy.policy.registry import LEARNED

SEED = 1
START_LIMIT_SECONDS = 180.0
PAUSE_SECONDS = 0.005
"""Between two decisions: the daemon reads the cluster with low priority, and would not get to it without any."""
_LOOK_SECONDS = 0.05
MAX_REQUESTS = 5
UNDISTURBED_SHARE = 0.02
"""Of a processor that the host may keep in that time."""
_PROCESSES = frozenset({"daemon", "snapshot", "recorder", "policy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonTask:
    """What is to be measured at one size."""

    size: ClusterSize
    """Its pending jobs are the queue that the daemon reads."""
    settings: DaemonSettings
    seconds: float
    """How long decisions are asked for."""
    changes_per_reading: int


class Asking(NamedTuple):
    """Decisions that were asked for one after another."""

    seconds: list[float]
    stolen_share: float | None
    """Of one processor, by the host of a virtual machine; None where it is not reported."""


def measure_daemon(task: DaemonTask, folder: Path) -> ThroughDaemon:
    """Return the figures of a daemon of its own.

    Args:
        task: What to measure.
        folder: An empty folder, with a short path: there is a socket in it.

    Raises:
        LabError: the daemon does not start, ends, or refuses.
    """
    now_seconds = float(int(time.time()))
    cluster = ChangingCluster(synthetic_cluster(task.size, SEED, now_seconds), SEED)
    jobs = len(cluster.snapshot.jobs)
    slurm_folder = folder / "slurm"
    slurm_folder.mkdir()
    asked = asked_jobs()
    with (
        FakeSlurm(slurm_folder, cluster, task.changes_per_reading) as slurm,
        bench_daemon(folder, slurm.bin_directory, task.settings) as daemon,
    ):
        first_answer = daemon.wait_until_it_answers(asked[0].fields(), START_LIMIT_SECONDS)
        first_decision = _wait_for_the_policy(daemon, asked[0])
        readings, before = slurm.readings, daemon.status()["counters"]
        asking = quietest_asking(lambda: _asking(daemon, asked, task.seconds))
        readings, after = slurm.readings - readings, daemon.status()["counters"]
        learned = task.settings.policy in LEARNED
        return ThroughDaemon(
            nodes=task.size.nodes,
            gpus=task.size.gpus,
            jobs=jobs,
            policy=task.settings.policy,
            threads=task.settings.threads,
            exchange=spread_of(asking.seconds),
            learned_share=_share(before, after) if learned else None,
            network_share=_network_share(daemon, asked) if learned else None,
            snapshots=readings,
            first_answer_seconds=first_answer,
            first_decision_seconds=first_decision,
            memory=_memory(daemon),
            stolen_share=asking.stolen_share,
        )


def _wait_for_the_policy(daemon: BenchDaemon, job: AskedJob) -> float:
    """Return the seconds from the start to the first answer that is the policy's own."""
    while not _is_of_policy(_preview(daemon, job)):
        daemon.give_up_after(START_LIMIT_SECONDS, "no answer of the policy itself")
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - daemon.started_at


def _asking(daemon: BenchDaemon, jobs: tuple[AskedJob, ...], limit_seconds: float) -> Asking:
    stolen, began = stolen_seconds(), time.monotonic()
    seconds = _ask(daemon, jobs, limit_seconds)
    share = None if stolen is None else ((stolen_seconds() or stolen) - stolen) / (time.monotonic() - began)
    return Asking(seconds, share)


def quietest_asking(ask: Callable[[], Asking]) -> Asking:
    """Return what came of asking; where the host of a virtual machine disturbs it, the least disturbed of several."""
    found: list[Asking] = []
    while len(found) < MAX_REQUESTS:
        found.append(ask())
        if (found[-1].stolen_share or 0.0) < UNDISTURBED_SHARE:
            break
    return min(found, key=lambda one: one.stolen_share or 0.0)


def _ask(daemon: BenchDaemon, jobs: tuple[AskedJob, ...], limit_seconds: float) -> list[float]:
    """Return the time of each decision, one after another."""
    requests = cycle([job.fields() for job in jobs])
    seconds: list[float] = []
    end = time.monotonic() + limit_seconds
    while time.monotonic() < end or not seconds:
        fields = next(requests)
        before = time.perf_counter()
        daemon.ask("decide", fields)
        seconds.append(time.perf_counter() - before)
        time.sleep(PAUSE_SECONDS)
    return seconds


def _share(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """Return the share of the answers in between that are the learned policy's."""
    own, baseline = (after.get(name, 0) - before.get(name, 0) for name in ("policy answers", "policy baseline answers"))
    return own / (own + baseline) if own + baseline else 0.0


def _network_share(daemon: BenchDaemon, jobs: tuple[AskedJob, ...]) -> float:
    """Return the share of the jobs for which the network has a choice."""
    given = [from_plain(AnswerDetails, _preview(daemon, job)["details"]) for job in jobs]
    return sum(details != AnswerDetails() for details in given) / len(given)


def _is_of_policy(decision: Mapping[str, Any]) -> bool:
    return Reason.POLICY in decision["reasons"]


def _preview(daemon: BenchDaemon, job: AskedJob) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(daemon.ask("preview", job.fields()).fields["json"])
    decision: dict[str, Any] = document["decision"]
    return decision


def _memory(daemon: BenchDaemon) -> tuple[ProcessMemory, ...]:
    """Return the memory of the daemon and of its children; Slurm's commands, which come and go, are left out."""
    found = (memory_of(one) for one in process_tree(daemon.process.pid))
    return tuple(one for one in found if one is not None and one.name in _PROCESSES)


READINGS = 4
"""Made beforehand and shown forth and back: making them during the run would be taken for the daemon's slowness."""
_PAUSE_SECONDS = 0.05

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
        while not self._stop.wait(_PAUSE_SECONDS):
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
