"""scripts/bootstrap.sh where it must not install anything: in a mount namespace with another system's os-release."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMESPACE = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
INSTALLERS = ("apt-get", "apt", "dpkg", "dnf", "yum", "zypper", "apk", "pacman", "sudo", "pip", "tee", "chmod")
"""What would change the machine; stand-ins of these names write down every call."""
ON_FEDORA = 'ID=fedora\nVERSION_ID=42\nNAME="Fedora Linux"\n'


class Host:
    """A copy of the scripts, and a PATH on which nothing can be installed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.calls = folder / "calls"
        self.release = folder / "os-release"
        self._bin = folder / "bin"
        self._bin.mkdir()
        shutil.copytree(SCRIPTS, self.root / "scripts")
        for name in (*INSTALLERS, "python"):
            stand_in = self._bin / name
            stand_in.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.calls}"\nexit 0\n')
            stand_in.chmod(0o755)

    def bootstrap(self, *words: str, os_release: str = ON_FEDORA) -> subprocess.CompletedProcess[str]:
        """Run the script as if on that system."""
        self.release.write_text(os_release)
        inside = f'mount --bind "{self.release}" /etc/os-release && exec sh "{self.root}/scripts/bootstrap.sh" "$@"'
        environment = {"PATH": f"{self._bin}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": str(self._bin / "python")}
        return subprocess.run(
            [*NAMESPACE, "sh", "-c", inside, "sh", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def untouched(self) -> bool:
        """Return whether no installer was called and nothing was made."""
        return not self.calls.exists() and [path.name for path in self.root.iterdir()] == ["scripts"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make a mount namespace")
    return Host(tmp_path)


@pytest.mark.parametrize(("purpose", "package"), [("demo", "slurmctld"), ("test", "mariadb-server-core")])
def test_another_system_is_told_the_packages_and_nothing_is_installed(host: Host, purpose: str, package: str) -> None:
    done = host.bootstrap(purpose)
    assert done.returncode == 1
    assert "this is fedora 42" in done.stderr
    assert {"munge", "gcc", "python3-venv", package} <= set(done.stderr.split())
    assert "SLURM_ENERGY_SKIP_PACKAGES=1" in done.stderr
    assert host.untouched()


@pytest.mark.parametrize("release", ["", "ID=debian\nVERSION_ID=11\n", "ID=ubuntu\nVERSION_ID=24.04\nID_LIKE=debian\n"])
def test_a_system_that_is_only_like_debian_12_installs_nothing_either(host: Host, release: str) -> None:
    assert host.bootstrap("demo", os_release=release).returncode == 1
    assert host.untouched()


@pytest.mark.parametrize("release", ["ID=debian\nVERSION_CODENAME=forky\n", "ID=debian\nVERSION_ID=14\n"])
def test_a_debian_after_12_is_set_up_also_where_it_has_no_number_yet(host: Host, release: str) -> None:
    done = host.bootstrap("unit", os_release=release)
    assert "packages are installed by this script" not in done.stderr
    assert f"python -m venv {host.root}/.venv" in host.calls.read_text()


@pytest.mark.parametrize(
    ("found", "said"), [("nvidia-cublas", True), ("torch", False)], ids=["build with CUDA", "build without"]
)
def test_the_size_of_a_torch_with_cuda_is_said_before_it_is_taken(host: Host, found: str, said: bool) -> None:
    programs = host.root / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("pip", "python"):
        (programs / name).write_text(f"""#!/bin/sh\ncase "$*" in *--report*) echo '"name": "{found}"' ;; esac\n""")
        (programs / name).chmod(0o755)
    (host.root / "pyproject.toml").touch()
    (host.root / "constraints.txt").touch()
    done = host.bootstrap("unit", os_release="ID=debian\nVERSION_ID=12\n")
    assert done.returncode == 0
    assert ("about 5 GB" in done.stderr) is said


@pytest.mark.parametrize("words", [("demoo",), ("--help",), ("demo test",)])
def test_an_unknown_purpose_is_wrong_usage(host: Host, words: tuple[str, ...]) -> None:
    done = host.bootstrap(*words, os_release="ID=debian\nVERSION_ID=12\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: scripts/bootstrap.sh demo|package|unit|test" in done.stderr
    assert host.untouched()
