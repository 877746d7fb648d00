"""AMD GPUs behind the device interface, on a stand-in with the names and the answers of amdsmi 7.0.2."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from node_bench import Bench

from slurm_energy.device.amd import AmdDriver
from slurm_energy.device.gpu import is_amd_node, lock_clock, read_counter, restore_settings, save_settings
from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied
from slurm_energy.node.gpu_order import GpuOrder, SlurmGpu
from slurm_energy.node.hooks import run_epilog, run_prolog

TICK_MICROJOULES = 15.259


class SmiError(Exception):
    """AmdSmiException."""


class LibraryError(SmiError):
    """AmdSmiLibraryException."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Error code:\n\t{code} | said by the library")
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class ClockKind(IntEnum):
    SYS = 0
    GFX = 1


class PerfLevel(IntEnum):
    AUTO = 0


class InitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class Board:
    """What one MI300X says."""

    def __init__(self, number: int) -> None:
        self.number, self.range, self.clock = number, (132, 2100), 2100
        self.faults: dict[str, Any] = {}
        self.ticks = 1_000_000
        self.power: dict[str, Any] = {"current_socket_power": 310, "average_socket_power": "N/A", "socket_power": 310}


class StandIn(ModuleType):
    """The functions of amdsmi that are called, with its own names and forms of answers."""

    AmdSmiException, AmdSmiLibraryException = SmiError, LibraryError
    AmdSmiClkType, AmdSmiDevPerfLevel, AmdSmiInitFlags = ClockKind, PerfLevel, InitFlags

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.boards = [Board(0), Board(1)]
        self.opened = 0

    def amdsmi_init(self, flag: InitFlags) -> None:
        assert flag is InitFlags.INIT_AMD_GPUS
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[Board]:
        return self.boards

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Callable[..., Any]] = {
            "amdsmi_get_gpu_device_uuid": lambda board: f"{board.number:02x}ff74a1-0000-1000-80e9-24ffec01b5ff",
            "amdsmi_get_gpu_asic_info": lambda _: {"market_name": "AMD Instinct MI300X OAM"},
            "amdsmi_get_gpu_device_bdf": lambda board: f"0000:{board.number:02x}:00.0",
            "amdsmi_get_gpu_enumeration_info": lambda board: {"drm_render": 128 + board.number, "hip_uuid": "GPU-1"},
            "amdsmi_get_energy_count": lambda board: {
                "energy_accumulator": board.ticks,
                "counter_resolution": TICK_MICROJOULES,
                "timestamp": 1,
            },
            "amdsmi_get_power_info": lambda board: board.power,
            "amdsmi_get_clock_info": lambda board, _: {"clk": board.clock, "min_clk": 132, "max_clk": 2100},
            "amdsmi_get_gpu_activity": lambda _: {"gfx_activity": 93, "umc_activity": 40, "mm_activity": "N/A"},
            "amdsmi_get_power_cap_info": lambda _: {"power_cap": 750_000_000, "max_power_cap": 750_000_000},
            "amdsmi_set_gpu_clk_range": self._set_range,
            "amdsmi_set_gpu_perf_level": lambda board, _: self._set_range(board, 132, 2100, ClockKind.SYS),
        }
        if name not in answers:
            raise AttributeError(name)

        def call(board: Board, *arguments: Any) -> Any:
            fault = board.faults.get(name)
            if isinstance(fault, Exception):
                raise fault
            return answers[name](board, *arguments) if fault is None else fault

        return call

    def _set_range(self, board: Board, low: int, high: int, kind: ClockKind) -> None:
        assert kind is ClockKind.SYS
        board.range, board.clock = (low, high), min(high, 2100)


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "amdsmi", stand_in)
    yield stand_in
    assert stand_in.opened == 0


def test_boards_have_identity_device_number_and_figures_in_our_units(smi: StandIn) -> None:
    with AmdDriver() as driver:
        first, second = driver.gpus()
        assert [gpu.identity.minor_number for gpu in (first, second)] == [128, 129]
        assert second.identity.uuid == "01ff74a1-0000-1000-80e9-24ffec01b5ff"
        assert (second.identity.pci_bus_id, second.identity.name) == ("0000:01:00.0", "AMD Instinct MI300X OAM")
        assert first.energy_joules() == pytest.approx(15.259)
        assert (first.power_watts(), first.instant_power_watts(), first.power_limit_watts()) == (310.0, 310.0, 750.0)
        assert (first.utilisation(), first.memory_utilisation(), first.sm_clock_mhz()) == (0.93, 0.4, 2100)


def test_one_watt_for_one_second_is_one_joule(smi: StandIn) -> None:
    with AmdDriver() as driver:
        gpu = driver.gpus()[0]
        before = gpu.energy_joules()
        smi.boards[0].ticks += round(1e6 / TICK_MICROJOULES)
        assert gpu.energy_joules() - before == pytest.approx(1.0, rel=1e-4)


