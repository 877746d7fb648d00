"""A graph laid out by parts in one safetensors file, of which a rank reads its own slices alone.

Vertices are numbered anew, part after part, and edges are sorted by the vertex that they point to: so a part's
features, labels and incoming edges each lie in one piece. `order` leads back to the graph's own numbers.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from slurm_energy.errors import DataFileError
from slurm_energy.hyperscale.graph import MASKS

FORMAT = "slurm-energy parts 1"
_MAX_HEADER_LIST = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSizes:
    """How the file is laid out."""

    vertex_offsets: tuple[int, ...]
    """First vertex of each part, then their number."""
    edge_offsets: tuple[int, ...]
    num_features: int
    num_classes: int
    training_vertices: int
    halo_rows: Tensor
    """How many vertices of part k have an edge into part j, [parts, parts]; 0 where j is k."""

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.vertex_offsets) - 1

    def edges_of(self, part: int) -> int:
        """Return how many edges point into a part."""
        return self.edge_offsets[part + 1] - self.edge_offsets[part]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParts:
    """What one rank holds: some parts, in ascending order."""

    parts: tuple[int, ...]
    vertices: Tensor
    """Numbers in the file, ascending, [num_own]."""
    edge_index: Tensor
    """Sources anywhere, targets among `vertices`, in the file's numbers, [2, num_edges]."""
    features: Tensor
    labels: Tensor
    masks: dict[str, Tensor]


