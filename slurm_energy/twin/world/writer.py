"""Worlds as TOML text, every device by explicit tables: reading the text gives the same world again."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf
from typing import Any

from slurm_energy.twin.world import Series, World
from slurm_energy.twin.world.device_model import DeviceModel, Load, Scaling

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_SERIES = ("congestion", "ambient_celsius", "power_budget_watts")
_REGIONAL = ("carbon_grams_per_kwh", "price_per_kwh")


def world_to_toml(world: World) -> str:
    """Return the text of a world file; an infinite value is left out, as its absence means just that."""
    lines = _pairs({name: getattr(world, name) for name in ("name", "source")})
    lines += _pairs({name: getattr(world, name) for name in ("horizon_seconds", "published_log_seconds")})
    lines += _table(
        ("scheduling",),
        {
            "order": world.discipline.order,
            "backfill": world.discipline.backfill,
            "backfill_interval_seconds": world.backfill_interval_seconds,
            "backfill_depth": world.backfill_depth,
            "backfill_reserves_nodes": world.backfill_reserves_nodes,
            "requeue": world.requeue,
            "launch_seconds": world.launch_seconds,
        },
    )
    if world.workload:
        lines += _table(("workload",), {"name": world.workload})
        lines += _table(("workload", "settings"), world.workload_settings)
    for name, device in world.devices.items():
        lines += _device(name, device)
    for key, parts in (("pools", world.pools), ("partitions", world.partitions)):
        for part in parts:
            values = _fields(part)
            suspend = values.pop("suspend", None)
            if suspend is not None:
                values["suspend"] = _fields(suspend)
            lines += _table((key, values.pop("name")), values)
    for ingress in world.ingresses:
        row = {region: value for (name, region), value in world.latency_seconds.items() if name == ingress}
        lines += _table(("ingresses", ingress), {"latency_seconds": row})
    lines += _table(("failures",), _fields(world.failures))
    if world.estimate_errors is not None:
        lines += _table(("estimate_errors",), _fields(world.estimate_errors))
    for outage in world.outages:
        lines += ["", "[[outages]]", *_pairs(_fields(outage))]
    for key in _SERIES:
        lines += _series((key,), getattr(world, key))
    for key in _REGIONAL:
        for region, series in getattr(world, key).items():
            lines += _series((key, region), series)
    return "\n".join(lines) + "\n"


def _device(name: str, device: DeviceModel) -> list[str]:
    values: dict[str, Any] = {
        "relative_clocks": device.relative_clocks,
        "clocks_mhz": device.clocks_mhz or None,
        "free_watts": device.free_watts,
        "context_watts": device.context_watts,
        "power_limit_watts": device.power_limit_watts,
        "memory_gib": device.memory_gib,
        "is_cpu": device.is_cpu,
        "thermal": None if device.thermal is None else _fields(device.thermal),
    }
    lines = _table(("devices", name), values)
    for kind, load in device.loads.items():
        lines += _table(("devices", name, "kinds", kind), _load(load))
    for (kind, partner), pair in device.pairs.items():
        lines += ["", f"[[devices.{_key(name)}.pairs]]"]
        lines += _pairs({"kinds": [kind, partner], "speeds": [pair.speed, pair.partner_speed], "watts": pair.watts})
    return lines


def _load(load: Load) -> dict[str, Any]:
    values: dict[str, Any] = {
        "watts": load.watts,
        "seconds_per_unit": load.seconds_per_unit,
        "memory_gib": load.memory_gib,
    }
    if load.scaling != Scaling():
        values["scaling"] = {
            "seconds_per_device": load.scaling.seconds_per_device,
            "traffic_gigabytes_per_unit": load.scaling.traffic_gigabytes_per_unit,
            "efficiency": {str(count): value for count, value in load.scaling.efficiency_by_count.items()},
        }
    return values


def _series(path: Sequence[str], series: Series | None) -> list[str]:
    if series is None:
        return []
    return _table(path, {"times_seconds": series.times_seconds, "values": series.values})


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _table(path: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    return ["", f"[{'.'.join(map(_key, path))}]", *_pairs(values)]


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in values.items() if not _is_absent(value)]


def _is_absent(value: object) -> bool:
    return value is None or value in (inf, "")


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    # TOML's basic strings take JSON's escapes; a lone DEL is the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
