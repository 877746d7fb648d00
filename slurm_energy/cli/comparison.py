"""Run comparisons of policies for a command, and list what they can be made of: policies, worlds, generators."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from slurm_energy.cli.main import PROGRAM
from slurm_energy.cli.progress import step_bar
from slurm_energy.errors import ConfigError, EvaluationError
from slurm_energy.evaluation.arena.comparison import ArenaResult, Tell, run_arena
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.arena.summary import ArenaSummary, summary_of
from slurm_energy.evaluation.contenders import (
    KNOWLEDGE_MEANING,
    LEARNED,
    LEARNED_SETTINGS,
    LEARNED_SUMMARY,
    SETTINGS,
    SUMMARY,
    served_names,
)
from slurm_energy.policy.registry import RuleEntry, rule_entry, rule_names
from slurm_energy.reporting.arena.document import RunContext, notes_of, render_arena_json, software_versions
from slurm_energy.reporting.arena.tables import WIDTH, print_arena
from slurm_energy.reporting.visible import say, visible
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
                        "min": setting.low,
                        "max": setting.high,
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
    for prefix, meaning in KNOWLEDGE_MEANING.items():
        click.echo(f"{prefix + 'RULE':<20} {meaning}")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a comparison goes beside the terminal."""

    json_path: Path | None
    html_path: Path | None
    command: str
    assumptions: tuple[str, ...] = ()
    """Printed before the run, and noted in every output."""


def compare(plan: ArenaPlan, output: Output, workers: int | None) -> int:
    """Run a plan, print and write it; return the exit code.

    Raises:
        SlurmEnergyError: nothing could be run, or a file cannot be written.
    """
    for path in (output.json_path, output.html_path):
        _check_folder(path)
    begun = time.monotonic()
    with _progress() as tell:
        result = run_arena(plan, workers=workers, tell=tell)
    context = RunContext(
        command=output.command,
        created_at_seconds=time.time(),
        wall_seconds=time.monotonic() - begun,
        notes=notes_of(result, output.assumptions),
        versions=software_versions(),
    )
    summary = summary_of(result)
    print_arena(summary, context, Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False))
    _write(result, summary, context, output)
    for failure in result.failed:
        where = "" if failure.seed is None else f", seed {failure.seed}"
        say(f"policy {failure.policy}{where} failed: {failure.error}", PROGRAM)
    return 1 if result.failed else 0


def _write(result: ArenaResult, summary: ArenaSummary, context: RunContext, output: Output) -> None:
    if output.json_path is not None:
        _put(output.json_path, render_arena_json(result, summary, context))
    if output.html_path is not None:
        from slurm_energy.reporting.arena.page import render_arena_page  # noqa: PLC0415  # matplotlib only when needed

        _put(output.html_path, render_arena_page(result, summary, context))


def _check_folder(path: Path | None) -> None:
    """Refuse a file that could not be written before minutes are spent on it."""
    if path is not None and not path.parent.is_dir():
        raise EvaluationError(f"{str(path)!r} cannot be written: folder {str(path.parent)!r} does not exist")


def _put(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"{str(path)!r} cannot be written: {error}") from error


@contextmanager
def _progress() -> Iterator[Tell | None]:
    """Show a bar on stderr; none when that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with step_bar(8) as tell:
        yield tell
