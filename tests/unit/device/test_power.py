"""Power of a node by hwmon, IPMI and Redfish: what is read, and what a hostile answer comes to."""

from pathlib import Path
from typing import Any

import pytest

from slurm_energy.device.power import HwmonPower, IpmiPower, PowerReading, PowerScope, RedfishPower
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

IPMI = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                210 Watts
    Average power reading over sample period:      219 Watts
    IPMI timestamp:                           Tue Dec  1 10:00:00 2026
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   {state}
"""


def meter(root: Path, number: int, name: str = "power_meter", **attributes: str) -> Path:
    folder = root / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    for attribute, text in attributes.items():
        (folder / attribute).write_text(f"{text}\n")
    return folder


def test_hwmon_meter_of_the_node_has_watts_and_window(tmp_path: Path) -> None:
    meter(tmp_path, 0, "coretemp")
    meter(tmp_path, 1, power1_average="412000000", power1_average_interval="1000")
    assert HwmonPower(root=tmp_path).read() == PowerReading(watts=412.0, source="hwmon", window_seconds=1.0)


def test_of_a_grace_module_only_the_processors_meters_are_taken(tmp_path: Path) -> None:
    for number, (label, microwatts) in enumerate(
        {
            "Module Power Socket 0": 700,
            "Grace Power Socket 0": 140,
            "Grace Power Socket 1": 150,
            "CPU Power Socket 0": 99,
        }.items()
    ):
        folder = meter(tmp_path, number)
        (folder / "device").mkdir()
        (folder / "device" / "power1_average").write_text(f"{microwatts}000000\n")
        (folder / "device" / "power1_oem_info").write_text(f"{label}\n")
    reading = HwmonPower(root=tmp_path).read()
    assert (reading.watts, reading.scope) == (290.0, PowerScope.PROCESSORS)


def test_two_meters_that_do_not_say_what_of_are_not_added_up(tmp_path: Path) -> None:
    meter(tmp_path, 0, power1_input="100000000")
    meter(tmp_path, 1, power1_input="400000000")
    with pytest.raises(DeviceNotSupported, match="none says what of"):
        HwmonPower(root=tmp_path).read()


@pytest.mark.parametrize("text", ["-5000000", "0", "999999999999999999", "nan", "", "<html>", "1e9"])
def test_hwmon_figure_that_no_node_draws_is_refused(tmp_path: Path, text: str) -> None:
    meter(tmp_path, 0, power1_average=text)
    with pytest.raises(DeviceError, match="hwmon"):
        HwmonPower(root=tmp_path).read()


@pytest.mark.parametrize("watts", [float("nan"), float("inf"), -1.0, 0.0, 1e30])
def test_no_reading_has_a_power_that_cannot_be(watts: float) -> None:
    with pytest.raises(DeviceError, match="test"):
        PowerReading(watts=watts, source="test")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    answer: dict[str, Any] = {"text": ""}
    monkeypatch.setattr(IpmiPower, "_run", lambda _self: answer["text"])
    monkeypatch.setattr(RedfishPower, "_get", lambda _self: answer["text"].encode())
    return answer


def test_ipmi_reading_has_the_sampling_period(said: dict[str, Any]) -> None:
    said["text"] = IPMI.format(watts=220, state="activated")
    assert IpmiPower().read() == PowerReading(watts=220.0, source="ipmi", window_seconds=1.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DCMI request failed because: Invalid command (c1)",
        IPMI.format(watts=0, state="activated"),
        IPMI.format(watts=-3, state="activated"),
        IPMI.format(watts="nan", state="activated"),
        IPMI.format(watts=999_999_999, state="activated"),
        IPMI.format(watts="9" * 400, state="activated"),
        IPMI.format(watts=220, state="deactivated"),
    ],
)
def test_what_ipmi_says_else_is_no_power(said: dict[str, Any], text: str) -> None:
    said["text"] = text
    with pytest.raises(DeviceError, match="ipmi"):
        IpmiPower().read()


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ('{"PowerControl":[{"PowerConsumedWatts":344,"PowerMetrics":{"IntervalInMin":1}}]}', 60.0),
        ('{"PowerControl":[{"Name":"cap"},{"PowerConsumedWatts":344.0}]}', None),
        ('{"PowerWatts":{"Reading":344}}', None),
    ],
)
def test_redfish_resources_of_both_kinds_are_read(said: dict[str, Any], text: str, window: float | None) -> None:
    said["text"] = text
    reading = RedfishPower(url="https://bmc/power").read()
    assert reading == PowerReading(watts=344.0, source="redfish", window_seconds=window)


@pytest.mark.parametrize(
    "text",
    [
        "<html>login</html>",
        "[]",
        "{}",
        '{"PowerControl":{}}',
        '{"PowerControl":[{"PowerConsumedWatts":null}]}',
        '{"PowerControl":[{"PowerConsumedWatts":"344"}]}',
        '{"PowerControl":[{"PowerConsumedWatts":true}]}',
        '{"PowerControl":[{"PowerConsumedWatts":-20}]}',
        '{"PowerControl":[{"PowerConsumedWatts":NaN}]}',
        '{"PowerControl":[{"PowerConsumedWatts":1e999}]}',
        '{"PowerControl":[{"PowerConsumedWatts":' + "9" * 400 + "}]}",
        "[" * 100_000,
    ],
)
def test_what_redfish_says_else_is_no_power(said: dict[str, Any], text: str) -> None:
    said["text"] = text
    with pytest.raises(DeviceError, match="redfish"):
        RedfishPower(url="https://bmc/power").read()


def test_a_password_goes_to_no_host_in_the_clear() -> None:
    with pytest.raises(DeviceError, match="not https"):
        RedfishPower(url="http://bmc/redfish/v1/Chassis/1/Power").read()


def test_credentials_that_others_can_read_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "redfish"
    path.write_text("root:secret\n")
    path.chmod(0o644)
    with pytest.raises(DevicePermissionDenied, match="chmod 600"):
        RedfishPower(url="http://127.0.0.1:1/", credentials_path=path).read()
