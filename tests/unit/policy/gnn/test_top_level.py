"""The state at the top: which vertices there are, what each is made of, and clusters of every shape."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from block_parts import ABLATIONS, PROPAGATIONS, SMALL, ablation, pairs
from random_blocks import random_state

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import TopBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Contributions, Fabric, PartitionSums, Published, TopKind, mean_of
from slurm_energy.policy.gnn.top_level import TopLevel

HIDDEN, HEADS = SMALL.hidden, SMALL.heads
P, Q, F, C = TopKind.PARTITION, TopKind.QUEUE, TopKind.FABRIC, TopKind.CLUSTER
CONSTRAINTS = [TopKind.POWER, TopKind.COOLING, TopKind.CARBON, TopKind.QUALITY]


def level(config: NetworkConfig = SMALL) -> TopLevel:
    torch.manual_seed(1)
    return TopLevel(config)


def drawn(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def sums_of(partitions: int, **changes: Any) -> PartitionSums:
    """Return what nodes offer and jobs ask of so many partitions."""
    values: dict[str, Any] = {
        "offered": Contributions(drawn(partitions, HEADS) + 0.5, drawn(partitions, HIDDEN, seed=6)),
        "asked": Contributions(drawn(partitions, HEADS, seed=7) + 0.5, drawn(partitions, HIDDEN, seed=8)),
        "heat": torch.tensor([0.3, 0.9, 0.1, 0.2])[:partitions],
        "critical": torch.tensor([0.5, 0.0, 0.8, 0.1])[:partitions],
    }
    return PartitionSums(**{**values, **changes})


def fabric_of(groups: int, congestion: tuple[float, ...] = (0.4, 0.7)) -> Fabric:
    """Return so many switches; nodes are not looked at here."""
    nothing = torch.zeros(0, HIDDEN)
    return Fabric(
        nothing,
        drawn(groups, HIDDEN, seed=9),
        torch.tensor(congestion[:groups]),
        Contributions(torch.zeros(0, HEADS), nothing),
    )


def worked_out(
    module: TopLevel, block: TopBlock, sums: PartitionSums | None = None, fabric: Fabric | None = None
) -> Published:
    with torch.no_grad():
        published: Published = module(block, sums or sums_of(len(block.partition_x)), fabric or fabric_of(2))
    return published


def changed(found: Published, before: Published) -> list[int]:
    return torch.nonzero((found.x - before.x).abs().amax(dim=1) > 1e-6).flatten().tolist()


def without_groups(block: TopBlock) -> TopBlock:
    return replace(
        block,
        group_cluster=block.group_cluster[:0],
        spine_x=block.spine_x[:0],
        spine_cluster=block.spine_cluster[:0],
        trunk_index=block.trunk_index[:, :0],
        trunk_x=block.trunk_x[:0],
    )


def test_there_are_two_vertices_a_partition_two_a_cluster_and_one_a_constraint() -> None:
    found = worked_out(level(), random_state().top)
    # Three partitions, the last in the second cluster; places: partitions, queues, fabrics, clusters, constraints.
    assert found.kind.tolist() == [P] * 3 + [Q] * 3 + [F] * 2 + [C] * 2 + CONSTRAINTS * 2
    assert found.cluster.tolist() == [0, 0, 1] * 2 + [0, 1] * 2 + [0] * 4 + [1] * 4
    assert found.partition.tolist() == [0, 1, 2] * 2 + [-1] * 12
    assert found.x.shape == (18, HIDDEN)


def test_the_kind_of_a_constraint_is_read_from_its_flags_and_not_from_its_place() -> None:
    block = random_state().top
    order = [2, 0, 3, 1, 4, 5, 7, 6]
    moved = replace(block, constraint_x=block.constraint_x[order], constraint_cluster=block.constraint_cluster[order])
    kinds = worked_out(level(), moved).kind[-8:].tolist()
    assert kinds == [(CONSTRAINTS * 2)[place] for place in order]
    expected, found = worked_out(level(), block), worked_out(level(), moved)
    assert torch.allclose(found.x[-8:], expected.x[-8:][order], atol=1e-6)
    assert torch.equal(found.power, expected.power)


def test_structure_is_size_pressure_and_critical_path() -> None:
    block, sums = random_state().top, sums_of(3)
    found = worked_out(level(), block, sums).structure.tolist()

    def of(x: np.ndarray, features: tuple[schema.Feature, ...], row: int, name: str) -> float:
        return float(x[row, schema.column(features, name)])

    expected = []
    for row in range(3):
        used = 1.0 - of(block.partition_x, schema.PARTITION, row, "gpus_free")
        expected.append([of(block.partition_x, schema.PARTITION, row, "gpus"), used, 0.0])
    for row in range(3):
        waiting = [of(block.partition_x, schema.PARTITION, row, name) for name in ("waiting_gpus", "waiting_jobs")]
        expected.append([*waiting, float(sums.critical[row])])
    nodes = [of(block.cluster_x, schema.CLUSTER, row, "nodes") for row in range(2)]
    expected += [[nodes[0], 0.4, 0.0], [nodes[1], 0.7, 0.0]]  # each cluster has one group
    expected += [[nodes[row], of(block.cluster_x, schema.CLUSTER, row, "pending_jobs"), 0.0] for row in range(2)]
    for row in range(8):
        value, usage = (of(block.constraint_x, schema.CONSTRAINT, row, name) for name in ("value", "usage"))
        expected.append([value, usage, 0.0])
    assert found == [pytest.approx(row, abs=1e-6) for row in expected]


def test_power_is_that_of_the_partitions_own_cluster_and_zero_where_no_budget_is_known() -> None:
    block = random_state().top
    usage = schema.column(schema.CONSTRAINT, "usage")
    constraint_x = block.constraint_x.copy()
    constraint_x[:, usage] = [0.9, 3.0, 3.0, 3.0, 0.6, 3.0, 3.0, 3.0]
    block = replace(block, constraint_x=constraint_x)
    assert worked_out(level(), block).power.tolist() == pytest.approx([0.9, 0.9, 0.6])
    constraint_x[4, usage] = 0.0
    assert worked_out(level(), block).power.tolist() == pytest.approx([0.9, 0.9, 0.0])
    nothing = replace(block, constraint_x=constraint_x[:0], constraint_cluster=block.constraint_cluster[:0])
    found = worked_out(level(), nothing)
    assert found.power.tolist() == [0.0, 0.0, 0.0]
    assert found.kind.tolist() == [P] * 3 + [Q] * 3 + [F] * 2 + [C] * 2


def test_heat_and_what_nodes_offer_are_handed_on_as_they_are() -> None:
    sums = sums_of(3)
    found = worked_out(level(), random_state().top, sums)
    assert torch.equal(found.heat, sums.heat)
    assert torch.equal(found.pooled, mean_of(sums.offered))


def test_a_partition_without_nodes_or_jobs_is_told_by_its_own_features() -> None:
    module, block = level(), random_state().top
    sums = sums_of(3)
    for part in (sums.offered, sums.asked):
        part.weight[1], part.value[1] = 0.0, 0.0
    found = worked_out(module, block, sums)
    with torch.no_grad():
        own = torch.from_numpy(block.partition_x)
        partition = module.norm(module.partition(own) + module.offered.bias)
        queue = module.norm(module.queue(own) + module.asked.bias)
    assert torch.equal(found.pooled[1], torch.zeros(HIDDEN))
    assert torch.allclose(found.x[1], partition[1], atol=1e-6)
    assert torch.allclose(found.x[4], queue[1], atol=1e-6)


@pytest.mark.parametrize("config", ABLATIONS, ids=ablation)
def test_what_lies_below_changes_its_own_vertices_alone(config: NetworkConfig) -> None:
    module, block = level(config), random_state().top
    before = worked_out(module, block)
    sums = sums_of(3)
    sums.offered.value[2] += 0.5  # partition 2 and, by the mean over its partitions, cluster 1
    assert changed(worked_out(module, block, sums), before) == [2, 9]
    sums = sums_of(3)
    sums.asked.value[0] += 0.5
    assert changed(worked_out(module, block, sums), before) == [3]
    fabric = fabric_of(2)
    apart = replace(block, trunk_index=block.trunk_index[:, :0], trunk_x=block.trunk_x[:0])
    plain = worked_out(module, apart)
    fabric.switch[1] += torch.linspace(-1.0, 1.0, HIDDEN)
    assert changed(worked_out(module, apart, fabric=fabric), plain) == [7]


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_trunks_carry_news_from_a_group_to_what_lies_above_it(config: NetworkConfig) -> None:
    module, block = level(config), random_state().top
    before = worked_out(module, block)
    fabric = fabric_of(2)
    fabric.switch[1] += torch.linspace(-1.0, 1.0, HIDDEN)  # of cluster 1, its spine counts in cluster 0
    assert changed(worked_out(module, block, fabric=fabric), before) == [6, 7]
    trunk_x = block.trunk_x.copy()
    trunk_x[0, schema.column(schema.UPLINK, "capacity_gb_per_second")] = 0.9
    assert changed(worked_out(module, replace(block, trunk_x=trunk_x)), before)


def test_the_order_of_groups_does_not_matter() -> None:
    module, block = level(), random_state().top
    block = replace(block, group_cluster=np.array([0, 0], dtype=np.int64))
    fabric = fabric_of(2)
    turned = fabric._replace(switch=fabric.switch.flip(0), congestion=fabric.congestion.flip(0))
    trunks = replace(block, trunk_index=pairs([(0, 0), (1, 0)]), trunk_x=block.trunk_x[[1, 0]])
    found, expected = worked_out(module, trunks, fabric=turned), worked_out(module, block, fabric=fabric)
    assert torch.allclose(found.x, expected.x, atol=1e-5)
    assert torch.equal(found.structure, expected.structure)


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_no_group_at_all_is_no_fault(config: NetworkConfig) -> None:
    block = without_groups(random_state().top)
    found = worked_out(level(config), block, fabric=fabric_of(0))
    assert found.x.shape == (18, HIDDEN)
    assert torch.isfinite(found.x).all()
    assert found.structure[6:8, 1].tolist() == [0.0, 0.0]


def test_a_cluster_without_partitions_is_no_fault() -> None:
    block = random_state().top
    bare = replace(block, partition_x=block.partition_x[:0], partition_cluster=block.partition_cluster[:0])
    found = worked_out(level(), bare, sums_of(0))
    assert found.kind.tolist() == [F] * 2 + [C] * 2 + CONSTRAINTS * 2
    assert torch.isfinite(found.x).all()


def test_gradient_reaches_every_parameter() -> None:
    module = level()
    module(random_state().top, sums_of(3), fabric_of(2)).x.pow(2).sum().backward()
    without = [name for name, one in module.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0]
    assert without == []
