import json

import pytest
from simgpu_nodes import built_library

from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.layout import check_layout, mirrored_layout
from slurm_energy.lab.simgpu.native import load_native


def test_python_mirror_equals_the_compiled_structures() -> None:
    assert json.loads(load_native(built_library().library).simgpu_layout_json()) == mirrored_layout()


def test_library_from_other_sources_is_refused() -> None:
    other = mirrored_layout()
    structure = other["simgpu_gpu"]
    assert isinstance(structure, dict)
    other["simgpu_gpu"] = structure | {"minor_number": [0, 8]}

    with pytest.raises(LabError, match="simgpu_gpu"):
        check_layout(json.dumps(other).encode())


def test_a_file_that_is_no_library_is_refused(tmp_path: pytest.TempPathFactory) -> None:
    path = __file__

    with pytest.raises(LabError, match="not a simulated NVML library"):
        load_native(type(built_library().library)(path))
