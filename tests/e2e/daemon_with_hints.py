"""A real daemon whose learned policy's child is the one that gives hints; the argument is its configuration's path."""

import asyncio
import logging
import sys
from pathlib import Path

from slurm_energy.config import load_config
from slurm_energy.daemon.lifecycle import EnergyDaemon

if __name__ == "__main__":
    path = Path(sys.argv[1])
    logging.basicConfig(level="INFO", stream=sys.stderr)
    # Not checked as a site is: the child has no checkpoint.
    daemon = EnergyDaemon(load_config(path), reload=lambda: load_config(path), policy_module="hinting_policy_child")
    asyncio.run(daemon.run())
