"""Graphs that are files of arrays: npz, folders of npy, Planetoid's raw files, saved torch_geometric data."""

import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch_geometric.data import Data

from slurm_energy.errors import DataFileError
from slurm_energy.hyperscale.graph import MASKS, UNLABELLED, RawGraph, TrainingGraph, training_graph

MAPPED_SHARE = 0.25
"""Of the memory: arrays of a folder that take more stay on the disk and are mapped."""


def npz(path: Path) -> TrainingGraph:
    """Read arrays: the project's own (x, edge_index, y, masks), or the sparse ones of published sets."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, KeyError) as error:
        raise DataFileError(f"{path}: not an npz file of plain arrays: {error}") from error
    return training_graph(_of_arrays(arrays, path), str(path))


def _of_arrays(arrays: dict[str, Any], path: Path) -> RawGraph:
    try:
        if "edge_index" in arrays:
            edges = np.asarray(arrays["edge_index"], dtype=np.int64)
        elif "edges_undirected" in arrays:
            edges = np.asarray(arrays["edges_undirected"], dtype=np.int64).T
        else:
            shape = arrays["adj_shape"]
            if shape[0] != shape[1]:
                raise DataFileError(f"{path}: the adjacency matrix is {shape[0]} by {shape[1]}, not square")
            matrix = sparse.csr_matrix((arrays["adj_data"], arrays["adj_indices"], arrays["adj_indptr"]), shape=shape)
            edges = np.stack(matrix.nonzero()).astype(np.int64)
        labels = arrays["y"] if "y" in arrays else arrays["labels"]
        count = len(labels)
        features = arrays.get("x")
        if features is None and "feat_shape" in arrays:
            index = arrays["feat_row"], arrays["feat_col"]
            features = sparse.coo_matrix((arrays["feat_val"], index), shape=arrays["feat_shape"]).toarray()
        masks = None
        if all(name in arrays for name in MASKS):
            masks = {name: np.asarray(arrays[name], dtype=bool) for name in MASKS}
        elif "train_idx" in arrays:
            masks = masks_of(count, [arrays[f"{name}_idx"] for name in ("train", "val", "test")], path)
    except (KeyError, ValueError, TypeError) as error:
        raise DataFileError(f"{path}: arrays are missing or of another shape: {error}") from error
    return RawGraph(
        edges=edges,
        num_vertices=count,
        features=None if features is None else np.asarray(features, dtype=np.float32),
        labels=whole_labels(labels, path),
        masks=masks,
        are_ready=all(name in arrays for name in ("x", "edge_index", *MASKS)),
    )


def whole_labels(labels: Any, path: Path) -> NDArray[np.int64]:
    """Return one whole number for each vertex, -1 where a label is missing, [vertices].

    Raises:
        DataFileError: a vertex has several labels, or one that is no whole number.
    """
    values = np.asarray(labels).reshape(len(labels), -1) if len(labels) else np.zeros((0, 1))
    if values.shape[1] != 1:
        raise DataFileError(f"{path}: a vertex has {values.shape[1]} labels, 1 is needed")
    floats = np.asarray(values[:, 0], dtype=np.float64)
    whole = np.where(np.isnan(floats), UNLABELLED, floats)
    if not np.isfinite(whole).all() or (whole != np.round(whole)).any():
        raise DataFileError(f"{path}: labels are not whole numbers")
    return whole.astype(np.int64)


def masks_of(count: int, indices: Sequence[Any], path: Path) -> dict[str, NDArray[np.bool_]]:
    """Return masks from the vertices of training, validation and test.

    Raises:
        DataFileError: a vertex is not there.
    """
    found = {}
    for name, given in zip(MASKS, indices, strict=True):
        index = np.asarray(given, dtype=np.int64).reshape(-1)
        if index.size and not 0 <= index.min() <= index.max() < count:
            raise DataFileError(f"{path}: {name} names vertex {index.max()}, there are 0 to {count - 1}")
        found[name] = np.zeros(count, dtype=bool)
        found[name][index] = True
    return found


def npy(path: Path) -> TrainingGraph:
    """Read a folder with edge_index.npy, y.npy, x.npy and masks; large ones stay on the disk."""
    arrays: dict[str, Any] = {}
    try:
        for file in sorted(path.glob("*.npy")):
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            mode = "c" if file.stat().st_size > MAPPED_SHARE * memory else None
            arrays[file.stem] = np.load(file, mmap_mode=cast(Any, mode), allow_pickle=False)
    except ValueError as error:
        raise DataFileError(f"{path}: {error}") from error
    return training_graph(_of_arrays(arrays, path), str(path))


class _ArraysOnly(pickle.Unpickler):
    """Makes arrays, sparse matrices, lists and dictionaries, and nothing else."""

    _KNOWN: ClassVar[Mapping[tuple[str, str], Callable[..., Any]]] = {
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # type: ignore[dict-item]
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # type: ignore[dict-item]
        ("scipy.sparse.csr", "csr_matrix"): sparse.csr_matrix,
        ("scipy.sparse._csr", "csr_matrix"): sparse.csr_matrix,
        ("__builtin__", "list"): list,
        ("builtins", "list"): list,
        ("collections", "defaultdict"): defaultdict,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module[:60]}.{name[:60]}, which no graph needs") from None


def planetoid(path: Path) -> TrainingGraph:
    """Read the raw files of Planetoid (Yang et al. 2016): ind.NAME.x, y, tx, ty, allx, ally, graph, test.index."""
    folder = path / "raw" if (path / "raw").is_dir() else path
    graphs = sorted(folder.glob("ind.*.graph"))
    if not graphs:
        raise DataFileError(f"{folder}: no file ind.NAME.graph is there")
    name = graphs[0].name[4:-6]

    def part(which: str) -> Any:
        file = folder / f"ind.{name}.{which}"
        try:
            with file.open("rb") as content:
                return _ArraysOnly(content, encoding="latin1").load()
        except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise DataFileError(f"{file}: {error}") from error

    train, test_x, test_y, all_x, all_y = part("x"), part("tx"), part("ty"), part("allx"), part("ally")
    graph = part("graph")
    test = _test_vertices(folder / f"ind.{name}.test.index")
    # Vertices of the test that no file has (CiteSeer has 15) are isolated and without a label.
    count = max(int(test.max()) + 1, all_x.shape[0])
    features = np.zeros((count, all_x.shape[1]), dtype=np.float32)
    features[: all_x.shape[0]] = all_x.toarray()
    features[test] = test_x.toarray()
    labels = np.full(count, UNLABELLED, dtype=np.int64)
    labels[: all_y.shape[0]] = np.where(all_y.sum(axis=1) > 0, all_y.argmax(axis=1), UNLABELLED)
    labels[test] = np.where(test_y.sum(axis=1) > 0, test_y.argmax(axis=1), UNLABELLED)
    edges = [(one, int(two)) for one, others in graph.items() for two in others]
    num_train = train.shape[0]
    masks = masks_of(count, [np.arange(num_train), np.arange(num_train, num_train + 500), test], path)
    raw = RawGraph(
        edges=np.array(edges, dtype=np.int64).T, num_vertices=count, features=features, labels=labels, masks=masks
    )
    return training_graph(raw, str(path))


def _test_vertices(path: Path) -> NDArray[np.int64]:
    try:
        return np.array([int(word) for word in path.read_text(encoding="ascii").split()], dtype=np.int64)
    except ValueError as error:
        raise DataFileError(f"{path}: {error}") from error


def pyg(path: Path) -> TrainingGraph:
    """Read a saved torch_geometric Data, without running anything that is in the file."""
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr  # noqa: PLC0415  # only here
    from torch_geometric.data.storage import GlobalStorage  # noqa: PLC0415  # likewise

    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            found = torch.load(path, weights_only=True, map_location="cpu")
        data = found[0] if isinstance(found, tuple) else found
        names = ("edge_index", "y", "x", *MASKS)
        arrays = {name: data[name].numpy() for name in names if name in data}
    except (RuntimeError, pickle.UnpicklingError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataFileError(f"{path}: not a saved torch_geometric Data of plain tensors: {str(error)[:300]}") from error
    return training_graph(_of_arrays(arrays, path), str(path))
