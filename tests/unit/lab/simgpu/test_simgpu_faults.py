from pathlib import Path

import pytest
from simgpu_nodes import make_node

from slurm_energy.lab.simgpu import faults
from slurm_energy.lab.simgpu.layout import Fault


@pytest.fixture(autouse=True)
def _library_of_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    from simgpu_nodes import built_library

    monkeypatch.setattr("slurm_energy.lab.simgpu.state.find_library", lambda path: built_library().library)


@pytest.mark.parametrize("name", ["1", "nvidia0", "uuid"])
def test_command_switches_a_fault_on_and_off(tmp_path: Path, name: str) -> None:
    with make_node(tmp_path, "v100") as node:
        gpu = node.gpus[1]
        word = gpu.uuid if name == "uuid" else name

        assert faults.main([str(node.path), word, "energy-stuck"]) == 0
        assert gpu.faults == {Fault.ENERGY_STUCK}
        assert node.gpus[0].faults == frozenset()
        assert faults.main([str(node.path), word, "energy-stuck", "off"]) == 0
        assert gpu.faults == frozenset()


def test_unknown_gpu_is_refused_with_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with make_node(tmp_path, "v100") as node:
        assert faults.main([str(node.path), "5", "lost"]) == 1
    assert "0 (nvidia1, GPU-" in capsys.readouterr().err


def test_unknown_fault_is_wrong_usage(tmp_path: Path) -> None:
    with make_node(tmp_path) as node, pytest.raises(SystemExit) as stopped:
        faults.main([str(node.path), "0", "meltdown"])
    assert stopped.value.code == 2


def test_every_fault_has_a_name_to_type() -> None:
    assert len(faults.FAULTS_BY_NAME) == len(Fault) == 18
