"""Where files that travel with the package lie, and how what does not travel with it is installed."""

from pathlib import Path

from slurm_energy.errors import ConfigError

INSTALL_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Without CUDA: what pip takes by itself is several GB, and neither daemon nor tests need a GPU."""
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


def install_command(extra: str) -> str:
    """Return how to install an extra: from a clone or a wheel, because no package index has this package."""
    first = f"{INSTALL_TORCH} && " if extra in _EXTRAS_WITH_TORCH else ""
    return f"{first}pip install './slurm-energy[{extra}]'"
