"""The folder of a training in rounds: its settings, its log, its state, and the checkpoints that it made.

settings.toml        as used
log.csv | events/    figures of each round
state.pt             to go on from; state.previous.pt is the one before
checkpoints/         one folder each; the links `best` and `last` lead into it
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from slurm_energy.errors import TrainingError
from slurm_energy.learning.training_settings import SETTINGS_FILE

CHECKPOINTS = "checkpoints"
BEST = "best"
LAST = "last"


def create_folder(folder: Path, settings_text: str) -> None:
    """Make the folder of a new training.

    Raises:
        TrainingError: it exists, or cannot be made.
    """
    if os.path.lexists(folder):
        raise TrainingError(f"{folder} exists: go on with --resume {folder}, or name a new folder")
    if not folder.parent.is_dir():
        raise TrainingError(f"folder {folder.parent} of {folder.name} does not exist")
    try:
        folder.mkdir()
        (folder / CHECKPOINTS).mkdir()
    except OSError as error:
        raise TrainingError(f"{folder} cannot be made: {error.strerror}") from error
    write_settings(folder, settings_text)


def remove_folder(folder: Path) -> None:
    """Remove the folder of a training that failed before anything was learned, so that another can take its place."""
    shutil.rmtree(folder, ignore_errors=True)


def write_settings(folder: Path, text: str) -> None:
    """Write the settings that the training is run with.

    Raises:
        TrainingError: they cannot be written.
    """
    unfinished = folder / f".{SETTINGS_FILE}.part"
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(folder / SETTINGS_FILE)
    except OSError as error:
        raise TrainingError(f"{folder / SETTINGS_FILE} cannot be written: {error.strerror}") from error


def keep_checkpoint(folder: Path, link: str, number: int, save: Callable[[Path], object]) -> None:
    """Save a round's checkpoint, let the link lead to it, and remove the one that no link leads to any more.

    Raises:
        TrainingError: a link or folder cannot be changed.
        CheckpointError: the checkpoint cannot be written.
    """
    name = f"{link}-{number:06d}"
    target = folder / CHECKPOINTS / name
    try:
        if target.exists():
            # Rounds that are run again after a resume reach the same weights, under the same name.
            shutil.rmtree(target)
        target.parent.mkdir(exist_ok=True)
        save(target)
        unfinished = folder / f".{link}.part"
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(Path(CHECKPOINTS) / name)
        unfinished.replace(folder / link)
        for older in (folder / CHECKPOINTS).glob(f"{link}-*"):
            if older.name != name:
                shutil.rmtree(older)
    except OSError as error:
        raise TrainingError(f"checkpoint {target} cannot take its place: {error}") from error
