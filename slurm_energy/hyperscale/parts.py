"""Parts of a graph, one for each device."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from slurm_energy.errors import ConfigError
from slurm_energy.hyperscale.graph import TrainingGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What computes a part."""

    name: str
    speed_edges_per_second: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphParts:
    """The part of every vertex."""

    part_of_vertex: Tensor
    num_parts: int


def partition(graph: TrainingGraph, devices: Sequence[Device], method: str | None = None, seed: int = 0) -> GraphParts:
    """Return a part for each device, with edges in proportion to its speed.

    Args:
        graph: To be cut.
        devices: One for each part.
        method: `metis`, `banded` (pieces of the reordered matrix) or `random`; None: `metis` where it is installed,
            else `banded`.
        seed: Of `random` and `metis`.

    Raises:
        ConfigError: the method is not known or not installed.
    """
    edges, count = graph.data.edge_index, int(graph.data.num_nodes or 0)
    speeds = np.array([device.speed_edges_per_second for device in devices])
    shares = speeds / speeds.sum()
    pairs = np.ones(edges.shape[1]), edges.numpy()
    matrix = coo_array(pairs, shape=(count, count)).tocsr()
    both = matrix + matrix.T
    degree = np.bincount(edges[1].numpy(), minlength=count) + 1
    chosen = method or ("metis" if find_spec("pymetis") else "banded")
    if chosen == "metis" and len(devices) > 1:
        return GraphParts(part_of_vertex=torch.tensor(_metis(both, degree, shares, seed)), num_parts=len(devices))
    if chosen == "random":
        order = np.random.default_rng(seed).permutation(count)
    elif chosen in {"banded", "metis"}:
        order = reverse_cuthill_mckee(both, symmetric_mode=True)
    else:
        raise ConfigError(f"method {chosen[:80]!r} is not one of metis, banded, random")
    done = np.cumsum(degree[order]) / degree.sum()
    part = np.empty(count, dtype=np.int64)
    part[order] = np.searchsorted(np.cumsum(shares)[:-1], done)
    return GraphParts(part_of_vertex=torch.from_numpy(part), num_parts=len(devices))


def _metis(both: csr_array, weights: NDArray[np.int64], shares: NDArray[np.float64], seed: int) -> list[int]:
    """Return the parts of METIS (Karypis and Kumar, 1998), for neighbours both ways and without loops."""
    try:
        import pymetis  # noqa: PLC0415  # only where it is installed
    except ImportError as error:
        raise ConfigError("method metis needs the package pymetis: pip install pymetis, or --method banded") from error
    whole = both.copy()
    whole.setdiag(0)
    whole.eliminate_zeros()
    _, found = pymetis.part_graph(
        len(shares),
        xadj=whole.indptr,
        adjncy=whole.indices,
        vweights=weights.tolist(),
        tpwgts=shares.tolist(),
        recursive=False,
        options=pymetis.Options(seed=seed),
    )
    return list(found)
