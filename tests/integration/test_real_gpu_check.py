"""The check against a real GPU, on a simulated one: what the hooks report is what the counter says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hook_node import HookNode

from slurm_energy.lab.simgpu.build import LIBRARY_NAME

ROOT = Path(__file__).parents[2]


def test_the_hooks_report_what_the_counter_says(tmp_path: Path) -> None:
    node = HookNode(tmp_path, time_scale=1.0)
    output = tmp_path / "found.json"
    library = tmp_path / "lib" / LIBRARY_NAME
    command = [sys.executable, "-m", "research.benchmarks.real_gpu", "--loads", "idle", "--seconds", "2"]
    subprocess.run(
        [*command, "--nvml-library", str(library), "--output", str(output)],
        env={**os.environ, "SLURM_ENERGY_SIM_GPU_STATE": str(tmp_path / "gpus" / "n1.state")},
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    (row,) = json.loads(output.read_text())["loads"]
    (gpu,) = row["reported"]
    assert gpu["joules"] == pytest.approx(row["counter_joules"], rel=0.35)
    assert gpu["joules"] / gpu["coverage_seconds"] == pytest.approx(60.0, rel=0.05)
    assert node.locks()[0] is None
