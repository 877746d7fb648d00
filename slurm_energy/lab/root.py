"""A lab in another root file system, with that one's Slurm: `scripts/lab-root.sh` makes such a folder."""

import subprocess
from importlib import metadata
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.host import SYSTEM_PATH
from slurm_energy.lab.layout import Layout

ROOT_PYTHON = Path("/opt/slurm-energy-lab/bin/python")
"""The interpreter in a root, with what the package needs; the package itself is this one, mounted there."""
_HERE = Path(__file__).resolve().parent
_PREPARE_SECONDS = 300.0


def entry_argv(root: Path, layout: Layout) -> list[str]:
    """Return the start of a command line that runs in a root, with the lab's folder and this package."""
    return ["/bin/sh", str(_HERE / "root.sh"), str(root.resolve()), str(_HERE.parents[1]), str(layout.directory)]


def prepare_in_root(root: Path, layout: Layout, description: str) -> None:
    """Fill a lab's folder from inside a root, with its accounts, its compiler and its Slurm.

    Raises:
        LabError: the folder is no such root, or what `prepare` says there.
    """
    if not (root / str(ROOT_PYTHON).lstrip("/")).is_symlink():
        raise LabError(f"{root} has no {ROOT_PYTHON}: make a root with scripts/lab-root.sh SUITE")
    argv = [*entry_argv(root, layout), str(ROOT_PYTHON), "-I", "-m", "slurm_energy.lab.prepare"]
    try:
        done = subprocess.run(
            [*argv, "--description", str(layout.directory)],
            input=description,
            capture_output=True,
            text=True,
            timeout=_PREPARE_SECONDS,
            check=False,
            env={"PATH": SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"the lab in {root} could not be prepared: {error}") from error
    if done.returncode != 0:
        raise LabError(f"the lab in {root} could not be prepared: {done.stderr.strip()[-2000:]}")
    _write_commands(layout)


def _write_commands(layout: Layout) -> None:
    """Write this package's commands for the root's interpreter, which has the package but was not given them."""
    for command in metadata.distribution("slurm-energy").entry_points.select(group="console_scripts"):
        path = layout.programs / command.name
        path.write_text(
            f"#!{ROOT_PYTHON}\nimport sys\nfrom {command.module} import {command.attr}\nsys.exit({command.attr}())\n"
        )
        path.chmod(0o755)
