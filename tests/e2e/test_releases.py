"""One job from submission to its joules on each release of Slurm, whatever this machine has installed.

$SLURM_ENERGY_RELEASES names them: `host`, and Debian suites whose root file system scripts/lab-root.sh makes. Without
it the host's own is taken alone; `make releases` takes all. A missing one fails, unless $ALLOW_MISSING_RELEASES=1.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from energy_lab import DEFAULT_A100_MHZ, await_reports, drained, locked_clocks, submit_decided, until, workload
from lab_fixtures import EXACT, PATIENT, SMALL, require_lab

from slurm_energy.lab.cluster import Lab, LabSpec, start_lab
from slurm_energy.lab.jobs import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

REPOSITORY = Path(__file__).resolve().parents[2]
RELEASES = os.environ.get("SLURM_ENERGY_RELEASES", "host").split()
SLURM = {"trixie": "24.11", "forky": "26.05"}


def root_of(suite: str) -> Path | None:
    """Return the root file system of a suite, made where it is not there yet; None for the host's own."""
    if suite == "host":
        return None
    argv = ["sh", str(REPOSITORY / "scripts" / "lab-root.sh"), suite, sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode == 0:
        return Path(done.stdout.splitlines()[-1])
    if os.environ.get("ALLOW_MISSING_RELEASES") == "1":
        pytest.skip(f"{suite} cannot be had: {done.stderr[-300:]}")
    pytest.fail(f"{suite} cannot be had (ALLOW_MISSING_RELEASES=1 leaves it out): {done.stderr[-3000:]}")


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> Iterator[tuple[str, Lab]]:
    """A lab with one release of Slurm."""
    require_lab(energy=True)
    suite = str(request.param)
    spec = LabSpec(
        name=f"{suite}-{os.getpid()}", partitions=SMALL, settings=EXACT, plugin_settings=PATIENT, root=root_of(suite)
    )
    with start_lab(spec, owned=True) as lab:
        yield suite, lab


def test_the_lab_runs_the_release_that_was_asked_for(release: tuple[str, Lab]) -> None:
    suite, lab = release
    said = lab.run(["slurmctld", "-V"], check=True).stdout
    own = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    assert said == own if suite == "host" else SLURM.get(suite, "") in said


def test_a_job_is_decided_clocked_measured_and_leaves_no_clock(release: tuple[str, Lab]) -> None:
    _suite, lab = release
    job = submit_decided(lab, ["-p", "a100", "--gres=gpu:2", "-t", "5"], wrap=workload(300))
    assert len(until("locked clocks", lambda: locked_clocks(lab))) == 2
    wait_for(lab, job, {"COMPLETED"})
    (report,) = await_reports(lab, job)
    assert len(report.gpus) == 2
    for gpu in report.gpus:
        assert gpu.joules is not None
        assert gpu.joules > 0
        assert gpu.applied_clock_mhz is not None
        assert gpu.applied_clock_mhz < DEFAULT_A100_MHZ
    until("no locked clock", lambda: not locked_clocks(lab))
    assert not drained(lab)
