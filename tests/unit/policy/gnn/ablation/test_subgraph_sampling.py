"""The part of the graph around waiting decisions."""

import numpy as np
import pytest
from sampling_factory import make_cluster, make_nodes, make_tasks
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from slurm_energy.policy.gnn.ablation.sampling_plan import (
    MAX_NEIGHBOURS,
    subgraph_around,
    tasks_around,
    waiting_tasks,
)


def test_nodes_of_candidate_partitions_are_the_centre_and_those_under_their_switches_the_context() -> None:
    # Groups of 4: nodes 0 to 3, 4 to 7, 8 to 11. Partition 0 has 0 to 5, partition 1 has 6 to 11.
    nodes = make_nodes(12, [(n, 0) for n in range(6)] + [(n, 1) for n in range(6, 12)])
    subgraph = subgraph_around(nodes, np.array([True, False]))
    assert np.flatnonzero(subgraph.centre).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.flatnonzero(subgraph.context).tolist() == [6, 7]


def test_a_node_of_a_candidate_and_another_partition_is_in_the_centre() -> None:
    nodes = make_nodes(8, [(0, 0), (0, 1), (4, 1)])
    subgraph = subgraph_around(nodes, np.array([True, False]))
    assert np.flatnonzero(subgraph.centre).tolist() == [0]


def test_a_partition_with_nodes_outside_is_not_complete() -> None:
    nodes = make_nodes(12, [(0, 0), (0, 1), (8, 1), (1, 2), (2, 2)])
    complete = subgraph_around(nodes, np.array([True, False, False])).complete
    assert complete.tolist() == [True, False, True]


@pytest.mark.parametrize("seed", range(5))
def test_every_candidate_partition_is_complete(seed: int) -> None:
    candidate = np.random.default_rng(seed).random(6) < 0.5
    assert subgraph_around(make_cluster(100, 6, seed), candidate).complete[candidate].all()


@pytest.mark.parametrize("seed", range(5))
def test_the_subgraph_with_its_switches_is_connected_to_the_top(seed: int) -> None:
    nodes = make_cluster(96, 6, seed)
    candidate = np.random.default_rng(seed).random(6) < 0.5
    candidate[1] = True
    subgraph = subgraph_around(nodes, candidate)
    inside = np.flatnonzero(subgraph.centre | subgraph.context)
    # Vertices: nodes, groups, partitions, top. A switch is there only for nodes of the centre: the context hangs on it.
    groups = nodes.group.max() + 1
    centre = np.flatnonzero(subgraph.centre)
    top = 96 + groups + 6
    switches = np.unique(nodes.group[centre])
    useful = candidate[nodes.member_partition]
    edges = [
        np.stack([inside, 96 + nodes.group[inside]]),
        np.stack([96 + switches, np.full(len(switches), top)]),
        np.stack([nodes.member_node[useful], 96 + groups + nodes.member_partition[useful]]),
    ]
    source, target = np.concatenate(edges, axis=1)
    graph = coo_matrix((np.ones(len(source)), (source, target)), shape=(top + 1, top + 1))
    label = connected_components(graph, directed=False)[1]
    assert (label[inside] == label[top]).all()
    assert (label[96 + groups + np.flatnonzero(candidate)] == label[top]).all()


def test_without_candidates_there_is_no_subgraph() -> None:
    subgraph = subgraph_around(make_nodes(4), np.array([False]))
    assert not (subgraph.centre | subgraph.context).any()
    empty = subgraph_around(make_nodes(0), np.array([True]))
    assert empty.centre.shape == (0,)
    assert empty.complete.tolist() == [True]


def test_jobs_that_wait_for_a_candidate_are_the_centre_of_the_queue() -> None:
    tasks = make_tasks(4, [(0, 0), (1, 1), (2, 0), (2, 1)])
    assert waiting_tasks(tasks, np.array([False, True])).tolist() == [False, True, True, False]


def test_dependencies_are_followed_both_ways_as_far_as_the_hops_reach() -> None:
    chain = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    centre = np.arange(6) == 2
    assert np.flatnonzero(tasks_around(chain, centre, 1, 1.0, np.random.default_rng(0))).tolist() == [1, 2, 3]
    assert np.flatnonzero(tasks_around(chain, centre, 2, 1.0, np.random.default_rng(0))).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(tasks_around(chain, centre, 0, 1.0, np.random.default_rng(0))).tolist() == [2]


def test_a_job_with_thousands_of_dependents_brings_in_a_few() -> None:
    fan = np.stack([np.zeros(5000, dtype=np.int64), 1 + np.arange(5000)])
    reached = tasks_around(fan, np.arange(5001) == 0, 1, 1.0, np.random.default_rng(0))
    assert np.count_nonzero(reached) == 1 + MAX_NEIGHBOURS


def test_every_job_of_the_centre_keeps_a_neighbour_at_the_lowest_rate() -> None:
    fan = np.stack([np.zeros(10, dtype=np.int64), 1 + np.arange(10)])
    reached = tasks_around(fan, np.arange(11) == 0, 1, 0.01, np.random.default_rng(0))
    assert np.count_nonzero(reached) == 2


def test_the_centre_is_not_changed() -> None:
    centre = np.array([True, False])
    tasks_around(np.array([[0], [1]]), centre, 1, 1.0, np.random.default_rng(0))
    assert centre.tolist() == [True, False]
