"""`slurm-energyd`: options, logging, exit code."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from slurm_energy import __version__
from slurm_energy.config import Config, load_config
from slurm_energy.daemon.decide import create_decider
from slurm_energy.daemon.lifecycle import EnergyDaemon, report_key
from slurm_energy.errors import SlurmEnergyError, plain_words
from slurm_energy.policy.automatic import chosen_policy
from slurm_energy.policy.site.check import check_site

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Run the daemon; return 0 after a clean stop, 1 when it cannot run, 2 for wrong usage."""
    options = _parser().parse_args(argv)
    try:
        config = load_checked(options.config)
        logging.basicConfig(
            level=config.daemon.log_level,
            stream=sys.stderr,
            format="%(levelname)s slurm-energyd %(name)s %(message)s",
            force=True,
        )
        if options.check_config:
            create_decider(config)
            report_key(config)
            note = chosen_policy(config).note
            if note:
                sys.stderr.write(f"slurm-energyd: {note}\n")
            sys.stdout.write("configuration is good\n")
            return 0
        asyncio.run(_serve(config, options.config))
    except (SlurmEnergyError, OSError) as error:
        for line in plain_words(error).splitlines():
            sys.stderr.write(f"slurm-energyd: {line}\n")
        return 1
    return 0


_SWITCH_SECONDS = 0.0002
"""How long the journal's thread, which encodes what has been decided, may keep an answer waiting."""


async def _serve(config: Config, path: Path | None) -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    await EnergyDaemon(config, reload=lambda: load_checked(path)).run()


def load_checked(path: Path | None) -> Config:
    """Return the settings, checked as `slurm-energy config check` does: at the start and at every reload.

    Raises:
        ConfigError: they cannot be used.
    """
    config = load_config(path)
    check_site(config)
    return config


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slurm-energyd",
        description="Answer slurmctld's question for every submitted job, take the nodes' energy reports, record both.",
        epilog="Example: slurm-energyd --config /etc/slurm-energy/slurm-energy.toml",
    )
    parser.add_argument("--config", type=Path, help="configuration file (default: $SLURM_ENERGY_CONFIG or /etc)")
    parser.add_argument("--foreground", action="store_true", help="stay in the foreground (always so)")
    parser.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=f"slurm-energyd {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