def test_a_clock_is_locked_seen_and_given_back_on_that_board_alone(smi: StandIn) -> None:
    with AmdDriver() as driver:
        gpu = driver.gpus()[0]
        saved = save_settings(gpu, gpu.supported_sm_clocks_mhz(), None)
        assert (saved.lowest_clock_mhz, saved.highest_clock_mhz, saved.power_limit_watts) == (132, 2100, 750.0)
        outcome = lock_clock(gpu, 132, 1500, lambda _: None)
        assert (outcome.applied_clock_mhz, outcome.flags, smi.boards[0].range) == (1500, (), (132, 1500))
        assert smi.boards[1].range == (132, 2100)
        assert restore_settings(gpu, saved, clock_changed=True, pause=lambda _: None).restored
        assert smi.boards[0].range == (132, 2100)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, DeviceNotSupported), (3, DeviceNotSupported), (10, DevicePermissionDenied), (30, DeviceError)],
)
def test_errors_of_the_library_are_ours_on_one_line(smi: StandIn, code: int, kind: type[DeviceError]) -> None:
    smi.boards[0].faults["amdsmi_get_energy_count"] = LibraryError(code)
    with AmdDriver() as driver, pytest.raises(kind) as caught:
        driver.gpus()[0].energy_joules()
    assert type(caught.value) is kind and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        {"energy_accumulator": "N/A", "counter_resolution": TICK_MICROJOULES},
        {"energy_accumulator": 2**64 - 1, "counter_resolution": 1e5},
        {"energy_accumulator": 5, "counter_resolution": 0.0},
        {"energy_accumulator": 5, "counter_resolution": float("nan")},
        {"energy_accumulator": -5, "counter_resolution": TICK_MICROJOULES},
        {"power": 5},
    ],
)
def test_a_counter_that_cannot_be_is_no_reading(smi: StandIn, answer: Any) -> None:
    smi.boards[0].faults["amdsmi_get_energy_count"] = answer
    with AmdDriver() as driver:
        reading = read_counter(driver.gpus()[0], None)
    assert reading.joules is None and reading.problem is not None


def test_a_partition_without_power_and_energy_is_unknown_not_zero(smi: StandIn) -> None:
    smi.boards[1].power = {"current_socket_power": "N/A", "average_socket_power": 0, "socket_power": "N/A"}
    smi.boards[1].faults["amdsmi_get_energy_count"] = LibraryError(2)
    with AmdDriver() as driver:
        gpu = driver.gpus()[1]
        assert read_counter(gpu, None).flags == (QualityFlag.COUNTER_UNSUPPORTED,)
        with pytest.raises(DeviceNotSupported, match="power"):
            gpu.power_watts()


def test_mi200_tells_an_average(smi: StandIn) -> None:
    smi.boards[0].power = {"current_socket_power": "N/A", "average_socket_power": 95, "socket_power": 95}
    with AmdDriver() as driver:
        assert driver.gpus()[0].power_watts() == 95.0
        with pytest.raises(DeviceNotSupported):
            driver.gpus()[0].instant_power_watts()


def test_a_board_that_does_not_answer_is_left_out(smi: StandIn) -> None:
    smi.boards[0].faults["amdsmi_get_gpu_device_uuid"] = LibraryError(30)
    with AmdDriver() as driver:
        assert [gpu.identity.index for gpu in driver.gpus()] == [1]


def test_a_missing_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(DeviceError, match=r"slurm-energy\[amd\]"):
        AmdDriver().__enter__()


def test_the_vendor_is_told_by_the_drivers_that_are_there(tmp_path: Path) -> None:
    assert not is_amd_node(str(tmp_path))
    (tmp_path / "kfd").touch()
    assert is_amd_node(str(tmp_path))
    (tmp_path / "nvidiactl").touch()
    assert not is_amd_node(str(tmp_path))


def test_a_jobs_hooks_bill_the_board_that_slurm_gave_it(smi: StandIn, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    files = [f"/dev/dri/renderD{minor}" for minor in (129, 128)]  # gres.conf has them the other way round
    gpus = tuple(SlurmGpu(gpu_type=None, device_file=file) for file in files)
    bench.order = GpuOrder(gpus=gpus, ways=("slurmd -G",))
    context = replace(bench.context(), driver=AmdDriver, device_minor=lambda file: int(file.rpartition("renderD")[2]))
    run_prolog(context, bench.hook(7, "0"))
    bench.clock.advance(10.0)
    smi.boards[0].ticks += round(9000e6 / TICK_MICROJOULES)
    smi.boards[1].ticks += round(3100e6 / TICK_MICROJOULES)
    run_epilog(context, bench.hook(7, "0"))
    (gpu,) = bench.reports()[0].gpus
    assert (gpu.gpu_uuid, gpu.gpu_name) == ("01ff74a1-0000-1000-80e9-24ffec01b5ff", "AMD Instinct MI300X OAM")
    assert (gpu.joules, gpu.source, gpu.scope) == (pytest.approx(3100.0), EnergySource.COUNTER, EnergyScope.GPU)
