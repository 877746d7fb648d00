"""Worlds from TOML files, also laid over another (`base`), and those of the package; see docs/reference/worlds.md."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, cast

from slurm_energy.errors import ConfigError
from slurm_energy.forms import did_you_mean, shown
from slurm_energy.policy.placement import Discipline
from slurm_energy.settings import SettingBound, read_toml
from slurm_energy.twin.world import EstimateErrors, FailureRates, Outage, Partition, Pool, SuspendSettings, World
from slurm_energy.twin.world.device_model import DeviceModel
from slurm_energy.twin.world.devices import read_device
from slurm_energy.twin.world.series import (
    AMBIENT_BOUND,
    BUDGET_BOUND,
    CARBON_BOUND,
    CONGESTION_BOUND,
    PRICE_BOUND,
    optional_series,
    read_series,
)
from slurm_energy.twin.world.table import WorldTable

__all__ = ["find_world", "load_world", "shipped_world", "world_names"]

_MAX_DEVICES = 10_000_000
_MAX_SECONDS = 1e12


def load_world(path: Path | str) -> World:
    """Return the world that a TOML file describes.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; with file, table, key, value and bound.
    """
    file = Path(path)
    top = WorldTable(file, "", world_tables(file))
    name = top.one_name("name", file.stem)
    devices = _devices(top)
    pools = tuple(_pool(key, table) for key, table in top.tables("pools").items())
    partitions = tuple(_partition(key, table) for key, table in top.tables("partitions").items())
    _check_pools(top, devices, pools, partitions)
    ingresses = {key: _latencies(table) for key, table in top.tables("ingresses").items()}
    scheduling = _scheduling(top.table("scheduling"))
    workload, settings = _workload(top.table("workload"))
    series: dict[str, Any] = {
        "congestion": optional_series(top, "congestion", CONGESTION_BOUND),
        "ambient_celsius": optional_series(top, "ambient_celsius", AMBIENT_BOUND),
        "power_budget_watts": optional_series(top, "power_budget_watts", BUDGET_BOUND),
        "carbon_grams_per_kwh": _by_region(top, "carbon_grams_per_kwh", CARBON_BOUND, pools),
        "price_per_kwh": _by_region(top, "price_per_kwh", PRICE_BOUND, pools),
    }
    failures = _failures(top.table("failures"))
    outages = tuple(_outage(table) for table in top.rows("outages"))
    estimate_errors = _estimate_errors(top.table("estimate_errors")) if top.has("estimate_errors") else None
    horizon = top.optional_number("horizon_seconds", above=True, high=_MAX_SECONDS)
    published_log = top.optional_number("published_log_seconds", above=True, high=_MAX_SECONDS)
    source = top.text("source", "")
    knowledge = top.choice("knowledge", "truth", ("truth", "site"))
    top.finish()
    _check_latencies(top, ingresses, pools)
    return top.built(
        lambda: World(
            name=name,
            devices=devices,
            pools=pools,
            partitions=partitions,
            **scheduling,
            latency_seconds={
                (ingress, region): value for ingress, row in ingresses.items() for region, value in row.items()
            },
            ingresses=tuple(ingresses),
            failures=failures,
            outages=outages,
            estimate_errors=estimate_errors,
            knowledge="site" if knowledge == "site" else "truth",
            **series,
            horizon_seconds=horizon,
            workload=workload,
            workload_settings=settings,
            published_log_seconds=published_log,
            source=source,
        )
    )


def shipped_world(name: str) -> World:
    """Return a world of the package.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in world_names():
        hint = did_you_mean(name, world_names(), cutoff=0.4)
        raise ConfigError(f"world {shown(name)} is not in the package; {hint}")
    return load_world(WORLDS_FOLDER / f"{name}.toml")


def find_world(name_or_path: str) -> World:
    """Return a world of the package by its name, else the one in a file; write ./NAME for a file of such a name.

    Raises:
        ConfigError: neither exists, or the file is wrong.
    """
    if name_or_path in world_names():
        return shipped_world(name_or_path)
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return load_world(name_or_path)
    return shipped_world(name_or_path)


def _devices(top: WorldTable) -> dict[str, DeviceModel]:
    tables = top.tables("devices")
    if not tables:
        raise top.error("there is no [devices.NAME]")
    unit_seconds: dict[str, float] = {}
    if top.has("unit_device"):
        unit = top.one_name("unit_device")
        if unit not in tables:
            raise top.error(f"unit_device={shown(unit)} is no device: there are {', '.join(tables)}")
        loads = read_device(unit, tables[unit], {}).loads
        unit_seconds = {kind: load.seconds_per_unit[-1] for kind, load in loads.items()}
    return {name: read_device(name, table, unit_seconds) for name, table in tables.items()}


