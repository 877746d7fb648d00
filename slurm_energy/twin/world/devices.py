"""Device models of a world file: by coefficients, by tables, from the package's calibrated curves; slices of a GPU."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from slurm_energy.energy_model.catalog import gpu_type
from slurm_energy.energy_model.curves import WorkloadCurve
from slurm_energy.energy_model.mig import WHOLE_SLICES, slice_curves, slice_watts
from slurm_energy.errors import ConfigError, ValueRangeError
from slurm_energy.forms import shown
from slurm_energy.twin.world.device_model import DeviceModel, Load, PairSpeed, Thermal
from slurm_energy.twin.world.kinds import MAX_WATTS, POINTS, DeviceFrame, KindReader, read_scaling, type_curves
from slurm_energy.twin.world.series import inside_folder
from slurm_energy.twin.world.table import WorldTable

_MAX_CLOCKS = 1000
_MAX_KINDS = 1000


def read_device(name: str, table: WorldTable, unit_seconds: Mapping[str, float]) -> DeviceModel:
    """Return the device model of a table `[devices.NAME]`.

    Args:
        name: The device's.
        table: Read to its end.
        unit_seconds: By kind, the given time [s] that is to count as 1 s; a `relative_speed` is in such units already.

    Raises:
        ConfigError: a key, value or combination is wrong; with file, table, key, value and bound.
    """
    curves = type_curves(table, "curves") if table.has("curves") else {}
    clocks_mhz, relative = _clocks(table, next(iter(curves.values()), None))
    limit = table.number("power_limit_watts", inf, high=MAX_WATTS, above=True)
    frame = DeviceFrame(
        relative_clocks=relative,
        curves=curves,
        limit_watts=limit,
        on_grid=table.boolean("limit_on_grid", False),
        floor_watts=table.number("floor_watts", 0.0, high=MAX_WATTS),
        relative_speed=table.optional_number("relative_speed", high=1e9, above=True),
        scaling=read_scaling(table.table("scaling")),
        points=table.choice("points", "fit", POINTS),
        unit_seconds=unit_seconds,
    )
    stored = _stored(name, table) if table.has("kinds_file") else WorldTable(table.path, table.where, {})
    loads = {kind: KindReader(kind, row, frame).load() for kind, row in _kind_tables(table, stored, curves).items()}
    thermal = _thermal(table.table("thermal")) if table.has("thermal") else None
    pairs = _pairs([*stored.rows("pairs"), *table.rows("pairs")], loads)
    stored.finish()
    free_watts = table.number("free_watts", high=MAX_WATTS)
    context_watts = table.number("context_watts", free_watts, low=0.0, high=MAX_WATTS)
    memory = table.number("memory_gib", inf, above=True)
    is_cpu = table.boolean("is_cpu", False)
    slices = table.integer("mig_slices", low=1, high=7) if table.has("mig_slices") else None
    table.finish()
    if not loads:
        raise table.error("no kind of work can run on it: [kinds], kinds_file or curves is needed")
    whole = table.built(
        lambda: DeviceModel(
            name=name,
            relative_clocks=relative,
            clocks_mhz=clocks_mhz,
            loads=loads,
            free_watts=free_watts,
            context_watts=context_watts,
            power_limit_watts=limit,
            memory_gib=memory,
            is_cpu=is_cpu,
            thermal=thermal,
            pairs=pairs,
        )
    )
    return whole if slices is None else table.built(lambda: mig_slice(whole, slices))


def _clocks(table: WorldTable, curve: WorkloadCurve | None) -> tuple[tuple[int, ...], tuple[float, ...]]:
    has_reference = table.has("reference_clock_mhz")
    if table.has("relative_clocks"):
        if has_reference:
            raise table.error("relative_clocks and reference_clock_mhz exclude each other")
        relative = _ascending(table, "relative_clocks", table.numbers("relative_clocks", above=True, high=100.0))
        return _clocks_mhz(table, None) if table.has("clocks_mhz") else (), relative
    clocks = _clocks_mhz(table, curve)
    default = curve.reference_clock_mhz if curve else clocks[-1]
    reference = table.number("reference_clock_mhz", default, low=1.0, high=1e5)
    return clocks, tuple(clock / reference for clock in clocks)


def _clocks_mhz(table: WorldTable, curve: WorkloadCurve | None) -> tuple[int, ...]:
    if not table.has("clocks_mhz"):
        row = gpu_type(curve.gpu_type) if curve else None
        if curve is None or row is None:
            raise table.error("relative_clocks or clocks_mhz is missing")
        return tuple(c for c in row.sm_clocks_mhz if curve.low_clock_mhz <= c <= curve.high_clock_mhz)
    if table.holds_list("clocks_mhz"):
        values = table.numbers("clocks_mhz", low=1.0, high=1e5)
        if any(value != int(value) for value in values):
            raise table.error("clocks_mhz are not all whole numbers")
        clocks = tuple(int(value) for value in values)
    else:
        grid = table.table("clocks_mhz")
        low, high = grid.number("low", low=1.0, high=1e5), grid.number("high", low=1.0, high=1e5)
        step = grid.number("step", low=0.1, high=1e5)
        grid.finish()
        count = round((high - low) / step) + 1
        if not 1 <= count <= _MAX_CLOCKS:
            raise grid.error(f"{low:g} to {high:g} MHz by {step:g} are {count} clocks: 1 to {_MAX_CLOCKS} are possible")
        clocks = tuple(int(low + step * index) for index in range(count))
        if clocks[-1] != int(high):
            raise grid.error(f"high={high:g} is no whole number of steps of {step:g} above low={low:g}")
    _ascending(table, "clocks_mhz", tuple(map(float, clocks)))
    if curve is not None and not curve.low_clock_mhz <= clocks[0] <= clocks[-1] <= curve.high_clock_mhz:
        raise table.error(
            f"clocks_mhz {clocks[0]} to {clocks[-1]} leave what was measured: {curve.low_clock_mhz} to "
            f"{curve.high_clock_mhz} MHz"
        )
    return clocks


def _ascending(table: WorldTable, key: str, values: tuple[float, ...]) -> tuple[float, ...]:
    if list(values) != sorted(set(values)):
        raise table.error(f"{key} are not ascending: {shown(values)}")
    if len(values) > _MAX_CLOCKS:
        raise table.error(f"{key} has {len(values)} values: at most {_MAX_CLOCKS} are possible")
    return values


def _kind_tables(table: WorldTable, stored: WorldTable, curves: Mapping[str, WorkloadCurve]) -> dict[str, WorldTable]:
    kinds = table.tables("kinds", _MAX_KINDS)
    others = stored.tables("kinds", _MAX_KINDS)
    doubled = sorted(set(others) & set(kinds))
    if doubled:
        raise table.error(f"kind {shown(doubled[0])} is both in kinds and in kinds_file")
    kinds = {**others, **kinds}
    if not kinds:
        kinds = {name: WorldTable(table.path, f"{table.where}.kinds.{name}", {"curve": name}) for name in curves}
    return kinds


def _thermal(table: WorldTable) -> Thermal:
    values = {
        "resistance_kelvin_per_watt": table.number("resistance_kelvin_per_watt", above=True, high=1e3),
        "time_constant_seconds": table.number("time_constant_seconds", above=True, high=1e6),
        "ambient_celsius": table.number("ambient_celsius", 25.0, low=-50.0, high=80.0),
        "limit_celsius": table.number("limit_celsius", 85.0, low=-50.0, high=200.0),
    }
    table.finish()
    return table.built(lambda: Thermal(**values))


def _pairs(rows: Sequence[WorldTable], loads: Mapping[str, Load]) -> dict[tuple[str, str], PairSpeed]:
    pairs: dict[tuple[str, str], PairSpeed] = {}
    for row in rows:
        kinds = row.two_names("kinds")
        speeds = row.numbers("speeds", above=True, high=1.2, count=2)
        watts = row.number("watts", high=MAX_WATTS)
        row.finish()
        for kind in kinds:
            if kind not in loads:
                raise row.error(f"kinds names {shown(kind)}, which cannot run on the device")
        if kinds in pairs or kinds[::-1] in pairs:
            raise row.error(f"kinds {shown(list(kinds))} are given twice")
        pairs[kinds] = PairSpeed(speed=speeds[0], partner_speed=speeds[1], watts=watts)
    return pairs


def _stored(device: str, table: WorldTable) -> WorldTable:
    """Return the part of a JSON file of kinds and pairs that belongs to a device."""
    path = inside_folder(table, "kinds_file", table.text("kinds_file"))
    document = WorldTable(path, "", _parsed_json(path, path.stat().st_mtime_ns))
    for key in ("source", "fit"):
        document.has(key)
    devices = document.tables("devices")
    document.finish()
    if device not in devices:
        raise table.error(f"kinds_file {path.name} has no device {shown(device)}; it has {', '.join(devices)}")
    return devices[device]


@lru_cache(maxsize=4)
def _parsed_json(path: Path, _modified: int) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: its top is not an object")
    return document


MEMORY_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory of a slice by its compute slices, in eighths of the GPU's (NVIDIA's profiles of A100 and H100)."""


