"""Energy counters of the processors (RAPL) under /sys/class/powercap; readable by root only on most systems."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.domain.units import joules_from_microjoules
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

POWERCAP_ROOT = Path("/sys/class/powercap")
HIGHEST_DOMAIN_WATTS = 1000.0
"""No socket draws more; says how soon a counter can wrap."""

_COUNTED = re.compile(r"(?:package-[0-9]+(?:-die-[0-9]+)?|dram)\Z")
"""Packages hold cores and uncore already; psys holds everything and would count twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaplReading:
    """One domain's counter. `range_microjoules` is where it wraps, None when the kernel does not tell."""

    microjoules: int
    range_microjoules: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaplDifference:
    """Energy between two readings; `wrap_unobserved` says that a part may be missing."""

    joules: float
    wrap_unobserved: bool = False


def read_rapl(root: Path = POWERCAP_ROOT) -> dict[str, RaplReading]:
    """Return the counters of packages and memory by domain.

    Raises:
        DeviceNotSupported: this machine has none.
        DevicePermissionDenied: they are there and cannot be read.
    """
    readings: dict[str, RaplReading] = {}
    denied: str | None = None
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            if not _COUNTED.match((folder / "name").read_text(encoding="ascii").strip()):
                continue
            microjoules = _read_number(folder / "energy_uj")
        except PermissionError:
            denied = str(folder / "energy_uj")
            continue
        except (OSError, ValueError):
            continue
        readings[folder.name] = RaplReading(microjoules=microjoules, range_microjoules=_read_range(folder))
    if denied is not None:
        raise DevicePermissionDenied(f"{denied} cannot be read: root is needed")
    if not readings:
        raise DeviceNotSupported(f"no RAPL counter under {root}")
    return readings


def rapl_difference(before: RaplReading, after: RaplReading, seconds: float) -> RaplDifference:
    """Return the energy of one domain between two readings, never negative.

    A counter that fell has wrapped: with a known range, once; more wraps are possible, and said, when the time
    between the readings is long. Without a range only what was counted since zero is certain.
    """
    step = after.microjoules - before.microjoules
    span = after.range_microjoules or before.range_microjoules
    if span is None:
        wrapped = step < 0
        return RaplDifference(
            joules=joules_from_microjoules(after.microjoules if wrapped else step), wrap_unobserved=wrapped
        )
    if step < 0:
        step += span + 1
    if step < 0:  # the earlier reading was above the range: the domain was replaced
        return RaplDifference(joules=joules_from_microjoules(max(after.microjoules, 0)), wrap_unobserved=True)
    could_wrap_again = seconds * HIGHEST_DOMAIN_WATTS > joules_from_microjoules(span)
    return RaplDifference(joules=joules_from_microjoules(step), wrap_unobserved=could_wrap_again)


def total_difference(
    before: Mapping[str, RaplReading], after: Mapping[str, RaplReading], seconds: float
) -> RaplDifference:
    """Return the energy of all domains that both readings have.

    Raises:
        DeviceError: they have none in common.
    """
    common = before.keys() & after.keys()
    if not common:
        raise DeviceError("the RAPL domains changed between two readings")
    parts = [rapl_difference(before[name], after[name], seconds) for name in sorted(common)]
    return RaplDifference(
        joules=sum(part.joules for part in parts), wrap_unobserved=any(part.wrap_unobserved for part in parts)
    )


def _read_number(path: Path) -> int:
    number = int(path.read_text(encoding="ascii"))
    if number < 0:
        raise ValueError(f"{path} is negative")
    return number


def _read_range(folder: Path) -> int | None:
    try:
        return _read_number(folder / "max_energy_range_uj") or None
    except (OSError, ValueError):
        return None