def _pool(name: str, table: WorldTable) -> Pool:
    suspend = _suspend(table.table("suspend")) if table.has("suspend") else None
    idle = table.number("host_idle_watts", 0.0, high=1e7)
    values: dict[str, Any] = {
        "device": table.one_name("device"),
        "nodes": table.integer("nodes", low=1, high=_MAX_DEVICES),
        "gpus_per_node": table.integer("gpus_per_node", low=1, high=_MAX_DEVICES),
        "cpus_per_node": table.integer("cpus_per_node", 0, low=0, high=_MAX_DEVICES),
        "memory_gib_per_node": table.number("memory_gib_per_node", inf, above=True),
        "host_idle_watts": idle,
        "host_busy_watts": table.number("host_busy_watts", idle, high=1e7),
        "link_gigabytes_per_second": table.number("link_gigabytes_per_second", inf, above=True),
        "link_joules_per_gigabyte": table.number("link_joules_per_gigabyte", 0.0),
        "jobs_per_gpu": table.integer("jobs_per_gpu", 1, low=1, high=2),
        "region": table.one_name("region", ""),
    }
    table.finish()
    return table.built(lambda: Pool(name=name, suspend=suspend, **values))


def _suspend(table: WorldTable) -> SuspendSettings:
    values = {
        "idle_seconds": table.number("idle_seconds", high=_MAX_SECONDS),
        "resume_seconds": table.number("resume_seconds", high=_MAX_SECONDS),
        "suspended_watts": table.number("suspended_watts", high=1e7),
        "resume_watts": table.number("resume_watts", high=1e7),
    }
    table.finish()
    return table.built(lambda: SuspendSettings(**values))


def _partition(name: str, table: WorldTable) -> Partition:
    partition = Partition(
        name=name,
        pools=table.names("pools"),
        max_time_seconds=table.number("max_time_seconds", inf, above=True),
        max_gpus_per_job=table.integer("max_gpus_per_job", 1_000_000, low=1, high=_MAX_DEVICES),
        is_default=table.boolean("is_default", False),
    )
    table.finish()
    return partition


def _check_pools(
    top: WorldTable, devices: Mapping[str, DeviceModel], pools: tuple[Pool, ...], partitions: tuple[Partition, ...]
) -> None:
    total = sum(pool.nodes * pool.gpus_per_node for pool in pools)
    if total > _MAX_DEVICES:
        raise top.error(f"the pools have {total} devices: at most {_MAX_DEVICES} are simulated")
    if sum(partition.is_default for partition in partitions) > 1:
        raise top.error("more than one partition has is_default=true")
    used = {pool.device for pool in pools}
    idle = [name for name in devices if name not in used]
    if pools and idle:
        raise top.error(f"device {shown(idle[0])} is in no pool")
    placed = {name for partition in partitions for name in partition.pools}
    unreachable = [pool.name for pool in pools if pool.name not in placed]
    if partitions and unreachable:
        raise top.error(f"pool {shown(unreachable[0])} is in no partition")


def _latencies(table: WorldTable) -> dict[str, float]:
    row = table.table("latency_seconds")
    found = {region: row.check_number(region, value, high=1e6) for region, value in row.entries().items()}
    table.finish()
    return found


def _check_latencies(top: WorldTable, ingresses: Mapping[str, Mapping[str, float]], pools: tuple[Pool, ...]) -> None:
    regions = {pool.region for pool in pools}
    for ingress, row in ingresses.items():
        unknown = sorted(set(row) - regions)
        if unknown:
            raise top.error(f"ingress {shown(ingress)} has a latency to {shown(unknown[0])}, the region of no pool")
        missing = sorted(regions - set(row))
        if row and missing:
            raise top.error(f"ingress {shown(ingress)} has no latency to region {shown(missing[0])}")


def _scheduling(table: WorldTable) -> dict[str, Any]:
    discipline = Discipline(
        order=cast(Any, table.choice("order", "fifo", ("fifo", "sjf"))),
        backfill=cast(Any, table.choice("backfill", "easy", ("none", "easy"))),
    )
    values = {
        "discipline": discipline,
        "backfill_interval_seconds": table.number("backfill_interval_seconds", 0.0, high=_MAX_SECONDS),
        "backfill_depth": table.integer("backfill_depth", 500, low=1, high=10_000_000),
        "backfill_reserves_nodes": table.boolean("backfill_reserves_nodes", False),
        "requeue": table.boolean("requeue", True),
        "launch_seconds": table.number("launch_seconds", 0.0, high=1e6),
    }
    table.finish()
    return values