def slice_speed(compute_slices: int) -> float:
    """Return the speed on a slice relative to the whole GPU: the geometric mean over the measured models and batches.

    Source: MISO (SoCC 2022), A100-40GB; the spread over models is in the coefficients' fit errors.
    """
    return geometric_mean(curve.speed(compute_slices) for curve in slice_curves())


def mig_slice(device: DeviceModel, compute_slices: int) -> DeviceModel:
    """Return the device that one slice of a GPU is.

    Idle power is shared by compute slices, so that seven of them draw what the GPU draws; busy power is the share that
    `energy_model.mig.slice_watts` gives. All slices of a GPU really have one clock and one temperature: here each keeps
    the clock of its own job, and heat is left out.

    Args:
        device: The whole GPU.
        compute_slices: 1, 2, 3, 4 or 7 of 7.

    Raises:
        ValueRangeError: there is no such slice.
    """
    if compute_slices not in MEMORY_EIGHTHS:
        raise ValueRangeError(
            f"device {device.name}: {compute_slices} MIG compute slices are not one of "
            f"{', '.join(map(str, MEMORY_EIGHTHS))}"
        )
    speed = slice_speed(compute_slices)
    share = compute_slices / WHOLE_SLICES
    return replace(
        device,
        loads={kind: _sliced(load, compute_slices, speed, device.free_watts) for kind, load in device.loads.items()},
        free_watts=device.free_watts * share,
        context_watts=device.context_watts * share,
        power_limit_watts=inf,
        memory_gib=device.memory_gib * MEMORY_EIGHTHS[compute_slices] / 8,
        thermal=None,
        pairs={},
    )


def _sliced(load: Load, compute_slices: int, speed: float, idle_watts: float) -> Load:
    return replace(
        load,
        watts=tuple(slice_watts(compute_slices, speed, watts, min(idle_watts, watts)) for watts in load.watts),
        seconds_per_unit=tuple(seconds / speed for seconds in load.seconds_per_unit),
    )
