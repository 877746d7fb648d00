"""The measurement of decisions from end to end, small: a worker, a daemon, and nothing left of either."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from slurm_energy.evaluation.decision_speed.synthetic_cluster import ChangingCluster, ClusterSize, synthetic_cluster
from slurm_energy.lab.bench.daemon_bench import FakeSlurm
from slurm_energy.lab.bench.daemon_process import process_tree
from slurm_energy.lab.bench.run import BenchPlan, run_bench
from slurm_energy.slurm.json_client import CommandSettings, JsonReader

COMMAND = [sys.executable, "-P", "-m", "slurm_energy.cli.main", "bench", "decision", "--nodes", "4"]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A place for temporary files with a path that a socket's name fits behind."""
    with tempfile.TemporaryDirectory(prefix="se-", dir="/tmp") as name:
        yield Path(name)


def temporary_folders(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("se-bench-")]


def test_the_scripts_in_the_place_of_slurm_show_another_reading_each_time(tmp_path: Path) -> None:
    first = synthetic_cluster(ClusterSize(nodes=4, gpus_per_node=2, pending=10), 1, 1_800_000_000.0)
    with FakeSlurm(tmp_path, ChangingCluster(first, 1), changes=7) as slurm:
        reader = JsonReader(CommandSettings(bin_directory=str(slurm.bin_directory)))
        readings = []
        for number in range(8):
            readings.append(reader.read_cluster())
            assert slurm.readings == number + 1
            time.sleep(0.2)
    one = readings[0]
    assert (one.partitions, one.nodes, one.jobs, one.switches) == (
        first.partitions,
        first.nodes,
        first.jobs,
        first.switches,
    )
    assert not one.skipped
    queues = [reading.jobs for reading in readings]
    assert all(before != after for before, after in pairwise(queues))
    assert queues[6] == queues[0]
    assert queues[5] == queues[1]


def left_behind(before: tuple[int, ...]) -> list[int]:
    """Return the processes that this one has started since and that live; a laboratory's own come and go below it."""
    others = set(before) - {os.getpid()}
    return [one for one in process_tree(os.getpid()) if one not in before and others.isdisjoint(_ancestors(one))]


def _ancestors(process_id: int) -> list[int]:
    found = []
    while process_id > 1 and process_id != os.getpid():
        try:
            process_id = int((Path("/proc") / str(process_id) / "stat").read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:  # it has ended meanwhile
            break
        found.append(process_id)
    return found


def test_what_is_left_behind_is_told_from_what_others_start() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as old:
        before = process_tree(os.getpid())
        assert left_behind(before) == []
        with subprocess.Popen(["sleep", "60"]) as new:
            assert left_behind(before) == [new.pid]
            new.kill()
        for one in process_tree(old.pid)[::-1]:
            os.kill(one, signal.SIGKILL)


def test_a_small_run_measures_both_parts_and_leaves_nothing_behind(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_folder))
    told: list[tuple[str, int, int]] = []
    before = process_tree(os.getpid())
    plan = BenchPlan(nodes=(4,), policy="oracle", decisions=30, seconds=1.0, pending=10, queue=40, interval_seconds=0.5)
    bench = run_bench(plan, lambda *step: told.append(step))
    assert told == [("4 nodes, threads 1", 0, 2), ("4 nodes, daemon", 1, 2)]
    (alone,), (daemon,) = bench.in_process, bench.through_daemon
    assert (alone.nodes, alone.gpus, alone.decision.runs, alone.peer) == (4, 24, 30, None)
    assert alone.change.runs == alone.together.runs >= 1
    assert daemon.exchange.runs > 10
    assert daemon.exchange.median <= daemon.exchange.p99 <= daemon.exchange.largest
    assert daemon.snapshots >= 1
    assert 0.0 < daemon.first_answer_seconds <= daemon.first_decision_seconds
    assert {process.name for process in daemon.memory} == {"daemon", "snapshot", "recorder"}
    assert daemon.peak_megabytes > 20.0
    assert (daemon.learned_share, daemon.network_share) == (None, None)
    assert temporary_folders(short_folder) == []
    assert left_behind(before) == []
    json.dumps(bench.document(), allow_nan=False)


def test_the_network_is_asked_for_every_decision_alone(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_folder))
    bench = run_bench(BenchPlan(nodes=(4,), decisions=12, seconds=0.0, pending=10))
    (alone,) = bench.in_process
    assert bench.through_daemon == ()
    assert (alone.network_share, alone.decision.runs) == (1.0, 12)
    assert alone.peer is not None and alone.peer.runs >= 3
    assert alone.rebuild_seconds > 0.0
    assert temporary_folders(short_folder) == []


def test_a_run_that_is_terminated_ends_what_it_started(short_folder: Path) -> None:
    words = ["--policy", "oracle", "--decisions", "0", "--seconds", "60", "--queue", "10"]
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    process = subprocess.Popen([*COMMAND, *words], env=environment)
    try:
        end = time.monotonic() + 120.0
        while len(process_tree(process.pid)) < 4 and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.05)
        under = process_tree(process.pid)[1:]
        assert len(under) >= 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 130
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    assert [one for one in under if Path(f"/proc/{one}").exists()] == []
    assert temporary_folders(short_folder) == []
