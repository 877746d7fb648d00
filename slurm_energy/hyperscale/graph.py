"""A graph to train on, and what every reader's result goes through: checks, features, edges both ways, masks."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from slurm_energy.errors import DataFileError

MASKS = ("train_mask", "val_mask", "test_mask")
SHARES = (0.6, 0.2)
"""Of the labelled vertices, for training and validation, where a file says nothing; the rest is the test's."""
SPLIT_SEED = 0
UNLABELLED = -1
MAX_VERTICES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGraph:
    """A graph with features, labels and masks in `data`."""

    data: Data
    num_classes: int
    source: str
    notes: tuple[str, ...] = ()
    """What was done to it on the way: missing values, features scaled, a split made."""

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return int(self.data.num_nodes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawGraph:
    """What a reader found."""

    edges: NDArray[np.int64]
    """Vertices by their numbers, [2, edges]."""
    num_vertices: int
    features: NDArray[np.float32] | None = None
    """NaN where a value is missing, [vertices, features]; None: the file has none."""
    labels: NDArray[np.int64] | None = None
    """-1 for a vertex without one, [vertices]."""
    masks: Mapping[str, NDArray[np.bool_]] | None = None
    """By `MASKS`; None: the file has no split."""
    are_ready: bool = False
    """Whether features were scaled and edges doubled before: they stay as they are."""


def training_graph(raw: RawGraph, source: str, *, directed: bool = False) -> TrainingGraph:
    """Return a graph that can be trained on.

    Features: a missing value becomes the mean of its column; columns without a negative value are divided by the sum
    of their row (as Planetoid's are in the literature), others get mean 0 and variance 1. Without features each vertex
    has the logarithm of its degree and 1. Edges count once, in both directions unless `directed`; loops go.

    Raises:
        DataFileError: there is no vertex, edge or label, a number points nowhere, or a value is not finite.
    """
    _check(raw, source)
    notes: list[str] = []
    edges = torch.from_numpy(np.ascontiguousarray(raw.edges))
    if not raw.are_ready:
        before = edges.shape[1]
        edges, _ = remove_self_loops(edges)
        loops = before - edges.shape[1]
        edges = coalesce(edges, num_nodes=raw.num_vertices)
        if not directed:
            edges = to_undirected(edges, num_nodes=raw.num_vertices)
        notes.append(f"{before} edges in the file: {loops} loops left out, {edges.shape[1]} are used")
    labels = raw.labels
    assert labels is not None
    masks = raw.masks if raw.masks is not None else _split(labels, notes)
    data = Data(
        x=_features(raw, edges, notes),
        edge_index=edges,
        y=torch.from_numpy(np.maximum(labels, 0)),
        **{name: torch.from_numpy(masks[name] & (labels != UNLABELLED)) for name in MASKS},
    )
    if not bool(data.train_mask.any()) or not bool(data.test_mask.any()):
        raise DataFileError(
            f"{source}: no labelled vertex is for {'training' if not data.train_mask.any() else 'test'}"
        )
    return TrainingGraph(data=data, num_classes=int(labels.max()) + 1, source=source, notes=tuple(notes))


def _check(raw: RawGraph, source: str) -> None:
    if not 1 <= raw.num_vertices <= MAX_VERTICES:
        raise DataFileError(f"{source}: {raw.num_vertices} vertices, 1 to {MAX_VERTICES} are needed")
    if raw.edges.ndim != 2 or raw.edges.shape[0] != 2 or raw.edges.shape[1] == 0:
        raise DataFileError(f"{source}: there is no edge")
    low, high = int(raw.edges.min()), int(raw.edges.max())
    if low < 0 or high >= raw.num_vertices:
        outside = low if low < 0 else high
        raise DataFileError(f"{source}: an edge names vertex {outside}, there are 0 to {raw.num_vertices - 1}")
    if raw.labels is None or not (raw.labels != UNLABELLED).any():
        raise DataFileError(f"{source}: no vertex has a label, so that nothing could be learned")
    for what, values in (("labels", raw.labels), ("rows of features", raw.features)):
        if values is not None and len(values) != raw.num_vertices:
            raise DataFileError(f"{source}: {len(values)} {what} for {raw.num_vertices} vertices")
    if raw.labels.min() < UNLABELLED:
        raise DataFileError(f"{source}: label {raw.labels.min()} is below -1, which means none")
    for name in raw.masks or ():
        if (raw.masks or {})[name].shape != (raw.num_vertices,):
            raise DataFileError(f"{source}: {name} has not one value for each of {raw.num_vertices} vertices")
    if raw.features is not None and np.isinf(raw.features).any():
        row, column = np.argwhere(np.isinf(raw.features))[0]
        raise DataFileError(f"{source}: feature {column} of vertex {row} is infinite")


def _features(raw: RawGraph, edges: Tensor, notes: list[str]) -> Tensor:
    if raw.features is None or raw.features.shape[1] == 0:
        degree = np.bincount(edges[1].numpy(), minlength=raw.num_vertices)
        notes.append("no features: each vertex has the logarithm of its degree and 1")
        return torch.from_numpy(np.stack([np.log1p(degree), np.ones_like(degree)], axis=1).astype(np.float32))
    if raw.are_ready:
        return torch.from_numpy(raw.features)
    values = raw.features
    missing = np.isnan(values)
    if missing.any():
        known = (~missing).sum(axis=0)
        sums = np.where(missing, 0.0, values).sum(axis=0, dtype=np.float64)
        means = np.divide(sums, known, out=np.zeros_like(sums), where=known > 0)
        values = np.where(missing, means.astype(np.float32), values)
        notes.append(f"{int(missing.sum())} missing values of features: each is the mean of its column")
    if (values >= 0.0).all():
        sums = values.sum(axis=1, keepdims=True)
        notes.append("features: each row divided by its sum")
        return torch.from_numpy(np.divide(values, sums, out=np.zeros_like(values), where=sums > 0.0))
    deviation = values.std(axis=0)
    notes.append("features: mean 0 and variance 1 by column")
    return torch.from_numpy((values - values.mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0))


def _split(labels: NDArray[np.int64], notes: list[str]) -> dict[str, NDArray[np.bool_]]:
    known = np.flatnonzero(labels != UNLABELLED)
    order = np.random.default_rng(SPLIT_SEED).permutation(known)
    first, second = (round(sum(SHARES[: at + 1]) * len(order)) for at in range(2))
    found = {name: np.zeros(len(labels), dtype=bool) for name in MASKS}
    for name, part in zip(MASKS, np.split(order, [first, second]), strict=True):
        found[name][part] = True
    notes.append("no split in the file: 60 % of the labelled vertices for training, 20 % for validation, 20 % for test")
    return found
