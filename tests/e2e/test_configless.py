"""A node that gets its configuration from slurmctld: where our files are looked up there, and what is left alone."""

from collections.abc import Callable

import pytest
from energy_lab import await_reports, drained, locked_clocks, submit_decided, until, workload

from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import wait_for

pytestmark = pytest.mark.lab

StartLab = Callable[..., Lab]

# Runs a command on a host of its own: with an /etc that has no slurm.conf and ours in its usual place.
ON_A_HOST = """
set -e
lab=$1 && shift
rm -rf "$lab/host-etc" && cp -a /etc "$lab/host-etc"
rm -rf "$lab/host-etc/slurm" && mkdir -p "$lab/host-etc/slurm-energy"
sed '/^"slurm_conf"/d' "$lab/etc/slurm-energy.toml" >"$lab/host-etc/slurm-energy/slurm-energy.toml"
mount --bind "$lab/host-etc" /etc
unset SLURM_CONF SLURM_ENERGY_CONFIG
exec "$@"
"""


def on_a_host(lab: Lab, *argv: str, timeout: float = 60) -> str:
    words = ["unshare", "--mount", "/bin/sh", "-c", ON_A_HOST, "sh", str(lab.directory), *argv]
    done = lab.run(words, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def lab(new_lab: StartLab) -> Lab:
    """A lab whose node runs a slurmd without any slurm.conf."""
    running = new_lab(energy=True, slurm_conf_lines=("SlurmctldParameters=enable_configless",))
    (node,) = running.spec.node_names
    running.kill_slurmd(node)
    on_a_host(running, "slurmd", "--conf-server", "127.0.0.1:6817", "-N", node)
    until("node that is idle again", lambda: drained(running) == {})
    return running


def test_hooks_find_their_settings_beside_no_slurm_conf(lab: Lab) -> None:
    (node,) = lab.spec.node_names
    cache = lab.run(["readlink", "-f", "/run/slurm/conf"], check=True).stdout.strip()
    assert cache.endswith("/conf-cache")
    before = lab.run(["ls", cache], check=True).stdout
    job = submit_decided(lab, ["-p", "a100", "--gres=gpu:1", "-t", "20", "--energy=saver"], wrap=workload(600))
    until("clock of the job's GPU", lambda: [key for key in locked_clocks(lab) if key[0] == node])
    wait_for(lab, job, {"COMPLETED"})
    (report,) = await_reports(lab, job)
    assert report.gpus[0].joules
    assert locked_clocks(lab) == {}
    assert drained(lab) == {}
    assert lab.run(["ls", cache], check=True).stdout == before


@pytest.mark.parametrize("role", ["node", "login"])
def test_nothing_is_written_into_slurmds_cache(lab: Lab, role: str) -> None:
    said = on_a_host(lab, "slurm-energy", "install", "--role", role, "--dry-run", "--diff")
    assert "+++ /run/" not in said
    assert "conf-cache/" not in said
    assert "+++ /etc/slurm-energy/plugstack.conf" in said


def test_a_host_without_the_plugin_has_no_error_from_a_shared_plugstack_conf(lab: Lab) -> None:
    (lab.layout.etc / "plugstack.conf").write_text("include /etc/slurm-energy/plugstack.conf\n")
    said = on_a_host(lab, "setpriv", "--reuid=alice", "--clear-groups", "sbatch", "-o/dev/null", "-t5", "--wrap=true")
    assert "Submitted batch job" in said
    assert "error" not in said.lower()
