"""Where files that travel with the package lie: templates, migrations, plugin sources."""

from pathlib import Path

from slurm_energy.errors import ConfigError

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
