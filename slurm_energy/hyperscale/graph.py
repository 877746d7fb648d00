"""A graph to train on, from an npz file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from slurm_energy.errors import DataFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGraph:
    """A graph with features, labels and masks in `data`."""

    data: Data
    num_classes: int
    source: str


def read_graph(path: Path, format: str | None = None) -> TrainingGraph:  # noqa: A002  # the word users know
    """Return the graph of an npz file with x, edge_index, y, train_mask, val_mask and test_mask.

    Raises:
        DataFileError: the file cannot be read or lacks an array.
    """
    if format not in {None, "npz"}:
        raise DataFileError(f"{path}: format {format!r} is not known")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")
            tensors = {name: torch.from_numpy(arrays[name]) for name in names}
    except (OSError, ValueError, KeyError) as error:
        raise DataFileError(f"{path}: the graph cannot be read: {error}") from error
    return TrainingGraph(data=Data(**tensors), num_classes=int(tensors["y"].max()) + 1, source=str(path))
