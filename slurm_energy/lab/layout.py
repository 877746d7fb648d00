"""Where a lab's files lie, and taking and giving back its folder: one process at a time, only folders of labs.

Paths are the same inside and outside a lab's namespaces.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.spec import LabSpec

ROOT_VARIABLE = "SLURM_ENERGY_LAB_ROOT"
# sockaddr_un holds 108 bytes; the plugin's client allows 100.
MAX_SOCKET_PATH_BYTES = 100
# A lab's own /run: each job step has a socket there, whose path would be too long below most folders.
SLURMD_SPOOL = Path("/run/slurmd-spool")


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one lab below its folder."""

    directory: Path

    def __post_init__(self) -> None:
        length = len(os.fsencode(self.plugin_socket))
        if length > MAX_SOCKET_PATH_BYTES:
            raise LabError(
                f"lab folder {self.directory} makes a socket path of {length} bytes, over {MAX_SOCKET_PATH_BYTES}: "
                f"choose a shorter one"
            )

    @property
    def etc(self) -> Path:
        """Configuration of everything inside."""
        return self.directory / "etc"

    @property
    def slurm_conf(self) -> Path:
        """Slurm's configuration."""
        return self.etc / "slurm.conf"

    @property
    def energy_config(self) -> Path:
        """The product's configuration; the hooks look for it beside slurm.conf."""
        return self.etc / "slurm-energy.toml"

    @property
    def plugin_config(self) -> Path:
        """Configuration of the plugin in slurmctld."""
        return self.etc / "energy-plugin.conf"

    @property
    def environment(self) -> Path:
        """Shell variables that the scripts inside read."""
        return self.etc / "lab.env"

    @property
    def description(self) -> Path:
        """What `open_lab` reads: the lab's specification and who started it."""
        return self.etc / "lab.json"

    @property
    def devices(self) -> Path:
        """Folder of the GPU device nodes; a private tmpfs inside, so empty from outside."""
        return self.directory / "dev"

    @property
    def gpus(self) -> Path:
        """State of the simulated GPUs, one file per node."""
        return self.directory / "gpus"

    def gpu_state(self, node: str) -> Path:
        """State file of a node's simulated GPUs."""
        return self.gpus / f"{node}.state"

    @property
    def library(self) -> Path:
        """The simulated NVML."""
        return self.directory / "lib" / "libnvidia-ml.so.1"

    @property
    def programs(self) -> Path:
        """Programs for jobs, first in PATH."""
        return self.directory / "bin"

    @property
    def plugins(self) -> Path:
        """Slurm plugins built for this lab."""
        return self.directory / "plugins"

    @property
    def hooks(self) -> Path:
        """The folders prolog.d and epilog.d."""
        return self.directory / "hooks"

    @property
    def hooks_spool(self) -> Path:
        """Spool of the hooks, one folder per node."""
        return self.directory / "hooks-spool"

    @property
    def slurmd_spool(self) -> Path:
        """Slurm's own spool, one folder per node."""
        return SLURMD_SPOOL

    @property
    def state(self) -> Path:
        """State of slurmctld, energyd and MariaDB, a folder each."""
        return self.directory / "state"

    @property
    def database(self) -> Path:
        """The daemon's SQLite database."""
        return self.state / "energyd" / "energy.sqlite"

    @property
    def plugin_socket(self) -> Path:
        """Where slurm-energyd listens for slurmctld."""
        return Path(f"{self.energyd_socket}.ctl")

    @property
    def energyd_socket(self) -> Path:
        """Socket of slurm-energyd."""
        return self.directory / "run" / "energyd.sock"

    @property
    def init_pid(self) -> Path:
        """Process number, seen from outside, of the lab's process 1."""
        return self.directory / "run" / "init.pid"

    @property
    def pids(self) -> Path:
        """Process numbers, seen from inside, of the daemons."""
        return self.directory / "pid"

    @property
    def log(self) -> Path:
        """Every log."""
        return self.directory / "log"

    def home(self, user: str) -> Path:
        """Home folder of a user inside the lab."""
        return self.directory / "home" / user


def labs_root() -> Path:
    """Return the folder of this user's labs: $SLURM_ENERGY_LAB_ROOT, else /tmp/slurm-energy-UID.

    $XDG_RUNTIME_DIR would not do: a lab covers /run, and the lab's users may not enter another's runtime folder.
    """
    return Path(os.environ.get(ROOT_VARIABLE) or f"/tmp/slurm-energy-{os.getuid()}")  # noqa: S108  # checked before use


def make_labs_root(root: Path) -> None:
    """Make the labs' folder, or check that no other user can write to it.

    Raises:
        LabError: it is a link, belongs to another user, or others may write to it.
    """
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise LabError(f"{root} must be a folder of user {os.getuid()} that no other user may write to: remove it")
    root.chmod(0o755)


def closed_ancestor(path: Path) -> Path | None:
    """Return the highest folder above `path` that ordinary users may not enter, or None."""
    for folder in reversed(path.absolute().parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def find_folder(name: str) -> Path:
    """Return where this user's lab of this name lies or would lie, links followed."""
    return (labs_root() / name).resolve()


def find_layout(name: str) -> Layout:
    """Return the files of this user's lab of this name."""
    return Layout(find_folder(name))


@contextmanager
def claimed_folder(spec: LabSpec) -> Iterator[Layout]:
    """Make the lab's empty folder and hold it while the lab starts; what a dead lab left there is removed.

    A lab that lies elsewhere gets a link among this user's labs, by which it is found.

    Raises:
        LabError: another process starts this lab, or the folder holds what is no lab's.
    """
    root = labs_root()
    make_labs_root(root)
    entry = root / spec.name
    directory = (spec.directory or entry).absolute()
    layout = Layout(directory)
    if directory.is_relative_to("/run") or directory.is_relative_to("/var/run"):
        raise LabError(f"lab folder {directory} is below /run, which a lab covers: choose another")
    if entry.is_symlink():
        entry.unlink()
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Again: the end of another user's last lab may have removed it since.
        make_labs_root(root)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"lab folder {directory} cannot be made: {error.strerror}") from error
    try:
        _lock(descriptor, directory)
        _empty(layout)
        if directory != entry:
            entry.symlink_to(directory)
        yield layout
    finally:
        os.close(descriptor)


def remove_folder(spec: LabSpec, layout: Layout) -> None:
    """Remove a lab's folder and its link among this user's labs; with the last lab their common folder goes."""
    shutil.rmtree(layout.directory, ignore_errors=True)
    root = labs_root()
    entry = root / spec.name
    if entry.is_symlink():
        entry.unlink()
    # A folder that a user chose is theirs to remove; another lab's start makes the usual one again.
    if ROOT_VARIABLE not in os.environ:
        with suppress(OSError):
            root.rmdir()


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LabError(
            f"another process is about to start a lab in {directory}: wait, or choose another name"
        ) from None


def _empty(layout: Layout) -> None:
    entries = list(layout.directory.iterdir())
    if entries and not layout.environment.exists():
        raise LabError(f"lab folder {layout.directory} exists and is no lab's: remove it or choose another")
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