def _workload(table: WorldTable) -> tuple[str, dict[str, float | int | str]]:
    name = table.one_name("name", "")
    row = table.table("settings")
    settings: dict[str, float | int | str] = {}
    for key, value in row.entries().items():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise row.error(f"{key}={shown(value)} is neither a number nor a text")
        if not isinstance(value, str):
            row.check_number(key, value, low=-1e18, high=1e18)
        settings[key] = value
    table.finish()
    return name, settings


def _by_region(top: WorldTable, key: str, bound: SettingBound, pools: tuple[Pool, ...]) -> dict[str, Any]:
    regions = {pool.region for pool in pools}
    tables = top.tables(key)
    for region in tables:
        if region not in regions:
            hint = did_you_mean(region, sorted(regions), cutoff=0.0)
            raise top.error(f"{key} has region {shown(region)}, which no pool has; {hint}")
    return {region: read_series(table, bound) for region, table in tables.items()}


def _failures(table: WorldTable) -> FailureRates:
    rates = FailureRates(
        node_mtbf_seconds=table.number("node_mtbf_seconds", inf, above=True),
        gpu_mtbf_seconds=table.number("gpu_mtbf_seconds", inf, above=True),
        mean_repair_seconds=table.number("mean_repair_seconds", 3600.0, above=True),
    )
    table.finish()
    return rates


def _estimate_errors(table: WorldTable) -> EstimateErrors:
    errors = EstimateErrors(
        watts_sigma=table.number("watts_sigma", 0.0, high=3.0),
        seconds_sigma=table.number("seconds_sigma", 0.0, high=3.0),
    )
    table.finish()
    return errors


def _outage(table: WorldTable) -> Outage:
    start = table.number("at_seconds")
    outage = Outage(
        pool=table.one_name("pool"),
        at_seconds=start,
        until_seconds=table.number("until_seconds", inf, low=start, above=True),
        nodes=table.integer("nodes", 0, low=0, high=_MAX_DEVICES),
        gpus=table.integer("gpus", 0, low=0, high=_MAX_DEVICES),
    )
    table.finish()
    if not outage.nodes and not outage.gpus:
        raise table.error("neither nodes nor gpus is above 0: nothing goes down")
    return outage


WORLDS_FOLDER = Path(__file__).parents[1] / "worlds"
_MAX_BYTES = 64 << 20


def world_tables(path: Path) -> dict[str, Any]:
    """Return a file's tables with those of its base below them.

    A table of the file adds to the base's and replaces what both have, key by key; a workload replaces the base's.

    Raises:
        ConfigError: the file cannot be read, or its base cannot be one.
    """
    given = _parsed(path)
    if "base" not in given:
        return given
    base = given.pop("base")
    if not isinstance(base, str) or base not in world_names():
        raise ConfigError(f"{path}: base={shown(base)} is not a world of the package: {', '.join(world_names())}")
    below = _parsed(WORLDS_FOLDER / f"{base}.toml")
    if "base" in below:
        raise ConfigError(f"{path}: base={shown(base)} has a base itself: name a world without one")
    if path.parent.resolve() != WORLDS_FOLDER.resolve():
        _check_no_files(path, base, below)
    below.pop("name", None)
    if "workload" in given:
        below.pop("workload", None)
    return _laid_over(below, given)


def world_names() -> tuple[str, ...]:
    """Return the names of the worlds in the package, sorted."""
    return tuple(sorted(path.stem for path in WORLDS_FOLDER.glob("*.toml")))


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _check_no_files(path: Path, base: str, tables: Mapping[str, Any]) -> None:
    """Refuse a base that reads further files: their names speak of the package's folder, not of this file's."""
    for key, value in tables.items():
        if key in ("file", "kinds_file"):
            raise ConfigError(f"{path}: base={shown(base)} reads {shown(value)}, which is not beside this file")
        if isinstance(value, dict):
            _check_no_files(path, base, value)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"world file {path} is no regular file")
    except (OSError, ValueError) as error:
        raise ConfigError(f"world file {str(path)!r} cannot be read: {error}") from error
    return read_toml(path, "world file", max_bytes=_MAX_BYTES)
