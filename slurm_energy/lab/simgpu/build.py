"""Compile the simulated NVML library and the workload tool, kept until a source changes; find the tool.

`python -m slurm_energy.lab.simgpu.build --seconds-at-default 600` becomes the workload tool, the C program
`simgpu-workload`. A laboratory has it in `bin/` or `lib/` beside `gpus/`, and jobs there should call it directly.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import LabError

SOURCE_DIRECTORY = Path(__file__).with_name("native")
LIBRARY_NAME = "libnvidia-ml.so.1"
WORKLOAD_NAME = "simgpu-workload"

_COMPILER = "gcc"
# No -Werror: a newer compiler warns of more, and no laboratory may fail to start for that; the tests are strict.
_FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-O2", "-g")
_SHARED_SOURCES = ("state.c", "physics.c", "rhythm.c", "load.c")
_LIBRARY_SOURCES = (*_SHARED_SOURCES, "layout.c", "nvml_system.c", "nvml_identity.c", "nvml_usage.c", "nvml_clocks.c")
_WORKLOAD_SOURCES = (*_SHARED_SOURCES, "workload.c")
_COMPILE_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLibrary:
    """What was built; both files may be copied elsewhere, `lib/` or `bin/` beside `gpus/` lets them find the state."""

    library: Path
    """`libnvidia-ml.so.1`, also its SONAME."""
    workload: Path
    """`simgpu-workload`, which jobs run."""

    @property
    def directory(self) -> Path:
        """The folder for LD_LIBRARY_PATH."""
        return self.library.parent


def build(output_directory: Path, *, missing_symbols: Iterable[str] = ()) -> BuiltLibrary:
    """Return library and tool, compiled into a folder of their own below `output_directory` unless already there.

    Args:
        output_directory: Made if absent; several processes may build there at once.
        missing_symbols: NVML functions that the library is to lack, as an older driver does.

    Raises:
        LabError: no gcc, a source that does not compile, a folder that cannot be written.
    """
    missing = tuple(sorted(set(missing_symbols)))
    folder = output_directory / f"simgpu-{_fingerprint(missing)}"
    built = BuiltLibrary(library=folder / LIBRARY_NAME, workload=folder / WORKLOAD_NAME)
    if built.library.is_file() and built.workload.is_file():
        return built
    try:
        output_directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".simgpu-", dir=output_directory) as scratch:
            _compile_all(Path(scratch), missing)
            _move_into_place(Path(scratch), folder)
    except OSError as error:
        raise LabError(f"simulated NVML cannot be built below {output_directory}: {error}") from error
    return built


def _fingerprint(missing: Sequence[str]) -> str:
    digest = hashlib.sha256(repr((_COMPILER, _FLAGS, missing)).encode())
    for source in sorted(SOURCE_DIRECTORY.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile_all(folder: Path, missing: Sequence[str]) -> None:
    exports = folder / "exports.map"
    hidden = "".join(f" {symbol};" for symbol in missing)
    exports.write_text(f"{{ global: nvml*; simgpu_*; local:{hidden} *; }};\n", encoding="ascii")
    linking = (f"-Wl,-soname,{LIBRARY_NAME}", f"-Wl,--version-script={exports}", "-Wl,-z,nodelete")
    libraries = ("-lm", "-ldl", "-lpthread")
    _compile(_LIBRARY_SOURCES, folder / LIBRARY_NAME, ("-shared", "-fPIC", *linking), libraries)
    _compile(_WORKLOAD_SOURCES, folder / WORKLOAD_NAME, (), libraries)
    exports.unlink()


def _compile(sources: Sequence[str], output: Path, flags: Sequence[str], libraries: Sequence[str]) -> None:
    compiler = shutil.which(_COMPILER)
    if compiler is None:
        raise LabError(f"{_COMPILER} is not installed: simulated GPUs need it (Debian: apt-get install gcc libc6-dev)")
    paths = [str(SOURCE_DIRECTORY / name) for name in sources]
    command = [compiler, *_FLAGS, *flags, "-o", str(output), *paths, *libraries]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"compiling {output.name} took more than {_COMPILE_SECONDS} s") from error
    if done.returncode != 0:
        raise LabError(f"compiling {output.name} failed:\n{done.stderr[-4000:]}")


def _move_into_place(scratch: Path, folder: Path) -> None:
    """Rename file by file: a process that builds the same at this moment puts the same bytes there."""
    folder.mkdir(exist_ok=True)
    for name in (WORKLOAD_NAME, LIBRARY_NAME):
        (scratch / name).chmod(0o755)
        os.replace(scratch / name, folder / name)  # noqa: PTH105  # Path.replace is the same call


def find_workload_tool(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the tool of the laboratory that the environment names, else one built into the user's cache.

    Raises:
        LabError: it has to be built and cannot be.
    """
    folders = []
    if environment.get("SLURM_ENERGY_SIM_GPU_STATE"):
        folders.append(Path(environment["SLURM_ENERGY_SIM_GPU_STATE"]).parent)
    if environment.get("SLURM_ENERGY_SIM_GPU_DIR"):
        folders.append(Path(environment["SLURM_ENERGY_SIM_GPU_DIR"]))
    for folder in folders:
        for name in ("bin", "lib"):
            tool = folder.parent / name / WORKLOAD_NAME
            if os.access(tool, os.X_OK):
                return tool
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return build(cache / "slurm-energy").workload


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the workload tool; return 1 if there is none."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        tool = find_workload_tool()
        os.execv(tool, [WORKLOAD_NAME, *given])  # noqa: S606  # no shell: one program becomes another
    except (LabError, OSError) as error:
        sys.stderr.write(f"workload: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
