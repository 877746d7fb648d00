"""`slurm-energy doctor`: all checks in order, on what is known of this host."""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings_path
from slurm_energy.cli.doctor.cluster_checks import cluster_checks
from slurm_energy.cli.doctor.daemon_checks import daemon_checks
from slurm_energy.cli.doctor.finding import Finding, HostFacts, Verdict, by_severity, fail, ok
from slurm_energy.cli.doctor.node_checks import node_checks
from slurm_energy.cli.doctor.several_clusters import several_clusters_checks
from slurm_energy.cli.doctor.slurm_checks import slurm_checks
from slurm_energy.cli.installing.roles import ROLES
from slurm_energy.cli.site import detected_roles, read_slurm_conf, slurm_command, slurm_conf_path
from slurm_energy.config import Config, config_path, load_config
from slurm_energy.errors import ConfigError
from slurm_energy.policy.site.check import site_faults
from slurm_energy.reporting.visible import visible
from slurm_energy.slurm.plugin_file import parse_release

_CONFIG_LINE = re.compile(r"^(\w+)(?:\[(\d+)\])?\s*=\s*(.*?)\s*$")
"""A setting with several values has a number behind its name: `Prolog[0]`."""
_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.SKIP: "blue"}


def examine(
    path: Path | None, roles: tuple[str, ...], environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Yield every finding as soon as it is known.

    Args:
        path: The configuration file, None for the usual one.
        roles: What this host is; empty: found out.
        environment: The caller's.
    """
    try:
        config = load_config(path, environment)
        file = path or config_path(environment)
        yield ok("configuration", str(file) if _exists(file) else f"{file} does not exist: defaults are used")
        for fault in site_faults(config):
            yield fail("configuration", fault, f"fix {file}: slurm-energyd refuses it")
        yield from _writers_of(file)
    except ConfigError as error:
        yield fail("configuration", str(error), "slurm-energy config check FILE names each fault")
        config = Config()
    situation = replace(situation_of(config, roles, environment), config_file=path or config_path(environment))
    yield from slurm_checks(situation)
    yield from daemon_checks(situation)
    yield from cluster_checks(situation)
    yield from node_checks(situation)
    yield from several_clusters_checks(situation)


def _writers_of(file: Path) -> Iterator[Finding]:
    """Yield what lets other users change the settings: daemon and hooks follow them, the hooks as root."""
    for path in (file, file.parent):
        try:
            status = path.stat()
        except OSError:
            continue
        if status.st_mode & stat.S_IWOTH and not (path == file.parent and status.st_mode & stat.S_ISVTX):
            said = f"{path} has mode {status.st_mode & 0o7777:04o}: every user can change what hooks do as root"
            yield fail("configuration", said, f"look at what is in it, then chmod o-w {path}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it is closed to this user
        return False


def situation_of(config: Config, roles: tuple[str, ...], environment: Mapping[str, str]) -> HostFacts:
    """Return what the checks may look at; slurmctld's own word on its settings wins over the file."""
    slurm_conf = slurm_conf_path(config, environment)
    conf = read_slurm_conf(slurm_conf)
    live = slurm_command(config, "scontrol", "show", "config")
    if live.ok:
        for line in live.stdout.splitlines():
            match = _CONFIG_LINE.match(line)
            if match is not None and match.group(3) != "(null)":
                key, number, value = match.group(1).lower(), match.group(2), match.group(3)
                conf[key] = f"{conf[key]},{value}" if number not in (None, "0") and key in conf else value
    return HostFacts(
        config=config,
        roles=roles or detected_roles(config, environment),
        environment=environment,
        slurm_conf=slurm_conf,
        conf=conf,
        slurm_version=parse_release(slurm_command(config, "scontrol", "--version").stdout),
    )


@click.command(epilog="Example: sudo slurm-energy doctor")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([*ROLES, "all"]),
    help="What this host is; found out when not given.",
)
@JSON_OPTION
def doctor(roles: tuple[str, ...], as_json: bool) -> int:
    """Check the installation and say how to fix what is wrong.

    Run it as root on the controller: it then asks as the daemon's user, and checks every node by what the node
    reported to the daemon. Failures come first. Exit code 1 when anything fails.
    """
    seen = by_severity(examine(settings_path(), ROLES if "all" in roles else tuple(dict.fromkeys(roles))))
    if not as_json:
        for finding in seen:
            _show(finding)
    counts = Counter(finding.verdict for finding in seen)
    if as_json:
        print_json([asdict(finding) for finding in seen])
    else:
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        click.echo(f"\n{len(seen)} checks: {words}", err=True)
    return 1 if counts[Verdict.FAIL] else 0


def _show(finding: Finding) -> None:
    mark = click.style(f"{finding.verdict:<5}", fg=_COLOURS[finding.verdict])
    click.echo(f"{mark}{finding.subject:<28}{visible(finding.found)}")
    if finding.fix:
        click.echo(f"{'':<5}{'':<28}-> {visible(finding.fix)}")
