"""The real binding on the simulated library, in a process of its own: the binding loads one library for good."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compiled_library import compiled_library

from slurm_energy.energy_model.catalog import gpu_type_from_device_name
from slurm_energy.lab.simgpu.build import BuiltLibrary
from slurm_energy.lab.simgpu.layout import Fault
from slurm_energy.lab.simgpu.specs import standard_gpus
from slurm_energy.lab.simgpu.state import NodeGpuState, create_state

READ = """
import json, sys
from slurm_energy.device.nvml import NvmlDriver
from slurm_energy.errors import DeviceError

def said(read):
    try:
        return read()
    except DeviceError as error:
        return f"{type(error).__name__}: {error}"

with NvmlDriver(sys.argv[1]) as driver:
    rows = []
    for gpu in driver.gpus():
        clocks = said(gpu.supported_sm_clocks_mhz)
        rows.append({
            "index": gpu.identity.index, "uuid": gpu.identity.uuid, "name": gpu.identity.name,
            "minor": gpu.identity.minor_number, "type": gpu.identity.gpu_type, "mig": gpu.identity.mig_enabled,
            "energy": said(gpu.energy_joules), "power": said(gpu.power_watts), "clock": said(gpu.sm_clock_mhz),
            "busy": said(gpu.utilisation), "limit": said(gpu.power_limit_watts),
            "application": said(gpu.application_clock_mhz),
            "lowest": clocks[0] if isinstance(clocks, tuple) else clocks,
            "lock": said(lambda: gpu.lock_sm_clock(clocks[0], clocks[-1])), "unlock": said(gpu.unlock_sm_clock),
        })
    print(json.dumps({"gpus": rows, "mig": said(lambda: driver.mig_parent("MIG-GPU-aaaa-bbbb/1/0")),
                      "no_mig": said(lambda: driver.mig_parent("MIG-cccc"))}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltLibrary:
    return compiled_library(tmp_path_factory.mktemp("simgpu"))


def make_node(tmp_path: Path, built: BuiltLibrary, gpu_type: str = "a100", count: int = 2) -> NodeGpuState:
    path = tmp_path / "n1.state"
    specs = standard_gpus(gpu_type, count, "n1")
    create_state(path, specs, time_scale=0.0, library=built.library, counter_interval_seconds=0.0)
    return NodeGpuState(path, built.library)


def read(state: NodeGpuState, library: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", READ, str(library)],
        env={"SLURM_ENERGY_SIM_GPU_STATE": str(state.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_identity_and_figures_are_the_devices_own(tmp_path: Path, built: BuiltLibrary) -> None:
    state = make_node(tmp_path, built, "v100", 4)
    state.gpus[1].add_load("training")
    rows = read(state, built.library)["gpus"]
    assert [row["minor"] for row in rows] == [gpu.minor_number for gpu in state.gpus] != [0, 1, 2, 3]
    assert [row["uuid"] for row in rows] == [gpu.uuid for gpu in state.gpus]
    assert [row["type"] for row in rows] == [gpu_type_from_device_name(gpu.name) for gpu in state.gpus] != [None] * 4
    truth = state.gpus[1].reading()
    assert rows[1]["power"] == pytest.approx(truth.power_watts, abs=0.01)
    assert (rows[1]["clock"], rows[1]["busy"] > 0.5, rows[1]["limit"]) == (
        truth.sm_clock_mhz,
        True,
        state.gpus[1].power_limit_watts,
    )


def test_watts_times_seconds_are_joules_through_nvml(tmp_path: Path, built: BuiltLibrary) -> None:
    state = make_node(tmp_path, built)
    before = read(state, built.library)["gpus"][0]
    state.advance(1000.0)
    after = read(state, built.library)["gpus"][0]
    assert after["energy"] - before["energy"] == pytest.approx(before["power"] * 1000.0, rel=0.01)


@pytest.mark.parametrize(
    ("fault", "field", "kind"),
    [
        (Fault.ENERGY_UNSUPPORTED, "energy", "DeviceNotSupported"),
        (Fault.ENERGY_ERROR, "energy", "DeviceError"),
        (Fault.POWER_UNSUPPORTED, "power", "DeviceNotSupported"),
        (Fault.NO_PERMISSION, "lock", "DevicePermissionDenied"),
        (Fault.CLOCK_UNSUPPORTED, "lock", "DeviceNotSupported"),
        (Fault.CLOCK_ERROR, "unlock", "DeviceError"),
        (Fault.SYMBOL_MISSING, "energy", "DeviceNotSupported"),
        (Fault.SYMBOL_MISSING, "lock", "DeviceNotSupported"),
    ],
)
def test_every_refusal_has_its_kind_and_names_the_gpu(
    tmp_path: Path, built: BuiltLibrary, fault: Fault, field: str, kind: str
) -> None:
    state = make_node(tmp_path, built)
    state.gpus[1].set_fault(fault)
    rows = read(state, built.library)["gpus"]
    assert str(rows[1][field]).startswith(f"{kind}: ") and state.gpus[1].uuid in rows[1][field]
    assert not str(rows[0][field]).startswith("Device")


def test_gpu_that_fell_off_the_bus_hides_no_other(tmp_path: Path, built: BuiltLibrary) -> None:
    state = make_node(tmp_path, built)
    state.gpus[0].set_fault(Fault.LOST)
    rows = read(state, built.library)["gpus"]
    assert rows[-1]["uuid"] == state.gpus[1].uuid and isinstance(rows[-1]["energy"], float)


def test_missing_symbols_are_not_supported(tmp_path: Path, built: BuiltLibrary) -> None:
    missing = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMigMode", "nvmlDeviceGetApplicationsClock")
    old = compiled_library(tmp_path / "old", missing_symbols=missing)
    row = read(make_node(tmp_path, built), old.library)["gpus"][0]
    assert row["energy"].startswith("DeviceNotSupported") and row["application"].startswith("DeviceNotSupported")
    assert row["mig"] is False and isinstance(row["power"], float)


def test_mig_mode_is_seen(tmp_path: Path, built: BuiltLibrary) -> None:
    state = make_node(tmp_path, built)
    state.gpus[0].set_fault(Fault.MIG)
    answer = read(state, built.library)
    assert [row["mig"] for row in answer["gpus"]] == [True, False]
    assert answer["mig"] == "GPU-aaaa-bbbb"
    assert answer["no_mig"].startswith("Device")


def test_missing_library_is_named() -> None:
    code = "from slurm_energy.device.nvml import NvmlDriver\nNvmlDriver('/nonexistent/lib.so').__enter__()"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert "DeviceError: node.nvml_library /nonexistent/lib.so cannot be loaded" in done.stderr


BINDING_ELSEWHERE = """
import sys
sys.path.append(sys.argv[1])
from slurm_energy.device import nvml
binding = nvml._import_binding()
print(binding.__name__, "site" in sys.modules)
"""


@pytest.mark.parametrize("needs", ["import threading; threading.RLock()", "import string; string.ascii_letters"])
def test_binding_that_needs_more_of_the_library_gets_it(tmp_path: Path, needs: str) -> None:
    (tmp_path / "pynvml.py").write_text(f"{needs}\n")
    start = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n{BINDING_ELSEWHERE}"
    command = [sys.executable, "-I", "-S", "-c", start, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "pynvml False\n"


def test_binding_that_only_site_finds_is_found_by_a_hook_that_started_without(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", BINDING_ELSEWHERE, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "pynvml True\n"
