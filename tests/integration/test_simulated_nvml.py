"""Readings and settings through the real binding."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nvml_binding import SETTINGS, Bind, BindingError, MakeNode, NvmlBinding, needs_root

from slurm_energy.lab.simgpu.build import BuiltLibrary
from slurm_energy.lab.simgpu.layout import Call
from slurm_energy.lab.simgpu.specs import SIMULATED_TYPES, standard_gpus

pytest_plugins = ("nvml_fixtures",)


# Readings


@pytest.mark.parametrize("gpu_type", SIMULATED_TYPES)
def test_every_reading_of_every_type_is_answered(make_node: MakeNode, bind: Bind, gpu_type: str) -> None:
    spec = standard_gpus(gpu_type, 2, "n1")[1]
    node = make_node(gpu_type)
    nvml = bind(node)
    top, limit = spec.sm_clocks_mhz[-1], round(spec.power_limit_watts * 1000)

    expected: dict[tuple[Any, ...], object] = {
        ("nvmlDeviceGetIndex",): 1,
        ("nvmlDeviceGetName",): spec.name,
        ("nvmlDeviceGetUUID",): spec.uuid,
        ("nvmlDeviceGetMinorNumber",): spec.minor_number,
        ("nvmlDeviceGetPowerUsage",): round(spec.idle_watts * 1000),
        ("nvmlDeviceGetTotalEnergyConsumption",): 0,
        ("nvmlDeviceGetClockInfo", 0): spec.idle_clock_mhz,
        ("nvmlDeviceGetClockInfo", 1): spec.idle_clock_mhz,
        ("nvmlDeviceGetClockInfo", 2): spec.memory_clocks_mhz[0],
        ("nvmlDeviceGetMaxClockInfo", 1): top,
        ("nvmlDeviceGetApplicationsClock", 0): top,
        ("nvmlDeviceGetDefaultApplicationsClock", 0): top,
        ("nvmlDeviceGetClock", 0, 3): top,
        ("nvmlDeviceGetSupportedMemoryClocks",): list(spec.memory_clocks_mhz),
        ("nvmlDeviceGetSupportedGraphicsClocks", spec.memory_clocks_mhz[0]): list(reversed(spec.sm_clocks_mhz)),
        ("nvmlDeviceGetPowerManagementLimit",): limit,
        ("nvmlDeviceGetPowerManagementDefaultLimit",): limit,
        ("nvmlDeviceGetEnforcedPowerLimit",): limit,
        ("nvmlDeviceGetPowerManagementLimitConstraints",): [round(spec.min_power_limit_watts * 1000), limit],
        ("nvmlDeviceGetUtilizationRates",): {"gpu": 0, "memory": 0},
        ("nvmlDeviceGetTemperature", 0): round(28.0 + 0.09 * spec.idle_watts),
        ("nvmlDeviceGetTemperatureV", 0): round(28.0 + 0.09 * spec.idle_watts),
        ("nvmlDeviceGetMaxMigDeviceCount",): 7 if spec.mig_capable else 0,
        ("nvmlDeviceGetPersistenceMode",): 1,
        ("nvmlDeviceGetComputeMode",): 0,
        ("nvmlDeviceGetPerformanceState",): 0,
        ("nvmlDeviceGetCudaComputeCapability",): list(spec.compute_capability),
        ("nvmlDeviceGetArchitecture",): spec.architecture,
        ("nvmlDeviceGetComputeRunningProcesses",): [],
        ("nvmlDeviceGetCurrentClocksEventReasons",): 1,
    }
    assert {call: nvml.call(*call, gpu=1) for call in expected} == expected
    assert nvml.call("nvmlDeviceGetCount") == 2
    assert nvml.call("nvmlSystemGetDriverVersion") == "580.159.04"
    assert nvml.call("nvmlSystemGetNVMLVersion") == "13.580.159.04"
    if spec.mig_capable:
        assert nvml.call("nvmlDeviceGetMigMode", gpu=1) == [0, 0]
    else:
        assert nvml.error("nvmlDeviceGetMigMode", gpu=1) == "NotSupported"


def test_one_watt_for_one_second_is_one_joule(make_node: MakeNode, bind: Bind) -> None:
    spec = replace(standard_gpus("a100", 1, "n1")[0], idle_watts=1.0)
    node = make_node((spec,))
    nvml = bind(node)
    node.advance(1.0)

    assert nvml.call("nvmlDeviceGetPowerUsage", gpu=0) == 1000
    assert nvml.call("nvmlDeviceGetTotalEnergyConsumption", gpu=0) == 1000
    fields = nvml.call("nvmlDeviceGetFieldValues", [83, 186, 999], gpu=0)
    assert [(field["nvmlReturn"], field["value"]) for field in fields[:2]] == [(0, 1000), (0, 1000)]
    assert fields[2]["nvmlReturn"] == 3


def test_energy_over_a_running_window_is_power_times_scaled_time(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100", time_scale=60.0, counter_interval_seconds=0.1)
    nvml = bind(node)
    node.gpus[0].add_load("training")
    watts = nvml.call("nvmlDeviceGetPowerUsage", gpu=0) / 1000.0
    before, first, began = time.monotonic(), nvml.call("nvmlDeviceGetTotalEnergyConsumption", gpu=0), time.monotonic()
    time.sleep(0.5)
    ended, last, after = time.monotonic(), nvml.call("nvmlDeviceGetTotalEnergyConsumption", gpu=0), time.monotonic()

    assert watts == pytest.approx(462.05, abs=0.1)
    least, most = (watts * seconds * 60.0 for seconds in (ended - began, after - before))
    assert 0.99 * least <= (last - first) / 1000.0 <= 1.01 * most


def test_handles_by_index_uuid_pci_and_serial_are_the_same_gpu(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("v100", count=4)
    nvml = bind(node)
    pci = nvml.call("nvmlDeviceGetPciInfo", gpu=2)
    serial = nvml.call("nvmlDeviceGetSerial", gpu=2)

    for function, name in (
        ("nvmlDeviceGetHandleByUUID", node.gpus[2].uuid),
        ("nvmlDeviceGetHandleByPciBusId", pci["busId"]),
        ("nvmlDeviceGetHandleByPciBusId", pci["busIdLegacy"]),
        ("nvmlDeviceGetHandleByPciBusId", pci["busId"].partition(":")[2]),
        ("nvmlDeviceGetHandleBySerial", serial),
    ):
        assert nvml.call("nvmlDeviceGetIndex", nvml.call(function, name)) == 2
    assert (pci["bus"], pci["busIdLegacy"], pci["pciDeviceId"]) == (23, "0000:17:00.0", 0x1DB410DE)
    assert nvml.error("nvmlDeviceGetHandleByUUID", "GPU-unknown") == "NotFound"
    assert nvml.error("nvmlDeviceGetHandleByPciBusId", "0000:FF:00.0") == "NotFound"
    assert nvml.error("nvmlDeviceGetHandleByPciBusId", "elsewhere") == "InvalidArgument"
    assert nvml.error("nvmlDeviceGetHandleByIndex", 4) == "InvalidArgument"


def test_minor_numbers_differ_from_indices_on_v100(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("v100", count=4)
    nvml = bind(node)

    assert [nvml.call("nvmlDeviceGetMinorNumber", gpu=index) for index in range(4)] == [3, 2, 1, 0]
    assert node.by_minor(0).uuid == nvml.call("nvmlDeviceGetUUID", gpu=3)


def test_load_shows_as_process_memory_utilisation_and_clock(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("h100")
    nvml = bind(node)
    node.gpus[0].add_load("training", utilisation=0.5)

    processes = nvml.call("nvmlDeviceGetComputeRunningProcesses", gpu=0)
    assert [(process["pid"], process["usedGpuMemory"]) for process in processes] == [(os.getpid(), 8 << 30)]
    assert nvml.call("nvmlDeviceGetUtilizationRates", gpu=0)["gpu"] == 50
    assert nvml.call("nvmlDeviceGetClockInfo", 1, gpu=0) == 1980
    memory = nvml.call("nvmlDeviceGetMemoryInfo", gpu=0)
    newer = nvml.call("nvmlDeviceGetMemoryInfo", 0x02000028, gpu=0)
    assert memory["total"] == memory["used"] + memory["free"] == 80 << 30
    assert newer["total"] == newer["used"] + newer["free"] + newer["reserved"]
    assert newer["used"] == 8 << 30


# Settings


@needs_root
def test_locked_clock_holds_for_one_gpu_until_it_is_reset(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100")
    nvml = bind(node)
    for gpu in node.gpus:
        gpu.add_load("training")
    free = nvml.call("nvmlDeviceGetPowerUsage", gpu=0)

    nvml.call("nvmlDeviceSetGpuLockedClocks", 1065, 1065, gpu=0)

    assert [nvml.call("nvmlDeviceGetClockInfo", 1, gpu=index) for index in (0, 1)] == [1065, 1410]
    assert nvml.call("nvmlDeviceGetPowerUsage", gpu=0) < 0.65 * free
    assert nvml.call("nvmlDeviceGetPowerUsage", gpu=1) == free
    assert nvml.call("nvmlDeviceGetCurrentClocksEventReasons", gpu=0) == 2
    assert [gpu.locked_clocks_mhz for gpu in node.gpus] == [(1065, 1065), None]
    assert [gpu.calls[Call.CLOCK_LOCK] for gpu in node.gpus] == [1, 0]

    nvml.call("nvmlDeviceResetGpuLockedClocks", gpu=0)

    assert nvml.call("nvmlDeviceGetClockInfo", 1, gpu=0) == 1410
    assert node.gpus[0].locked_clocks_mhz is None


@needs_root
@pytest.mark.parametrize(
    ("low", "high", "locked"),
    [(1234, 1234, (1230, 1230)), (0, 1200, (210, 1200)), (210, 1410, (210, 1410)), (210, 0xFFFFFF01, (210, 1410))],
)
def test_odd_clocks_are_snapped_down_as_a_driver_does(
    make_node: MakeNode, bind: Bind, low: int, high: int, locked: tuple[int, int]
) -> None:
    node = make_node("a100")
    bind(node).call("nvmlDeviceSetGpuLockedClocks", low, high, gpu=0)

    assert node.gpus[0].locked_clocks_mhz == locked


@needs_root
@pytest.mark.parametrize(("low", "high"), [(1200, 900), (210, 2500), (0, 100)])
def test_clocks_outside_the_table_are_refused(make_node: MakeNode, bind: Bind, low: int, high: int) -> None:
    node = make_node("a100")

    assert bind(node).error("nvmlDeviceSetGpuLockedClocks", low, high, gpu=0) == "InvalidArgument"
    assert node.gpus[0].locked_clocks_mhz is None


@needs_root
def test_idle_gpu_shows_the_lock(make_node: MakeNode, bind: Bind) -> None:
    nvml = bind(make_node("a100"))
    nvml.call("nvmlDeviceSetGpuLockedClocks", 1065, 1065, gpu=0)

    assert nvml.call("nvmlDeviceGetClockInfo", 1, gpu=0) == 1065


@needs_root
def test_power_limit_caps_the_clock_inside_its_constraints(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100")
    nvml = bind(node)
    node.gpus[0].add_load("training")
    nvml.call("nvmlDeviceSetPowerManagementLimit", 300_000, gpu=0)

    assert nvml.call("nvmlDeviceGetPowerManagementLimit", gpu=0) == 300_000
    assert nvml.call("nvmlDeviceGetPowerUsage", gpu=0) <= 300_000
    assert nvml.call("nvmlDeviceGetClockInfo", 1, gpu=0) < 1200
    assert nvml.call("nvmlDeviceGetCurrentClocksEventReasons", gpu=0) == 4
    for milliwatts in (99_999, 500_001):
        assert nvml.error("nvmlDeviceSetPowerManagementLimit", milliwatts, gpu=0) == "InvalidArgument"
    assert (node.gpus[0].power_limit_watts, node.gpus[0].site_power_limit_watts) == (300.0, 500.0)
    assert node.gpus[0].calls[Call.LIMIT_SET] == 3


@needs_root
def test_application_clocks_take_supported_pairs_only(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("v100")
    nvml = bind(node)
    node.gpus[0].add_load("training")
    nvml.call("nvmlDeviceSetApplicationsClocks", 877, 1297, gpu=0)

    assert nvml.call("nvmlDeviceGetApplicationsClock", 0, gpu=0) == 1297
    assert nvml.call("nvmlDeviceGetClockInfo", 1, gpu=0) == 1297
    assert nvml.error("nvmlDeviceSetApplicationsClocks", 877, 1298, gpu=0) == "InvalidArgument"
    assert nvml.error("nvmlDeviceSetApplicationsClocks", 810, 1297, gpu=0) == "InvalidArgument"
    nvml.call("nvmlDeviceResetApplicationsClocks", gpu=0)
    assert nvml.call("nvmlDeviceGetClockInfo", 1, gpu=0) == 1365  # all that 250 W leave for dgemm


@needs_root
def test_memory_clocks_lock_from_ampere_on_and_every_try_is_counted(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("v100")

    assert bind(node).error("nvmlDeviceSetMemoryLockedClocks", 877, 877, gpu=0) == "NotSupported"
    assert node.gpus[0].calls[Call.MEMORY_LOCK] == 1


def test_ordinary_users_read_but_set_nothing(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100")
    nvml = bind(node)
    if os.geteuid() == 0:
        nvml.call("setuid", 65534)

    assert [nvml.error(*setting, gpu=0) for setting in SETTINGS] == ["NoPermission"] * len(SETTINGS)
    assert nvml.call("nvmlDeviceGetPowerUsage", gpu=0) == 60_000
    assert (node.gpus[0].locked_clocks_mhz, node.gpus[0].power_limit_watts) == (None, 500.0)


# Finding the state


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({}, "DriverNotLoaded"),
        ({"SLURMD_NODENAME": "n9"}, "DriverNotLoaded"),
        ({"SLURMD_NODENAME": "../n1"}, "DriverNotLoaded"),
        ({"SLURM_ENERGY_SIM_GPU_STATE": "/dev/null"}, "LibRmVersionMismatch"),
    ],
)
def test_without_a_state_there_is_no_driver(built: BuiltLibrary, environment: dict[str, str], error: str) -> None:
    with pytest.raises(BindingError, match=error), NvmlBinding(built.directory, environment):
        pass


def test_calls_before_init_and_after_shutdown_are_refused(make_node: MakeNode, built: BuiltLibrary) -> None:
    node = make_node("a100")
    with NvmlBinding(built.directory, {"SLURM_ENERGY_SIM_GPU_STATE": str(node.path)}, initialise=False) as nvml:
        assert nvml.error("nvmlDeviceGetCount") == "Uninitialized"
        nvml.call("nvmlInit")
        nvml.call("nvmlInit")
        nvml.call("nvmlShutdown")
        assert nvml.call("nvmlDeviceGetCount") == 2
        nvml.call("nvmlShutdown")
        assert nvml.error("nvmlDeviceGetCount") == "Uninitialized"


def test_state_is_found_by_folder_and_beside_the_library(
    make_node: MakeNode, built: BuiltLibrary, tmp_path: Path
) -> None:
    node = make_node("a40", count=3)
    lab = tmp_path / "lab"
    (lab / "lib").mkdir(parents=True)
    (lab / "gpus").mkdir()
    shutil.copy(built.library, lab / "lib")
    shutil.copy(node.path, lab / "gpus" / "a40-1.state")
    for library, environment in (
        (built.directory, {"SLURM_ENERGY_SIM_GPU_DIR": str(lab / "gpus"), "SLURMD_NODENAME": "a40-1"}),
        (lab / "lib", {"SLURMD_NODENAME": "a40-1"}),
    ):
        with NvmlBinding(library, environment) as nvml:
            assert nvml.call("nvmlDeviceGetCount") == 3
