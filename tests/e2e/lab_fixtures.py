"""Real Slurm clusters for the end-to-end tests. Submitting and waiting is in slurm_energy.lab.jobs.

$SLURM_ENERGY_RELEASE says whose Slurm they run: `host` (also without it) or a Debian suite, whose root file system
scripts/lab-root.sh makes.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.lab.cluster import Lab, LabSpec, PartitionSpec, start_lab
from slurm_energy.lab.host import unusable_reason

RELEASE = os.environ.get("SLURM_ENERGY_RELEASE") or "host"
REQUIRE_VARIABLE = "SLURM_ENERGY_REQUIRE_LAB"
SMALL = (PartitionSpec(name="a100", nodes=1, gpus_per_node=4),)
EXACT: dict[str, dict[str, Any]] = {"policy": {"name": "oracle"}, "node": {"time_limit_seconds": 30.0}}
"""Settings of a lab that says nothing else: a policy that is exact and there from the first job on, and hooks that a
machine with several labs does not make give up."""
LOW_CLOCKS = EXACT["policy"] | {"min_saving_per_slowdown": 0.0}
"""Policy of a lab whose A40s are to have lower clocks, which save less than two per cent for one of time."""
PATIENT = {"deadline_milliseconds": "200", "breaker_seconds": "1"}
"""Settings of the plugin where no time is measured: several labs run at once, and what failed is soon asked again."""

StartLab = Callable[..., Lab]

_numbers = itertools.count()


def require_lab(*, accounting: bool = False, energy: bool = False) -> None:
    """Skip the test where no lab can start; with $SLURM_ENERGY_REQUIRE_LAB=1, fail instead."""
    if release_root() is not None:
        return  # that root has what a lab needs
    reason = unusable_reason(accounting=accounting, energy=energy)
    if reason is None:
        return
    if os.environ.get(REQUIRE_VARIABLE) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def release_root() -> Path | None:
    """Return the root file system that labs start from, made where it is not there yet; None for this machine's own.

    Where it cannot be had the test fails, unless $ALLOW_MISSING_RELEASES=1.
    """
    root, problem = _root_or_problem()
    if not problem:
        return root
    if os.environ.get("ALLOW_MISSING_RELEASES") == "1":
        pytest.skip(f"{RELEASE} cannot be had: {problem[-300:]}")
    pytest.fail(f"{RELEASE} cannot be had (ALLOW_MISSING_RELEASES=1 leaves it out): {problem}")


@cache
def _root_or_problem() -> tuple[Path | None, str]:
    if RELEASE == "host":
        return None, ""
    script = Path(__file__).resolve().parents[2] / "scripts" / "lab-root.sh"
    argv = ["sh", str(script), RELEASE, sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode == 0:
        return Path(done.stdout.splitlines()[-1]), ""
    return None, done.stderr[-3000:] or f"{script.name} ended with {done.returncode}"


def lab_spec(**values: Any) -> LabSpec:
    """Return the specification of a lab under the Slurm that is tested."""
    return LabSpec(**({"root": release_root()} | values))


@pytest.fixture
def unused_name() -> str:
    """Return a name for a lab that no other test and no other test process uses, where a lab can start at all."""
    require_lab()
    return f"test-with-a-long-name-{next(_numbers)}-{os.getpid()}"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The default lab with plugin, daemon and hooks, for one file: an idle daemon reads its cluster every second."""
    require_lab(energy=True)
    spec = lab_spec(name=f"energy-{os.getpid()}", settings=EXACT, plugin_settings=PATIENT)
    with start_lab(spec, owned=True) as running:
        yield running


@pytest.fixture(scope="session")
def plain_lab() -> Iterator[Lab]:
    """The default partitions under Slurm alone, shared by the whole session."""
    require_lab()
    with start_lab(lab_spec(name=f"plain-{os.getpid()}", energy=False), owned=True) as running:
        yield running


@pytest.fixture
def new_lab() -> Iterator[StartLab]:
    """Start labs of one test's own, small and plain unless it says otherwise; they stop when it ends."""
    running: list[Lab] = []

    def start(**values: Any) -> Lab:
        name = values.pop("name", f"own{next(_numbers)}-{os.getpid()}")
        host = values.pop("host", None)
        given = values.pop("settings", {})
        settings = EXACT | given | {"node": EXACT["node"] | given.get("node", {})}
        usual = {"name": name, "partitions": SMALL, "energy": False, "plugin_settings": PATIENT}
        spec = lab_spec(**(usual | {"settings": settings} | values))
        require_lab(accounting=spec.accounting, energy=spec.energy)
        running.append(start_lab(spec, owned=True, host=host))
        return running[-1]

    yield start
    for item in running:
        item.stop()
