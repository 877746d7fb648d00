"""Graphs from files and databases: edge and adjacency lists, CSV, npz, npy folders, GraphML, Planetoid, OGB, PyG, SQL.

Everything in a file is hostile until it was read: no pickle but with names that only make arrays, no entity of XML, no
code of a checkpoint. Each format is described in docs/how-to/train-a-graph-network-over-unequal-gpus.md.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

from slurm_energy.errors import DataFileError
from slurm_energy.hyperscale.graph import TrainingGraph
from slurm_energy.hyperscale.ingestion import arrays, tables

FORMATS: dict[str, Callable[[Path], TrainingGraph]] = {
    "npz": arrays.npz,
    "npy": arrays.npy,
    "edges": tables.edges,
    "adjacency": tables.adjacency,
    "csv": tables.csv_folder,
    "graphml": tables.graphml,
    "planetoid": arrays.planetoid,
    "ogb": tables.ogb,
    "pyg": arrays.pyg,
    "description": tables.description,
}


def read_graph(path: Path, format: str | None = None) -> TrainingGraph:  # noqa: A002  # the word users know
    """Return the graph of a file or folder.

    Args:
        path: A file or folder; a .toml file describes a graph in several files, or in a database.
        format: One of `FORMATS`; None: by the name and what is there.

    Raises:
        DataFileError: it cannot be read, or what it holds is no graph with labels.
    """
    name = format or _format_of(path)
    if name not in FORMATS:
        raise DataFileError(f"{path}: format {name[:40]!r} is not one of {', '.join(FORMATS)}")
    try:
        return FORMATS[name](path)
    except (OSError, EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise DataFileError(f"{path}: cannot be read as {name}: {error}") from error
    except MemoryError as error:
        raise DataFileError(f"{path}: does not fit into memory; a folder of .npy files is mapped instead") from error


def _format_of(path: Path) -> str:
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if any(name.startswith("ind.") and name.endswith(".graph") for name in names | _names(path / "raw")):
            return "planetoid"
        if "num-node-list.csv.gz" in _names(path / "raw"):
            return "ogb"
        return "npy" if "edge_index.npy" in names else "csv"
    suffix = path.suffix.lower()
    known = {".npz": "npz", ".graphml": "graphml", ".pt": "pyg", ".toml": "description", ".adj": "adjacency"}
    return known.get(suffix, "edges")


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
