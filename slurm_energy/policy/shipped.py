"""The learned policy that comes with the package."""

from pathlib import Path

from slurm_energy.config import Config

SHIPPED = "shipped"
"""Value of `policy.checkpoint` that stands for it; a folder of that name is `./shipped`."""


def shipped_folder() -> Path:
    """Return the folder of the checkpoint that comes with the package."""
    return Path(__file__).resolve().parent / SHIPPED


def checkpoint_folder(config: Config) -> Path:
    """Return the folder that `policy.checkpoint` means."""
    given = config.policy.checkpoint
    return shipped_folder() if given == SHIPPED else Path(given)
