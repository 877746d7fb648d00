"""Ways of keeping the state: they agree, and each does no more than it has to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_parts import PROPAGATIONS, SMALL, VECTOR
from small_clusters import after, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import PartitionName
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.gnn.ablation.sampled_state import SampledState, WholeState
from slurm_energy.policy.gnn.cache import EmbeddingCache, StateKeeper, keeper_of, whole_blocks
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Published
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network


def cluster(nodes: int = 9) -> ClusterSnapshot:
    """Return nodes of two partitions, one job on two of them, a chain of jobs that wait, a job in both partitions."""
    return make_snapshot(
        tuple(make_node(f"n{number}", partition="p" if number < 5 else "q") for number in range(nodes)),
        (
            make_job(1, running_on="n[1-2]", gpus=4, node_count=2),
            make_job(2, dependencies=after(1)),
            make_job(3, dependencies=after(2), gpus=2),
            make_job(4, partitions=(PartitionName("p"), PartitionName("q"))),
        ),
        (make_partition("p"), make_partition("q")),
    )


def without_jobs() -> ClusterSnapshot:
    return replace(cluster(), jobs=())


def run(keeper: StateKeeper, graph: ClusterGraph, *snapshots: ClusterSnapshot) -> Published:
    for snapshot in snapshots:
        keeper.note(graph.update(snapshot))
        for _ in keeper.steps():
            pass
    assert keeper.published is not None
    return keeper.published


def assert_alike(found: Published, expected: Published, tolerance: float = 1e-5) -> None:
    for name, mine, theirs in zip(Published._fields, found, expected, strict=True):
        assert mine.shape == theirs.shape, name
        assert torch.allclose(mine.float(), theirs.float(), atol=tolerance, rtol=tolerance), name


def networks(config: NetworkConfig) -> tuple[HierarchicalNetwork, HierarchicalNetwork]:
    """Return the same weights once for the whole graph and once for a sample that is the whole graph."""
    sampled = replace(config, sampling="sampled", sampling_rate=1.0)
    return create_network(config, seed=1), create_network(sampled, seed=1)


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_all_keepers_agree_on_the_whole_graph_also_with_a_job_on_several_nodes(config: NetworkConfig) -> None:
    full, sampled = networks(config)
    graphs = [ClusterGraph() for _ in range(3)]
    steps = (cluster(8), without_jobs(), cluster())
    expected = run(WholeState(full, graphs[0]), graphs[0], *steps)
    assert_alike(run(EmbeddingCache(full, graphs[1]), graphs[1], *steps), expected)
    assert_alike(run(SampledState(sampled, graphs[2]), graphs[2], *steps), expected)


def test_a_sample_leaves_nodes_out_and_keeps_the_shape_of_the_top() -> None:
    config = replace(SMALL, sampling="sampled", sampling_rate=0.12)
    network, graph = create_network(config, seed=1), ClusterGraph()
    worked: list[int] = []
    original = graph.device_block
    graph.device_block = lambda slots: worked.extend(slots) or original(slots)  # type: ignore[method-assign, func-returns-value, assignment]  # a spy
    nodes = tuple(make_node(f"n{number}") for number in range(60))
    found = run(SampledState(network, graph), graph, make_snapshot(nodes))
    assert 2 <= len(worked) < 30
    whole = run(WholeState(network, graph), graph, make_snapshot(nodes))
    assert torch.equal(found.kind, whole.kind)
    assert torch.equal(found.heat, whole.heat)


def test_samples_follow_the_seed_and_are_drawn_afresh_at_every_change() -> None:
    config = replace(SMALL, sampling="sampled", sampling_rate=0.12)
    nodes = tuple(make_node(f"n{number}", cpus_allocated=number) for number in range(60))
    first, second = make_snapshot(nodes), make_snapshot(nodes[:-1])
    results = []
    for seed in (3, 3, 4):
        graph = ClusterGraph()
        keeper = SampledState(create_network(config, seed=1), graph, seed)
        results.append((run(keeper, graph, first).pooled, run(keeper, graph, second, first).pooled))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], results[2][0])
    assert not torch.equal(results[0][0], results[0][1])


def test_nothing_is_worked_out_where_nothing_changed() -> None:
    for network in networks(SMALL):
        graph = ClusterGraph()
        keeper = keeper_of(network, graph)
        before = run(keeper, graph, cluster())
        assert run(keeper, graph, cluster()) is before
        assert run(keeper, graph, without_jobs()) is not before


def test_a_change_that_was_noted_twice_is_not_forgotten() -> None:
    network, graph = networks(SMALL)[0], ClusterGraph()
    keeper = WholeState(network, graph)
    before = run(keeper, graph, cluster())
    keeper.note(graph.update(without_jobs()))
    keeper.note(graph.update(without_jobs()))
    for _ in keeper.steps():
        pass
    assert keeper.published is not before


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, EmbeddingCache),
        ({"hierarchy": "flat"}, WholeState),
        ({"hierarchy": "vector", "attention": "none"}, WholeState),
        ({"sampling": "sampled"}, SampledState),
    ],
)
def test_a_network_is_kept_as_it_can_be(changes: dict[str, str], kind: type) -> None:
    network = create_network(replace(SMALL, **changes), seed=1)  # type: ignore[arg-type]  # names of settings
    assert type(keeper_of(network, ClusterGraph())) is kind


@pytest.mark.parametrize(
    "config", [SMALL, replace(SMALL, hierarchy="flat"), VECTOR, replace(SMALL, sampling="sampled")]
)
def test_a_cluster_without_nodes_or_without_anything_is_kept(config: NetworkConfig) -> None:
    for snapshot in (make_snapshot(), make_snapshot((), (), ()), make_snapshot((), (make_job(1),))):
        graph = ClusterGraph()
        found = run(keeper_of(create_network(config, seed=1), graph), graph, snapshot)
        assert torch.isfinite(found.x).all()


def test_whole_blocks_have_nodes_in_the_order_of_their_groups() -> None:
    graph = ClusterGraph()
    graph.update(cluster())
    blocks = whole_blocks(graph)
    slots = graph.nodes_of_groups(graph.group_slots)
    assert np.array_equal(blocks.devices.node_x, graph.nodes.store["x"][slots])
    assert np.array_equal(blocks.fabric.uplink_x, graph.nodes.store["uplink_x"][slots])
    assert len(blocks.queue.task_x) == 4
