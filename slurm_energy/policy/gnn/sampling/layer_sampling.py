"""Layer sampling: how much of each layer is kept, and which of its edges (section 3.3 of the paper)."""

from typing import NamedTuple

import numpy as np

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import Floats, Indices
from slurm_energy.policy.gnn.configuration import NetworkConfig

LEAST_RATE = 0.005
_PER_LAYER = 1.0 / 8.0
_PER_LOAD = 1.0 / 4.0


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

    rate(depth) = sampling_rate ^ ((1 + depth / 8) (1 + load / 4)), from `LEAST_RATE` to 1.

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
    return max(LEAST_RATE, float(base ** ((1.0 + _PER_LAYER * depth) * (1.0 + _PER_LOAD * load))))


def sample_edges(
    edge_index: Indices, rate: float, generator: np.random.Generator, most: int | None = None
) -> SampledEdges:
    """Return a part of the edges into each target, and what each of them stands for.

    A target with d edges keeps k = max(1, ceil(rate d)) of them, drawn without replacement, each with weight d / k: no
    target with an edge is cut off, and the weights are exact all the same.

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
