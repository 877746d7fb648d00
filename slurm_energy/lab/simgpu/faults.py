"""Switch faults of a simulated GPU: `python -m slurm_energy.lab.simgpu.faults STATE GPU FAULT [on|off]`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.gpu import SimulatedGpu
from slurm_energy.lab.simgpu.layout import Fault
from slurm_energy.lab.simgpu.state import NodeGpuState


def fault_name(fault: Fault) -> str:
    """Return the name that people type: `energy-stuck`."""
    return fault.name.lower().replace("_", "-")


FAULTS_BY_NAME = {fault_name(fault): fault for fault in Fault}


def find_gpu(state: NodeGpuState, text: str) -> SimulatedGpu:
    """Return the GPU of a driver index such as `0`, a minor number as `nvidia0`, or a UUID.

    Raises:
        LabError: the node has no such GPU.
    """
    for gpu in state.gpus:
        if text in (str(gpu.index), f"nvidia{gpu.minor_number}", gpu.uuid):
            return gpu
    known = ", ".join(f"{gpu.index} (nvidia{gpu.minor_number}, {gpu.uuid})" for gpu in state.gpus)
    raise LabError(f"{state.path} has no GPU {text!r}; known: {known}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Switch the fault; return 0 done, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m slurm_energy.lab.simgpu.faults",
        description="Switch a fault of one simulated GPU, also while jobs run.",
        epilog="Example: python -m slurm_energy.lab.simgpu.faults gpus/a100-1.state 0 energy-stuck on",
    )
    parser.add_argument("state", type=Path, help="state file of the node")
    parser.add_argument("gpu", help="driver index (0), device file (nvidia0) or UUID")
    parser.add_argument("fault", choices=sorted(FAULTS_BY_NAME), help="which fault")
    parser.add_argument("switch", choices=("on", "off"), nargs="?", default="on")
    options = parser.parse_args(arguments)
    try:
        with NodeGpuState(options.state) as state:
            find_gpu(state, options.gpu).set_fault(FAULTS_BY_NAME[options.fault], options.switch == "on")
    except LabError as error:
        sys.stderr.write(f"faults: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
