"""The metrics child: serves Prometheus over HTTP. It asks the daemon as anyone does, so a scrape waits behind jobs."""

import logging
import sys
import time

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import receive
from slurm_energy.daemon.ipc.children import connect_to_parent, set_up_logging, until_stopped
from slurm_energy.errors import ConfigError, SlurmEnergyError
from slurm_energy.resources import install_command

logger = logging.getLogger(__name__)


def serve(config: Config) -> None:
    """Answer scrapes in threads of their own until this process is stopped.

    Raises:
        ConfigError: the address cannot be used, or the library is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415  # an extra

        from slurm_energy.daemon.metrics.families import DaemonCollector  # noqa: PLC0415  # the same
    except ModuleNotFoundError as error:
        raise ConfigError(f"metrics.host is set and {error.name} is missing: {install_command('metrics')}") from error
    host, port = config.metrics.host, config.metrics.port
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DaemonCollector(config))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"metrics.host {host} port {port} cannot be used: {error.strerror or error}") from error
    logger.info("metrics served address=http://%s:%d/metrics", host, port)


def main(argv: list[str] | None = None) -> int:
    """Run the child; the argument is the number of its socket."""
    with until_stopped():
        try:
            connection = connect_to_parent(sys.argv[1:] if argv is None else argv)
            config: Config = receive(connection)
            set_up_logging(config.daemon.log_level, "metrics")
            serve(config)
            connection.recv(1)  # the daemon sends nothing more: its end is the end of this process
        except SlurmEnergyError as error:
            logger.error("metrics cannot be served error=%s", error)
            time.sleep(1.0)
            return 1
    return 0
