"""The files of the packages, laid out below one folder for each: what deb and rpm have in common."""

import gzip
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from slurm_energy import __version__
from slurm_energy.cli.installing.commands import MAN_FOLDER, page_of_command, shared_files
from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import (
    JOB_SUBMIT_PLUGIN,
    PACKAGE_PLUGINS,
    PACKAGE_UNITS,
    SPANK_PLUGIN,
    UNIT_DIRECTORY,
    InstallOptions,
)
from slurm_energy.cli.installing.slurm_conf import HOOK_PATH
from slurm_energy.config import Config
from slurm_energy.resources import MORE_MODULES, PACKAGE_FOLDER, PACKAGED_EXTRAS
from slurm_energy.slurm.plugin_file import Release, read_plugin_file

REPOSITORY = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
COMMON = "slurm-energy"
_MODE_PROGRAM, _MODE_FILE = 0o755, 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package.

    Attributes:
        name: Its name, the same as deb and as rpm.
        role: Of the host that it makes; empty: what all roles need.
        summary: One line.
        text: What an administrator reads before he installs it.
        recommends: Packages that are useful beside it, by their Debian names.
    """

    name: str
    role: str
    summary: str
    text: str
    recommends: tuple[str, ...] = ()


PACKAGES = (
    Package(
        name=COMMON,
        role="",
        summary="energy of Slurm jobs: commands, manual pages and their Python environment",
        text="slurm-energy chooses partition and GPU clock for Slurm jobs and accounts for the energy of each. "
        "This package has what all its roles need; install the one of the host's role.",
    ),
    Package(
        name="slurm-energy-controller",
        role="controller",
        summary="energy of Slurm jobs: daemon and plugin for slurmctld",
        text="Daemon, unit, and job_submit plugin for hosts with slurmctld. Installing it changes neither slurm.conf "
        "nor a running Slurm: `slurm-energy install --role controller --edit-slurm-conf` does.",
        recommends=("make", "gcc", "libslurm-dev"),
    ),
    Package(
        name="slurm-energy-node",
        role="node",
        summary="energy of Slurm jobs: hook and timers for nodes with GPUs",
        text="Prolog and epilog hook, repair and delivery of reports for nodes with GPUs. Removing it puts back every "
        "GPU clock that it set, also under running jobs.",
    ),
    Package(
        name="slurm-energy-login",
        role="login",
        summary="energy of Slurm jobs: options of sbatch, srun and salloc",
        text="The --energy options of sbatch, srun and salloc, and examples, for hosts where users submit jobs.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """What was laid out.

    Attributes:
        folder: Has a folder for each package, by its name.
        slurm: The Slurm that the plugins were compiled for.
        python: Of the interpreter that the environment needs, such as (3, 11).
        version: Of the packages.
    """

    folder: Path
    slurm: Release
    python: tuple[int, int]
    version: str

    def of(self, package: Package) -> Path:
        """Return the root of one package's files."""
        return self.folder / package.name


