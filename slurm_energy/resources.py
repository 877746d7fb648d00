"""Where files that travel with the package lie, and how what does not travel with it is installed."""

import re
import sys
from importlib import metadata
from pathlib import Path

from slurm_energy.errors import ConfigError

INSTALL_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Without CUDA: what pip takes by itself is several GB, and neither daemon nor tests need a GPU."""
PIP_BESIDE_PACKAGE = "python3 -m venv /root/pip && /root/pip/bin/pip"
PACKAGE_FOLDER = Path("/usr/lib/slurm-energy")
"""The environment of Debian's and RPM packages."""
MORE_MODULES = Path("/usr/local/lib/slurm-energy/site-packages")
"""Where an administrator puts further modules for it: no package has a file there, and updates leave it alone."""
PACKAGED_EXTRAS = ("mariadb", "postgresql", "script")
"""What the packages have of the extras."""
_DPKG_LIST = Path("/var/lib/dpkg/info/slurm-energy.list")
_EXTRAS_WITH_TORCH = frozenset({"daemon", "train"})
_PACKAGE = Path(__file__).resolve().parent


def shared_directory(name: str) -> Path:
    """Return the folder `templates`, `migrations` or `plugin`, from the wheel or from the source tree.

    Raises:
        ConfigError: the installation lacks the folder.
    """
    for candidate in (_PACKAGE / "_shared" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"folder {name} is missing from the installation at {_PACKAGE}: install the package again")


def install_command(extra: str, prefix: Path | None = None, dpkg_list: Path = _DPKG_LIST) -> str:
    """Return how to install an extra here: beside a distribution's package, or from a clone or a wheel.

    No package index has this package, and the packages' environment has no pip of its own.

    Args:
        extra: Name of the extra.
        prefix: Of the interpreter; None: this one's.
        dpkg_list: File that is there where the package came through apt.
    """
    if (prefix or Path(sys.prefix)) == PACKAGE_FOLDER:
        if extra in PACKAGED_EXTRAS:
            return "apt-get install --reinstall slurm-energy" if dpkg_list.exists() else "dnf reinstall slurm-energy"
        wanted = " ".join(f"'{item}'" for item in _requirements(extra))
        index = " --extra-index-url https://download.pytorch.org/whl/cpu" if extra in _EXTRAS_WITH_TORCH else ""
        return f"{PIP_BESIDE_PACKAGE} install --target {MORE_MODULES} {wanted}{index}"
    first = f"{INSTALL_TORCH} && " if extra in _EXTRAS_WITH_TORCH else ""
    return f"{first}pip install './slurm-energy[{extra}]'"


def _requirements(extra: str) -> list[str]:
    """Return what an extra needs, with the extras of this package that it names resolved."""
    try:
        stated = metadata.requires("slurm-energy") or []
    except metadata.PackageNotFoundError:
        return []
    found: list[str] = []
    for line in stated:
        requirement, _, marker = line.partition(";")
        if f"extra == '{extra}'" not in marker.replace('"', "'"):
            continue
        own = re.match(r"slurm[-_]energy\[([^]]*)\]", requirement.strip())
        found += [item for name in own[1].split(",") for item in _requirements(name)] if own else [requirement.strip()]
    return list(dict.fromkeys(found))
