"""Nodes with simulated GPUs for tests: time moved by hand unless a test wants it to run."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from compiled_library import compiled_library

from slurm_energy.lab.simgpu.build import BuiltLibrary
from slurm_energy.lab.simgpu.profiles import LoadProfile
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec, standard_gpus
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state

LINEAR = LoadProfile(
    name="linear",
    cubic_watts=0.0,
    linear_watts=200.0,
    constant_watts=100.0,
    memory_share=0.0,
    compute_share=1.0,
    fixed_share=0.0,
    reference_clock_mhz=1410.0,
)
"""On an A100 300 W at the highest clock and 200 W at half of it, where work takes twice as long."""


@cache
def built_library() -> BuiltLibrary:
    return compiled_library()


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
