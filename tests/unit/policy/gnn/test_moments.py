"""Which vertices belong together at the top; several moments side by side are answered as each alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_parts import ATTENTIONS, SMALL, VECTOR, ablation, pairs
from random_blocks import features, random_decision, random_state

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import (
    DecisionBlock,
    DeviceBlock,
    FabricBlock,
    QueueBlock,
    TopBlock,
    batch_decisions,
    batch_devices,
    batch_fabrics,
    batch_queues,
    batch_tops,
)
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.embeddings import Published, TopKind, batch_index
from slurm_energy.policy.gnn.network import Blocks, create_network

CONFIGS = [
    *ATTENTIONS,
    replace(SMALL, propagation="spectral"),
    replace(SMALL, pooling="edge"),
    replace(SMALL, hierarchy="flat"),
    VECTOR,
]


def published_of(kind: list[TopKind], cluster: list[int]) -> Published:
    """Return a state of which only the kinds and clusters of its vertices are of interest."""
    top = len(kind)
    nothing = torch.zeros(0)
    return Published(
        x=torch.zeros(top, 2),
        kind=torch.tensor(kind),
        cluster=torch.tensor(cluster),
        structure=torch.zeros(top, 3),
        partition=torch.full((top,), -1),
        pooled=nothing,
        heat=nothing,
        power=nothing,
    )


P, Q, F, C = TopKind.PARTITION, TopKind.QUEUE, TopKind.FABRIC, TopKind.CLUSTER


def test_clusters_of_one_moment_meet_through_their_own_vertices_only() -> None:
    # Two partitions of clusters 0 and 1, their queues, and the clusters.
    moments = batch_index(published_of([P, P, Q, Q, C, C], [0, 1, 0, 1, 0, 1]))
    allowed = moments.allowed[0].int().tolist()
    assert allowed == [
        [1, 1, 1, 1, 1, 1, 1],  # the job
        [1, 1, 0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1, 0, 1],
        [1, 1, 0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1, 0, 1],
        [1, 1, 0, 1, 0, 1, 1],
        [1, 0, 1, 0, 1, 1, 1],
    ]
    assert moments.vertex.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert moments.present.tolist() == [[True] * 6]
    assert moments.place.tolist() == [1, 2, 3, 4, 5, 6]
    assert moments.of_cluster.tolist() == [0, 0]


def test_moments_of_different_size_are_padded_and_do_not_meet() -> None:
    # Clusters 0 and 1 are the first moment, cluster 2 the second.
    kind, cluster = [P, P, P, Q, Q, Q, C, C, C], [0, 1, 2, 0, 1, 2, 0, 1, 2]
    moments = batch_index(published_of(kind, cluster), torch.tensor([0, 0, 1]))
    assert moments.vertex.tolist() == [[0, 1, 3, 4, 6, 7], [2, 5, 8, 0, 0, 0]]
    assert moments.present.tolist() == [[True] * 6, [True] * 3 + [False] * 3]
    assert moments.place.tolist() == [1, 2, 1, 3, 4, 2, 5, 6, 3]
    assert moments.partition_vertex.tolist() == [0, 1, 2]
    assert moments.queue_vertex.tolist() == [3, 4, 5]
    assert moments.cluster_vertex.tolist() == [6, 7, 8]
    assert moments.of_cluster.tolist() == [0, 0, 1]
    second = moments.allowed[1].int().tolist()
    assert second == [[1, 1, 1, 1, 0, 0, 0]] * 4 + [[0] * 7] * 3
    alone = batch_index(published_of([P, P, Q, Q, C, C], [0, 1, 0, 1, 0, 1]))
    assert torch.equal(moments.allowed[0], alone.allowed[0])


def test_vertices_of_a_moment_may_lie_anywhere() -> None:
    moments = batch_index(published_of([C, P, C, P], [1, 1, 0, 0]), torch.tensor([0, 1]))
    assert moments.vertex.tolist() == [[2, 3], [0, 1]]
    assert moments.place.tolist() == [1, 2, 1, 2]


def test_a_vertex_looks_back_at_whoever_looks_at_it() -> None:
    with torch.no_grad():
        published = create_network(SMALL, seed=1).state(random_state()).published
    allowed = batch_index(published).allowed
    assert torch.equal(allowed, allowed.transpose(1, 2))
    assert allowed.diagonal(dim1=1, dim2=2).all()


def smaller_state(seed: int) -> Blocks:
    """Return two nodes in one group, one partition, one cluster, no spine, two jobs that do not depend."""
    random = np.random.default_rng(seed)
    constraint_x = features(random, 4, schema.CONSTRAINT)
    constraint_x[:, :4] = np.eye(4, dtype=np.float32)
    return Blocks(
        devices=DeviceBlock(
            node_x=features(random, 2, schema.NODE),
            gpu_x=features(random, 3, schema.GPU),
            gpu_node=np.array([0, 0, 1], dtype=np.int64),
            link_index=pairs([(0, 1), (1, 0)]),
            link_x=np.repeat(features(random, 1, schema.LINK), 2, axis=0),
            task_x=features(random, 1, schema.TASK),
            run_index=pairs([(0, 2)]),
            run_x=features(random, 1, schema.RUNS),
        ),
        fabric=FabricBlock(
            node_group=np.array([0, 0], dtype=np.int64),
            uplink_x=features(random, 2, schema.UPLINK),
            switch_x=features(random, 1, schema.SWITCH),
            member_node=np.array([0, 1], dtype=np.int64),
            member_partition=np.array([0, 0], dtype=np.int64),
        ),
        queue=QueueBlock(
            task_x=features(random, 2, schema.TASK),
            depends_index=pairs([]),
            depends_x=features(random, 0, schema.DEPENDS),
            wait_task=np.array([0, 1], dtype=np.int64),
            wait_partition=np.array([0, 0], dtype=np.int64),
            wait_x=features(random, 2, schema.OPTION),
        ),
        top=TopBlock(
            partition_x=features(random, 1, schema.PARTITION),
            partition_cluster=np.array([0], dtype=np.int64),
            cluster_x=features(random, 1, schema.CLUSTER),
            constraint_x=constraint_x,
            constraint_cluster=np.zeros(4, dtype=np.int64),
            group_cluster=np.array([0], dtype=np.int64),
            spine_x=features(random, 0, schema.SWITCH),
            spine_cluster=np.zeros(0, dtype=np.int64),
            trunk_index=pairs([]),
            trunk_x=features(random, 0, schema.UPLINK),
        ),
    )


def smaller_decision(seed: int) -> DecisionBlock:
    """Return one job with two options in the one partition, with two clocks and one."""
    random = np.random.default_rng(2000 + seed)
    return DecisionBlock(
        job_x=features(random, 1, schema.TASK),
        job_cluster=np.zeros(1, dtype=np.int64),
        option_job=np.zeros(2, dtype=np.int64),
        option_partition=np.zeros(2, dtype=np.int64),
        option_x=features(random, 2, schema.OPTION),
        option_open=np.array([True, True]),
        clock_option=np.array([0, 0, 1], dtype=np.int64),
        clock_x=features(random, 3, schema.CLOCK),
        clock_open=np.array([True, True, True]),
    )


def batched(states: list[Blocks]) -> tuple[Blocks, torch.Tensor]:
    """Return states side by side, and the moment of each cluster."""
    tops = [state.top for state in states]
    return (
        Blocks(
            devices=batch_devices([state.devices for state in states]),
            fabric=batch_fabrics([state.fabric for state in states], tops),
            queue=batch_queues([state.queue for state in states], tops),
            top=batch_tops(tops),
        ),
        torch.repeat_interleave(torch.arange(len(tops)), torch.tensor([len(top.cluster_x) for top in tops])),
    )


def assert_rows(found: Decisions, rows: dict[str, slice], expected: Decisions, places: int) -> None:
    """Check that some rows of a batch are what one moment alone was answered."""
    for name in ("log_prob", "partition_log_prob", "count_log_prob"):
        mine = getattr(found.options, name)[rows["options"]]
        assert torch.allclose(mine, getattr(expected.options, name), atol=1e-5, equal_nan=True), name
    assert torch.allclose(found.options.entropy[rows["jobs"]], expected.options.entropy, atol=1e-5)
    assert torch.allclose(found.clock_log_prob[rows["clocks"]], expected.clock_log_prob, atol=1e-5)
    assert found.quantiles is not None and expected.quantiles is not None
    assert torch.allclose(found.quantiles[rows["options"]], expected.quantiles, atol=1e-5)
    for name in ("values", "objectives", "job"):
        assert torch.allclose(getattr(found, name)[rows["jobs"]], getattr(expected, name), atol=1e-5), name
    for mine, theirs in zip(found.attention, expected.attention, strict=True):
        own = mine[rows["jobs"]]
        assert torch.allclose(own[:, :, :places, :places], theirs, atol=1e-5)
        assert not own[:, :, :, places:].any()


@pytest.mark.parametrize("config", CONFIGS, ids=ablation)
@pytest.mark.parametrize("smaller_first", [False, True])
def test_two_moments_side_by_side_are_answered_as_each_alone(config: NetworkConfig, smaller_first: bool) -> None:
    network = create_network(config, seed=1)
    states, decisions = [random_state(3), smaller_state(4)], [random_decision(3), smaller_decision(4)]
    if smaller_first:
        states, decisions = states[::-1], decisions[::-1]
    with torch.no_grad():
        blocks, of_cluster = batched(states)
        published = network.state(blocks).published
        together = network.decide(
            published, batch_index(published, of_cluster), batch_decisions(decisions, [state.top for state in states])
        )
        begins = {"jobs": 0, "options": 0, "clocks": 0}
        for state, decision in zip(states, decisions, strict=True):
            own = network.state(state).published
            moments = batch_index(own)
            alone = network.decide(own, moments, decision)
            counts = {"jobs": decision.job_x, "options": decision.option_x, "clocks": decision.clock_x}
            rows = {name: slice(begins[name], begins[name] + len(x)) for name, x in counts.items()}
            assert_rows(together, rows, alone, 1 + moments.vertex.shape[1])
            begins = {name: one.stop for name, one in rows.items()}


def test_a_moment_beside_another_one_of_the_same_state_is_not_changed_by_what_the_other_is() -> None:
    network = create_network(SMALL, seed=1)
    answers = []
    with torch.no_grad():
        for other in (random_state(5), random_state(6)):
            blocks, of_cluster = batched([random_state(3), other])
            published = network.state(blocks).published
            decisions = batch_decisions([random_decision(3)], [blocks.top, other.top], [0])
            answers.append(network.decide(published, batch_index(published, of_cluster), decisions))
    assert torch.allclose(answers[0].options.log_prob, answers[1].options.log_prob, atol=1e-6)
