"""Faults, and several processes at one node, through the real binding."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from compiled_library import compiled_library
from nvml_binding import SETTINGS, Bind, MakeNode, NvmlBinding, needs_root

from slurm_energy.lab.simgpu.build import BuiltLibrary
from slurm_energy.lab.simgpu.layout import Call, Fault

pytest_plugins = ("nvml_fixtures",)


# Faults


@needs_root
@pytest.mark.parametrize(
    ("fault", "call", "error"),
    [
        (Fault.ENERGY_UNSUPPORTED, ("nvmlDeviceGetTotalEnergyConsumption",), "NotSupported"),
        (Fault.ENERGY_ERROR, ("nvmlDeviceGetTotalEnergyConsumption",), "Unknown"),
        (Fault.POWER_UNSUPPORTED, ("nvmlDeviceGetPowerUsage",), "NotSupported"),
        (Fault.POWER_UNSUPPORTED, ("nvmlDeviceGetPowerManagementLimit",), "NotSupported"),
        *[(Fault.NO_PERMISSION, setting, "NoPermission") for setting in SETTINGS],
        (Fault.CLOCK_ERROR, ("nvmlDeviceSetGpuLockedClocks", 1065, 1065), "Unknown"),
        (Fault.CLOCK_UNSUPPORTED, ("nvmlDeviceSetGpuLockedClocks", 1065, 1065), "NotSupported"),
        (Fault.RESET_FAILS, ("nvmlDeviceResetGpuLockedClocks",), "Unknown"),
        (Fault.LIMIT_ERROR, ("nvmlDeviceSetPowerManagementLimit", 300_000), "Unknown"),
        (Fault.LOST, ("nvmlDeviceGetPowerUsage",), "GpuIsLost"),
        (Fault.LOST, ("nvmlDeviceGetUUID",), "GpuIsLost"),
        (Fault.MIG, ("nvmlDeviceSetGpuLockedClocks", 1065, 1065), "NotSupported"),
        (Fault.MIG, ("nvmlDeviceGetUtilizationRates",), "NotSupported"),
        (Fault.SYMBOL_MISSING, ("nvmlDeviceGetTotalEnergyConsumption",), "FunctionNotFound"),
        (Fault.SYMBOL_MISSING, ("nvmlDeviceSetGpuLockedClocks", 1065, 1065), "FunctionNotFound"),
    ],
)
def test_fault_fails_the_call_on_its_gpu_only_and_only_while_it_is_on(
    make_node: MakeNode, bind: Bind, fault: Fault, call: tuple[object, ...], error: str
) -> None:
    node = make_node("a100")
    nvml = bind(node)
    function, *arguments = call
    nvml.call("nvmlDeviceGetIndex", gpu=0)  # the handle is from before the fault
    node.gpus[0].set_fault(fault)

    assert nvml.error(str(function), *arguments, gpu=0) == error
    nvml.call(str(function), *arguments, gpu=1)
    node.gpus[0].set_fault(fault, on=False)
    nvml.call(str(function), *arguments, gpu=0)


def test_stuck_counter_shows_no_progress_and_a_reset_counter_starts_at_zero(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100")
    nvml = bind(node)
    node.advance(10.0)
    stuck, reset = node.gpus
    stuck.set_fault(Fault.ENERGY_STUCK)
    reset.set_fault(Fault.ENERGY_RESET)
    node.advance(5.0)

    assert nvml.call("nvmlDeviceGetTotalEnergyConsumption", gpu=0) == 600_000
    assert nvml.call("nvmlDeviceGetTotalEnergyConsumption", gpu=1) == 300_000


@needs_root
def test_ignored_clock_request_succeeds_and_changes_nothing(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100")
    nvml = bind(node)
    node.gpus[0].set_fault(Fault.CLOCK_IGNORED)
    nvml.call("nvmlDeviceSetGpuLockedClocks", 1065, 1065, gpu=0)

    assert nvml.call("nvmlDeviceGetClockInfo", 1, gpu=0) == 210
    assert node.gpus[0].calls[Call.CLOCK_LOCK] == 1


@needs_root
def test_reset_that_fails_once_works_the_second_time(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100")
    nvml = bind(node)
    nvml.call("nvmlDeviceSetGpuLockedClocks", 1065, 1065, gpu=0)
    node.gpus[0].set_fault(Fault.RESET_FAILS_ONCE)

    assert nvml.error("nvmlDeviceResetGpuLockedClocks", gpu=0) == "Unknown"
    held = node.gpus[0].locked_clocks_mhz
    nvml.call("nvmlDeviceResetGpuLockedClocks", gpu=0)
    assert [held, node.gpus[0].locked_clocks_mhz] == [(1065, 1065), None]
    assert node.gpus[0].faults == frozenset()


def test_blocking_call_holds_up_its_caller_and_nobody_else(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100")
    nvml, other = bind(node), bind(node)
    node.gpus[0].set_fault(Fault.ENERGY_BLOCKS)
    with node._mapped.locked() as state:
        assert state.gpus[0].block_seconds == 2.0
    node.gpus[0].set_block_seconds(3.0)

    began = time.monotonic()
    nvml.send("nvmlDeviceGetTotalEnergyConsumption", gpu=0)
    other.call("nvmlDeviceGetTotalEnergyConsumption", gpu=1)
    other.call("nvmlDeviceGetPowerUsage", gpu=0)
    unhindered = time.monotonic() - began
    assert nvml.receive() == 0
    blocked = time.monotonic() - began

    assert unhindered < 3.0 <= blocked


def test_lost_gpu_cannot_be_opened_and_the_others_can(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100", count=3)
    nvml = bind(node)
    node.gpus[1].set_fault(Fault.LOST)

    assert nvml.call("nvmlDeviceGetCount") == 3
    assert nvml.error("nvmlDeviceGetHandleByIndex", 1) == "GpuIsLost"
    assert nvml.call("nvmlDeviceGetMinorNumber", gpu=2) == 2


def test_gpu_in_mig_mode_has_a_slice_that_names_its_parent_and_measures_nothing(
    make_node: MakeNode, bind: Bind
) -> None:
    node = make_node("a100")
    nvml = bind(node)
    node.gpus[1].set_fault(Fault.MIG)
    slice_uuid = "MIG" + node.gpus[1].uuid[3:]
    handle = nvml.call("nvmlDeviceGetHandleByUUID", slice_uuid)

    assert nvml.call("nvmlDeviceGetMigMode", gpu=1) == [1, 1]
    assert nvml.call("nvmlDeviceGetUUID", handle) == slice_uuid
    assert nvml.call("nvmlDeviceIsMigDeviceHandle", handle) == 1
    parent = nvml.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    assert nvml.call("nvmlDeviceGetUUID", parent) == node.gpus[1].uuid
    assert nvml.error("nvmlDeviceGetPowerUsage", handle) == "InvalidArgument"
    assert nvml.call("nvmlDeviceGetPowerUsage", gpu=1) == 60_000
    assert nvml.error("nvmlDeviceGetHandleByUUID", "MIG" + node.gpus[0].uuid[3:]) == "NotFound"


def test_missing_symbol_is_function_not_found(make_node: MakeNode, bind: Bind, tmp_path: Path) -> None:
    older = compiled_library(tmp_path / "older", missing_symbols=["nvmlDeviceGetTotalEnergyConsumption"])
    nvml = bind(make_node("a100"), older)

    assert nvml.error("nvmlDeviceGetTotalEnergyConsumption", gpu=0) == "FunctionNotFound"
    assert nvml.call("nvmlDeviceGetPowerUsage", gpu=0) == 60_000


# Several processes


def test_a_killed_holder_of_the_lock_blocks_nobody(make_node: MakeNode, bind: Bind, built: BuiltLibrary) -> None:
    node = make_node("a100")
    nvml = bind(node)
    program = (
        "import sys, time; from pathlib import Path\n"
        "from slurm_energy.lab.simgpu.state import NodeGpuState\n"
        "node = NodeGpuState(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "with node._mapped.locked():\n    print('held', flush=True); time.sleep(60)\n"
    )
    arguments = [sys.executable, "-c", program, str(node.path), str(built.library)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        nvml.send("nvmlDeviceGetPowerUsage", gpu=0)  # waits for the lock when the holder dies
        time.sleep(0.05)
        holder.send_signal(signal.SIGKILL)
        holder.wait()

        assert nvml.receive() == 60_000
        assert nvml.call("nvmlDeviceGetPowerUsage", gpu=1) == 60_000


@needs_root
def test_a_thousand_interleaved_changes_of_two_processes_lose_nothing(make_node: MakeNode, bind: Bind) -> None:
    node = make_node("a100", count=1, time_scale=60.0)
    slot = node.gpus[0].add_load("training")
    processes = [bind(node), bind(node)]

    def change(nvml: NvmlBinding) -> None:
        for number in range(500):
            nvml.send("nvmlDeviceSetGpuLockedClocks", 210, 210 + 15 * (number % 81), gpu=0)
        for _ in range(500):
            nvml.receive()

    threads = [threading.Thread(target=change, args=(nvml,)) for nvml in processes]
    before = node.gpus[0].reading()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = node.gpus[0].reading()
    node.gpus[0].remove_load(slot)

    mean_watts = (after.energy_joules - before.energy_joules) / (after.device_seconds - before.device_seconds)
    assert node.gpus[0].calls[Call.CLOCK_LOCK] == 1000
    assert 149.0 < mean_watts < 463.0


def test_processes_killed_in_the_middle_of_calls_leave_the_energy_exact(
    make_node: MakeNode, built: BuiltLibrary
) -> None:
    node = make_node("a100", count=1, time_scale=60.0)
    program = (
        "import pynvml\npynvml.nvmlInit()\nhandle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "print('running', flush=True)\nwhile True:\n    pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)\n"
    )
    environment = {"SLURM_ENERGY_SIM_GPU_STATE": str(node.path), "LD_LIBRARY_PATH": str(built.directory)}
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            time.sleep(0.02)
            process.kill()

    reading = node.gpus[0].reading()
    assert node.gpus[0].calls[Call.ENERGY] > 100
    assert reading.energy_joules == pytest.approx(60.0 * reading.device_seconds, rel=1e-9)
