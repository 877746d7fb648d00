"""Host energy from the node's power: integrated, less the GPUs, once for all jobs of a node."""

from dataclasses import replace
from pathlib import Path

import pytest
from node_bench import Bench

from slurm_energy.device.power import HwmonPower, IpmiPower, PowerReading, PowerScope, RedfishPower
from slurm_energy.errors import DeviceError, DeviceNotSupported
from slurm_energy.node.host_power import HostPower, find_reader


class Controller:
    """A board's controller that answers what the test says."""

    def __init__(self, watts: float, scope: PowerScope = PowerScope.NODE) -> None:
        self.watts: float | DeviceError = watts
        self.scope, self.asked = scope, 0

    def read(self) -> PowerReading:
        self.asked += 1
        if isinstance(self.watts, DeviceError):
            raise self.watts
        return PowerReading(watts=self.watts, source="test", scope=self.scope, window_seconds=1.0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def follow(bench: Bench, controller: Controller) -> HostPower:
    return HostPower(bench.context(), controller, bench.gpus, start=lambda act: act())


def test_the_nodes_power_less_its_gpus_is_integrated(bench: Bench) -> None:
    gpus = sum(gpu.power_watts() for gpu in bench.gpus)
    controller = Controller(gpus + 300.0)
    power = follow(bench, controller)
    first = power.look()
    for _ in range(6):
        bench.clock.advance(10.0)
        last = power.look()
    assert first is not None and last is not None
    assert last.joules - first.joules == pytest.approx(300.0 * 60.0)
    assert last.meter_id == first.meter_id
    assert power.said == ["host: power of the node by test, over 1 s, less its GPUs"]


def test_processors_power_has_no_gpus_to_take_off(bench: Bench) -> None:
    power = follow(bench, Controller(200.0, PowerScope.PROCESSORS))
    power.look()
    bench.clock.advance(10.0)
    last = power.look()
    assert last is not None and last.joules == pytest.approx(2000.0)


def test_two_samplers_of_a_node_ask_once_and_read_one_count(bench: Bench) -> None:
    controller = Controller(5000.0)
    first, second = follow(bench, controller), follow(bench, controller)
    for _ in range(4):
        one, other = first.look(), second.look()
        assert one == other
        bench.clock.advance(10.0)
    assert controller.asked == 4


def test_a_controller_that_lags_behind_makes_the_count_neither_fall_nor_lose(bench: Bench) -> None:
    gpus = sum(gpu.power_watts() for gpu in bench.gpus)
    controller = Controller(gpus + 100.0)
    power = follow(bench, controller)
    found = [power.look()]
    for extra in (-250.0, 450.0, 100.0, 100.0):
        bench.clock.advance(10.0)
        controller.watts = gpus + extra
        found.append(power.look())
    joules = [reading.joules for reading in found if reading is not None]
    assert joules == sorted(joules)
    assert joules[-1] == pytest.approx(10.0 * (50.0 - 250.0 + 450.0 + 100.0 + 50.0))


def test_a_gap_begins_another_count_and_is_not_guessed(bench: Bench) -> None:
    power = follow(bench, Controller(5000.0))
    first = power.look()
    bench.clock.advance(600.0)
    second = power.look()
    assert first is not None and second is not None
    assert (second.meter_id != first.meter_id, second.joules) == (True, 0.0)


def test_a_controller_that_fails_or_a_gpu_that_is_silent_leaves_no_reading_but_a_reason(bench: Bench) -> None:
    controller = Controller(5000.0)
    controller.watts = DeviceError("test: hangs")
    power = follow(bench, controller)
    assert power.look() is None
    controller.watts = 5000.0
    bench.gpus[1].faults["power_watts"] = DeviceNotSupported("GPU 1 tells no power")
    bench.clock.advance(10.0)
    assert power.look() is None
    assert power.said[0] == "host: test: hangs" and "GPU 1 tells no power" in power.said[-1]


def test_what_was_read_before_the_job_is_not_its_own(bench: Bench) -> None:
    follow(bench, Controller(5000.0)).look()
    bench.clock.advance(5.0)
    assert follow(bench, Controller(5000.0)).look() is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"watts":1e999}', b"\xff" * 100])
def test_a_spoiled_file_is_as_none(bench: Bench, content: bytes) -> None:
    power = follow(bench, Controller(5000.0))
    power.look()
    (bench.spool.root / "host-power.meter").write_bytes(content)
    bench.clock.advance(10.0)
    reading = power.look()
    assert reading is not None and reading.joules == 0.0


def test_the_source_is_the_configured_one_and_auto_takes_the_first_that_is_there(bench: Bench, tmp_path: Path) -> None:
    def chosen(**node: str) -> object:
        bench.node = replace(bench.node, **node)  # type: ignore[arg-type]  # texts alone
        return find_reader(bench.context(), tmp_path / "hwmon")

    assert chosen(host_power="rapl") is None
    assert isinstance(chosen(host_power="ipmi"), IpmiPower)
    assert isinstance(chosen(host_power="redfish", redfish_url="https://bmc/p"), RedfishPower)
    assert isinstance(chosen(host_power="auto", ipmi_tool=str(tmp_path / "none")), RedfishPower)
    with pytest.raises(DeviceNotSupported, match="no RAPL counter"):
        chosen(redfish_url="")
    meter = tmp_path / "hwmon" / "hwmon0"
    meter.mkdir(parents=True)
    (meter / "name").write_text("power_meter\n")
    (meter / "power1_average").write_text("400000000\n")
    assert isinstance(chosen(), HwmonPower)
