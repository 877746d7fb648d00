"""One count of a node's host energy for all that runs on it: a sum that only grows, kept in a file.

Every hook, sampler and timer of the node adds what was drawn since whoever came before, under a lock. A job's figure is
the difference of two readings, so that what jobs had in common, and what lies between jobs, is known to the joule: the
stretches of this count that reports name add up to the node, in whatever order they come.

A boot begins another count, under another name. Counters wrap; a step for which that cannot be ruled out is counted as
doubtful, and one without a reading at its start as missed: neither is ever guessed.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_energy.device.rapl import POWERCAP_ROOT, RaplReading, read_rapl, total_difference
from slurm_energy.errors import DeviceError, DeviceNotSupported, SpoolError, WireError
from slurm_energy.files import locked_if_free, make_private, read_whole, write_atomically
from slurm_energy.node.context import HookContext
from slurm_energy.node.state import MeterReading, decode_reading, encode_reading
from slurm_energy.wire.fields import Fields, loads

METER_FORMAT = 1
LOCK_ATTEMPTS, LOCK_PAUSE_SECONDS = 20, 0.01
"""Whoever holds the count does so for a millisecond."""
_MAX_DOMAINS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeterFile:
    reading: MeterReading
    counters: dict[str, RaplReading]


def read_meter(context: HookContext) -> MeterReading | None:
    """Read the processors' counters, add what was drawn since the last reading of the node, and return the count.

    None while another process holds the count for longer than it ever should: a sampler that hangs must not keep
    others from their jobs' clocks and limits.

    Raises:
        DeviceError: the counters are not there, or cannot be read.
        SpoolError: the count cannot be kept.
    """
    if context.settings.node.host_power not in {"rapl", "auto"}:
        raise DeviceNotSupported(f"node.host_power is {context.settings.node.host_power}, which only samplers follow")
    spool = context.spool
    make_private(spool.root)
    path = spool.host_meter
    for attempt in range(LOCK_ATTEMPTS):
        if attempt:
            context.pause(LOCK_PAUSE_SECONDS)
        with locked_if_free([spool.host_meter_lock]) as held:
            if not held:
                continue
            # Under the lock: a reading that is older than the one before it would look like a wrap.
            counters = read_rapl(context.rapl_root or POWERCAP_ROOT)
            now = context.monotonic()
            kept = _next(_read(path), counters, now, f"{context.boot_id}@{now:.3f}", context.boot_id)
            write_atomically(path, _encode(kept), durable=False)
            return kept.reading
    return None


def _next(
    before: _MeterFile | None, counters: dict[str, RaplReading], now_seconds: float, new_id: str, boot_id: str
) -> _MeterFile:
    """Return the count with one step more; other counters, another boot or a lost file begin another."""
    if (
        before is None
        or before.reading.meter_id.partition("@")[0] != boot_id
        or before.counters.keys() != counters.keys()
        or before.reading.at_seconds > now_seconds
    ):
        return _MeterFile(reading=MeterReading(meter_id=new_id, joules=0.0, at_seconds=now_seconds), counters=counters)
    last = before.reading
    step = total_difference(before.counters, counters, now_seconds - last.at_seconds)
    reading = replace(
        last,
        joules=last.joules + step.joules,
        at_seconds=now_seconds,
        doubtful_steps=last.doubtful_steps + step.wrap_unobserved,
    )
    return _MeterFile(reading=reading, counters=counters)


def _encode(kept: _MeterFile) -> bytes:
    reading = kept.reading
    document = {
        "format": METER_FORMAT,
        **encode_reading(reading),
        "counters": {name: [one.microjoules, one.range_microjoules] for name, one in kept.counters.items()},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _read(path: Path) -> _MeterFile | None:
    """Return what was kept; a file that cannot be used is as none, and begins another count."""
    try:
        content = read_whole(path)
        if content is None:
            return None
        fields = Fields(loads(content, path.name, 1_048_576), "host meter")
        counters = fields.get("counters")
        if fields.get("format") != METER_FORMAT or not isinstance(counters, dict) or len(counters) > _MAX_DOMAINS:
            return None
        return _MeterFile(
            reading=decode_reading(fields), counters={str(name): _counter(one) for name, one in counters.items()}
        )
    except (SpoolError, WireError):
        return None


def _counter(value: object) -> RaplReading:
    if not isinstance(value, list) or len(value) != 2:
        raise WireError("host meter: a counter is not a pair")
    fields = Fields({"microjoules": value[0], "range": value[1]}, "counter")
    return RaplReading(
        microjoules=fields.integer("microjoules", 0, 1 << 63),
        range_microjoules=fields.optional_integer("range", 1, 1 << 63),
    )


def note_meter(context: HookContext) -> None:
    """Keep the count up while no job does: its counters wrap within minutes. A node without them has none."""
    try:
        read_meter(context)
    except (DeviceError, SpoolError):
        return
