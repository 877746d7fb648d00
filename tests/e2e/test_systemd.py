"""The units of `install` under a real systemd: process 1 in namespaces, over a copy of this host's files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab_fixtures import REQUIRE_VARIABLE, require_lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(640), pytest.mark.long]

HERE = Path(__file__).parent
REPO = HERE.parents[1]
NAMESPACES = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "--kill-child"]
UNABLE = 77


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each step of systemd_steps.sh said, by its name."""
    require_lab(energy=True)
    if os.geteuid() != 0 or not Path("/lib/systemd/systemd").exists():
        _skip("needs root and systemd")
    folder = tmp_path_factory.mktemp("systemd")
    (folder / "host").mkdir()
    shutil.copy(HERE / "systemd_steps.sh", folder / "steps.sh")
    needed = dict.fromkeys(str(path) for path in (REPO, sys.prefix, sys.base_prefix) if not _is_below(path, "/usr"))
    program = ["bash", str(HERE / "systemd_host.sh"), str(folder), str(Path(sys.prefix) / "bin"), *needed]
    done = subprocess.run([*NAMESPACES, *program], capture_output=True, text=True, timeout=580, check=False)
    if done.returncode == UNABLE:
        _skip(done.stderr.strip())
    said = (folder / "out").read_text() if (folder / "out").exists() else ""
    assert said, done.stdout[-2000:] + done.stderr[-2000:]
    parts = (part.partition("\n") for part in said.split("\n=== ")[1:])
    return {name: text for name, _, text in parts}


def _is_below(path: Path | str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _skip(reason: str) -> None:
    if os.environ.get(REQUIRE_VARIABLE) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def test_slurmctld_starts_with_the_plugin_that_install_wrote(steps: dict[str, str]) -> None:
    assert steps["start"].startswith("slurmctld active"), steps["install"]
    assert "JobSubmitPlugins=energy" in steps["start"]
    assert "job_submit_energy.so, built for Slurm" in steps["start"]


def test_a_damaged_plugin_is_restored_before_the_start(steps: dict[str, str]) -> None:
    said = steps["a damaged plugin"]
    assert said.startswith("slurmctld active")
    assert "is restored from its copy" in said
    assert "JobSubmitPlugins=energy" in said


def test_without_plugin_and_compiler_energy_leaves_the_list_and_comes_back_with_the_compiler(
    steps: dict[str, str],
) -> None:
    said = steps["no plugin and no compiler"]
    assert said.startswith("slurmctld active")
    assert "no JobSubmitPlugins" in said
    assert "energy is removed from JobSubmitPlugins" in said
    said = steps["the compiler is back"]
    assert said.startswith("slurmctld active")
    assert "is recompiled for Slurm" in said
    assert "JobSubmitPlugins=energy" in said


@pytest.mark.parametrize("step", ["no interpreter", "a check that hangs"])
def test_a_check_that_fails_or_hangs_does_not_keep_slurmctld_from_starting(steps: dict[str, str], step: str) -> None:
    assert steps[step].startswith("slurmctld active")


def test_the_daemon_runs_under_the_limits_of_its_unit(steps: dict[str, str]) -> None:
    said = steps["the daemon"]
    assert said.startswith("slurm-energyd active"), said
    assert "User=slurm" in said
    assert "NRestarts=0" in said


def test_the_timers_of_a_node_run_their_services(steps: dict[str, str]) -> None:
    assert steps["the timers"].splitlines()[:2] == ["repair active success", "flush active success"]


def test_uninstall_leaves_a_slurmctld_that_starts_and_no_unit(steps: dict[str, str]) -> None:
    said = steps["uninstall"]
    assert "slurmctld active" in said
    assert "no JobSubmitPlugins" in said
    assert "units left: 0" in said
