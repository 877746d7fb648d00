"""Fixtures: the compiled library, a node with simulated GPUs, and processes that use the real binding on it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from compiled_library import compiled_library
from nvml_binding import Bind, MakeNode, NvmlBinding

from slurm_energy.lab.simgpu.build import BuiltLibrary
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec, standard_gpus
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltLibrary:
    return compiled_library(tmp_path_factory.mktemp("simgpu"))


@pytest.fixture
def make_node(built: BuiltLibrary, tmp_path: Path) -> Iterator[MakeNode]:
    """Time stands still unless a time scale is given."""
    with ExitStack() as stack:

        def make(
            gpus: str | Sequence[SimulatedGpuSpec] = "a100",
            *,
            count: int = 2,
            time_scale: float = 0.0,
            counter_interval_seconds: float = 0.0,
        ) -> NodeGpuState:
            specs = standard_gpus(gpus, count, "n1") if isinstance(gpus, str) else gpus
            path = tmp_path / "n1.state"
            create_state(
                path,
                specs,
                time_scale=time_scale,
                library=built.library,
                counter_interval_seconds=counter_interval_seconds,
            )
            return stack.enter_context(NodeGpuState(path, built.library))

        yield make


@pytest.fixture
def bind(built: BuiltLibrary) -> Iterator[Bind]:
    with ExitStack() as stack:

        def start(node: NodeGpuState, library: BuiltLibrary = built) -> NvmlBinding:
            environment = {"SLURM_ENERGY_SIM_GPU_STATE": str(node.path)}
            return stack.enter_context(NvmlBinding(library.directory, environment))

        yield start
