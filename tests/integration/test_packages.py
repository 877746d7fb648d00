"""The packages as they are built: what is in them, and sound scripts. Installing them is in tests/e2e/trial."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
HAS_SLURM = Path("/usr/include/slurm/slurm.h").exists()


def module(name: str) -> ModuleType:
    """Return a module of packaging/, which is no part of the installed project."""
    sys.path.insert(0, str(REPOSITORY / "packaging"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build every package once, without compression."""
    if shutil.which("dpkg-deb") is None or not HAS_SLURM:
        pytest.skip("needs dpkg-deb and Slurm's headers")
    folder = tmp_path_factory.mktemp("packages")
    trees = module("tree").lay_out(folder / "trees")
    module("deb").build_debs(trees, folder / "debs", compression="none")
    if shutil.which("rpmbuild") is not None:
        module("rpm").build_rpms(trees, folder / "rpms")
    return folder


def contents(built: Path, package: str) -> dict[str, str]:
    """Return path and permissions of what a Debian package has; of a link with where it leads."""
    (file,) = (built / "debs").glob(f"{package}_*.deb")
    lines = said(["dpkg-deb", "--contents", str(file)]).splitlines()
    return {line.split(None, 5)[5].removeprefix("."): line.split()[0] for line in lines}


def said(argv: list[str]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("package", "paths"),
    [
        (
            "slurm-energy",
            (
                "/usr/bin/slurm-energy -> /usr/lib/slurm-energy/bin/slurm-energy",
                "/usr/bin/energy-sbatch -> /usr/lib/slurm-energy/bin/energy-sbatch",
                "/usr/lib/slurm-energy/plugins/spank_energy.so",
                "/usr/share/man/man1/slurm-energy.1.gz",
                "/usr/share/bash-completion/completions/slurm-energy",
            ),
        ),
        (
            "slurm-energy-controller",
            (
                "/usr/bin/slurm-energyd -> /usr/lib/slurm-energy/bin/slurm-energyd",
                "/usr/lib/slurm-energy/plugins/job_submit_energy.so",
                "/usr/lib/systemd/system/slurm-energyd.service",
                "/usr/lib/systemd/system/slurmctld.service.d/slurm-energy.conf",
            ),
        ),
        (
            "slurm-energy-node",
            (
                "/usr/bin/tru_",
                "/usr/lib/systemd/system/slurm-energy-repair.timer",
                "/usr/share/man/man8/slurm-energy-hook.8.gz",
            ),
        ),
        ("slurm-energy-login", ("/usr/share/doc/slurm-energy-login/examples/train.sbatch",)),
    ],
)
def test_each_role_has_its_commands_units_and_pages(built: Path, package: str, paths: tuple[str, ...]) -> None:
    found = contents(built, package)
    assert [path for path in paths if path not in found] == []
    # Settings are written when a package is configured: nothing of the site's is a file of a package.
    assert [path for path in found if path.startswith(("/etc", "/var", "/usr/local", "/opt"))] == []


def test_every_role_needs_the_common_package_of_its_own_version_and_names_its_slurm(built: Path) -> None:
    for role in ("controller", "node", "login"):
        (file,) = (built / "debs").glob(f"slurm-energy-{role}_*.deb")
        version = said(["dpkg-deb", "--field", str(file), "Version"]).strip()
        slurm = said(["dpkg-deb", "--field", str(file), "Slurm-Version"]).strip()
        assert version.endswith(f"+slurm{slurm}")
        assert said(["dpkg-deb", "--field", str(file), "Depends"]).strip() == f"slurm-energy (= {version})"


def test_the_environment_runs_without_this_checkout_and_has_neither_torch_nor_a_path_of_the_build(built: Path) -> None:
    root = built / "trees" / "slurm-energy" / "usr" / "lib" / "slurm-energy"
    argv = [str(root / "bin" / "python"), "-I", "-c", "import slurm_energy.cli.main as m; print(m.__file__)"]
    assert said(argv).startswith(str(root))
    names = {path.name.partition("-")[0] for path in root.rglob("*.dist-info")}
    assert "sqlalchemy" in names
    assert {"torch", "numpy", "pip"} & names == set()
    for script in (root / "bin").iterdir():
        if not script.is_symlink():
            assert script.read_text().startswith("#!/usr/lib/slurm-energy/bin/python"), script.name


def test_hook_and_units_are_what_install_would_write_on_the_host(built: Path) -> None:
    node = built / "trees" / "slurm-energy-node" / "usr"
    assert "/usr/lib/slurm-energy/bin/python" in (node / "bin" / "tru_").read_text()
    flush = (node / "lib" / "systemd" / "system" / "slurm-energy-flush.service").read_text()
    assert "ExecStart=/usr/lib/slurm-energy/bin/python -I -m slurm_energy.node.main flush" in flush


def test_scripts_of_the_packages_are_sound_shell(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not here")
    packages = module("tree").PACKAGES
    for package in packages:
        for name, text in module("deb").scripts(package).items():
            (tmp_path / f"{package.name}.{name}").write_text(text)
        for name, text in module("rpm").scriptlets(package).items():
            (tmp_path / f"{package.name}.rpm-{name}").write_text(f"#!/bin/sh\n{text}")
    files = sorted(map(str, (*tmp_path.iterdir(), *(REPOSITORY / "packaging" / "scripts").glob("*.sh"))))
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_rpms_have_the_same_files_as_debs(built: Path) -> None:
    if shutil.which("rpmbuild") is None:
        pytest.skip("rpmbuild is not here")
    for role in ("controller", "node", "login"):
        (file,) = (built / "rpms").glob(f"slurm-energy-{role}-*.rpm")
        listed = set(said(["rpm", "-qlp", str(file)]).splitlines())
        ours = {path.partition(" -> ")[0] for path in contents(built, f"slurm-energy-{role}") if not path.endswith("/")}
        documents = ("/usr/share/doc", "/usr/share/licenses")
        assert {path for path in ours - listed if not path.startswith(documents)} == set()
        assert "maintain.sh configure" in said(["rpm", "-qp", "--scripts", str(file)])
