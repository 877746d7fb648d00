"""The learned policy that comes with the package."""

from pathlib import Path

from slurm_energy.config import Config

SHIPPED = "shipped"
"""Value of `policy.checkpoint` that stands for it; a folder of that name is `./shipped`."""


def shipped_folder() -> Path:
    """Return the folder of the checkpoint that comes with the package."""
    return Path(__file__).resolve().parent / SHIPPED


def named_folder(text: str) -> Path:
    """Return the folder that a checkpoint's name means."""
    return shipped_folder() if text == SHIPPED else Path(text)


def checkpoint_folder(config: Config) -> Path:
    """Return the folder that `policy.checkpoint` means."""
    return named_folder(config.policy.checkpoint)
