"""A graph network planned, run and reported over two unequal partitions of a real Slurm."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from energy_lab import await_reports, until
from lab_fixtures import EXACT, PATIENT, lab_spec, require_lab

from slurm_energy.lab.cluster import Lab, PartitionSpec, start_lab

pytestmark = pytest.mark.lab

SLOW_SHARE = 0.2
"""Of a CPU, for the rank on the slow partition."""
# All nodes of the laboratory are one host, and its name is not the nodes'.
HERE = {"MASTER_ADDR": "127.0.0.1"}


def write_graph(path: Path, vertices: int = 20_000) -> None:
    """Write a ring of neighbourhoods whose features say the class."""
    drawn = np.random.default_rng(1)
    y = (np.arange(vertices) * 4 // vertices).astype(np.int64)
    source = np.repeat(np.arange(vertices), 8)
    target = (source + drawn.integers(-40, 41, len(source))) % vertices
    x = drawn.normal(size=(vertices, 16)).astype(np.float32) + np.eye(16, dtype=np.float32)[y]
    draw = drawn.random(vertices)
    masks = {"train_mask": draw < 0.5, "val_mask": (draw >= 0.5) & (draw < 0.7), "test_mask": draw >= 0.7}
    arrays: dict[str, Any] = {"x": x, "y": y, "edge_index": np.stack([source, target]), **masks}
    np.savez(path, **arrays)


@pytest.fixture(scope="module")
def unequal() -> Iterator[Lab]:
    """Two partitions of one GPU each, and a graph in a user's home."""
    require_lab(energy=True)
    parts = tuple(PartitionSpec(name=name, nodes=1, gpus_per_node=1) for name in ("a100", "v100"))
    spec = lab_spec(name=f"uneq-{os.getpid()}", partitions=parts, settings=EXACT, plugin_settings=PATIENT)
    with start_lab(spec, owned=True) as running:
        write_graph(running.layout.home("alice") / "graph.npz")
        yield running


@contextmanager
def slow_rank(lab: Lab, rank: int) -> Iterator[None]:
    """Hold one rank of every training in a lab to a share of a CPU, as on a slower GPU."""
    cpu = Path("/sys/fs/cgroup/cpu")
    if not (cpu / "cpu.cfs_quota_us").exists():
        pytest.skip("this machine has no CPU controller of the first version")
    group, home, ended = cpu / lab.name, os.fsencode(lab.layout.home("alice")), threading.Event()
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text("20000")
    (group / "cpu.cfs_quota_us").write_text(str(int(20000 * SLOW_SHARE)))

    def hold() -> None:
        while not ended.wait(0.1):
            for entry in Path("/proc").iterdir():
                with suppress(OSError, ValueError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    here = {b"hyperscale", b"train"} <= set(words) and any(word.startswith(home) for word in words)
                    if here and f"SLURM_PROCID={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        (group / "cgroup.procs").write_text(entry.name)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        until("an empty group", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def planned(lab: Lab, folder: str, epochs: int, *more: str, graph: str = "graph.npz") -> dict[str, Any]:
    options = ["--gpus", "2", "--epochs", str(epochs), "--cpus", "1", "--output", folder, "--json"]
    done = lab.run(
        ["slurm-energy", "hyperscale", "plan", graph, *options, *more], user="alice", check=True, timeout=300.0
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ran(lab: Lab, folder: str) -> dict[str, Any]:
    done = lab.run(["slurm-energy", "hyperscale", "run", folder, "--json"], user="alice", env=HERE, timeout=300.0)
    said = [one.read_text() for one in (lab.layout.home("alice") / folder).glob("*.out")]
    assert done.returncode == 0, "\n".join([done.stderr, *said])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_planned_training_runs_over_two_partitions_and_is_reported_and_accounted(unequal: Lab) -> None:
    expected = planned(unequal, "first", 8, "--speed", "a100=2e5", "--speed", "v100=1e5")
    parts = [(one["partition"], one["gpus"], one["speed_source"]) for one in expected["components"]]
    assert parts == [("a100", 1, "given"), ("v100", 1, "given")]
    script = (unequal.layout.home("alice") / "first" / "job.sh").read_text()
    assert script.count("#SBATCH hetjob") == 1
    assert "srun --kill-on-bad-exit=0 --het-group=0-1 slurm-energy hyperscale train " in script

    found = ran(unequal, "first")

    measured = found["measured"]
    assert measured["is_complete"]
    assert measured["epochs"] == 8
    assert measured["accuracy"]["test_mask"] > 0.9
    assert set(measured["speeds"]) == {"a100", "v100"}
    assert found["predicted"]["seconds"] == pytest.approx(expected["seconds"])
    reports = [await_reports(unequal, job)[0] for job in (found["job"], found["job"] + 1)]
    assert {report.node for report in reports} == {"a100-1", "v100-1"}
    text = unequal.run(["slurm-energy", "explain", str(found["job"])], check=True).stdout
    assert "hyperscale" in text


@pytest.mark.long
def test_a_plan_by_a_measured_run_predicts_the_time_within_15_percent(unequal: Lab) -> None:
    graph = "large.npz"
    write_graph(unequal.layout.home("alice") / graph, 100_000)
    with slow_rank(unequal, 1):
        planned(unequal, "measured", 30, "--speed", "a100=2e5", "--speed", "v100=1e5", graph=graph)
        measured = ran(unequal, "measured")["measured"]
        if measured["speeds"]["v100"] > 0.8 * measured["speeds"]["a100"]:
            pytest.skip("the machine is so busy that a quota makes no rank slower than the other")
        planned(unequal, "again", 200, "--measured", "measured", graph=graph)
        found = ran(unequal, "again")
    seconds = found["measured"]["start_seconds"] + 200 * found["measured"]["epoch_seconds"]
    print(json.dumps({"predicted": found["predicted"], "measured": found["measured"]}, indent=1))
    assert seconds == pytest.approx(found["predicted"]["seconds"], rel=0.15)