def lay_out(folder: Path, version: str = __version__, python: Path = Path("/usr/bin/python3")) -> Trees:
    """Lay out the files of every package in an empty folder.

    Raises:
        CalledProcessError: pip, make or the interpreter failed; it has said why.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for package in PACKAGES:
        (folder / package.name).mkdir(parents=True)
    common = folder / COMMON
    digits = _said([str(python), "-c", "import sys; print(*sys.version_info[:2])"]).split()
    minor = (int(digits[0]), int(digits[1]))
    _environment(common, Path(f"/usr/bin/python{minor[0]}.{minor[1]}"))
    plugins = folder / "plugins"
    _run(["make", "--no-print-directory", "-s", "-C", str(REPOSITORY / "plugin"), f"BUILD={plugins}"])
    for name, owner in ((SPANK_PLUGIN, COMMON), (JOB_SUBMIT_PLUGIN, "slurm-energy-controller")):
        _put(folder / owner, PACKAGE_PLUGINS / name, (plugins / name).read_bytes())
    _put(common, PACKAGE_FOLDER / "maintain.sh", (HERE / "scripts" / "maintain.sh").read_bytes(), _MODE_PROGRAM)
    _commands(folder)
    for package in PACKAGES[1:]:
        for planned in _files_of_role(package.role, plugins):
            _put(folder / package.name, planned.path, planned.content, planned.mode)
    release = read_plugin_file(plugins / JOB_SUBMIT_PLUGIN).release
    shutil.rmtree(plugins)
    return Trees(folder=folder, slurm=release, python=minor, version=version)


def _environment(root: Path, python: Path) -> None:
    """Put the Python environment into a package: this project and its wheels, at the path that it will have."""
    target = root / str(PACKAGE_FOLDER).lstrip("/")
    _run([str(python), "-m", "venv", "--without-pip", str(target)])
    inside = target / "bin" / "python"
    wheel = build_wheel(root.parent / "dist")
    pip = [sys.executable, "-m", "pip", "--python", str(inside), "--quiet", "--disable-pip-version-check", "install"]
    _run([*pip, "--no-compile", "-c", str(REPOSITORY / "constraints.txt"), f"{wheel}[{','.join(PACKAGED_EXTRAS)}]"])
    shutil.rmtree(root.parent / "dist")
    (site_packages,) = target.glob("lib/python*/site-packages")
    (site_packages / "slurm-energy-more.pth").write_text(f"{MORE_MODULES}\n")
    for name in ("activate", "activate.csh", "activate.fish", "Activate.ps1"):
        (target / "bin" / name).unlink(missing_ok=True)
    for script in (target / "bin").iterdir():
        if not script.is_symlink():
            script.write_text(script.read_text().replace(str(target), str(PACKAGE_FOLDER)))
    settings = target / "pyvenv.cfg"
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("command")]
    settings.write_text("".join(f"{line}\n" for line in lines))
    for cache in target.rglob("__pycache__"):
        shutil.rmtree(cache)
    # Not by time: package managers may set another. Hooks start faster with compiled modules.
    compiling = [str(inside), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    _run([*compiling, "-s", str(root), "-p", "/", str(target / "lib")])


def build_wheel(folder: Path) -> Path:
    """Return the wheel, freshly built."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], REPOSITORY)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _commands(folder: Path) -> None:
    """Put the commands on PATH, with their pages and completions."""
    places = {
        COMMON: ("slurm-energy", "energy-sbatch"),
        "slurm-energy-controller": ("slurm-energyd",),
        "slurm-energy-node": ("slurm-energy-hook",),
    }
    for package, names in places.items():
        for name in names:
            link = folder / package / "usr" / "bin" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(PACKAGE_FOLDER / "bin" / name)
            if name != "slurm-energy":
                _put_shared(folder / package, page_of_command(name))
    for planned in shared_files():
        _put_shared(folder / COMMON, planned)


def _put_shared(root: Path, planned: PlannedFile) -> None:
    """Put a page or a completion where packages have it: below /usr/share, pages compressed."""
    path = Path("/usr/share") / planned.path.relative_to("/usr/local/share")
    if planned.path.is_relative_to(MAN_FOLDER):
        content = gzip.compress(planned.content, mtime=0)
        _put(root, path.with_name(f"{path.name}.gz"), content)
        return
    _put(root, path, planned.content)


def _files_of_role(role: str, plugins: Path) -> list[PlannedFile]:
    """Return the units, hooks and examples of a role, as they are with the default settings."""
    options = InstallOptions(
        root=plugins / "nothing",
        roles=(role,),
        python=PACKAGE_FOLDER / "bin" / "python",
        plugin_directory=Path("/usr/lib/slurm"),
    )
    options.root.mkdir(exist_ok=True)
    found = []
    for planned in Installation(Config(), options, {}).files():
        if planned.absent or planned.link_to is not None:
            continue
        if planned.path.is_relative_to(UNIT_DIRECTORY):
            path = PACKAGE_UNITS / planned.path.relative_to(UNIT_DIRECTORY)
        elif planned.path == HOOK_PATH:
            path = Path("/usr") / HOOK_PATH.relative_to("/")  # /bin is a link to /usr/bin
        elif planned.path.name in {"example.sh", "train.sbatch"}:
            path = Path(f"/usr/share/doc/slurm-energy-{role}/examples") / planned.path.name
        else:
            continue
        found.append(PlannedFile(path=path, content=planned.content, mode=planned.mode))
    return found


def _put(root: Path, path: Path, content: bytes, mode: int = _MODE_FILE) -> None:
    target = root / str(path).lstrip("/")
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(mode)


def licence_text() -> str:
    """Return what licences the files have."""
    licences = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    of_plugins = (REPOSITORY / "plugin" / "LICENSE").read_text(encoding="utf-8")
    first = f"slurm-energy, Apache-2.0; Slurm plugins, GPL-2.0-or-later; each wheel's own below\n{PACKAGE_FOLDER}."
    return f"{first}\n\n{licences}\n{of_plugins}"


def wheels_in(root: Path) -> list[str]:
    """Return name and version of every distribution in the environment."""
    found = [re.sub(r"\.dist-info$", "", path.name) for path in root.rglob("*.dist-info")]
    return sorted(found)


def _run(argv: list[str], folder: Path | None = None) -> None:
    subprocess.run(argv, cwd=folder, check=True)


def _said(argv: list[str]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
