"""`slurm-energy metrics`: what Prometheus gets, and the files for Grafana and Prometheus that go with it."""

import click

from slurm_energy.cli.context import settings
from slurm_energy.errors import ConfigError
from slurm_energy.resources import install_command, shared_directory

DASHBOARD = "grafana/slurm-energy.json"
RULES = "prometheus/slurm-energy.rules.yml"


@click.group(epilog="Example: slurm-energy metrics show")
def metrics() -> None:
    """Show the daemon's metrics, print dashboard and alert rules."""


@metrics.command(epilog="Example: slurm-energy metrics show | grep spool")
def show() -> int:
    """Print what a scrape would get now, in Prometheus's format; metrics.host need not be set.

    For root and the daemon's user on the daemon's host.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415  # an extra

        from slurm_energy.daemon.metrics.families import DaemonCollector  # noqa: PLC0415  # the same
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: {install_command('metrics')}") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DaemonCollector(settings()))
    click.echo(generate_latest(registry).decode(), nl=False)
    return 0


@metrics.command(epilog="Example: slurm-energy metrics dashboard > slurm-energy.json")
def dashboard() -> int:
    """Print the Grafana dashboard, to be imported."""
    return _print(DASHBOARD)


@metrics.command(epilog="Example: slurm-energy metrics rules > /etc/prometheus/rules/slurm-energy.yml")
def rules() -> int:
    """Print the alert rules for Prometheus."""
    return _print(RULES)


def _print(name: str) -> int:
    click.echo((shared_directory("templates") / name).read_text(encoding="utf-8"), nl=False)
    return 0
