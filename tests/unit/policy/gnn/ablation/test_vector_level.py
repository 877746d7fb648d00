"""The vector-state agent: what its vector holds, that it reads nothing of the graph, and where it is weak."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_parts import SMALL, VECTOR
from random_blocks import random_decision, random_state
from served_cluster import guarded, lab, submitted
from small_clusters import make_partition
from test_moments import batched, smaller_state

from slurm_energy.domain.decision import Reason
from slurm_energy.errors import ConfigError, PolicyError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.gnn.ablation.levels import FlatLevel, VectorLevel, mean_clocks
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.embeddings import Published, TopKind, batch_index
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import GnnPolicy

HIDDEN, ROOM = VECTOR.hidden, VECTOR.vector_partitions
GNN = replace(SMALL, attention="none")


def published(network: HierarchicalNetwork, blocks: Blocks) -> Published:
    with torch.no_grad():
        return network.state(blocks).published


def answer(network: HierarchicalNetwork, blocks: Blocks, decision: DecisionBlock) -> Decisions:
    with torch.no_grad():
        state = network.state(blocks).published
        return network.decide(state, batch_index(state), decision)


def vector_of(network: HierarchicalNetwork, blocks: Blocks) -> np.ndarray:
    """Return what the perceptron is given for each moment."""
    given: list[np.ndarray] = []
    assert network.vector is not None
    hook = network.vector.layers.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].detach().numpy()))
    published(network, blocks)
    hook.remove()
    return given[0]


def devices_of(blocks: Blocks, partition: int) -> tuple[list[int], list[int]]:
    """Return nodes and devices of a partition, one by one."""
    pairs = zip(blocks.fabric.member_node.tolist(), blocks.fabric.member_partition.tolist(), strict=True)
    nodes = [node for node, owner in pairs if owner == partition]
    return nodes, [gpu for gpu, node in enumerate(blocks.devices.gpu_node.tolist()) if node in nodes]


def expected_vector(blocks: Blocks) -> np.ndarray:
    """Return the vector of one moment, written down number by number."""
    top, devices, numbers = blocks.top, blocks.devices, []
    for place in range(ROOM):
        if place >= len(top.partition_x):
            numbers += [0.0] * (len(schema.PARTITION) + 2)
            continue
        nodes, gpus = devices_of(blocks, place)
        read = sum(float(devices.gpu_x[gpu, schema.column(schema.GPU, "has_reading")]) for gpu in gpus)
        clocks = sum(
            float(devices.gpu_x[gpu, schema.column(schema.GPU, "relative_clock")])
            * float(devices.gpu_x[gpu, schema.column(schema.GPU, "has_reading")])
            for gpu in gpus
        )
        hottest = [float(devices.node_x[node, schema.column(schema.NODE, "hottest")]) for node in nodes]
        numbers += [*top.partition_x[place].tolist(), clocks / max(read, 1.0), max(0.0, *hottest)]
    constraints = len(schema.CONSTRAINT) - 4
    for place in range(ROOM):
        if place >= len(top.cluster_x):
            numbers += [0.0] * (len(schema.CLUSTER) + 4 * constraints)
            continue
        numbers += top.cluster_x[place].tolist()
        for kind in range(4):
            numbers += next(
                row[4:].tolist()
                for row, owner in zip(top.constraint_x, top.constraint_cluster, strict=True)
                if owner == place and row[kind] == 1.0
            )
    return np.array([numbers], dtype=np.float32)


def with_readings(blocks: Blocks) -> Blocks:
    """Return a state in which two of three devices are read."""
    gpu_x = blocks.devices.gpu_x.copy()
    gpu_x[:, schema.column(schema.GPU, "has_reading")] = np.arange(len(gpu_x)) % 3 > 0
    return blocks._replace(devices=replace(blocks.devices, gpu_x=gpu_x))


def test_the_vector_has_partitions_then_clusters_with_zeros_where_there_are_none() -> None:
    blocks = with_readings(random_state())
    network = create_network(VECTOR, seed=1)
    np.testing.assert_allclose(vector_of(network, blocks), expected_vector(blocks), atol=1e-6)
    order = [3, 6, 0, 4, 1, 7, 2, 5]  # constraints are placed by what they are, not by their order
    top = blocks.top
    moved = replace(top, constraint_x=top.constraint_x[order], constraint_cluster=top.constraint_cluster[order])
    np.testing.assert_allclose(vector_of(network, blocks._replace(top=moved)), expected_vector(blocks), atol=1e-6)


def test_free_and_total_devices_and_the_queue_are_among_a_partitions_columns() -> None:
    blocks, network = random_state(), create_network(VECTOR, seed=1)
    before = vector_of(network, blocks)
    for name in ("gpus", "gpus_free", "waiting_jobs", "waiting_gpus"):
        partition_x = blocks.top.partition_x.copy()
        partition_x[1, schema.column(schema.PARTITION, name)] += 0.25
        after = vector_of(network, blocks._replace(top=replace(blocks.top, partition_x=partition_x)))
        assert float(np.abs(after - before).sum()) == pytest.approx(0.25)


def test_embeddings_are_parts_of_three_relu_layers_normed() -> None:
    blocks, network = random_state(), create_network(VECTOR, seed=1)
    weights = {name: one.detach().numpy().astype(np.float64) for name, one in network.named_parameters()}
    h = expected_vector(blocks).astype(np.float64)
    for layer in (0, 2, 4):  # Eq. 8 of CHSAC-AF
        h = np.maximum(0.0, h @ weights[f"vector.layers.{layer}.weight"].T + weights[f"vector.layers.{layer}.bias"])
        assert h.shape == (1, 256)
    parts = (h @ weights["vector.parts.weight"].T + weights["vector.parts.bias"]).reshape(ROOM + 1, HIDDEN)
    parts = (parts - parts.mean(1, keepdims=True)) / np.sqrt(parts.var(1, keepdims=True) + 1e-5)
    own, common = parts[:3], parts[ROOM:]
    found = published(network, blocks)
    np.testing.assert_allclose(found.x.numpy(), np.concatenate([own, own, common.repeat(12, axis=0)]), atol=1e-4)
    np.testing.assert_allclose(found.pooled.numpy(), own, atol=1e-4)


def test_all_but_the_embeddings_is_as_the_graph_network_says() -> None:
    blocks = random_state()
    found, expected = (published(create_network(config, seed=1), blocks) for config in (VECTOR, GNN))
    for name in set(Published._fields) - {"x", "pooled"}:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert (found.x.shape, found.pooled.shape) == (expected.x.shape, expected.pooled.shape)
    assert found.kind[:3].tolist() == [TopKind.PARTITION] * 3


def test_nothing_of_edges_jobs_switches_and_single_devices_is_read() -> None:
    blocks, network = with_readings(random_state()), create_network(VECTOR, seed=1)
    decision = random_decision()
    expected = answer(network, blocks, decision)
    gpu_x = blocks.devices.gpu_x + 0.5
    for name in ("has_reading", "relative_clock"):
        column = schema.column(schema.GPU, name)
        gpu_x[:, column] = blocks.devices.gpu_x[:, column]
    node_x = blocks.devices.node_x + 0.5
    hottest = schema.column(schema.NODE, "hottest")
    node_x[:, hottest] = blocks.devices.node_x[:, hottest]
    # The same devices with their readings in the other order within each node: a vector knows their mean alone.
    order = np.lexsort((-np.arange(len(gpu_x)), blocks.devices.gpu_node))
    other = random_state(7)
    changed = blocks._replace(
        devices=replace(other.devices, gpu_x=gpu_x[order], node_x=node_x),
        fabric=replace(blocks.fabric, uplink_x=other.fabric.uplink_x, switch_x=other.fabric.switch_x),
        queue=other.queue,
        top=replace(blocks.top, spine_x=other.top.spine_x, trunk_x=other.top.trunk_x),
    )
    found = answer(network, changed, decision)
    assert torch.allclose(found.options.log_prob, expected.options.log_prob, atol=1e-6)
    assert found.quantiles is not None and expected.quantiles is not None
    assert torch.allclose(found.quantiles, expected.quantiles, atol=1e-6)
    graph = create_network(GNN, seed=1)
    assert not torch.allclose(
        answer(graph, changed, decision).options.log_prob, answer(graph, blocks, decision).options.log_prob, atol=1e-4
    )


def test_mean_clocks_are_those_of_devices_that_are_read_and_zero_without_any() -> None:
    blocks = random_state()
    gpu_x = np.zeros_like(blocks.devices.gpu_x)
    clocks = np.linspace(0.1, 1.0, len(gpu_x))
    gpu_x[:, schema.column(schema.GPU, "relative_clock")] = clocks
    read = [0, 3, 7]  # of nodes 0, 1 and 3: in partitions 0, 0 and 1, and 0
    gpu_x[read, schema.column(schema.GPU, "has_reading")] = 1.0
    found = mean_clocks(replace(blocks.devices, gpu_x=gpu_x), blocks.fabric, 3)
    assert found.tolist() == pytest.approx([clocks[read].mean(), clocks[3], 0.0])


def swapped(blocks: Blocks, decision: DecisionBlock) -> tuple[Blocks, DecisionBlock]:
    """Return the same cluster and jobs with partitions 0 and 1 numbered the other way round."""
    order = np.array([1, 0, 2])
    top = blocks.top
    return (
        blocks._replace(
            fabric=replace(blocks.fabric, member_partition=order[blocks.fabric.member_partition]),
            queue=replace(blocks.queue, wait_partition=order[blocks.queue.wait_partition]),
            top=replace(top, partition_x=top.partition_x[order], partition_cluster=top.partition_cluster[order]),
        ),
        replace(decision, option_partition=order[decision.option_partition]),
    )


@pytest.mark.slow
def test_the_order_of_partitions_changes_its_answer_and_not_that_of_the_graph_network() -> None:
    blocks, decision = random_state(), random_decision()
    other, asked = swapped(blocks, decision)
    for config, is_alike in ((VECTOR, False), (GNN, True), (replace(GNN, hierarchy="flat"), True)):
        network = create_network(config, seed=1)
        before, after = (answer(network, *one).options.log_prob for one in ((blocks, decision), (other, asked)))
        # What is open has finite log-probabilities; these are compared.
        is_open = torch.from_numpy(decision.option_open)
        difference = float((after[is_open] - before[is_open]).abs().max())
        assert (difference < 1e-5) if is_alike else (difference > 1e-3), (config.hierarchy, difference)


def test_moments_side_by_side_have_the_vectors_of_each_alone() -> None:
    network, states = create_network(VECTOR, seed=1), [random_state(3), smaller_state(4), random_state(5)]
    together = vector_of(network, batched(states)[0])
    assert together.shape[0] == 3
    for row, state in zip(together, states, strict=True):
        np.testing.assert_allclose(row, vector_of(network, state)[0], atol=1e-6)


def test_more_partitions_or_clusters_than_there_is_room_for_are_refused_moment_by_moment() -> None:
    narrow = create_network(replace(VECTOR, vector_partitions=2), seed=1)
    with pytest.raises(PolicyError, match=r"has 3 partitions.* has room for 2.*vector_partitions"):
        narrow.state(random_state())
    with pytest.raises(PolicyError, match=r"has 2 clusters.* has room for 1"):
        create_network(replace(VECTOR, vector_partitions=1), seed=1).state(random_state())
    three_of_one = batched([smaller_state(seed) for seed in (1, 2, 3)])[0]
    assert torch.isfinite(narrow.state(three_of_one).published.x).all()


def test_a_cluster_that_grew_too_many_partitions_is_decided_without_the_network() -> None:
    network = create_network(replace(VECTOR, vector_partitions=3), seed=1)
    assert Reason.POLICY in guarded(GnnPolicy(network, ClusterGraph(), version="1"), submitted(), lab()).reasons
    more = lab(partitions=(*lab().partitions, make_partition("late")))
    decision = guarded(GnnPolicy(network, ClusterGraph(), version="1"), submitted(), more)
    assert Reason.POLICY_ERROR in decision.reasons
    assert any("4 partitions" in note and "room for 3" in note for note in decision.notes)


def test_levels_that_are_not_read_have_their_shapes_and_nothing_in_them() -> None:
    blocks = random_state()
    found = VectorLevel(VECTOR).unread(blocks.devices, blocks.fabric, blocks.queue)
    with torch.no_grad():
        expected = FlatLevel(GNN)(blocks.devices, blocks.fabric, blocks.queue)
    (devices, fabric, queue), (flat_devices, flat_fabric, flat_queue) = found, expected
    assert torch.equal(fabric.congestion, flat_fabric.congestion)
    empty = [*devices, fabric.node, fabric.switch, *fabric.offered, queue.task, *queue.asked]
    flat = [*flat_devices, flat_fabric.node, flat_fabric.switch, *flat_fabric.offered, flat_queue.task]
    for mine, theirs in zip(empty, [*flat, *flat_queue.asked], strict=True):
        assert mine.shape == theirs.shape
        assert not mine.any()


@pytest.mark.parametrize("changes", [{"attention": "objectives"}, {"attention": "plain"}, {"sampling": "sampled"}])
def test_switches_of_a_graph_do_not_go_with_a_vector(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f'hierarchy="vector" and {next(iter(changes))}='):
        NetworkConfig.parse({"hierarchy": "vector", "attention": "none", **changes})


def test_there_are_no_parts_of_the_graph_network_in_it() -> None:
    names = {name.split(".")[0] for name, _ in create_network(VECTOR, seed=1).named_parameters()}
    assert names == {"vector", "decision", "assignment"}
