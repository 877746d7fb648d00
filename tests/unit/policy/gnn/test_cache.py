"""Kept embeddings: whatever changed, in whatever order, they equal a full computation."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import after, make_job, make_node, make_partition, make_snapshot
from test_cluster_graph_properties import changed, snapshots

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.graph.blocks import DeviceBlock
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.gnn import cache as cache_module
from slurm_energy.policy.gnn.ablation.sampled_state import WholeState
from slurm_energy.policy.gnn.cache import EmbeddingCache
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Published
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network

SMALL = NetworkConfig(hidden=12, heads=6, quantiles=4)
NETWORK = create_network(SMALL, seed=1)


def worked_out(network: HierarchicalNetwork, snapshot: ClusterSnapshot) -> Published:
    """Return the state at the top from nothing."""
    graph = ClusterGraph()
    graph.update(snapshot)
    keeper = WholeState(network, graph)
    for _ in keeper.steps():
        pass
    assert keeper.published is not None
    return keeper.published


def assert_equal(kept: Published | None, expected: Published) -> None:
    assert kept is not None
    for name, mine, theirs in zip(Published._fields, kept, expected, strict=True):
        assert mine.shape == theirs.shape, name
        assert torch.allclose(mine.float(), theirs.float(), atol=1e-5, rtol=1e-5), name


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache_module, "NODES_A_STEP", 2)
    monkeypatch.setattr(cache_module, "GROUPS_A_STEP", 1)
    monkeypatch.setattr(cache_module, "TASKS_A_STEP", 2)
    yield


@pytest.mark.slow
@given(st.data())
def test_after_any_changes_the_kept_state_equals_a_full_computation(data: st.DataObject) -> None:
    snapshot = data.draw(snapshots())
    graph = ClusterGraph()
    cache = EmbeddingCache(NETWORK, graph)
    for _ in range(data.draw(st.integers(1, 4))):
        cache.note(graph.update(snapshot))
        if data.draw(st.booleans()):
            steps = cache.steps()
            for _ in range(data.draw(st.integers(0, 3))):  # broken off: the rest is done at the next refresh
                next(steps, None)
        snapshot = data.draw(changed(snapshot))
    cache.note(graph.update(snapshot))
    cache.refresh()
    assert_equal(cache.published, worked_out(NETWORK, snapshot))


def small_snapshot(**changes: Any) -> ClusterSnapshot:
    values: dict[str, Any] = {
        "nodes": tuple(make_node(f"n{number}") for number in range(6)),
        "partitions": (make_partition("p"),),
        "jobs": (make_job(1, running_on="n1"), make_job(2), make_job(3, dependencies=after(2))),
    }
    return make_snapshot(**{**values, **changes})


def test_until_the_last_step_decisions_see_the_state_before() -> None:
    graph = ClusterGraph()
    cache = EmbeddingCache(NETWORK, graph)
    cache.note(graph.update(small_snapshot()))
    cache.refresh()
    before = cache.published
    cache.note(graph.update(small_snapshot(jobs=(make_job(1, running_on="n1"), make_job(9, running_on="n2", gpus=4)))))
    steps = cache.steps()
    seen = 0
    while cache.published is before:
        if next(steps, "end") == "end":
            break
        seen += 1
    assert seen >= 2
    assert cache.published is not before


def test_a_snapshot_that_changes_nothing_publishes_nothing_new() -> None:
    graph = ClusterGraph()
    cache = EmbeddingCache(NETWORK, graph)
    snapshot = small_snapshot()
    cache.note(graph.update(snapshot))
    cache.refresh()
    before = cache.published
    cache.note(graph.update(snapshot))
    cache.refresh()
    assert cache.published is before


def test_one_changed_node_works_out_that_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ClusterGraph()
    cache = EmbeddingCache(NETWORK, graph)
    cache.note(graph.update(small_snapshot()))
    cache.refresh()
    worked: list[int] = []
    original = graph.device_block

    def watched(slots: list[int]) -> DeviceBlock:
        worked.extend(slots)
        return original(slots)

    monkeypatch.setattr(graph, "device_block", watched)
    changed_node = make_node("n3", cpus_allocated=7)
    nodes = tuple(changed_node if node.name == "n3" else node for node in small_snapshot().nodes)
    cache.note(graph.update(small_snapshot(nodes=nodes)))
    cache.refresh()
    assert worked == [graph.node_index["n3"]]  # type: ignore[index]  # a NodeName
