"""Run the workload tool from Python: `python -m slurm_energy.lab.simgpu.workload --seconds-at-default 600`.

The tool itself is the C program `simgpu-workload`, so that dozens of jobs start at once on two cores; a laboratory
has it in `bin/` or `lib/` beside `gpus/`, and jobs there should call it directly.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.build import WORKLOAD_NAME, build


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
