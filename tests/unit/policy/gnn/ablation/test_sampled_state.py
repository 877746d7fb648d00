"""A plan carried out on a graph: what is told of its nodes, and what is left of its blocks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from block_parts import SMALL, pairs
from random_blocks import random_state
from small_clusters import after, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus
from slurm_energy.domain.ids import PartitionName
from slurm_energy.graph import schema
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.gnn.ablation.sampled_state import (
    load_of,
    node_facts,
    sampled_blocks,
    sampled_fabric,
    sampled_queue,
)
from slurm_energy.policy.gnn.ablation.sampling_plan import NodeFacts
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.network import extremes_of

SAMPLED = replace(SMALL, sampling="sampled", sampling_rate=0.12)


def graph_of(snapshot: ClusterSnapshot) -> ClusterGraph:
    graph = ClusterGraph()
    graph.update(snapshot)
    return graph


def facts_of(graph: ClusterGraph) -> tuple[NodeFacts, list[str]]:
    """Return the facts, and the names of the nodes in their order."""
    slots = graph.nodes_of_groups(graph.group_slots)
    facts = node_facts(graph, slots, graph.fabric_block(graph.group_slots))
    names = {slot: str(name) for name, slot in graph.node_index.items()}
    return facts, [names[slot] for slot in slots.tolist()]


def busy(name: str, count: int, allocated: int, **changes: Any) -> Any:
    return make_node(name, count, gpus=(NodeGpus(slurm_type="a100", count=count, allocated=allocated),), **changes)


def small_graph() -> ClusterGraph:
    """Return three GPU nodes and one without; a job on two of them, one that shares a node, and two that wait."""
    return graph_of(
        make_snapshot(
            (busy("n0", 4, 3), busy("n1", 4, 2), busy("n2", 2, 0), make_node("c0", 0)),
            (
                make_job(1, running_on="n[0-1]", gpus=4, node_count=2, time_limit_minutes=60.0),
                make_job(2, running_on="n0", gpus=1, time_limit_minutes=240.0),
                make_job(3, dependencies=after(1), time_limit_minutes=600.0),
                make_job(4),
            ),
        )
    )


def test_facts_of_nodes_are_those_counted_by_hand() -> None:
    graph = small_graph()
    facts, names = facts_of(graph)
    by_name = {name: row for row, name in enumerate(names)}
    # Links of all pairs both ways, devices that jobs hold, the uplink.
    assert {name: int(facts.degree[row]) for name, row in by_name.items()} == {
        "n0": 12 + 3 + 1,
        "n1": 12 + 2 + 1,
        "n2": 2 + 0 + 1,
        "c0": 0 + 0 + 1,
    }
    assert {name: int(facts.devices[row]) for name, row in by_name.items()} == {"n0": 4, "n1": 4, "n2": 2, "c0": 1}
    free = {name: float(facts.gpus_free[row]) for name, row in by_name.items()}
    assert free == pytest.approx({"n0": 0.25, "n1": 0.5, "n2": 1.0, "c0": 0.0})
    # Half of the time limits: job 1, with job 3 behind it, is the longest on both nodes.
    path = {name: float(facts.critical_path_seconds[row]) for name, row in by_name.items()}
    column = schema.column(schema.TASK, "critical_path_seconds")
    of_job = {
        int(graph.jobs.store["job"][slot]): float(np.expm1(4.0 * graph.jobs.store["x"][slot][column]) * 60.0)
        for slot in graph.task_slots.tolist()
    }
    assert of_job[1] > of_job[2] > 0.0
    assert path == pytest.approx({"n0": of_job[1], "n1": of_job[1], "n2": 0.0, "c0": 0.0}, rel=1e-4)


def test_facts_of_nodes_are_those_of_the_blocks() -> None:
    graph = small_graph()
    facts, _ = facts_of(graph)
    blocks = whole_blocks(graph)
    devices = blocks.devices
    links = np.bincount(devices.gpu_node[devices.link_index[1]], minlength=4)
    runs = np.bincount(devices.gpu_node[devices.run_index[1]], minlength=4)
    assert np.array_equal(facts.degree, links + runs + 1)
    assert np.array_equal(facts.devices, np.bincount(devices.gpu_node, minlength=4))
    assert np.array_equal(facts.group, blocks.fabric.node_group)
    assert np.array_equal(facts.member_node, blocks.fabric.member_node)


def test_no_nodes_have_no_facts() -> None:
    facts, names = facts_of(graph_of(make_snapshot()))
    assert names == []
    assert len(facts.degree) == len(facts.critical_path_seconds) == 0


def test_the_load_is_the_share_of_gpus_in_use_and_stays_in_its_bounds() -> None:
    assert load_of(small_graph().top_block()) == pytest.approx(1.0 - 5 / 10)
    top = small_graph().top_block()
    column = schema.column(schema.CLUSTER, "gpus_free")
    for free, load in ((1.0 + 1e-6, 0.0), (-1e-6, 1.0), (0.75, 0.25)):
        cluster_x = top.cluster_x.copy()
        cluster_x[:, column] = free
        assert load_of(replace(top, cluster_x=cluster_x)) == load
    assert load_of(replace(top, cluster_x=top.cluster_x[:0])) == 0.0


def test_a_sampled_fabric_has_the_kept_nodes_and_all_groups() -> None:
    block = random_state().fabric
    kept = np.array([1, 3, 5])
    found = sampled_fabric(block, kept)
    members = {(int(kept[node]), int(one)) for node, one in zip(found.member_node, found.member_partition, strict=True)}
    every = {(int(node), int(one)) for node, one in zip(block.member_node, block.member_partition, strict=True)}
    assert members == {(node, partition) for node, partition in every if node in (1, 3, 5)}
    assert np.array_equal(found.node_group, [0, 1, 1])
    assert np.array_equal(found.uplink_x, block.uplink_x[[1, 3, 5]])
    assert found.switch_x is block.switch_x
    assert (np.diff(found.member_node) >= 0).all()
    nobody = sampled_fabric(block, np.zeros(0, dtype=np.int64))
    assert (len(nobody.member_node), len(nobody.node_group)) == (0, 0)


def test_a_sampled_queue_has_what_lies_between_the_kept_jobs() -> None:
    block = replace(random_state().queue, depends_index=pairs([(0, 1), (1, 3), (3, 4), (4, 1)]))
    kept = np.array([1, 2, 4])
    found = sampled_queue(block, kept)
    assert np.array_equal(found.task_x, block.task_x[[1, 2, 4]])
    # Of the four dependencies only the last is between two kept jobs: from 4, now at 2, to 1, now at 0.
    assert found.depends_index.tolist() == [[2], [0]]
    assert np.array_equal(found.depends_x, block.depends_x[3:])
    rows = [row for row, task in enumerate(block.wait_task.tolist()) if task in (1, 2, 4)]
    assert found.wait_task.tolist() == [[1, 2, 4].index(int(block.wait_task[row])) for row in rows]
    assert np.array_equal(found.wait_partition, block.wait_partition[rows])
    assert np.array_equal(found.wait_x, block.wait_x[rows])


def large_graph(nodes: int = 48) -> ClusterGraph:
    """Return a cluster with two partitions, the second down, and a queue in both."""
    names = ("p", "q")
    return graph_of(
        make_snapshot(
            tuple(
                make_node(f"n{number}", partition=names[number % 4 == 3], cpus_allocated=number)
                for number in range(nodes)
            ),
            tuple(
                make_job(number, partitions=(PartitionName(names[number % 3 == 0]),), time_limit_minutes=float(number))
                for number in range(1, 41)
            ),
            (make_partition("p"), make_partition("q", up=False)),
        )
    )


def test_a_sample_is_consistent_within_itself_and_leaves_the_top_whole() -> None:
    graph = large_graph()
    blocks, weights = sampled_blocks(graph, SAMPLED, np.random.default_rng(1))
    assert weights.node is not None and weights.link is not None and weights.task is not None
    nodes = len(blocks.fabric.node_group)
    assert 2 <= nodes < 24
    assert len(blocks.devices.node_x) == len(weights.node) == nodes
    assert blocks.devices.link_index.shape[1] == len(blocks.devices.link_x) == len(weights.link) < nodes * 12
    assert len(blocks.queue.task_x) == len(weights.task) < 40
    assert (weights.node >= 1.0).all() and weights.node.dtype == torch.float32
    # A node's own columns and its uplink are of the same node: its CPUs tell it from the others.
    column = schema.column(schema.NODE, "cpus_free")
    slots = graph.nodes_of_groups(graph.group_slots)
    every = graph.nodes.store["x"][slots][:, column].tolist()
    kept = [every.index(share) for share in blocks.devices.node_x[:, column].tolist()]
    assert kept == sorted(set(kept))
    assert blocks.fabric.node_group.tolist() == graph.fabric_block(graph.group_slots).node_group[kept].tolist()
    for name in ("partition_x", "cluster_x", "constraint_x", "trunk_index"):
        assert np.array_equal(getattr(blocks.top, name), getattr(graph.top_block(), name))


def test_maxima_are_those_of_the_whole_state() -> None:
    graph = large_graph()
    _, weights = sampled_blocks(graph, SAMPLED, np.random.default_rng(1))
    expected = extremes_of(whole_blocks(graph))
    assert weights.extremes is not None
    assert torch.equal(weights.extremes.heat, expected.heat)
    assert torch.equal(weights.extremes.critical, expected.critical)
    assert float(expected.critical[0]) > 0.0


@pytest.mark.slow
def test_nodes_and_jobs_of_a_partition_that_is_up_are_counted_without_bias() -> None:
    graph, generator, draws = large_graph(), np.random.default_rng(2), 300
    counted = np.zeros((draws, 2))
    for draw in range(draws):
        blocks, weights = sampled_blocks(graph, SAMPLED, generator)
        assert weights.node is not None and weights.task is not None
        of_member = weights.node.numpy()[blocks.fabric.member_node]
        of_wait = weights.task.numpy()[blocks.queue.wait_task]
        counted[draw] = (
            of_member[blocks.fabric.member_partition == 0].sum(),
            of_wait[blocks.queue.wait_partition == 0].sum(),
        )
    true = np.array([36, sum(1 for number in range(1, 41) if number % 3)])
    assert (np.abs(counted.mean(axis=0) - true) <= 4.0 * counted.std(axis=0) / np.sqrt(draws) + 1e-6 * true).all()


def test_the_same_generator_draws_the_same_sample() -> None:
    graph = large_graph()
    first, again, other = (sampled_blocks(graph, SAMPLED, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(first.devices.node_x, again.devices.node_x)
    assert np.array_equal(first.devices.link_index, again.devices.link_index)
    assert not np.array_equal(first.devices.node_x, other.devices.node_x)


def test_a_sample_of_everything_is_the_whole_state_with_weights_of_one() -> None:
    graph = small_graph()
    blocks, weights = sampled_blocks(graph, replace(SAMPLED, sampling_rate=1.0), np.random.default_rng(1))
    whole = whole_blocks(graph)
    for name in ("devices", "fabric", "queue", "top"):
        mine, theirs = getattr(blocks, name), getattr(whole, name)
        for slot in theirs.__slots__:
            assert np.array_equal(getattr(mine, slot), getattr(theirs, slot)), (name, slot)
    assert weights.node is not None and weights.link is not None
    assert weights.node.tolist() == [1.0] * 4
    assert weights.link.tolist() == [1.0] * whole.devices.link_index.shape[1]


@pytest.mark.parametrize("snapshot", [make_snapshot(), make_snapshot((), (), ())], ids=["no nodes", "nothing"])
def test_an_empty_cluster_has_an_empty_sample(snapshot: ClusterSnapshot) -> None:
    blocks, weights = sampled_blocks(graph_of(snapshot), SAMPLED, np.random.default_rng(1))
    assert len(blocks.devices.node_x) == 0
    assert weights.node is not None and len(weights.node) == 0
