"""Ways of keeping the state up to date: what changed only, all of it, or a sample of it."""

from collections.abc import Iterator

import numpy as np
import torch

from slurm_energy.graph.cluster_graph import Changes, ClusterGraph
from slurm_energy.policy.gnn.cache import EmbeddingCache, StateKeeper
from slurm_energy.policy.gnn.levels import Published
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, SampleWeights
from slurm_energy.policy.gnn.sampling.apply import sampled_blocks


class WholeState:
    """Works out everything at every change: networks without levels, and the reference for the cache."""

    def __init__(self, network: HierarchicalNetwork, graph: ClusterGraph) -> None:
        self.published: Published | None = None
        self._network = network
        self._graph = graph
        self._stale = True

    @property
    def is_stale(self) -> bool:
        """Whether what changed has not been worked out and published yet."""
        return self._stale

    def note(self, changes: Changes) -> None:
        """Remember whether anything changed."""
        self._stale = self._stale or bool(changes)

    def steps(self) -> Iterator[None]:
        """Work out the state in one long step."""
        if self._stale:
            blocks, weights = self._part()
            with torch.inference_mode():
                self.published = self._network.state(blocks, weights).published
            self._stale = False
            yield

    def _part(self) -> tuple[Blocks, SampleWeights | None]:
        return whole_blocks(self._graph), None


class SampledState(WholeState):
    """Works out a fresh sample of the graph at every change (section 3.3 of the paper: sampling module)."""

    def __init__(self, network: HierarchicalNetwork, graph: ClusterGraph, seed: int = 0) -> None:
        super().__init__(network, graph)
        self._generator = np.random.default_rng(seed)

    def _part(self) -> tuple[Blocks, SampleWeights | None]:
        return sampled_blocks(self._graph, self._network.config, self._generator)


def whole_blocks(graph: ClusterGraph) -> Blocks:
    """Return the whole state of a graph, nodes in the order of their groups."""
    groups = graph.group_slots
    return Blocks(
        devices=graph.device_block(graph.nodes_of_groups(groups)),
        fabric=graph.fabric_block(groups),
        queue=graph.queue_block(graph.queue_slots),
        top=graph.top_block(),
    )


def keeper_of(network: HierarchicalNetwork, graph: ClusterGraph) -> StateKeeper:
    """Return the way of keeping the state that fits a network."""
    if network.config.sampling == "sampled":
        return SampledState(network, graph)
    if network.config.hierarchy != "hierarchical":
        return WholeState(network, graph)
    return EmbeddingCache(network, graph)
