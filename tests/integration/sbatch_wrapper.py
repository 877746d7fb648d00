"""Calls of energy-sbatch before a stand-in for sbatch."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fake_sbatch import FakeSbatch

WRAPPER = [sys.executable, "-m", "slurm_energy.cli.energy_sbatch"]


def environment(fake: FakeSbatch, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "PATH": f"{fake.bin}:/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SLURM_ENERGY_DAEMON_SOCKET_PATH": str(fake.directory.parent / "energyd.sock"),
        **(more or {}),
    }


def submit(
    fake: FakeSbatch, *words: bytes, stdin: bytes = b"", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [os.fsencode(word) for word in WRAPPER]
    return subprocess.run(
        [*command, *words], input=stdin, capture_output=True, timeout=60, env=environment(fake, more), check=False
    )


def wait_for_call(fake: FakeSbatch) -> None:
    end = time.monotonic() + 120
    while not fake.calls and time.monotonic() < end:
        time.sleep(0.01)
