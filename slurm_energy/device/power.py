"""Power of a whole node or of its processors, from what the machine has: hwmon, IPMI (DCMI) or Redfish.

Each reader returns one reading with its source, its scope and the time over which it is averaged, or raises. A board
controller is another computer: its answer is bounded in time and size, and a figure that no node can draw is refused.
"""

import base64
import json
import math
import os
import re
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied, SpoolError
from slurm_energy.files import read_whole

HWMON_ROOT = Path("/sys/class/hwmon")
MAX_NODE_WATTS = 100_000.0
"""No node draws more; an answer above it is none."""
IPMI_SECONDS = 5.0
REDFISH_SECONDS = 5.0
MAX_ANSWER_BYTES = 262_144
IPMI_COMMAND = ("dcmi", "power", "reading")
_INSTANT = re.compile(r"^\s*Instantaneous power reading\s*:\s*(\d{1,9})\s*Watts?\s*$", re.MULTILINE)
_PERIOD = re.compile(r"^\s*Sampling period\s*:\s*(\d{1,9})\s*Seconds?\b", re.MULTILINE)
_INACTIVE = re.compile(r"^\s*Power reading state is\s*:\s*deactivated", re.MULTILINE)
_GRACE = re.compile(r"Grace Power Socket \d+\Z")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class PowerScope(StrEnum):
    """What a reading is of."""

    NODE = "node"
    """All of it, with GPUs and fans."""
    PROCESSORS = "processors"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """One reading. `window_seconds` is what the source says it averages over; None: it does not say."""

    watts: float
    source: str
    scope: PowerScope = PowerScope.NODE
    window_seconds: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.watts) and 0.0 < self.watts <= MAX_NODE_WATTS):
            raise DeviceError(f"{self.source}: {self.watts} W is not above 0 and at most {MAX_NODE_WATTS:.0f} W")

    def __str__(self) -> str:
        window = "of no stated window" if self.window_seconds is None else f"over {self.window_seconds:g} s"
        return f"power of the {self.scope} by {self.source}, {window}"


class PowerReader(Protocol):
    """One source of power."""

    def read(self) -> PowerReading:
        """Return the present power.

        Raises:
            DeviceError: there is none: not supported, no permission, too late, or an answer that cannot be true.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HwmonPower:
    """ACPI power meters under /sys/class/hwmon: a node's, or those of Grace processors.

    On Grace superchips the firmware has several meters, which `power1_oem_info` names apart: only those of the Grace
    sockets are taken. The module's holds the GPU, whose own counter holds the module.
    """

    root: Path = HWMON_ROOT

    def read(self) -> PowerReading:
        """Return the sum of the meters."""
        meters = [folder for folder in sorted(self.root.glob("hwmon*")) if _word(folder / "name") == "power_meter"]
        places = [_place(meter) for meter in meters]
        labels = {place: _word(place / "power1_oem_info") for place in places}
        grace = [place for place, label in labels.items() if label is not None and _GRACE.match(label)]
        chosen = grace or [place for place, label in labels.items() if not label]
        if not chosen:
            raise DeviceNotSupported(f"hwmon: no power meter of the node under {self.root}")
        if len(chosen) > 1 and not grace:
            raise DeviceNotSupported(f"hwmon: {len(chosen)} power meters under {self.root}, and none says what of")
        read = [_hwmon_watts(place) for place in chosen]
        windows = [window for _, window in read if window is not None]
        return PowerReading(
            watts=sum(watts for watts, _ in read),
            source="hwmon",
            scope=PowerScope.PROCESSORS if grace else PowerScope.NODE,
            window_seconds=max(windows, default=None),
        )


def _place(meter: Path) -> Path:
    """Return where a meter's attributes are: drivers of the old kind have them at the device."""
    return meter if any((meter / name).exists() for name in ("power1_average", "power1_input")) else meter / "device"


def _hwmon_watts(place: Path) -> tuple[float, float | None]:
    for name in ("power1_average", "power1_input"):
        path = place / name
        try:
            microwatts = int(path.read_text(encoding="ascii"))
        except FileNotFoundError:
            continue
        except PermissionError:
            raise DevicePermissionDenied(f"hwmon: {path} cannot be read: root is needed") from None
        except (OSError, ValueError) as error:
            raise DeviceError(f"hwmon: {path}: {error}") from error
        interval = _word(place / "power1_average_interval") if name == "power1_average" else None
        window = int(interval) / 1e3 if interval is not None and interval.isdecimal() and len(interval) < 10 else None
        return microwatts / 1e6, window
    raise DeviceNotSupported(f"hwmon: no power under {place}")


