"""The product's own parts in a lab: plugin and hooks, built or copied into its folder."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.host import SYSTEM_PATH, Host
from slurm_energy.lab.layout import Layout
from slurm_energy.resources import shared_directory

_BUILD_TIMEOUT_SECONDS = 300
_SPANK_PLUGIN = "spank_energy.so"
_JOB_SUBMIT_PLUGIN = "job_submit_energy.so"


def cache_directory() -> Path:
    """Return the folder of what is built once for all labs: $XDG_CACHE_HOME or ~/.cache, slurm-energy."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "slurm-energy"


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time build in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_plugin(layout: Layout, host: Host) -> None:
    """Build Slurm's plugins for this machine's Slurm, copy them into the lab and write its plugstack.conf."""
    source = shared_directory("plugin")
    if not (source / "Makefile").is_file():
        raise LabError(f"{source} has no Makefile: this installation cannot build the plugin; try a lab without it")
    # Each checkout has its own: make compares times of files, and would take another's objects for its own.
    checkout = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]
    build = cache_directory() / f"plugin-{host.slurm_version[0]}.{host.slurm_version[1]:02d}-{checkout}"
    with build_lock(build):
        make(source, build)
        libraries = sorted(build.rglob("*.so"))
        for library in libraries:
            shutil.copy2(library, layout.plugins / library.name)
    if not (layout.plugins / _JOB_SUBMIT_PLUGIN).exists():
        raise LabError(f"{source}/Makefile made no {_JOB_SUBMIT_PLUGIN} in {build}, but {[p.name for p in libraries]}")
    spank = layout.plugins / _SPANK_PLUGIN
    lines = [f"optional {spank}\n"] if spank.exists() else []
    (layout.etc / "plugstack.conf").write_text("".join(lines))


def install_hooks(layout: Layout, python: Path) -> None:
    """Write the hook into prolog.d and epilog.d of the lab, set to this interpreter as `slurm-energy install` does."""
    source = shared_directory("plugin") / "hook" / "slurm-energy.sh"
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise LabError(f"{source} cannot be read: this installation has no hooks; try a lab without them") from error
    for name in ("prolog.d", "epilog.d"):
        script = layout.hooks / name / "50-slurm-energy.sh"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text.replace("@PYTHON@", str(python)), encoding="utf-8")
        script.chmod(0o755)


def make(source: Path, build: Path) -> None:
    """Run make in a source folder with BUILD set.

    Raises:
        LabError: it failed; the message ends with what the compiler said.
    """
    argv = ["make", "--no-print-directory", "-C", str(source), f"BUILD={build}"]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_SECONDS,
            check=False,
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"{' '.join(argv)} failed: {error}") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
