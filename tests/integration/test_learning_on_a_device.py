"""Learners on another device than the CPU: every operation of an update gets all of its tensors there.

What is run is `pretend_updates.py`: there need not be a GPU, since a pretended device refuses what a GPU would.
SLURM_ENERGY_TRIAL=long takes every algorithm with every network.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device_updates import CASES, IS_LONG

PROGRAM = Path(__file__).parents[1] / "unit" / "learning" / "pretend_updates.py"


REFUSED = (
    "a sum",
    "a product of matrices",
    "a row of numbers behind another",
    "a number behind a row",
    "an index",
    "a mask",
    "an index to add at",
    "a layer left behind",
    "numpy",
    "an optimiser's mean left behind",
)


LET_THROUGH = ("a number of Python", "a number as a tensor", "a copy to the CPU", "a look")


FEWEST_OPERATIONS = 1000


pytestmark = pytest.mark.timeout(1500 if IS_LONG else 600)


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    """Return what became of each case on the pretended device, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200.0,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return {report["case"]: report for report in map(json.loads, ended.stdout.splitlines())}


@pytest.mark.parametrize("case", REFUSED)
def test_the_pretended_device_refuses_what_a_gpu_does(reports: dict[str, dict[str, Any]], case: str) -> None:
    assert reports[case]["error"] is not None


@pytest.mark.parametrize("case", LET_THROUGH)
def test_the_pretended_device_lets_through_what_a_gpu_does(reports: dict[str, dict[str, Any]], case: str) -> None:
    assert reports[case]["error"] is None, reports[case]["error"]


@pytest.mark.parametrize(("algorithm", "network"), CASES)
def test_an_update_has_all_its_tensors_on_one_device_and_learns_what_the_cpu_learns(
    reports: dict[str, dict[str, Any]], algorithm: str, network: str
) -> None:
    report = reports[f"{algorithm} {network}"]
    assert report["error"] is None, report["error"]
    assert report["operations"] > FEWEST_OPERATIONS


def test_rounds_go_on_from_one_device_to_another_and_keep_what_is_the_cpus_there(
    reports: dict[str, dict[str, Any]],
) -> None:
    assert reports["in rounds"]["error"] is None, reports["in rounds"]["error"]
    assert reports["in rounds"]["operations"] > FEWEST_OPERATIONS
