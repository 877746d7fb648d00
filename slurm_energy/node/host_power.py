"""The node's host energy from a power, where it has no counter: followed by the samplers, one of them at a time.

A board's controller takes seconds for an answer, so it is asked in a thread, under a lock of the node, and no hook
waits for it. A power of the whole node holds its GPUs: their own power, read at the same moment, is taken off. What a
controller that lags behind makes negative for a moment is taken off what comes next, so that the count never falls and
loses nothing. Between two readings power is taken as linear; after a gap another count begins.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from slurm_energy.device.gpu import Gpu
from slurm_energy.device.rapl import POWERCAP_ROOT, read_rapl
from slurm_energy.domain.energy import MAX_WATTS_PER_GPU
from slurm_energy.errors import DeviceError, DeviceNotSupported, SpoolError, WireError
from slurm_energy.files import locked_if_free, make_private, read_whole, write_atomically
from slurm_energy.node.context import HookContext
from slurm_energy.node.state import MeterReading, decode_reading, encode_reading
from slurm_energy.wire.fields import Fields, loads

if TYPE_CHECKING:
    from slurm_energy.device.power import PowerReader, PowerReading

GAP_INTERVALS = 6.0
IPMI_DEVICES = (Path("/dev/ipmi0"), Path("/dev/ipmi/0"), Path("/dev/ipmidev/0"))
_MAX_WATTS = 1e6
_MAX_JOULES = 1e15


def _start_thread(act: Callable[[], None]) -> None:
    Thread(target=act, daemon=True).start()


class HostPower:
    """Follows the power for one sampler."""

    def __init__(
        self,
        context: HookContext,
        reader: "PowerReader",
        gpus: Iterable[Gpu],
        start: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        """Remember what to ask.

        Args:
            context: The doors.
            reader: Of the power.
            gpus: All GPUs of the node.
            start: Runs an action beside this one.
        """
        self._context = context
        self._reader = reader
        self._gpus = tuple(gpus)
        self._start = start
        self._busy = False
        self._since = context.monotonic()
        self._asked_at = -1e9
        self.said: list[str] = []
        """What a person must know of the source: what it is, and why it failed; each once."""

    def look(self) -> MeterReading | None:
        """Return the newest reading since this began, None while there is none; ask for the next one when it is due."""
        now, kept = self._context.monotonic(), self._read()
        interval = self._context.settings.node.power_interval_seconds
        newest = -1e9 if kept is None else kept[0].at_seconds
        if not self._busy and now - max(newest, self._asked_at) >= interval:
            self._busy, self._asked_at = True, now
            self._start(self._ask)
            kept = self._read()
        return None if kept is None or kept[0].at_seconds < self._since else kept[0]

    def _ask(self) -> None:
        try:
            spool = self._context.spool
            make_private(spool.root)
            with locked_if_free([spool.host_power_lock]) as held:
                if held:
                    self._step()
        except (DeviceError, SpoolError) as error:
            self._say(f"host: {error}")
        finally:
            self._busy = False

    def _step(self) -> None:
        from slurm_energy.device.power import PowerScope  # noqa: PLC0415  # few nodes have no counter

        reading = self._reader.read()
        watts = reading.watts
        if reading.scope is PowerScope.NODE:
            watts -= self._gpu_watts()
        self._say(f"host: {reading}{', less its GPUs' if reading.scope is PowerScope.NODE else ''}")
        now, before = self._context.monotonic(), self._read()
        write_atomically(self._path, self._next(before, reading, watts, now), durable=False)

    def _next(
        self, before: tuple[MeterReading, float, float] | None, reading: "PowerReading", watts: float, now: float
    ) -> bytes:
        """Return what is kept: the count with one step more, the power, and what the count is ahead of the truth."""
        interval = self._context.settings.node.power_interval_seconds
        count = MeterReading(
            meter_id=f"{self._context.boot_id}@{now:.3f}{reading.source[:8]}", joules=0.0, at_seconds=now
        )
        ahead = 0.0
        if before is not None and 0.0 < now - before[0].at_seconds <= GAP_INTERVALS * interval:
            last, last_watts, ahead = before
            step = 0.5 * (watts + last_watts) * (now - last.at_seconds) - ahead
            ahead = max(-step, 0.0)
            count = MeterReading(meter_id=last.meter_id, joules=last.joules + max(step, 0.0), at_seconds=now)
        document = {"boot_id": self._context.boot_id, "watts": watts, "ahead_joules": ahead, **encode_reading(count)}
        return json.dumps(document, separators=(",", ":")).encode()

    def _gpu_watts(self) -> float:
        known = [gpu.power_watts() for gpu in self._gpus]
        if not all(0.0 <= watts <= MAX_WATTS_PER_GPU for watts in known):
            raise DeviceError(f"a GPU's power is not between 0 and {MAX_WATTS_PER_GPU:.0f} W, and the node's holds it")
        return sum(known) * self._context.settings.node.time_scale

    @property
    def _path(self) -> Path:
        return self._context.spool.host_power

    def _read(self) -> tuple[MeterReading, float, float] | None:
        try:
            content = read_whole(self._path)
            if content is None:
                return None
            fields = Fields(loads(content, self._path.name, 65_536), "host power")
            if fields.text("boot_id", 64) != self._context.boot_id:
                return None
            watts, ahead = (
                fields.number("watts", -_MAX_WATTS, _MAX_WATTS),
                fields.number("ahead_joules", 0, _MAX_JOULES),
            )
            return decode_reading(fields), watts, ahead
        except (SpoolError, WireError):
            return None

    def _say(self, text: str) -> None:
        if text not in self.said and len(self.said) < 8:
            self.said.append(text)


def find_reader(context: HookContext, hwmon_root: Path | None = None) -> "PowerReader | None":
    """Return what the configuration chooses, None for the counters of RAPL; `auto` takes the first that is there.

    Raises:
        DeviceNotSupported: `auto`, and there is nothing.
    """
    node = context.settings.node
    if node.host_power == "rapl":
        return None
    from slurm_energy.device.power import HWMON_ROOT, HwmonPower, IpmiPower, RedfishPower  # noqa: PLC0415  # few nodes

    hwmon = HwmonPower(root=hwmon_root or HWMON_ROOT)
    ipmi = IpmiPower(tool=node.ipmi_tool)
    credentials = Path(node.redfish_credentials_path) if node.redfish_credentials_path else None
    redfish = RedfishPower(url=node.redfish_url, credentials_path=credentials, ca_path=node.redfish_ca_path)
    named: dict[str, PowerReader] = {"hwmon": hwmon, "ipmi": ipmi, "redfish": redfish}
    if node.host_power != "auto":
        return named[node.host_power]
    try:
        read_rapl(context.rapl_root or POWERCAP_ROOT)
    except DeviceError:
        pass
    else:
        return None
    try:
        hwmon.read()
    except DeviceError:
        pass
    else:
        return hwmon
    if Path(node.ipmi_tool).is_file() and any(device.exists() for device in IPMI_DEVICES):
        return ipmi
    if node.redfish_url:
        return redfish
    raise DeviceNotSupported("no RAPL counter, hwmon power meter, IPMI device or node.redfish_url")
