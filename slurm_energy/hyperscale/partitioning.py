"""Divide a graph over unequal devices: independent sets as seeds, spectral clustering of them, refinement.

Vertices are merged around maximal independent sets (Luby 1986: a vertex whose random priority is above those of all
its neighbours is in the set) until few groups are left. Spectral clustering of the groups (Shi and Malik 2000, in the
form of scikit-learn: eigenvectors of the normalised adjacency, then k-means) and a recursive division at the second
eigenvector give first parts; the one with the smaller cut is carried back level by level, and at each level vertices
move to the part most of their neighbours are in, within the room each device has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from slurm_energy.errors import ConfigError
from slurm_energy.hyperscale.graph import TrainingGraph
from slurm_energy.hyperscale.metis import metis_parts
from slurm_energy.hyperscale.parts import Device, GraphParts, measure_parts
from slurm_energy.hyperscale.spectral import bisected_parts, clustered_parts

METHODS = ("metis", "independent-sets", "spectral", "random")
COARSE_GROUPS = 1_000
MAX_LEVELS = 30
IMBALANCE = 0.03
ROUNDS = 8
# A round on a large level costs most of the time and gains least: coarser levels have settled most of the cut.
LARGE_LEVEL, LARGE_ROUNDS = 200_000, 3
Int = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """A graph between the given one and the coarsest: connections, weight of each vertex, group each belongs to."""

    adjacency: sparse.csr_array
    weight: Float
    group: Int | None = None


def partition(graph: TrainingGraph, devices: Sequence[Device], method: str | None = None, seed: int = 0) -> GraphParts:
    """Return one part for each device, in size proportional to its speed and no larger than its memory holds.

    Args:
        graph: To be cut.
        devices: One for each part.
        method: One of `METHODS`; None: `metis` where it is installed, which has cut the fewest edges wherever both were
            measured, else `independent-sets`.
        seed: Of everything that is drawn.

    Raises:
        ConfigError: no device, more devices than vertices, a graph that all memories together cannot hold, or
            METIS asked for and missing or failed.
    """
    chosen = method or ("metis" if find_spec("pymetis") else "independent-sets")
    if chosen not in METHODS:
        raise ConfigError(f"method {chosen[:80]!r} is not one of {', '.join(METHODS)}")
    shares = device_shares(graph, devices)
    vertices = graph.num_vertices
    edge_index = graph.data.edge_index
    if len(devices) == 1:
        part = np.zeros(vertices, dtype=np.int64)
    elif chosen == "random":
        part = _random_parts(vertices, shares, np.random.default_rng(seed))
    else:
        adjacency = symmetric_adjacency(edge_index, vertices)
        part = _parts_by(chosen, adjacency, shares, seed)
    return measure_parts(edge_index, torch.from_numpy(part), shares, chosen)


def device_shares(graph: TrainingGraph, devices: Sequence[Device]) -> Float:
    """Return each device's share of the work, [num_devices]: its speed, cut where its memory ends, sum 1."""
    if not devices:
        raise ConfigError("no device to divide the graph over: name at least one")
    if len(devices) > graph.num_vertices:
        raise ConfigError(f"{len(devices)} devices for {graph.num_vertices} vertices: name fewer devices")
    needed = graph_bytes(graph)
    speed = np.array([device.speed_edges_per_second for device in devices], dtype=np.float64)
    bound = np.array([device.memory_bytes for device in devices], dtype=np.float64) / needed
    if bound.sum() < 1.0:
        raise ConfigError(
            f"the graph needs {needed} bytes, the devices hold {int(bound.sum() * needed)} together: add a device"
        )
    shares = np.zeros(len(devices))
    free = np.ones(len(devices), dtype=bool)
    while free.any():
        left = 1.0 - shares[~free].sum()
        shares[free] = left * speed[free] / speed[free].sum()
        over = free & (shares > bound)
        if not over.any():
            break
        shares[over] = bound[over]
        free &= ~over
    return shares


def graph_bytes(graph: TrainingGraph, hidden: int = 256) -> int:
    """Return the bytes a training of the graph holds: features, `hidden` activations and gradients twice, edges."""
    features = 0 if graph.data.x is None else int(graph.data.x.size(1))
    return graph.num_vertices * 4 * (features + 4 * hidden) + int(graph.data.edge_index.size(1)) * 16


