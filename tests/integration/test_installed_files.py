"""What `install` writes, as the system's own programs read it, and commands at the head of a pipe."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_energy.cli.installing.commands import MAN_FOLDER, command_files
from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import InstallOptions
from slurm_energy.config import Config
from slurm_energy.lab import products
from slurm_energy.lab.host import Host
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.spec import LabSpec

SLURM_CONF = """ClusterName=north
SlurmctldHost=ctl1(10.0.0.1)
SlurmUser=slurmadm
JobSubmitPlugins=lua
"""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    root, units = tmp_path / "root", tmp_path / "units"
    (root / "etc/slurm").mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu/slurm-wlm").mkdir(parents=True)
    (root / "etc/slurm/slurm.conf").write_text(SLURM_CONF, encoding="utf-8")
    units.mkdir()
    options = InstallOptions(root=root, python=Path("/opt/venv/bin/python"))
    for item in Installation(Config(), options, environment={}).files():
        path = Path(item.path)
        if item.link_to is None and path.is_relative_to("/etc/systemd/system"):
            unit = units / path.relative_to("/etc/systemd/system")
            unit.parent.mkdir(exist_ok=True)
            unit.write_text(item.content.decode().replace("/opt/venv/bin/python", "/bin/true"))
    # The drop-in is read with the unit that it belongs to.
    (units / "slurmctld.service").write_text("[Service]\nExecStart=/bin/true\n")
    names = sorted(str(path) for path in units.iterdir() if path.is_file())
    assert len(names) == 8
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False
    )
    ours = [line for line in result.stderr.splitlines() if "slurm-energy" in line]
    assert ours == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_finds_no_fault_in_the_pages(tmp_path: Path) -> None:
    pages = [
        item
        for item in command_files(("node", "controller"), Path("/opt/slurm-energy/bin/python"), tmp_path, [])
        if Path(item.path).is_relative_to(MAN_FOLDER)
    ]
    assert pages
    for page in pages:
        command = ["groff", "-Kutf8", "-man", "-ww", "-z"]
        done = subprocess.run(command, input=page.content, capture_output=True, check=True)
        assert done.stderr == b"", page.path


@pytest.mark.parametrize("words", ["config show", "--help"])
def test_a_reader_that_went_away_costs_no_message(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ENERGY_STORE_URL", f"sqlite:///{tmp_path}/energy.sqlite")
    command = f"{sys.executable} -m slurm_energy.cli.main {words} | true"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_shell_variables_keep_a_path_with_blanks_and_quotes_whole() -> None:
    layout = Layout(Path("/tmp/it's a $(lab)"))
    host = Host(slurm_version=(22, 5), plugin_directory=Path("/usr/lib/x/slurm-wlm"), network="veth", devices="mknod")

    text = products.environment_file(LabSpec(), layout, host, Path("/opt/venv/bin/python"))
    said = subprocess.run(
        ["sh", "-c", f'{text}\nprintf %s "$LAB_DIRECTORY"'], capture_output=True, text=True, check=True, timeout=120
    )

    assert said.stdout == "/tmp/it's a $(lab)"
