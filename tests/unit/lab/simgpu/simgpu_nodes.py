"""Nodes with simulated GPUs for tests: compiled once per test run, time moved by hand unless a test wants it to run."""

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from slurm_energy.lab.simgpu.build import BuiltLibrary, build
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec, standard_gpus
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state


@cache
def built_library() -> BuiltLibrary:
    folder = Path(tempfile.mkdtemp(prefix="simgpu-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build(folder)


def make_node(
    folder: Path,
    gpus: Sequence[SimulatedGpuSpec] | str = "a100",
    *,
    count: int = 2,
    time_scale: float = 0.0,
    counter_interval_seconds: float = 0.0,
    name: str = "n1",
) -> NodeGpuState:
    specs = standard_gpus(gpus, count, name) if isinstance(gpus, str) else gpus
    path = folder / f"{name}.state"
    library = built_library().library
    create_state(path, specs, time_scale=time_scale, library=library, counter_interval_seconds=counter_interval_seconds)
    return NodeGpuState(path, library)