def symmetric_adjacency(edge_index: torch.Tensor, num_vertices: int) -> sparse.csr_array:
    """Return the adjacency without self-loops, in both directions, each entry 1, [num_vertices, num_vertices]."""
    source, target = edge_index.numpy()
    kept = source != target
    ones = np.ones(int(kept.sum()), dtype=np.float32)
    one_way = sparse.csr_array((ones, (source[kept], target[kept])), shape=(num_vertices, num_vertices))
    both = sparse.csr_array(one_way + one_way.T)
    both.data[:] = 1.0
    return both


def _parts_by(method: str, adjacency: sparse.csr_array, shares: Float, seed: int) -> Int:
    if method == "metis":
        return metis_parts(adjacency, shares, seed)
    # A vertex costs its aggregation, an edge each, and its own row of the linear part.
    weight = 1.0 + np.diff(adjacency.indptr).astype(np.float64)
    levels = coarsened(Level(adjacency, weight), len(shares), np.random.default_rng(seed))
    return _multilevel_parts(levels, shares, seed, refine=method == "independent-sets")


def _random_parts(vertices: int, shares: Float, random: np.random.Generator) -> Int:
    ends = np.floor(np.cumsum(shares) * vertices).astype(np.int64)
    part = np.searchsorted(ends[:-1], np.arange(vertices), side="right")
    return np.asarray(random.permutation(part), dtype=np.int64)


def independent_set(adjacency: sparse.csr_array, random: np.random.Generator) -> NDArray[np.bool_]:
    """Return a maximal independent set, [num_vertices]; vertices of few neighbours come first."""
    vertices = adjacency.shape[0]
    degree = np.diff(adjacency.indptr)
    priority = np.empty(vertices, dtype=np.int64)
    priority[np.lexsort((random.random(vertices), -degree))] = np.arange(1, vertices + 1)
    inside = degree == 0
    open_ = ~inside
    starts = adjacency.indptr[:-1][degree > 0]
    connected = degree > 0
    while open_.any():
        value = np.where(open_, priority, 0)
        highest = np.zeros(vertices, dtype=np.int64)
        highest[connected] = np.maximum.reduceat(value[adjacency.indices], starts)
        chosen = open_ & (priority > highest)
        inside |= chosen
        touched = np.zeros(vertices, dtype=bool)
        touched[connected] = np.logical_or.reduceat(chosen[adjacency.indices], starts)
        open_ &= ~chosen & ~touched
    return np.asarray(inside)


def coarsened(finest: Level, num_parts: int, random: np.random.Generator) -> list[Level]:
    """Return levels from the given graph to one of few groups; each merges vertices around an independent set."""
    levels = [finest]
    ceiling = finest.weight.sum() / (20 * num_parts)
    while levels[-1].adjacency.shape[0] > max(COARSE_GROUPS, 30 * num_parts) and len(levels) < MAX_LEVELS:
        level = levels[-1]
        group = _groups_around_seeds(level, independent_set(level.adjacency, random), ceiling)
        groups = int(group.max()) + 1
        if groups > 0.95 * level.adjacency.shape[0]:
            break
        levels[-1] = Level(level.adjacency, level.weight, group)
        levels.append(_merged(level, group, groups))
    return levels


def _groups_around_seeds(level: Level, seeds: NDArray[np.bool_], ceiling: float) -> Int:
    """Return the group of each vertex: its most connected seed, or one of its own where that seed's group is full."""
    adjacency, vertices = level.adjacency, level.adjacency.shape[0]
    degree = np.diff(adjacency.indptr)
    connected = degree > 0
    # Connections divided by the seed's weight keep groups alike in size.
    value = np.where(seeds[adjacency.indices], adjacency.data / level.weight[adjacency.indices], -1.0)
    best = np.full(vertices, -1.0)
    best[connected] = np.maximum.reduceat(value, adjacency.indptr[:-1][connected])
    row = np.repeat(np.arange(vertices), degree)
    hits = np.flatnonzero((value == best[row]) & (value > 0))
    choice = np.arange(vertices)
    choice[row[hits]] = adjacency.indices[hits]
    choice[seeds] = np.flatnonzero(seeds)
    joined = np.flatnonzero(choice != np.arange(vertices))
    order = joined[np.lexsort((level.weight[joined], choice[joined]))]
    total = np.cumsum(level.weight[order])
    first = np.flatnonzero(np.r_[True, choice[order][1:] != choice[order][:-1]]) if len(order) else order
    before = np.repeat(np.r_[0.0, total[first[1:] - 1]] if len(order) else total, np.diff(np.r_[first, len(order)]))
    full = total - before + level.weight[choice[order]] > ceiling
    choice[order[full]] = order[full]
    return np.unique(choice, return_inverse=True)[1].astype(np.int64)


