"""The simulated NVML, compiled once for all test processes of a checkout and copied where one of them wants it."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from slurm_energy.lab.simgpu.build import BuiltLibrary, build

KEPT = Path(__file__).parents[2] / "build" / "simgpu"


def compiled_library(folder: Path | None = None, *, missing_symbols: Iterable[str] = ()) -> BuiltLibrary:
    """Return library and tool: in a folder that other users may enter, or where they were compiled."""
    kept = build(KEPT, missing_symbols=missing_symbols)
    if folder is None:
        return kept
    own = folder / kept.directory.name
    shutil.copytree(kept.directory, own)
    return BuiltLibrary(library=own / kept.library.name, workload=own / kept.workload.name)