def write_parts(path: Path, graph_tensors: dict[str, Tensor], part_of_vertex: Tensor, num_classes: int) -> PartSizes:
    """Write a graph by parts and return the layout.

    Args:
        path: A new file, or one to replace.
        graph_tensors: `x` [num_vertices, num_features], `edge_index` [2, num_edges], `y` [num_vertices] and the masks.
        part_of_vertex: [num_vertices], parts counted from 0.
        num_classes: Of the labels.

    Raises:
        DataFileError: tensors do not fit each other, or the file cannot be written.
    """
    x, edge_index, y = graph_tensors["x"], graph_tensors["edge_index"], graph_tensors["y"]
    _check(graph_tensors, part_of_vertex, num_classes)
    num_parts = int(part_of_vertex.max()) + 1
    order = torch.argsort(part_of_vertex, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    source, target = place[edge_index[0]], place[edge_index[1]]
    by_target = torch.argsort(target, stable=True)
    source, target = source[by_target], target[by_target]
    vertex_offsets = torch.zeros(num_parts + 1, dtype=torch.int64)
    vertex_offsets[1:] = torch.cumsum(torch.bincount(part_of_vertex, minlength=num_parts), 0)
    edge_offsets = torch.searchsorted(target, vertex_offsets)
    part = part_of_vertex[order]
    pairs = torch.unique(source * num_parts + part[target])
    rows = torch.bincount((pairs % num_parts) * num_parts + part[pairs // num_parts], minlength=num_parts**2)
    sizes = PartSizes(
        vertex_offsets=tuple(vertex_offsets.tolist()),
        edge_offsets=tuple(edge_offsets.tolist()),
        num_features=x.shape[1],
        num_classes=num_classes,
        training_vertices=int(graph_tensors["train_mask"].sum()),
        halo_rows=rows.view(num_parts, num_parts).fill_diagonal_(0),
    )
    tensors = {"order": order, "edge_index": torch.stack([source, target]), "x": x[order].float(), "y": y[order].long()}
    tensors |= {name: graph_tensors[name][order].bool() for name in MASKS} | {"halo_rows": sizes.halo_rows}
    header = {
        "format": FORMAT,
        "vertex_offsets": json.dumps(sizes.vertex_offsets),
        "edge_offsets": json.dumps(sizes.edge_offsets),
        "num_classes": str(num_classes),
        "training_vertices": str(sizes.training_vertices),
    }
    write_tensors(path, tensors, header)
    return sizes


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Replace a safetensors file by a new one; readers and crashes see the old or the new one, never a part.

    Raises:
        DataFileError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    whole = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
    try:
        save_file(whole, temporary, metadata=dict(header))
        temporary.replace(path)
    except (SafetensorError, OSError) as error:
        with suppress(OSError):
            temporary.unlink()
        raise DataFileError(f"{path} cannot be written: {error}") from error


def _check(tensors: dict[str, Tensor], part_of_vertex: Tensor, num_classes: int) -> None:
    count = len(tensors["x"])
    if count == 0:
        raise DataFileError("a graph without vertices cannot be trained on")
    for name in ("y", *MASKS):
        if name not in tensors or tensors[name].shape != (count,):
            raise DataFileError(f"`{name}` must have one value for each of {count} vertices")
    if len(part_of_vertex) != count or int(part_of_vertex.min()) < 0:
        raise DataFileError(f"each of {count} vertices needs a part, counted from 0")
    edges = tensors["edge_index"]
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= count):
        raise DataFileError(
            f"an edge leads from or to a vertex that does not exist: the graph has vertices 0 to {count - 1}"
        )
    if not bool(torch.isfinite(tensors["x"]).all()):
        raise DataFileError("a feature is not finite: fill in or remove it when the graph is read")
    trained = tensors["y"][tensors["train_mask"]]
    if len(trained) == 0:
        raise DataFileError("no vertex is in train_mask: there is nothing to train on")
    if int(trained.min()) < 0 or int(trained.max()) >= num_classes:
        raise DataFileError(f"labels of training vertices must be 0 to {num_classes - 1}")


def read_sizes(path: Path) -> PartSizes:
    """Return the layout of a file of parts.

    Raises:
        DataFileError: it is missing, is none of ours, or says what cannot be.
    """
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise DataFileError(f"{path} is not a file of parts: `slurm-energy hyperscale plan` writes one")
            vertex_offsets = _offsets(path, header, "vertex_offsets")
            edge_offsets = _offsets(path, header, "edge_offsets")
            features, edges = file.get_slice("x").get_shape(), file.get_slice("edge_index").get_shape()
            num_classes, training = int(header["num_classes"]), int(header["training_vertices"])
            halo_rows = file.get_tensor("halo_rows")
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DataFileError(f"{path}: parts cannot be read: {error}") from error
    fits = len(features) == 2 and len(edges) == 2 and len(vertex_offsets) == len(edge_offsets) >= 2
    fits = fits and tuple(halo_rows.shape) == (len(vertex_offsets) - 1,) * 2
    if not fits or features[0] != vertex_offsets[-1] or edges[1] != edge_offsets[-1] or num_classes < 1:
        raise DataFileError(f"{path}: its header does not fit its tensors: write it again with `hyperscale plan`")
    return PartSizes(
        vertex_offsets=vertex_offsets,
        edge_offsets=edge_offsets,
        num_features=int(features[1]),
        num_classes=num_classes,
        training_vertices=training,
        halo_rows=halo_rows,
    )


def _offsets(path: Path, header: dict[str, str], name: str) -> tuple[int, ...]:
    if len(header[name]) > 20 * _MAX_HEADER_LIST:
        raise DataFileError(f"{path}: {name} has more than {_MAX_HEADER_LIST} parts")
    found = json.loads(header[name])
    if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
        raise DataFileError(f"{path}: {name} is no list of whole numbers")
    if any(low > high for low, high in pairwise(found)) or found[:1] != [0]:
        raise DataFileError(f"{path}: {name} does not ascend from 0")
    return tuple(found)


def read_holding(path: Path, sizes: PartSizes, parts: tuple[int, ...]) -> HeldParts:
    """Read some parts, and nothing of the others.

    Raises:
        DataFileError: a part does not exist, or the file cannot be read.
    """
    wrong = [part for part in parts if not 0 <= part < sizes.num_parts]
    if wrong or len(set(parts)) != len(parts):
        raise DataFileError(f"{path} has parts 0 to {sizes.num_parts - 1}, each is held once: {sorted(parts)} is wrong")
    parts = tuple(sorted(parts))
    ranges = [(sizes.vertex_offsets[part], sizes.vertex_offsets[part + 1]) for part in parts]
    edges = [(sizes.edge_offsets[part], sizes.edge_offsets[part + 1]) for part in parts]
    try:
        with safe_open(path, "pt") as file:

            def rows(name: str) -> Tensor:
                piece = file.get_slice(name)
                return torch.cat([piece[low:high] for low, high in ranges] or [piece[0:0]])

            pieces = file.get_slice("edge_index")
            return HeldParts(
                parts=parts,
                vertices=torch.cat([torch.arange(low, high) for low, high in ranges] or [torch.arange(0)]),
                edge_index=torch.cat([pieces[:, low:high] for low, high in edges] or [pieces[:, 0:0]], dim=1),
                features=rows("x"),
                labels=rows("y"),
                masks={name: rows(name) for name in MASKS},
            )
    except (SafetensorError, OSError) as error:
        raise DataFileError(f"{path}: parts cannot be read: {error}") from error
