"""The Slurm that $SLURM_ENERGY_RELEASE names: plugins compiled by its own compiler, and one job down to its joules.

`make releases` runs these, and the files of its quick form, on each release.
"""

import subprocess
from pathlib import Path

import pytest
from energy_lab import DEFAULT_A100_MHZ, await_reports, drained, locked_clocks, submit_decided, until, workload
from lab_fixtures import RELEASE, StartLab, release_root

from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import wait_for
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.root import entry_argv

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

PLUGIN = Path(__file__).resolve().parents[2] / "plugin"
SLURM = {"trixie": "24.11", "forky": "26.05"}


@pytest.fixture
def small(new_lab: StartLab) -> Lab:
    """A lab of one node with everything of ours."""
    return new_lab(energy=True)


def test_plugins_compile_without_a_warning_and_pass_their_tests_under_the_sanitizers(tmp_path: Path) -> None:
    root = release_root()
    entry = [] if root is None else entry_argv(root, Layout(tmp_path))
    make = ["make", "--no-print-directory", "-C", str(PLUGIN), f"BUILD={tmp_path}"]
    for target in (["all", "WERROR=-Werror"], ["test"]):
        done = subprocess.run([*entry, *make, *target], capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        assert done.stderr == ""


def test_a_job_is_decided_clocked_measured_and_leaves_no_clock(small: Lab) -> None:
    said = small.run(["slurmctld", "-V"], check=True).stdout
    own = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    assert "slurm-energy" in small.run(["slurm-energy", "--version"], check=True, timeout=90).stdout
    assert said == own if RELEASE == "host" else SLURM.get(RELEASE, "") in said

    job = submit_decided(small, ["-p", "a100", "--gres=gpu:2", "-t", "5"], wrap=workload(300))
    assert len(until("locked clocks", lambda: locked_clocks(small))) == 2
    wait_for(small, job, {"COMPLETED"})
    (report,) = await_reports(small, job)
    assert len(report.gpus) == 2
    for gpu in report.gpus:
        assert gpu.joules is not None
        assert gpu.joules > 0
        assert gpu.applied_clock_mhz is not None
        assert gpu.applied_clock_mhz < DEFAULT_A100_MHZ
    until("no locked clock", lambda: not locked_clocks(small))
    assert not drained(small)
