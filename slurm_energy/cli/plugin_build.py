"""Compiling the Slurm plugins on this host."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_energy.errors import ConfigError
from slurm_energy.resources import shared_directory
from slurm_energy.slurm.plugin_file import Release

BUILD_SECONDS = 300.0
_NUMBER = re.compile(r"^\s*#\s*define\s+SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]{6})\b", re.MULTILINE)


@contextmanager
def built_plugins(include: Path | None = None, seconds: float = BUILD_SECONDS) -> Iterator[Path]:
    """Yield a folder with freshly compiled plugins.

    Args:
        include: Folder that holds slurm/slurm.h; None: where the compiler finds it.
        seconds: How long it may take.

    Raises:
        ConfigError: they cannot be compiled here.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-energy-build-") as folder:
        argv = ["make", "--no-print-directory", "-C", str(shared_directory("plugin")), f"BUILD={folder}"]
        argv += [] if include is None else [f"SLURM_INCLUDE={include}"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"the plugins cannot be compiled: {error}; install make and gcc") from error
        if done.returncode != 0:
            raise ConfigError(f"the plugins cannot be compiled:\n{(done.stdout + done.stderr)[-2000:]}")
        yield Path(folder)


def headers_of(release: Release, program: Path) -> Path | None:
    """Return the folder with Slurm's headers of this release's series: beside the program, else the usual ones."""
    beside = program.resolve().parent.parent / "include"
    for folder in (beside, Path("/usr/include"), Path("/usr/local/include"), Path("/usr/include/slurm-wlm")):
        try:
            text = (folder / "slurm" / "slurm_version.h").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        match = _NUMBER.search(text)
        if match is not None and int(match[1], 16) >> 8 == release.year << 8 | release.month:
            return folder
    return None
