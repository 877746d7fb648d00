"""Parts by METIS, in a process of its own: where parts are many or memory is short, METIS ends it by a signal."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from slurm_energy.errors import ConfigError

MAX_SECONDS = 600
BYTES_PER_EDGE, BYTES_PER_VERTEX = 80, 200
"""What METIS may hold beside the graph over all its levels: an estimate, on the safe side."""
CHILD = """
import sys, numpy, pymetis
data = numpy.load(sys.argv[1], allow_pickle=False)
options = pymetis.Options(seed=int(sys.argv[3]))
_, part = pymetis.part_graph(len(data["shares"]), xadj=data["xadj"].tolist(), adjncy=data["adjncy"].tolist(),
    vweights=data["weight"].tolist(), tpwgts=data["shares"].tolist(), options=options, recursive=False)
numpy.save(sys.argv[2], numpy.asarray(part, dtype=numpy.int64))
"""


def metis_parts(adjacency: sparse.csr_array, shares: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Return METIS's parts of a symmetric graph; isolated vertices, which METIS cannot place, fill the smallest parts.

    Raises:
        ConfigError: pymetis is missing, memory is short, parts are more than connected vertices, or METIS failed.
    """
    if importlib.util.find_spec("pymetis") is None:
        raise ConfigError("method metis needs pymetis: pip install pymetis, or take independent-sets")
    degree = np.diff(adjacency.indptr)
    connected = np.flatnonzero(degree > 0)
    if len(shares) > len(connected):
        raise ConfigError(f"METIS cannot make {len(shares)} parts of {len(connected)} connected vertices")
    needed = adjacency.nnz * BYTES_PER_EDGE + len(connected) * BYTES_PER_VERTEX
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if needed > free:
        raise ConfigError(f"METIS needs about {needed} bytes, {free} are free: take the method independent-sets")
    inside = sparse.csr_array(adjacency[connected][:, connected])
    part = np.full(len(degree), -1, dtype=np.int64)
    part[connected] = _run(inside, 1 + degree[connected], shares, seed)
    load = np.bincount(part[connected], weights=1.0 + degree[connected], minlength=len(shares))
    alone = np.flatnonzero(degree == 0)
    missing = np.maximum(shares * (load.sum() + len(alone)) - load, 1e-9)
    ends = np.cumsum(missing / missing.sum()) * len(alone)
    part[alone] = np.minimum(np.searchsorted(ends, np.arange(len(alone)), side="right"), len(shares) - 1)
    return part


def _run(
    adjacency: sparse.csr_array, weight: NDArray[np.int64], shares: NDArray[np.float64], seed: int
) -> NDArray[np.int64]:
    with tempfile.TemporaryDirectory(prefix="slurm-energy-metis-") as folder:
        given, answer = Path(folder, "graph.npz"), Path(folder, "parts.npy")
        np.savez(given, xadj=adjacency.indptr, adjncy=adjacency.indices, weight=weight, shares=shares)
        command = [sys.executable, "-c", CHILD, str(given), str(answer), str(seed)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"METIS has not ended after {MAX_SECONDS} s") from error
        if ended.returncode < 0:
            raise ConfigError(f"METIS ended by signal {-ended.returncode}: take the method independent-sets")
        if ended.returncode or not answer.exists():
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConfigError(f"METIS failed: {last}")
        part = np.load(answer, allow_pickle=False)
    if len(part) != adjacency.shape[0] or part.min() < 0 or part.max() >= len(shares):
        raise ConfigError(f"METIS returned {len(part)} parts for {adjacency.shape[0]} vertices")
    return np.asarray(part, dtype=np.int64)
