"""All checks in order, on what is known of this host."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from slurm_energy.cli.doctor.cluster_checks import cluster_checks
from slurm_energy.cli.doctor.daemon_checks import daemon_checks
from slurm_energy.cli.doctor.finding import Finding, Situation, fail, ok
from slurm_energy.cli.doctor.node_checks import node_checks
from slurm_energy.cli.doctor.slurm_checks import slurm_checks
from slurm_energy.cli.site import detected_roles, read_slurm_conf, slurm_command, slurm_conf_path
from slurm_energy.config import Config, config_path, load_config
from slurm_energy.errors import ConfigError
from slurm_energy.policy.site_check import site_faults
from slurm_energy.slurm.plugin_file import parse_release

_CONFIG_LINE = re.compile(r"^(\w+)(?:\[(\d+)\])?\s*=\s*(.*?)\s*$")
"""A setting with several values has a number behind its name: `Prolog[0]`."""


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
    except ConfigError as error:
        yield fail("configuration", str(error), "slurm-energy config check FILE names each fault")
        config = Config()
    situation = replace(situation_of(config, roles, environment), config_file=path or config_path(environment))
    yield from slurm_checks(situation)
    yield from daemon_checks(situation)
    yield from cluster_checks(situation)
    yield from node_checks(situation)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it is closed to this user
        return False


def situation_of(config: Config, roles: tuple[str, ...], environment: Mapping[str, str]) -> Situation:
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
    return Situation(
        config=config,
        roles=roles or detected_roles(config, environment),
        environment=environment,
        slurm_conf=slurm_conf,
        conf=conf,
        slurm_version=parse_release(slurm_command(config, "scontrol", "--version").stdout),
    )
