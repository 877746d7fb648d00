"""The one line that a person reads at submission."""

import re
from collections.abc import Iterable, Mapping

from slurm_energy.domain.decision import ClockChoice
from slurm_energy.domain.ids import GpuTypeName, PartitionName

MAX_MESSAGE_BYTES = 512
_REFUSE = "refuse with --energy=off"
_UNSAFE = re.compile(r"[^A-Za-z0-9._:,+-]")


def explanation(
    partitions: Iterable[PartitionName] | None,
    clocks: Iterable[ClockChoice],
    prefer: str | None,
    shown_names: Mapping[GpuTypeName, str],
) -> str:
    """Return what a decision does and how to refuse it, at most 512 bytes of ASCII; empty when it does nothing.

    Args:
        partitions: The partitions that are tried first, None when the job stays where it is.
        clocks: The clock for each GPU type.
        prefer: The node feature whose nodes are used first, None when any will do.
        shown_names: The name of each GPU type as the cluster's users know it.
    """
    parts = [_clock_text(clock, shown_names) for clock in clocks]
    partition = "" if partitions is None else f"partition {_plain(','.join(partitions), 128)} first"
    nodes = "" if prefer is None else f"nodes with {_plain(prefer, 64)} first"
    where = ", ".join(filter(None, (partition, nodes)))
    if not parts and not where:
        return ""
    shown = len(parts)
    while True:
        rest = [f"{len(parts) - shown} more GPU types"] if shown < len(parts) else []
        what = "; or ".join([*parts[:shown], *rest])
        line = "; ".join(filter(None, (f"{where}: {what}" if where and what else where or what, _REFUSE)))
        if len(line.encode()) <= MAX_MESSAGE_BYTES or shown == 0:
            return line
        shown -= 1


def _clock_text(clock: ClockChoice, shown_names: Mapping[GpuTypeName, str]) -> str:
    name = _plain(shown_names.get(clock.gpu_type, clock.gpu_type), 64)
    longer = _percent(clock.predicted_slowdown)
    return (
        f"{name} at {clock.sm_clock_mhz} of {clock.default_clock_mhz} MHz: "
        f"about {_percent(-clock.predicted_energy_change)} less energy, {longer} longer"
    )


def _percent(ratio: float) -> str:
    return f"{round(100 * ratio)} %" if ratio >= 0.005 or ratio <= 0.0 else "under 1 %"


def _plain(text: str, longest: int) -> str:
    """Return a name with everything replaced that a terminal or a log could take amiss."""
    return _UNSAFE.sub("?", text)[:longest]
