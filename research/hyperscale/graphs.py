"""Graphs to measure with: their labels are planted, so accuracy says whether what is fast also learns."""

import numpy as np
import torch
from torch import Tensor

FEATURES, CLASSES = 64, 8


def power_law(vertices: int, seed: int = 0) -> dict[str, Tensor]:
    """Return communities of power-law degrees (exponent 2.5, mean degree near 10); a fifth of the edges leave them."""
    drawn = np.random.default_rng(seed)
    communities = max(CLASSES, vertices // 1000)
    community = drawn.integers(communities, size=vertices)
    members = np.argsort(community, kind="stable")
    starts = np.searchsorted(community[members], np.arange(communities + 1))
    degree = np.minimum(4.0 * (1.0 - drawn.random(vertices)) ** (-1.0 / 1.5), vertices**0.5)
    source = np.repeat(np.arange(vertices), drawn.poisson(degree / 2.0))
    inside = drawn.random(len(source)) < 0.8
    within = starts[community[source]]
    size = starts[community[source] + 1] - within
    near = members[within + (drawn.random(len(source)) ** 2 * size).astype(np.int64)]
    target = np.where(inside, near, drawn.integers(vertices, size=len(source)))
    return _graph(source, target, community % CLASSES, drawn)


def mesh(vertices: int, seed: int = 0) -> dict[str, Tensor]:
    """Return a triangular mesh on a square, its vertices in random order; classes are stripes."""
    drawn = np.random.default_rng(seed)
    side = int(vertices**0.5)
    number = np.arange(side * side).reshape(side, side)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:]), (number[:-1, :-1], number[1:, 1:])]
    source = np.concatenate([one.ravel() for one, _ in pairs])
    target = np.concatenate([other.ravel() for _, other in pairs])
    label = (np.arange(side * side) % side) * CLASSES // side
    shuffled = drawn.permutation(side * side)
    labels = np.empty_like(label)
    labels[shuffled] = label
    return _graph(shuffled[source], shuffled[target], labels, drawn)


def _graph(source: np.ndarray, target: np.ndarray, label: np.ndarray, drawn: np.random.Generator) -> dict[str, Tensor]:
    count = len(label)
    features = drawn.normal(size=(count, FEATURES)).astype(np.float32)
    features[np.arange(count), label] += 1.0
    draw = drawn.random(count)
    edges = np.stack([np.concatenate([source, target]), np.concatenate([target, source])])
    return {
        "x": torch.from_numpy(features),
        "edge_index": torch.from_numpy(edges),
        "y": torch.from_numpy(label.astype(np.int64)),
        "train_mask": torch.from_numpy(draw < 0.3),
        "val_mask": torch.from_numpy((draw >= 0.3) & (draw < 0.5)),
        "test_mask": torch.from_numpy(draw >= 0.5),
    }
