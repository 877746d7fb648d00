"""Node and layer sampling: which members and edges are drawn, with which probability (section 3.3 of the paper).

Sums over the sample are weighted by 1 / probability (Horvitz and Thompson, 1952), which makes them unbiased as long as
the probabilities are exactly those of the draw. Attention means are ratios of two such sums; their bias falls with the
size of the sample but is not zero.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import Flags, Floats, Indices
from slurm_energy.policy.gnn.configuration import NetworkConfig

Doubles = NDArray[np.float64]
MIN_PER_PARTITION = 2
"""Members that each candidate partition keeps, or all where it has fewer."""
_ROUNDING = 1e-9
MIN_RATE = 0.005
_PER_LAYER = 1.0 / 8.0
_PER_LOAD = 1.0 / 4.0


class Strata(NamedTuple):
    """How members are drawn: of each stratum a fixed number."""

    probability: Doubles
    """Of being drawn; 0 for members of no stratum, [members]."""
    stratum: Indices
    """[members]; -1 for members of none."""


class StratumMembers(NamedTuple):
    """Who belongs to which partition, several partitions being possible."""

    member: Indices
    """[memberships]."""
    partition: Indices
    """[memberships]."""
    candidate: Flags
    """Whether a waiting decision could use the partition, [partitions]."""


def inclusion_probabilities(
    importance: Doubles, budget: float | Doubles, cost: Doubles | None = None, stratum: Indices | None = None
) -> Doubles:
    """Return probabilities proportional to importance that use up a budget; none is above 1, [members].

    Those that would be above 1 are certain, and the others share what is left, until none is above 1.

    Args:
        importance: Above 0, [members].
        budget: Expected cost of the sample, or of that of each stratum, [strata]; all are certain where they do not
            cost more.
        cost: Of each member, above 0, [members]; None for 1 each: the budget is then the size of the sample.
        stratum: Each stratum has a budget and a factor of its own, [members]; None for one.

    Raises:
        ValueRangeError: an importance, a cost or a budget that a member shares in is not above 0.
    """
    price = np.ones(len(importance)) if cost is None else cost
    own = np.zeros(len(importance), dtype=np.int64) if stratum is None else stratum
    budgets = np.atleast_1d(np.asarray(budget, dtype=np.float64))
    least = [float(values.min(initial=np.inf)) for values in (importance, price, budgets[own])]
    if not all(value > 0.0 for value in least):
        raise ValueRangeError(f"importance {least[0]}, cost {least[1]} and budget {least[2]} must be above 0")
    probability = np.ones(len(importance))
    open_, left = np.arange(len(importance)), budgets
    while len(open_):
        work = np.bincount(own[open_], weights=importance[open_] * price[open_], minlength=len(budgets))
        factor = np.divide(left, work, out=np.zeros(len(budgets)), where=work > 0.0)
        share = importance[open_] * factor[own[open_]]
        certain = share > 1.0 - _ROUNDING
        if not certain.any():
            probability[open_] = share
            break
        left = left - np.bincount(own[open_[certain]], weights=price[open_[certain]], minlength=len(budgets))
        open_ = open_[~certain]
    return probability


def systematic_sample(
    probability: Doubles,
    generator: np.random.Generator,
    stratum: Indices | None = None,
    group: Indices | None = None,
) -> Indices:
    """Return who is drawn, ascending; the chance of each is exactly its probability.

    Systematic sampling in random order (Madow, 1949; Hartley and Rao, 1962): members lie side by side on a line, each
    as long as its probability, and those are drawn that hold one of the points u, u + 1, u + 2, ... Of a stratum whose
    probabilities add up to a whole number, exactly that many are drawn; otherwise one more or less by chance.

    Args:
        probability: From 0 to 1, [members].
        generator: Source of the order and of u, which is another for each stratum.
        stratum: Members of one lie together, [members].
        group: Inside a stratum, members of one group lie together in random order, which spreads the draw over the
            groups, [members].
    """
    count = len(probability)
    own = np.zeros(count, dtype=np.int64) if stratum is None else stratum - stratum.min(initial=0)
    place = generator.random(count)
    if group is not None and count:
        place += generator.permutation(int(group.max()) + 1)[group]
    order = np.argsort(own * np.ceil(place.max(initial=1.0)) + place)
    start = generator.random(int(own.max(initial=0)) + 1)[own[order]]
    end = np.cumsum(probability[order])
    whole = np.rint(end)
    # Strata begin at whole numbers; what rounding adds must not move a point over such a border.
    end = np.where(np.abs(end - whole) < _ROUNDING, whole, end)
    begin = np.concatenate([[0.0], end[:-1]])
    drawn = np.floor(end - start) > np.floor(begin - start)
    return np.sort(order[drawn | (probability[order] >= 1.0)])


def stratify(
    importance: Doubles, cost: Doubles, memberships: StratumMembers, budget: float, context: Flags | None = None
) -> Strata:
    """Return strata and probabilities under which each candidate partition keeps `MIN_PER_PARTITION`.

    A member's stratum is the smallest candidate partition it belongs to. A stratum's size follows its importance; it
    is a whole number and at least `MIN_PER_PARTITION`. Where partitions overlap so that this does not suffice for
    one of them, its most important members are certain: weights stay exact, at the price of a few members more.

    Args:
        importance: Above 0, [members].
        cost: Work that a member makes, above 0, [members].
        memberships: Partitions of the members.
        budget: Work that the sample may make, in units of the cost; what the least per partition needs comes on top.
        context: Members of no candidate partition that make a stratum of their own, [members].
    """
    partitions = len(memberships.candidate)
    stratum = _smallest_partition(len(importance), memberships)
    if context is not None:
        stratum[context & (stratum < 0)] = partitions
    stratum[_certain(importance, stratum, memberships)] = partitions + 1
    inside = np.flatnonzero(stratum >= 0)
    probability = np.zeros(len(importance))
    wished = inclusion_probabilities(importance[inside], budget, cost[inside])
    members = np.bincount(stratum[inside], minlength=partitions + 2)
    share = np.bincount(stratum[inside], weights=wished, minlength=partitions + 2)
    # Rounded in running sums, so that the strata together have the size that the budget pays for.
    size = np.diff(np.rint(np.cumsum(share)), prepend=0.0)
    size = np.clip(size, np.minimum(MIN_PER_PARTITION, members), members)
    size[partitions + 1] = members[partitions + 1]
    probability[inside] = inclusion_probabilities(importance[inside], size, stratum=stratum[inside])
    return Strata(probability, stratum)


def _smallest_partition(members: int, memberships: StratumMembers) -> Indices:
    """Return the candidate partition with the fewest members of each member, -1 for those in none."""
    member, partition, candidate = memberships
    partitions = len(candidate)
    by_size = np.argsort(np.bincount(partition, minlength=partitions), kind="stable")
    rank = np.empty(partitions, dtype=np.int64)
    rank[by_size] = np.arange(partitions)
    best = np.full(members, partitions, dtype=np.int64)
    useful = candidate[partition]
    np.minimum.at(best, member[useful], rank[partition[useful]])
    return np.append(by_size, -1)[best]


def _certain(importance: Doubles, stratum: Indices, memberships: StratumMembers) -> Indices:
    """Return members that must be certain for every candidate partition to keep its least.

    A stratum of which `least` are drawn and of which `outside` lie outside a partition gives it at least
    least - outside.
    """
    member, partition, candidate = memberships
    partitions = len(candidate)
    own = stratum[member]
    useful = (own >= 0) & candidate[partition]
    shared = np.bincount(own[useful] * partitions + partition[useful], minlength=partitions * partitions)
    shared = shared.reshape(partitions, partitions)  # [strata, partitions]
    members = np.bincount(stratum[(stratum >= 0) & (stratum < partitions)], minlength=partitions)
    least = np.minimum(MIN_PER_PARTITION, members)
    kept = np.maximum(0, least[:, None] - (members[:, None] - shared)).sum(axis=0)
    needed = np.minimum(MIN_PER_PARTITION, shared.sum(axis=0)) - kept
    certain: list[int] = []
    for one in np.flatnonzero(needed > 0):
        its = member[partition == one]
        missing = int(needed[one]) - int(np.isin(its, certain).sum())
        open_ = its[~np.isin(its, certain)]
        certain += open_[np.argsort(-importance[open_], kind="stable")[: max(0, missing)]].tolist()
    return np.array(certain, dtype=np.int64)


class LayerRates(NamedTuple):
    """Share of each layer that is kept."""

    nodes: float
    """Nodes, with their uplinks."""
    links: float
    """Links into a device, of those inside the nodes that are kept."""
    tasks: float
    """Pending jobs."""
    dependencies: float
    """Dependencies that are followed from a job that is kept."""


class SampledEdges(NamedTuple):
    """A part of the edges."""

    kept: Indices
    """Their columns, ascending, [kept]."""
    weight: Floats
    """1 / probability of each, [kept]."""


def layer_rates(config: NetworkConfig, load: float) -> LayerRates:
    """Return the rates of all layers; deeper layers and higher load have lower ones.

    rate(depth) = sampling_rate ^ ((1 + depth / 8) (1 + load / 4)), from `MIN_RATE` to 1.

    Depth is the number of propagation layers beyond those between nodes: `device_layers` below them, so that links are
    kept at rate(device_layers) in total and at rate(device_layers) / rate(0) inside a node that is kept. Jobs have
    `task_layers` where nodes have `fabric_layers`. Nodes themselves are at depth 0: `sampling_rate` without load. A
    `sampling_rate` of 1 keeps everything.

    Args:
        config: Settings of the network.
        load: How busy the cluster is, 0 to 1.

    Raises:
        ValueRangeError: the load is outside its bounds.
    """
    if not 0.0 <= load <= 1.0:
        raise ValueRangeError(f"load is {load}, it must be between 0 and 1")
    nodes = _rate(config.sampling_rate, 0, load)
    tasks = _rate(config.sampling_rate, config.task_layers - config.fabric_layers, load)
    return LayerRates(
        nodes=nodes,
        links=_rate(config.sampling_rate, config.device_layers, load) / nodes,
        tasks=tasks,
        dependencies=min(1.0, _rate(config.sampling_rate, 2 * config.task_layers - config.fabric_layers, load) / tasks),
    )


def _rate(base: float, depth: int, load: float) -> float:
    return max(MIN_RATE, float(base ** ((1.0 + _PER_LAYER * depth) * (1.0 + _PER_LOAD * load))))


def sample_edges(
    edge_index: Indices, rate: float, generator: np.random.Generator, most: int | None = None
) -> SampledEdges:
    """Return a part of the edges into each target, and what each of them stands for.

    A target with d edges keeps k = max(1, ceil(rate d)) of them, drawn without replacement, each with weight d / k: no
    target with an edge is cut off, and the weights are exact nevertheless.

    Args:
        edge_index: Source and target of each edge, [2, edges].
        rate: Share that is kept, above 0, at most 1.
        generator: Source of the draw.
        most: Largest k; None for no bound.

    Raises:
        ValueRangeError: the rate is outside its bounds.
    """
    if not 0.0 < rate <= 1.0:
        raise ValueRangeError(f"rate of edges is {rate}, it must be above 0 and at most 1")
    target = edge_index[1]
    degree = np.bincount(target)
    size = np.maximum(1, np.ceil(rate * degree - 1e-9)).astype(np.int64)
    if most is not None:
        size = np.minimum(size, most)
    order = np.argsort(target + generator.random(len(target)))
    first = np.cumsum(degree) - degree
    place = np.arange(len(target)) - first[target[order]]
    kept = np.sort(order[place < size[target[order]]])
    return SampledEdges(kept, (degree[target[kept]] / size[target[kept]]).astype(np.float32))
