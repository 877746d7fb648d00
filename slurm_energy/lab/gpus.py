"""The simulated GPUs of a lab: library, workload tool, and one state file for each node."""

import shutil

from slurm_energy.lab.layout import Layout
from slurm_energy.lab.products import cache_directory
from slurm_energy.lab.simgpu.build import build
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state
from slurm_energy.lab.slurm_files import node_gpus
from slurm_energy.lab.spec import LabSpec


def install_gpus(spec: LabSpec, layout: Layout) -> None:
    """Build library and tool once for all labs, copy them into the lab, and make every node's GPUs.

    Raises:
        LabError: no compiler, or a GPU type that cannot be simulated.
    """
    built = build(cache_directory())
    shutil.copy2(built.library, layout.library)
    shutil.copy2(built.workload, layout.programs / built.workload.name)
    for partition in spec.partitions:
        for node in partition.node_names:
            create_state(
                layout.gpu_state(node),
                node_gpus(partition, node),
                time_scale=spec.time_scale,
                library=built.library,
            )


def open_gpus(layout: Layout, node: str) -> NodeGpuState:
    """Return the open state of a node's GPUs; the caller closes it."""
    return NodeGpuState(layout.gpu_state(node))
