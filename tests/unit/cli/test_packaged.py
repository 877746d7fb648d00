"""Install and uninstall on a host that has slurm-energy as a distribution's package."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import InstallOptions
from slurm_energy.cli.main import cli
from slurm_energy.config import Config, parse_config

PYTHON = Path("/usr/lib/slurm-energy/bin/python")
PLUGINS = "usr/lib/x86_64-linux-gnu/slurm-wlm"
FLUSH = "slurm-energy-flush.service"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("etc/slurm", "etc/systemd/system", "usr/lib/systemd/system", "usr/local/bin", PLUGINS):
        (root / folder).mkdir(parents=True)
    (root / "etc/slurm/slurm.conf").write_text("ClusterName=north\nSlurmctldHost=ctl1\n")
    return root


def planned(root: Path, role: str, config: Config | None = None) -> dict[str, PlannedFile]:
    options = InstallOptions(root=root, roles=(role,), python=PYTHON, by_package=True)
    return {item.path.name: item for item in Installation(config or Config(), options, {}).files()}


def test_a_unit_that_the_package_has_is_not_written_and_an_earlier_one_in_etc_is_removed(root: Path) -> None:
    unit = planned(root, "node")[FLUSH]
    assert not unit.absent
    (root / "usr/lib/systemd/system" / FLUSH).write_bytes(unit.content)
    assert planned(root, "node")[FLUSH].absent


def test_a_unit_that_this_sites_settings_change_is_written(root: Path) -> None:
    (root / "usr/lib/systemd/system" / FLUSH).write_bytes(planned(root, "node")[FLUSH].content)
    other = parse_config({"node": {"spool_directory": "/data/spool"}}, "test", {})
    assert not planned(root, "node", other)[FLUSH].absent


def test_links_of_an_earlier_install_are_removed_and_a_command_of_someone_else_stays(root: Path) -> None:
    (root / "usr/local/bin/slurm-energy").symlink_to("/opt/slurm-energy/bin/slurm-energy")
    (root / "usr/local/bin/energy-sbatch").write_text("#!/bin/sh\n")
    found = planned(root, "login")
    assert found["slurm-energy"].absent
    assert "energy-sbatch" not in found


def test_plugstack_conf_of_the_site_stays_and_the_line_for_it_is_named(root: Path) -> None:
    path = root / "etc/slurm/plugstack.conf"
    path.write_text("optional /site/other.so\n")
    options = InstallOptions(root=root, roles=("login",), python=PYTHON, by_package=True)
    installation = Installation(Config(), options, {})
    assert Path("/etc/slurm/plugstack.conf") not in {item.path for item in installation.files()}
    assert any("Add:  include /etc/slurm-energy/plugstack.conf" in remark for remark in installation.remarks)
    path.unlink()
    assert Path("/etc/slurm/plugstack.conf") in {item.path for item in installation.files()}


def test_removed_while_slurm_conf_names_the_plugin_its_file_stays_and_is_named(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text("ClusterName=north\nSlurmctldHost=ctl1\nJobSubmitPlugins=energy\n")
    plugin = root / PLUGINS / "job_submit_energy.so"
    plugin.write_bytes(b"plugin")
    words = ["uninstall", "--root", str(root), "--role", "controller", "--yes"]
    refused = CliRunner().invoke(cli, words, standalone_mode=False)
    assert "slurm.conf still names" in str(refused.exception)
    done = CliRunner().invoke(cli, [*words, "--by-package"], standalone_mode=False)
    assert done.return_value == 0
    assert f"/{PLUGINS}/job_submit_energy.so stays" in done.stderr
    assert plugin.exists()
    assert conf.read_text().endswith("JobSubmitPlugins=energy\n")
