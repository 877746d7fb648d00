"""`slurm-energy calibrate --node` on a simulated node: what it measures, refuses, and leaves when it is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_node import HookNode, wait_until

pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clocks are locked by root alone")

LOAD = """
import os, sys, threading, time
from pathlib import Path
from slurm_energy.lab.simgpu.state import NodeGpuState
node = NodeGpuState(Path(sys.argv[1]))
gpu = node.by_uuid(os.environ["CUDA_VISIBLE_DEVICES"])
slot = gpu.add_load("training")
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.02):
    done = next(load.done_seconds for load in gpu.loads if load.slot == slot)
    print(f"{time.monotonic():.6f} {done:.9f}", flush=True)
gpu.remove_load(slot)
"""


class SweptNode:
    """A simulated node with a Slurm that says what state it is in, and the program that loads its GPUs."""

    def __init__(self, root: Path) -> None:
        self.node = HookNode(root, gpu_type="a100", count=2, time_scale=60.0)
        self.root = root
        (root / "bin").mkdir()
        self.load = root / "load.py"
        self.load.write_text(LOAD, encoding="utf-8")
        self.output = root / "site-curves.json"
        self.says("IDLE+DRAIN")

    def says(self, state: str) -> None:
        scontrol = self.root / "bin" / "scontrol"
        scontrol.write_text(f"#!/bin/sh\necho NodeName=n1 Arch=x86_64 State={state} ThreadsPerCore=1\n")
        scontrol.chmod(0o755)

    def command(self, *options: str, window_seconds: float = 1.0) -> list[str]:
        load = f"training={sys.executable} {self.load} {self.node.gpus.path}"
        own = ["--load", load, "--clocks", "5", "--window-seconds", f"{window_seconds}", "--output", str(self.output)]
        return [sys.executable, "-m", "slurm_energy.cli.main", "calibrate", "--node", *own, *options]

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "SLURMD_NODENAME": "n1",
            "SLURM_CONF": str(self.root / "etc" / "slurm.conf"),
            "SLURM_ENERGY_CONFIG": str(self.root / "etc" / "slurm-energy.toml"),
        }

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*options), env=self.environment(), capture_output=True, text=True, timeout=300, check=False
        )


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[SweptNode]:
    yield SweptNode(tmp_path)


def test_a_drained_node_is_measured_as_its_boards_are_and_its_clocks_come_back(swept: SweptNode) -> None:
    done = swept.run()
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(swept.output.read_text(encoding="utf-8"))["gpu_types"].values()
    readings = entry["curves"]["training"]["readings"]
    assert len(readings) == 5 and entry["source"] == "measured"
    (low_mhz, low_watts, low_seconds), (high_mhz, high_watts, high_seconds) = readings[0], readings[-1]
    assert (high_mhz, low_mhz) == (1410, 705)
    assert 150.0 < low_watts < high_watts <= 505.0
    assert 1.2 < low_seconds / high_seconds <= 2.05
    assert swept.node.locks() == [None, None]
    assert all(not gpu.loads for gpu in swept.node.gpus.gpus)


def test_a_node_that_slurm_may_still_use_is_not_touched(swept: SweptNode) -> None:
    swept.says("IDLE")
    done = swept.run()
    assert done.returncode == 1 and "state=drain" in done.stderr
    assert not swept.output.exists() and swept.node.locks() == [None, None]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_killed_leaves_no_clock_locked(swept: SweptNode, number: signal.Signals) -> None:
    process = subprocess.Popen(
        swept.command(window_seconds=30.0),
        env=swept.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(swept.node.locks()), 120.0)
    finally:
        process.send_signal(number)
        process.wait(120.0)
    if number is signal.SIGKILL:
        assert any(swept.node.locks())
        done = swept.node.run("repair", {**swept.environment(), "SLURM_JOB_ID": ""})
        assert done.returncode == 0, done.stderr
    assert swept.node.locks() == [None, None]
    wait_until(lambda: all(not gpu.loads for gpu in swept.node.gpus.gpus), 30.0)
