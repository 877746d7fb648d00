"""Worlds as TOML text, every device by explicit tables: reading the text gives the same world again."""

from collections.abc import Mapping
from dataclasses import fields
from math import inf
from typing import Any

from slurm_energy.settings import toml_text
from slurm_energy.twin.world import Series, World
from slurm_energy.twin.world.device_model import DeviceModel, Load, Scaling

_SERIES = ("congestion", "ambient_celsius", "power_budget_watts")
_REGIONAL = ("carbon_grams_per_kwh", "price_per_kwh")


def world_to_toml(world: World) -> str:
    """Return the text of a world file; an infinite value is left out, as its absence means just that."""
    errors = world.estimate_errors
    tables = {
        **{name: getattr(world, name) for name in ("name", "source", "horizon_seconds", "published_log_seconds")},
        "knowledge": None if world.knowledge == "truth" else world.knowledge,
        "scheduling": {
            "order": world.discipline.order,
            "backfill": world.discipline.backfill,
            "backfill_interval_seconds": world.backfill_interval_seconds,
            "backfill_depth": world.backfill_depth,
            "backfill_reserves_nodes": world.backfill_reserves_nodes,
            "requeue": world.requeue,
            "launch_seconds": world.launch_seconds,
        },
        "workload": {"name": world.workload, "settings": world.workload_settings} if world.workload else None,
        "devices": {name: _device(device) for name, device in world.devices.items()},
        "pools": {pool.name: {**_fields(pool), "name": None} for pool in world.pools},
        "partitions": {partition.name: {**_fields(partition), "name": None} for partition in world.partitions},
        "ingresses": {ingress: {"latency_seconds": _latencies(world, ingress)} for ingress in world.ingresses},
        "failures": _fields(world.failures),
        "estimate_errors": None if errors is None else _fields(errors),
        "outages": [_fields(outage) for outage in world.outages],
        **{key: _series(getattr(world, key)) for key in _SERIES},
        **{key: {region: _series(series) for region, series in getattr(world, key).items()} for key in _REGIONAL},
    }
    return toml_text(_present(tables))


def _device(device: DeviceModel) -> dict[str, Any]:
    return {
        "relative_clocks": device.relative_clocks,
        "clocks_mhz": device.clocks_mhz or None,
        "free_watts": device.free_watts,
        "context_watts": device.context_watts,
        "power_limit_watts": device.power_limit_watts,
        "memory_gib": device.memory_gib,
        "is_cpu": device.is_cpu,
        "thermal": None if device.thermal is None else _fields(device.thermal),
        "kinds": {kind: _load(load) for kind, load in device.loads.items()},
        "pairs": [
            {"kinds": [kind, partner], "speeds": [pair.speed, pair.partner_speed], "watts": pair.watts}
            for (kind, partner), pair in device.pairs.items()
        ],
    }


def _load(load: Load) -> dict[str, Any]:
    scaling = {
        "seconds_per_device": load.scaling.seconds_per_device,
        "traffic_gigabytes_per_unit": load.scaling.traffic_gigabytes_per_unit,
        "efficiency": {str(count): value for count, value in load.scaling.efficiency_by_count.items()},
    }
    return {
        "watts": load.watts,
        "seconds_per_unit": load.seconds_per_unit,
        "memory_gib": load.memory_gib,
        "scaling": None if load.scaling == Scaling() else scaling,
    }


def _latencies(world: World, ingress: str) -> dict[str, float]:
    return {region: value for (name, region), value in world.latency_seconds.items() if name == ingress}


def _series(series: Series | None) -> dict[str, Any] | None:
    return None if series is None else {"times_seconds": series.times_seconds, "values": series.values}


def _fields(value: Any) -> dict[str, Any]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: _fields(item) if hasattr(item, "__dataclass_fields__") else item for name, item in found.items()}


def _present(value: Any) -> Any:
    """Return a table without what is absent: None, infinite, an empty text."""
    if isinstance(value, Mapping):
        return {key: _present(item) for key, item in value.items() if not (item is None or item in (inf, ""))}
    return [_present(item) for item in value] if isinstance(value, list) else value
