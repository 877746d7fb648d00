"""First parts of a small graph from eigenvectors of its normalised adjacency."""

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from sklearn.cluster import KMeans

Int = NDArray[np.int64]
Float = NDArray[np.float64]


def embedding(adjacency: sparse.csr_array, count: int) -> Float:
    """Return eigenvectors of the largest eigenvalues of D^-1/2 A D^-1/2, largest last, [num_vertices, count]."""
    degree = np.asarray(adjacency.sum(axis=1), dtype=np.float64).ravel()
    scale = 1.0 / np.sqrt(np.maximum(degree, 1e-12))
    dense = adjacency.toarray().astype(np.float64) * scale[:, None] * scale[None, :]
    vertices = len(degree)
    count = min(count, vertices)
    _, vectors = linalg.eigh(dense, subset_by_index=[vertices - count, vertices - 1])
    return np.asarray(vectors * scale[:, None])


def clustered_parts(adjacency: sparse.csr_array, weight: Float, shares: Float, seed: int) -> Int:
    """Return parts by k-means in the embedding, clusters matched to shares by size; sizes are not exact."""
    num_parts = len(shares)
    vectors = embedding(adjacency, num_parts)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = vectors / np.maximum(length, 1e-12)
    cluster = KMeans(num_parts, n_init=4, random_state=seed).fit_predict(rows, sample_weight=weight)
    size = np.bincount(cluster, weights=weight, minlength=num_parts)
    part_of_cluster = np.empty(num_parts, dtype=np.int64)
    part_of_cluster[np.argsort(size)] = np.argsort(shares)
    return np.asarray(part_of_cluster[cluster])


def bisected_parts(adjacency: sparse.csr_array, weight: Float, shares: Float) -> Int:
    """Return parts by division at the second eigenvector, again and again, each in proportion to its shares."""
    part = np.zeros(adjacency.shape[0], dtype=np.int64)
    _bisect(adjacency, weight, shares, np.arange(len(shares)), np.arange(len(part)), part)
    return part


def _bisect(adjacency: sparse.csr_array, weight: Float, shares: Float, names: Int, vertices: Int, part: Int) -> None:
    if len(names) == 1 or len(vertices) <= 1:
        part[vertices] = names[0]
        return
    half = len(names) // 2
    wanted = shares[names[:half]].sum() / shares[names].sum()
    inside = sparse.csr_array(adjacency[vertices][:, vertices])
    order = np.argsort(embedding(inside, 2)[:, 0], kind="stable")
    split = int(np.searchsorted(np.cumsum(weight[vertices[order]]), wanted * weight[vertices].sum())) + 1
    split = min(max(split, half), max(len(vertices) - (len(names) - half), 1))
    _bisect(adjacency, weight, shares, names[:half], vertices[order[:split]], part)
    _bisect(adjacency, weight, shares, names[half:], vertices[order[split:]], part)
