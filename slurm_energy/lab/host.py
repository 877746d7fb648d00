"""What this machine offers: programs, accounts, Slurm's version, and what the kernel allows."""

import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurm_energy.errors import LabError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "sinfo": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "flock": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "gcc": "gcc",
}
_ACCOUNTING_PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
_PLUGIN_PROGRAMS = {"make": "make", "cc": "gcc"}
_ACCOUNTS = {"slurm": "slurmctld", "munge": "munge"}

# Prints what it could do; each line is one kind of network or device node.
_NETWORK_PROBE = """
ip link set lo up || exit 1
for kind in veth dummy; do
    case $kind in veth) peer='peer name lab1' ;; *) peer='' ;; esac
    ip link add lab0 type $kind $peer && ip addr add 192.0.2.1/24 dev lab0 && echo $kind && exit 0
done
"""
_DEVICE_PROBE = 'mount -t tmpfs tmpfs "$1" && mknod "$1/probe" c 195 0 && test -c "$1/probe" && echo mknod'


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine a lab runs on.

    Attributes:
        slurm_version: Year and month of the release, such as (22, 5).
        plugin_directory: Slurm's own plugins.
        network: Kind of interface a private network gets; `host`: no private network can be had.
        devices: `mknod`: device nodes of our own; `tty`: /dev/ttyN stand in for them.
        private: Whether the lab makes its own namespaces or already is alone in a container.
    """

    slurm_version: tuple[int, int]
    plugin_directory: Path
    network: Literal["veth", "dummy", "host"]
    devices: Literal["mknod", "tty"]
    private: Literal["namespace", "container"] = "namespace"


def slurm_version(text: str) -> tuple[int, int]:
    """Return year and month from `slurmctld -V`, such as "slurm-wlm 22.05.8" or "slurm 24.11.5"."""
    match = re.search(r"\b(\d{2})\.(\d{2})\b", text)
    if match is None:
        raise LabError(f"slurmctld -V says {text[:80]!r}, no version such as 24.11 is in it")
    return int(match.group(1)), int(match.group(2))


def missing_packages(
    *, accounting: bool, energy: bool, which: Callable[[str], str | None] | None = None
) -> dict[str, str]:
    """Return the programs that this machine lacks, with the Debian package of each."""
    find = which or (lambda program: shutil.which(program, path=SYSTEM_PATH))
    needed = _PROGRAMS | (_ACCOUNTING_PROGRAMS if accounting else {}) | (_PLUGIN_PROGRAMS if energy else {})
    missing = {program: package for program, package in needed.items() if find(program) is None}
    folder = _plugin_directory()
    if folder is not None:
        if not (folder / "auth_munge.so").exists():
            missing["auth_munge.so"] = "slurm-wlm-basic-plugins"
        if accounting and not (folder / "accounting_storage_mysql.so").exists():
            missing["accounting_storage_mysql.so"] = "slurm-wlm-mysql-plugin"
    if not Path("/usr/include/string.h").exists():
        missing["string.h"] = "libc6-dev"
    if energy and not Path("/usr/include/slurm/slurm.h").exists():
        missing["slurm/slurm.h"] = "libslurm-dev"
    return missing


def unusable_reason(*, accounting: bool = False, energy: bool = False) -> str | None:
    """Return why no lab can start here, or None."""
    if os.geteuid() != 0:
        return "a lab needs root: namespaces, device nodes and slurmd do; try sudo"
    missing = missing_packages(accounting=accounting, energy=energy)
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        return f"a lab needs {', '.join(sorted(missing))}: apt-get install --no-install-recommends {packages}"
    for account, package in _ACCOUNTS.items():
        try:
            pwd.getpwnam(account)
        except KeyError:
            return f"a lab needs the account {account!r}, which Debian's package {package} makes: install it again"
    return None


def inspect_host(*, accounting: bool, energy: bool, container: bool = False) -> Host:
    """Return what this machine offers.

    Raises:
        LabError: not root, or programs or accounts are missing; the message names the Debian packages.
    """
    reason = unusable_reason(accounting=accounting, energy=energy)
    if reason is not None:
        raise LabError(reason)
    folder = _plugin_directory()
    if folder is None:
        raise LabError("Slurm's plugin folder is in none of /usr/lib/*/slurm-wlm and /usr/lib/*/slurm")
    return Host(
        slurm_version=slurm_version(_output(["slurmctld", "-V"])),
        plugin_directory=folder,
        network="host" if container else _network(),
        devices=_container_devices() if container else _devices(),
        private="container" if container else "namespace",
    )


def exposed_paths(directory: Path) -> list[Path]:
    """Return the folders that the lab's users must be able to read: the lab, the interpreter and this package."""
    package = Path(__file__).resolve().parents[1]
    wanted = [directory, Path(sys.prefix), Path(sys.base_prefix), package.parent]
    interpreter = Path(sys.executable).resolve().parents[1]
    return [path for path in dict.fromkeys([*wanted, interpreter]) if path not in (Path("/"), Path("/usr"))]


def free_ports(number: int) -> list[int]:
    """Return TCP ports of the loopback interface that no program listens on just now."""
    import socket  # noqa: PLC0415  # only where no private network can be had

    sockets = [socket.socket() for _ in range(number)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [int(item.getsockname()[1]) for item in sockets]
    finally:
        for item in sockets:
            item.close()


def _plugin_directory() -> Path | None:
    for pattern in ("*/slurm-wlm", "*/slurm", "slurm-wlm", "slurm"):
        for folder in sorted(Path("/usr/lib").glob(pattern)):
            if any(folder.glob("select_*.so")):
                return folder
    return None


def _network() -> Literal["veth", "dummy", "host"]:
    said = _probe(["unshare", "--net", "sh", "-c", _NETWORK_PROBE])
    return "veth" if said == "veth" else "dummy" if said == "dummy" else "host"


def _devices() -> Literal["mknod", "tty"]:
    # Any folder does: the mount is private to the probe.
    said = _probe(["unshare", "--mount", "--propagation", "private", "sh", "-c", _DEVICE_PROBE, "sh", "/mnt"])
    return "mknod" if said == "mknod" else "tty"


def _container_devices() -> Literal["mknod", "tty"]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(f"{folder}/probe", stat.S_IFCHR | 0o666, os.makedev(195, 0))
        except OSError as error:
            if Path("/dev/tty0").exists():
                return "tty"
            raise LabError("this container may make no device nodes: run it with --cap-add=MKNOD") from error
    return "mknod"


def _probe(argv: list[str]) -> str:
    try:
        return _output(argv, check=False).strip()
    except LabError:
        return ""


def _output(argv: list[str], *, check: bool = True) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=20, check=check, env={"PATH": SYSTEM_PATH, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"{argv[0]} failed: {error}") from error
    return done.stdout