def _word(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:128].strip()
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class IpmiPower:
    """The node's power by `ipmitool dcmi power reading`, which takes 1 to 3 s: for no hook."""

    tool: str = "/usr/bin/ipmitool"
    deadline_seconds: float = IPMI_SECONDS

    def read(self) -> PowerReading:
        """Return what the board's controller says."""
        text = self._run()
        found = _INSTANT.search(text)
        if found is None or _INACTIVE.search(text):
            raise DeviceNotSupported(f"ipmi: {self.tool} tells no power: {_first_line(text)}")
        period = _PERIOD.search(text)
        return PowerReading(
            watts=float(found[1]), source="ipmi", window_seconds=None if period is None else float(period[1])
        )

    def _run(self) -> str:
        try:
            process = subprocess.Popen(
                [self.tool, *IPMI_COMMAND],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise DeviceNotSupported(f"ipmi: {self.tool} cannot be run: {error.strerror}") from error
        try:
            output = process.communicate(timeout=self.deadline_seconds)[0][:MAX_ANSWER_BYTES]
        except subprocess.TimeoutExpired:
            raise DeviceError(f"ipmi: {self.tool} did not answer within {self.deadline_seconds:g} s") from None
        finally:
            if process.poll() is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        text = output.decode("utf-8", "replace")
        if process.returncode != 0:
            raise DeviceError(f"ipmi: {self.tool} ends with {process.returncode}: {_first_line(text)}")
        return text


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it says nothing")
    return "".join(character if character.isprintable() else "?" for character in line[:120])


@dataclass(frozen=True, slots=True, kw_only=True)
class RedfishPower:
    """The node's power by one Redfish resource: Chassis/ID/Power or Chassis/ID/EnvironmentMetrics."""

    url: str
    credentials_path: Path | None = None
    """File of root's with USER:PASSWORD; None: without."""
    ca_path: str = ""
    """Certificates that the controller's own is held against; empty: the system's."""
    deadline_seconds: float = REDFISH_SECONDS

    def read(self) -> PowerReading:
        """Return what the board's controller says."""
        try:
            document = json.loads(self._get(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise DeviceError("redfish: the answer is not JSON") from None
        found = _redfish_watts(document)
        if found is None:
            raise DeviceNotSupported("redfish: neither PowerControl[].PowerConsumedWatts nor PowerWatts.Reading in it")
        watts, window = found
        return PowerReading(watts=watts, source="redfish", window_seconds=window)

    def _get(self) -> bytes:
        parts = urlsplit(self.url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise DeviceError(f"redfish: {self.url[:100]!r} is not https: a password would be readable on the way")
        request = urllib.request.Request(self.url, headers={"Accept": "application/json", **self._authorization()})  # noqa: S310  # checked above
        until = time.monotonic() + self.deadline_seconds
        try:
            context = ssl.create_default_context(cafile=self.ca_path or None)
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), _NoRedirect, urllib.request.HTTPSHandler(context=context)
            )
            with opener.open(request, timeout=self.deadline_seconds) as answer:
                content = b""
                while piece := answer.read1(65_536):
                    content += piece
                    if len(content) > MAX_ANSWER_BYTES:
                        raise DeviceError(f"redfish: the answer is over {MAX_ANSWER_BYTES} bytes")
                    if time.monotonic() > until:
                        raise DeviceError(f"redfish: no whole answer within {self.deadline_seconds:g} s")
                return content
        except urllib.error.HTTPError as error:
            raise DeviceError(f"redfish: the controller answers {error.code}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise DeviceError(f"redfish: {str(error)[:200]}") from error

    def _authorization(self) -> dict[str, str]:
        if self.credentials_path is None:
            return {}
        try:
            content = read_whole(self.credentials_path)
            mode = self.credentials_path.stat().st_mode
        except (SpoolError, OSError) as error:
            raise DevicePermissionDenied(f"redfish: {error}") from error
        if content is None or mode & 0o077:
            raise DevicePermissionDenied(f"redfish: {self.credentials_path} must be there and root's alone: chmod 600")
        return {"Authorization": f"Basic {base64.b64encode(content.strip()).decode('ascii')}"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A controller that sends us elsewhere is not followed: the password would go along."""

    def redirect_request(self, *_: object) -> None:
        """Return no request."""


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _redfish_watts(document: object) -> tuple[float, float | None] | None:
    """Return watts and window: of the chassis' first power control, else of its environment metrics."""
    if not isinstance(document, Mapping):
        return None
    controls = document.get("PowerControl")
    for control in controls if isinstance(controls, list) else []:
        if isinstance(control, Mapping) and (watts := _number(control.get("PowerConsumedWatts"))) is not None:
            metrics = control.get("PowerMetrics")
            minutes = _number(metrics.get("IntervalInMin")) if isinstance(metrics, Mapping) else None
            return watts, None if minutes is None else minutes * 60.0
    reading = document.get("PowerWatts")
    watts = _number(reading.get("Reading")) if isinstance(reading, Mapping) else None
    return None if watts is None else (watts, None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
