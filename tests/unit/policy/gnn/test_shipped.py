"""The policy that comes with the package serves any cluster; nothing here depends on its exact weights."""

from dataclasses import replace

import numpy as np
import pytest
from served_cluster import case_of, guarded, node, site, submitted
from small_clusters import make_job, make_node, make_partition, make_snapshot

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import PartitionName
from slurm_energy.learning.prices.collector import price_episode
from slurm_energy.learning.prices.settings import PriceEpisodeSettings
from slurm_energy.policy.automatic import shipped_folder
from slurm_energy.policy.base import Policy
from slurm_energy.policy.checkpoint_files import DOCUMENT_FILE, WEIGHTS_FILE, check_files
from slurm_energy.policy.gnn.policy import load_policy
from slurm_energy.policy.gnn.serving import PricedPolicy, load_network
from slurm_energy.policy.prices import JOB_PRICES

MAX_BYTES = 5 * 1024 * 1024
LEAST_SPREAD = 0.01
"""Standard deviation of the logarithm of a factor: with less, what a network says is a constant."""
TYPES = ("a100", "v100", "mi300x", None, "h100", "a40", "rtx9999")


def cluster(partitions: int, types: tuple[str | None, ...], *, gpus: bool = True) -> ClusterSnapshot:
    """Return a cluster of two nodes and a waiting and a running job in each partition."""
    names = [f"p{number}" for number in range(partitions)]
    nodes = tuple(
        node(f"{name}-{which}", name, types[number % len(types)], free=2)
        if gpus
        else make_node(f"{name}-{which}", 0, partition=name)
        for number, name in enumerate(names)
        for which in (1, 2)
    )
    jobs = tuple(
        make_job(2 * number + which, partitions=(PartitionName(name),), running_on=f"{name}-1" if which else None)
        for number, name in enumerate(names)
        for which in (0, 1)
    )
    return make_snapshot(
        nodes=nodes, jobs=jobs, partitions=tuple(make_partition(name, is_default=name == "p0") for name in names)
    )


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(Config())


def test_it_is_small_and_sound() -> None:
    files = list(shipped_folder().iterdir())
    assert {file.name for file in files} == {DOCUMENT_FILE, WEIGHTS_FILE}
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES
    metadata = check_files(shipped_folder())
    assert metadata.name == "gnn"
    assert metadata.architecture.policy == "prices"
    assert metadata.architecture.hierarchy == "hierarchical", (
        "a flat vector has room for a certain number of partitions"
    )


def test_it_is_a_policy_of_prices_of_the_version_that_its_files_say(policy: Policy) -> None:
    assert isinstance(policy, PricedPolicy)
    assert policy.version == check_files(shipped_folder()).version


@pytest.mark.parametrize("partitions", [1, 2, 7, 40])
def test_any_number_of_partitions_of_known_and_unknown_types_is_served(partitions: int, policy: Policy) -> None:
    assert isinstance(policy, PricedPolicy)
    snapshot = cluster(partitions, TYPES)
    policy.warm_up(snapshot)
    names = tuple(str(partition.name) for partition in snapshot.partitions)
    for job in (submitted(), submitted(2, to=names[:3]), submitted(to=names[-1:])):
        for is_open in (True, False):
            decision = guarded(policy, job, snapshot, site(routing_open=is_open, max_slowdown=0.3))
            assert Reason.POLICY_ERROR not in decision.reasons, decision.notes
            assert all(choice.predicted_slowdown <= 0.3 for choice in decision.clocks)


def test_forty_partitions_of_one_type_are_all_compared(policy: Policy) -> None:
    assert isinstance(policy, PricedPolicy)
    snapshot = replace(cluster(40, ("a100",)), jobs=())
    policy.warm_up(snapshot)
    answer = policy.decide(case_of(submitted(), snapshot))
    assert answer.reasons == (Reason.POLICY,)
    assert answer.clocks


@pytest.mark.parametrize("types", [("mi300x",), (None,), ("rtx9999", None)])
def test_unknown_gpus_leave_a_job_as_it_is(types: tuple[str | None, ...], policy: Policy) -> None:
    assert isinstance(policy, PricedPolicy)
    snapshot = cluster(2, types)
    policy.warm_up(snapshot)
    decision = guarded(policy, submitted(), snapshot)
    assert (decision.partitions, decision.clocks) == (None, ())
    assert Reason.POLICY_ERROR not in decision.reasons


@pytest.mark.parametrize("partitions", [0, 1, 5])
def test_a_cluster_of_cpus_is_served(partitions: int, policy: Policy) -> None:
    assert isinstance(policy, PricedPolicy)
    snapshot = cluster(partitions, (None,), gpus=False)
    policy.warm_up(snapshot)
    for job in (submitted(0), submitted(1)):
        decision = guarded(policy, job, snapshot)
        assert (decision.partitions, decision.clocks) == (None, ())
        assert Reason.POLICY_ERROR not in decision.reasons


@pytest.mark.parametrize(
    ("world", "hours"),
    [
        ("tum128", 1.0),
        pytest.param("philly-a100", 12.0, marks=pytest.mark.slow),
        pytest.param("chsac-wakeup", 1.0, marks=pytest.mark.slow),
    ],
)
def test_its_prices_depend_on_the_state_and_on_the_job(world: str, hours: float) -> None:
    network, _ = load_network(shipped_folder())
    settings = PriceEpisodeSettings(world=world, hours=hours, refresh_seconds=1800.0)
    steps = price_episode(network, settings, seed=1_000_001).steps
    devices = np.concatenate([step.device_mean for step in steps])
    jobs = np.stack([step.job_mean for step in steps])
    learned = [JOB_PRICES.index(name) for name in ("share", "opened_nodes", "waking")]
    assert devices.std() > LEAST_SPREAD
    assert jobs[:, learned].std(0).max() > LEAST_SPREAD
