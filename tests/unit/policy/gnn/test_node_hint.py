"""The network's probabilities over nodes as one feature to prefer."""

import pytest
import torch
from small_clusters import make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import GpuDemand, JobRequest
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.job_features import submitted_vector
from slurm_energy.graph.options import RunOption
from slurm_energy.policy.gnn import policy as module
from slurm_energy.policy.gnn.cache import EmbeddingCache
from slurm_energy.policy.gnn.chooser import Choice, NetworkChooser
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.policy.gnn.policy import node_hint, nodes_with_room

P = PartitionName("p")
JOB = JobRequest(user_id=1, gpus=(GpuDemand(count=2),))


def cluster() -> ClusterSnapshot:
    """Two full nodes, one with a single free GPU, four free ones of which two have the feature `cool`."""
    busy = [make_node(f"b{n}", gpus=(NodeGpus(slurm_type="a100", count=4, allocated=4 - n),)) for n in (0, 1)]
    free = [
        make_node(f"f{n}", features=("cool",) if n < 2 else ("warm",), cpus_allocated=0 if n < 2 else 60)
        for n in range(4)
    ]
    return make_snapshot(nodes=(*busy, make_node("down", available=False), *free), partitions=(make_partition("p"),))


def chooser_at(snapshot: ClusterSnapshot) -> tuple[NetworkChooser, Choice]:
    network = create_network(NetworkConfig(hidden=12, heads=6, quantiles=4), seed=3)
    chooser = NetworkChooser(network, ClusterGraph())
    chooser.follow_at_once(snapshot)
    vector = submitted_vector(JOB, snapshot.taken_at_seconds, chooser.cluster_facts.facts)
    choice = chooser.choose(vector, [RunOption(partition=0, gpus=2)])
    assert choice is not None
    return chooser, choice


def names(chooser: NetworkChooser, gpus: int) -> list[str]:
    slots = nodes_with_room(chooser.graph, P, gpus).tolist()
    return sorted(str(chooser.graph.nodes.states[slot].name) for slot in slots)


def test_only_available_nodes_with_enough_free_gpus_are_looked_at() -> None:
    chooser, _ = chooser_at(cluster())
    assert names(chooser, 1) == ["b1", "f0", "f1", "f2", "f3"]
    assert names(chooser, 2) == ["f0", "f1", "f2", "f3"]
    assert names(chooser, 5) == []
    assert not len(nodes_with_room(chooser.graph, PartitionName("elsewhere"), 1))


def test_of_many_nodes_a_bounded_number_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    chooser, _ = chooser_at(cluster())
    monkeypatch.setattr(module, "MAX_NODES", 3)
    assert len(nodes_with_room(chooser.graph, P, 2)) == 3


def test_the_feature_of_the_nodes_that_the_network_would_take_is_the_hint() -> None:
    chooser, choice = chooser_at(cluster())
    head = chooser.network.assignment
    slots = nodes_with_room(chooser.graph, P, 2)
    keeper = chooser.keeper
    assert isinstance(keeper, EmbeddingCache)
    cool = ["cool" in chooser.graph.nodes.states[slot].features for slot in slots.tolist()]
    # Turn the head towards what tells the two kinds of nodes apart.
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        node = keeper.node[torch.from_numpy(slots)]
        wanted = node[cool].mean(0) - node[[not one for one in cool]].mean(0)
        head.node.weight[0] = 50.0 * wanted / wanted.norm().square()
        head.between.weight[0, 0], head.between.bias[:] = 1.0, 0.0
        head.job.bias[0] = 100.0
        head.score.weight[0, 0] = 1.0
    assert node_hint(chooser, choice, JOB, P) == "cool"
    with torch.no_grad():
        head.score.weight[0, 0] = -1.0
    assert node_hint(chooser, choice, JOB, P) == "warm"


def test_a_head_without_an_opinion_gives_no_hint() -> None:
    chooser, choice = chooser_at(cluster())
    with torch.no_grad():
        for parameter in chooser.network.assignment.parameters():
            parameter.zero_()
    assert node_hint(chooser, choice, JOB, P) is None


def test_between_two_snapshots_there_is_no_hint() -> None:
    chooser, choice = chooser_at(cluster())
    with torch.no_grad():
        chooser.network.assignment.score.weight.fill_(3.0)
    steps = chooser.follow(make_snapshot(nodes=(make_node("new"),), partitions=(make_partition("p"),)))
    next(steps)
    assert chooser.is_updating
    assert node_hint(chooser, choice, JOB, P) is None
    for _ in steps:
        pass
    assert not chooser.is_updating