def _merged(level: Level, group: Int, groups: int) -> Level:
    vertices = level.adjacency.shape[0]
    member = sparse.csr_array((np.ones(vertices, np.float32), (np.arange(vertices), group)), shape=(vertices, groups))
    small = sparse.csr_array(member.T @ level.adjacency @ member)
    small.setdiag(0)
    small.eliminate_zeros()
    return Level(small, _weights_of(group, level.weight, groups))


def _weights_of(group: Int, weight: Float, groups: int) -> Float:
    return np.bincount(group, weights=weight, minlength=groups).astype(np.float64)


def _multilevel_parts(levels: list[Level], shares: Float, seed: int, *, refine: bool) -> Int:
    coarsest = levels[-1]
    first = [clustered_parts(coarsest.adjacency, coarsest.weight, shares, seed)]
    if refine:
        first.append(bisected_parts(coarsest.adjacency, coarsest.weight, shares))
    random = np.random.default_rng(seed)
    refined = [refined_parts(coarsest, part, shares, random, rounds=4 * ROUNDS) for part in first]
    part = min(refined, key=lambda candidate: cut_weight(coarsest.adjacency, candidate))
    for level in reversed(levels[:-1]):
        assert level.group is not None
        part = part[level.group]
        if refine or level is levels[0]:
            rounds = ROUNDS if len(part) < LARGE_LEVEL else LARGE_ROUNDS
            part = refined_parts(level, part, shares, random, rounds=rounds if refine else 1)
    return part


def cut_weight(adjacency: sparse.csr_array, part: Int) -> float:
    """Return the connections between parts, each counted in both directions."""
    row = np.repeat(np.arange(len(part)), np.diff(adjacency.indptr))
    return float(adjacency.data[part[row] != part[adjacency.indices]].sum())


def refined_parts(level: Level, part: Int, shares: Float, random: np.random.Generator, rounds: int) -> Int:
    """Return parts after rounds of moves: out of parts too large first, then to where most neighbours are."""
    num_parts = len(shares)
    room = shares * level.weight.sum() * (1.0 + IMBALANCE) + (level.weight.max() if len(part) < 50_000 else 0.0)
    best, best_score = part, _score(level, part, room)
    for _ in range(rounds):
        moved = _moved(level, part, room, num_parts, random)
        if np.array_equal(moved, part):
            break
        part = moved
        score = _score(level, part, room)
        if score < best_score:
            best, best_score = part, score
    return best


def _score(level: Level, part: Int, room: Float) -> tuple[float, float]:
    load = _weights_of(part, level.weight, len(room))
    return float(np.maximum(load - room, 0.0).sum()), cut_weight(level.adjacency, part)


def _moved(level: Level, part: Int, room: Float, num_parts: int, random: np.random.Generator) -> Int:
    vertices = len(part)
    here = np.arange(vertices)
    one_hot = np.zeros((vertices, num_parts), dtype=np.float32)
    one_hot[here, part] = 1.0
    links = level.adjacency @ one_hot  # [num_vertices, num_parts]
    own = links[here, part].copy()
    load = _weights_of(part, level.weight, num_parts)
    over = load > room
    links[here, part] = -np.inf
    links[:, load >= room] = -np.inf
    target = links.argmax(axis=1)
    gain = links[here, target] - own
    leaves = over[part] & np.isfinite(gain)
    candidates = np.flatnonzero((leaves | (gain > 0)) & (leaves | (random.random(vertices) < 0.5)))
    order = candidates[np.argsort(-gain[candidates] / level.weight[candidates], kind="stable")]
    moved = part.copy()
    for to in range(num_parts):
        into = order[target[order] == to]
        fits = np.cumsum(level.weight[into]) <= room[to] - load[to]
        moved[into[fits]] = to
    return _not_emptied(level, part, moved, load, room)


def _not_emptied(level: Level, part: Int, moved: Int, load: Float, room: Float) -> Int:
    """Take back moves out of a part beyond its excess where they only served balance, and where they empty it."""
    for source in np.flatnonzero(load > room):
        left = np.flatnonzero((part == source) & (moved != source))
        beyond = left[np.cumsum(level.weight[left]) > (load[source] - room[source]) * 1.2 + level.weight[left]]
        moved[beyond] = source
    for source in np.flatnonzero(np.bincount(moved, minlength=len(room)) == 0):
        moved[np.flatnonzero(part == source)[:1]] = source
    return moved
