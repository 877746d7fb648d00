"""Lists of what a comparison can be made of: policies, worlds, generators of jobs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from slurm_energy.errors import ConfigError
from slurm_energy.evaluation.contenders import (
    LEARNED,
    LEARNED_SETTINGS,
    LEARNED_SUMMARY,
    SETTINGS,
    SUMMARY,
    served_names,
)
from slurm_energy.policy.rules.registry import RuleEntry, rule_entry, rule_names
from slurm_energy.reporting.visible import visible
from slurm_energy.twin.engine.places import places_of
from slurm_energy.twin.workloads.csv_file import write_csv
from slurm_energy.twin.workloads.registry import create_workload, workload_names, workload_settings
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import find_world, shipped_world, world_names


def rules_document() -> list[dict[str, Any]]:
    """Return the policies for JSON."""
    return (
        [
            {
                "name": entry.name,
                "summary": entry.summary,
                "settings": [
                    {
                        "name": setting.name,
                        "default": setting.default,
                        "least": setting.low,
                        "most": setting.high,
                        "meaning": setting.meaning,
                    }
                    for setting in entry.settings
                ],
                "clock_keys": entry.clock_keys,
            }
            for entry in map(rule_entry, rule_names())
        ]
        + [
            {
                "name": name,
                "summary": SUMMARY,
                "settings": [{"name": key, "meaning": meaning} for key, meaning in SETTINGS.items()],
                "clock_keys": "",
            }
            for name in served_names()
        ]
        + [
            {
                "name": LEARNED,
                "summary": LEARNED_SUMMARY,
                "settings": [{"name": key, "meaning": meaning} for key, meaning in LEARNED_SETTINGS.items()],
                "clock_keys": "",
            }
        ]
    )


def list_rules() -> None:
    """Print the policies with their settings."""
    for entry in map(rule_entry, rule_names()):
        click.echo(f"{entry.name:<16} {entry.summary}")
        for line in _settings(entry):
            click.echo(f"{'':<18}{line}")
    for name in served_names():
        click.echo(f"{name:<20} {SUMMARY}")
    for key, meaning in SETTINGS.items():
        click.echo(f"{'':<18}{key}=  {meaning}")
    click.echo(f"{LEARNED:<16} {LEARNED_SUMMARY}")
    for key, meaning in LEARNED_SETTINGS.items():
        click.echo(f"{'':<18}{key}=  {meaning}")


def _settings(entry: RuleEntry) -> list[str]:
    lines = [
        f"{setting.name}={setting.default:g}  {setting.meaning} ({setting.low:g} to {setting.high:g})"
        for setting in entry.settings
    ]
    return [*lines, *([f"KEY=CLOCK  {entry.clock_keys}"] if entry.clock_keys else [])]


def worlds_document() -> list[dict[str, Any]]:
    """Return the worlds for JSON."""
    return [_world_facts(shipped_world(name)) for name in world_names()]


def list_worlds() -> None:
    """Print the worlds with their size, their jobs and where they come from."""
    for name in world_names():
        world = shipped_world(name)
        facts = _world_facts(world)
        devices = ", ".join(facts["devices"])
        length = "" if world.horizon_seconds is None else f", {world.horizon_seconds / 3600.0:g} h"
        click.echo(
            f"{name:<14} {facts['nodes']} nodes, {facts['gpus']} GPUs"
            + (f", {facts['cpu_sockets']} CPU sockets" if facts["cpu_sockets"] else "")
            + f" ({devices}); partitions {', '.join(facts['partitions'])}"
        )
        click.echo(f"{'':<15}jobs: {facts['workload'] or 'none of its own'}{length}")
        if world.source:
            click.echo(f"{'':<15}source: {visible(world.source)}")


def _world_facts(world: World) -> dict[str, Any]:
    devices = {name: sum(p.nodes * p.gpus_per_node for p in world.pools if p.device == name) for name in world.devices}
    return {
        "name": world.name,
        "nodes": sum(pool.nodes for pool in world.pools),
        "gpus": sum(count for name, count in devices.items() if not world.devices[name].is_cpu),
        "cpu_sockets": sum(count for name, count in devices.items() if world.devices[name].is_cpu),
        "devices": devices,
        "partitions": list(dict.fromkeys(place.partition.name for place in places_of(world))),
        "workload": world.workload,
        "workload_settings": dict(world.workload_settings),
        "horizon_seconds": world.horizon_seconds,
        "source": world.source,
    }


def list_generators() -> None:
    """Print the generators of jobs with their settings and defaults."""
    for name in workload_names():
        click.echo(name)
        for key, value in workload_settings(name).items():
            click.echo(f"{'':<4}{key}={value}")


def write_workload(
    world_name: str | None, generator: str | None, settings: Mapping[str, str], seed: int, path: Path
) -> tuple[int, str]:
    """Write generated jobs to a CSV; return how many, and what made them.

    Raises:
        ConfigError: world, generator or setting does not exist, or the world has no generator.
        WorkloadError: the file cannot be written.
    """
    own: Mapping[str, float | int | str] = {}
    name = generator or ""
    if world_name is not None:
        world = find_world(world_name)
        if not world.workload:
            raise ConfigError(f"world {world.name} has no generator of its own: name one with --generator")
        if name in {"", world.workload}:
            own, name = world.workload_settings, world.workload
    made = create_workload(name, {**own, **settings}, seed)
    write_csv(made, path)
    return len(made.jobs), made.source
