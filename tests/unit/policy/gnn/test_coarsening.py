import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from slurm_energy.policy.gnn.pooling import CoarseningPool, Vertices, contracted, groups, heaviest_links

NVLINK, PCIE = 1.0, 0.4


def make_node(x: Tensor, links: dict[tuple[int, int], float]) -> Vertices:
    """One node; links are given in one direction."""
    adjacency = torch.zeros(1, len(x), len(x))
    for (i, j), weight in links.items():
        adjacency[0, i, j] = adjacency[0, j, i] = weight
    return Vertices(x[None], torch.ones(1, len(x)), adjacency)


def all_linked(devices: int, weight: float = NVLINK) -> dict[tuple[int, int], float]:
    return {(i, j): weight for i in range(devices) for j in range(i)}


def two_islands() -> dict[tuple[int, int], float]:
    return {pair: NVLINK if (pair[0] < 4) == (pair[1] < 4) else PCIE for pair in all_linked(8)}


def clusters(node: Vertices) -> set[frozenset[int]]:
    return members(CoarseningPool().assign(node)[0])


def members(assignment: Tensor) -> set[frozenset[int]]:
    columns = (frozenset(torch.nonzero(column)[:, 0].tolist()) for column in assignment.T)
    return {column for column in columns if column}


def greedy(weight: Tensor, linked: Tensor) -> set[frozenset[int]]:
    """Matching of one node from the heaviest link down, by sorting."""
    pairs = [(float(weight[i, j]), i, j) for i in range(len(weight)) for j in range(i) if linked[i, j]]
    free = set(range(len(weight)))
    matched = set()
    for _, i, j in sorted(pairs, reverse=True):
        if i in free and j in free:
            free -= {i, j}
            matched.add(frozenset({i, j}))
    return matched | {frozenset({i}) for i in free}


@pytest.mark.parametrize("devices", [2, 3, 5, 8])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_weights_that_differ_give_the_greedy_matching(devices: int, share: float) -> None:
    torch.manual_seed(devices)
    nodes = 30
    weight = torch.rand(nodes, devices, devices)
    weight = weight + weight.transpose(1, 2)
    linked = torch.rand(nodes, devices, devices) < share
    linked = (linked | linked.transpose(1, 2)) & ~torch.eye(devices, dtype=torch.bool)
    assignment = groups(heaviest_links(weight, linked, 1e-7), torch.ones(nodes, devices))
    for node in range(nodes):
        assert members(assignment[node]) == greedy(weight[node], linked[node])


def test_groups_are_the_connected_components_of_the_links_taken() -> None:
    torch.manual_seed(3)
    taken = torch.rand(40, 9, 9) < 0.1
    taken = (taken | taken.transpose(1, 2)) & ~torch.eye(9, dtype=torch.bool)
    taken[0] = torch.diag_embed(torch.ones(8), offset=1).bool() | torch.diag_embed(torch.ones(8), offset=-1).bool()
    assignment = groups(taken, torch.ones(40, 9))
    for node in range(40):
        number, label = connected_components(taken[node].numpy())
        expected = {frozenset(np.flatnonzero(label == one).tolist()) for one in range(number)}
        assert members(assignment[node]) == expected


def test_devices_alike_in_all_are_one_cluster() -> None:
    assert clusters(make_node(torch.ones(8, 3), all_linked(8))) == {frozenset(range(8))}


def test_islands_of_fast_links_become_clusters() -> None:
    expected = {frozenset(range(4)), frozenset(range(4, 8))}
    assert clusters(make_node(torch.ones(8, 3), two_islands())) == expected


def test_of_like_links_those_between_like_workloads_are_contracted() -> None:
    job_a, job_b, idle = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    x = torch.stack([job_a, job_b, idle, job_a, idle, job_b, idle, job_a])
    expected = {frozenset({0, 3, 7}), frozenset({1, 5}), frozenset({2, 4, 6})}
    assert clusters(make_node(x, all_linked(8))) == expected


def test_a_fast_link_outweighs_a_like_workload() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert clusters(make_node(x, {(0, 1): NVLINK, (0, 2): PCIE, (1, 2): PCIE})) == {frozenset({0, 1}), frozenset({2})}


@pytest.mark.parametrize("noise", [1e-6, 0.02])
def test_small_differences_do_not_pair_devices_that_are_alike(noise: float) -> None:
    torch.manual_seed(4)
    x = torch.ones(8, 16) * (1 + noise * torch.randn(8, 16))
    assert clusters(make_node(x, all_linked(8))) == {frozenset(range(8))}


def test_devices_without_links_stay_alone() -> None:
    assert clusters(make_node(torch.ones(3, 2), {(0, 2): PCIE})) == {frozenset({0, 2}), frozenset({1})}


def test_clusters_average_their_members_and_add_up_their_links() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0]])
    node = make_node(x, {(0, 2): 1.0, (1, 3): 1.0, (0, 1): 0.3, (2, 3): 0.2})
    pooled = CoarseningPool()(node)
    torch.testing.assert_close(pooled.x[0], torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0], [0.0, 0.0]]))
    assert pooled.mass.tolist() == [[2.0, 2.0, 0.0, 0.0]]
    torch.testing.assert_close(pooled.adjacency[0, :2, :2], torch.tensor([[2.0, 0.5], [0.5, 2.0]]))
    assert pooled.adjacency.sum().item() == pytest.approx(node.adjacency.sum().item())


def test_contraction_is_the_sum_over_members() -> None:
    torch.manual_seed(5)
    adjacency, assignment = torch.rand(1, 4, 4), torch.rand(1, 4, 2)
    expected = torch.einsum("ik,ij,jl->kl", assignment[0], adjacency[0], assignment[0])
    torch.testing.assert_close(contracted(adjacency, assignment)[0], expected)


def test_the_order_of_devices_does_not_matter() -> None:
    torch.manual_seed(6)
    x = torch.randn(3, 4)[torch.tensor([0, 0, 0, 1, 1, 2, 0, 2])]
    node = make_node(x, two_islands())
    together = CoarseningPool().assign(node)[0]
    for _ in range(5):
        order = torch.randperm(8)
        shuffled = Vertices(node.x[:, order], node.mass, node.adjacency[:, order][:, :, order])
        found = CoarseningPool().assign(shuffled)[0]
        assert torch.equal(found @ found.T, (together @ together.T)[order][:, order])


def test_padding_is_in_no_cluster() -> None:
    node = make_node(torch.ones(4, 2), {(0, 1): 1.0})
    node = node._replace(mass=torch.tensor([[1.0, 1.0, 1.0, 0.0]]), x=node.x * torch.tensor([1.0, 1, 1, 0])[:, None])
    assert clusters(node) == {frozenset({0, 1}), frozenset({2})}


def test_the_mean_carries_gradient_and_the_clusters_do_not() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    node = make_node(x, {(0, 1): 1.0})
    assert not CoarseningPool().assign(node).requires_grad
    CoarseningPool()(node).x.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, 1.0]]))


def test_there_is_nothing_to_learn() -> None:
    assert list(CoarseningPool().parameters()) == []
