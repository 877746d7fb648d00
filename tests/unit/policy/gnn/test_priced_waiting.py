"""Jobs that nothing has room for pay for the GPUs that they keep others from, however many partitions are open."""

from typing import Any

import pytest
from served_cluster import A100, V100, guarded, lab, node, site, submitted
from small_clusters import make_job, make_partition
from test_priced_serving import ROOMY, SHORT, costs, policy_of

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, Reason
from slurm_energy.domain.ids import PartitionName
from slurm_energy.policy.detail_text import detail_sentences

FREE_SLOWDOWN = {"slowdown_joules": -1e3}
"""With it the clock is the oracle's, unless something else has a price."""


def cluster(types: dict[str, str], free: int = 0, waiting: int = 0) -> ClusterSnapshot:
    """Return partitions of one node of a type each, the first of them the default, and jobs that wait in each."""
    names = tuple(types)
    jobs = [(name, number) for name in names for number in range(waiting)]
    return lab(
        nodes=tuple(node(f"{name}-1", name, kind, free=free) for name, kind in types.items()),
        partitions=tuple(make_partition(name, is_default=name == names[0], max_time_minutes=1440.0) for name in names),
        jobs=tuple(
            make_job(place, partitions=(PartitionName(name),), gpus=4) for place, (name, _) in enumerate(jobs, 1)
        ),
    )


def clocks(decision: EnergyDecision) -> dict[str, int]:
    """Return the clock of each type that has one below its highest."""
    return {choice.gpu_type: choice.sm_clock_mhz for choice in decision.clocks}


SAME = {"one": "a100", "two": "a100"}
MIXED = {"one": "a100", "two": "v100"}


@pytest.mark.parametrize("bound", [0.05, 0.2, 1.5])
@pytest.mark.parametrize("types", [SAME, MIXED])
def test_in_several_full_partitions_the_clock_is_what_it_is_in_each_alone(types: dict[str, str], bound: float) -> None:
    snapshot, config = cluster(types, waiting=2), site(max_slowdown=bound, routing_open=False)
    alone = [guarded(policy_of(FREE_SLOWDOWN), submitted(to=(name,)), snapshot, config, SHORT) for name in types]
    several = guarded(policy_of(FREE_SLOWDOWN), submitted(to=tuple(types)), snapshot, config, SHORT)
    assert several.partitions is None
    assert Reason.POLICY_ERROR not in several.reasons
    assert clocks(several) == {name: mhz for one in alone for name, mhz in clocks(one).items()}
    assert costs(several)["options"][0]["scarcity"] > 0.0
    assert len(costs(several)["options"]) == len(types)


@pytest.mark.parametrize(
    ("job", "config"),
    [
        ({"to": ("one", "two")}, site(max_slowdown=1.5, routing_open=False)),
        ({}, site(max_slowdown=1.5)),
        ({"to": ("one", "two")}, site(max_slowdown=1.5)),
    ],
    ids=["a list", "open routing", "both"],
)
def test_a_full_cluster_raises_the_clock_however_the_choice_is_open(job: dict[str, Any], config: Config) -> None:
    for types in (SAME, MIXED):
        idle, full = (
            guarded(policy_of(), submitted(**job), snapshot, config, SHORT)
            for snapshot in (cluster(types, free=4), cluster(types))
        )
        assert full.partitions is None
        assert clocks(full).get(A100, 1410) > clocks(idle).get(A100, 1410)
        alone = guarded(policy_of(), submitted(to=("one",)), cluster(types), ROOMY, SHORT)
        assert clocks(full).get(A100) == clocks(alone).get(A100)


def test_with_open_routing_only_the_partitions_of_the_job_itself_are_priced() -> None:
    decision = guarded(policy_of(), submitted(), cluster(MIXED, waiting=1), site(max_slowdown=1.5), SHORT)
    assert [option["partition"] for option in costs(decision)["options"]] == ["one"]
    assert V100 not in clocks(decision)


def test_a_full_partition_beside_one_with_room_is_priced_for_when_the_job_lands_there() -> None:
    types = {"one": "a100", "two": "v100"}
    nodes = (node("one-1", "one", "a100", free=0), node("two-1", "two", "v100", free=4))
    snapshot = lab(nodes=nodes, partitions=cluster(types).partitions)
    decision = guarded(policy_of(FREE_SLOWDOWN), submitted(to=("one", "two")), snapshot, ROOMY, SHORT)
    assert decision.partitions is None, "Slurm starts it where there is room without our doing"
    alone = {name: guarded(policy_of(FREE_SLOWDOWN), submitted(to=(name,)), snapshot, ROOMY, SHORT) for name in types}
    assert clocks(decision) == clocks(alone["one"]) | clocks(alone["two"])


def test_factors_of_prices_that_are_0_are_not_told() -> None:
    wild = {"time_watts": 1e3, "waking": 1e3}
    for snapshot, told in ((cluster(SAME, free=4), {"slowdown"}), (cluster(SAME), {"slowdown", "scarcity"})):
        decision = guarded(policy_of(wild, devices=1.0), submitted(), snapshot, ROOMY, SHORT)
        assert set(costs(decision)["factors"]) == told
        sentences = [one for one in detail_sentences(decision.details) if one.startswith("learned price of")]
        said = {one.removeprefix("learned price of ").partition(":")[0] for one in sentences}
        assert said <= told, "what is multiplied by 1 is not said either"


def test_what_is_not_told_changes_nothing() -> None:
    wild = {"time_watts": 1e3, "waking": 1e3}
    for free in (0, 4):
        snapshot = cluster(MIXED, free=free)
        plain, moved = (
            guarded(policy_of(raw), submitted(), snapshot, site(max_slowdown=1.5), SHORT) for raw in ({}, wild)
        )
        assert moved == plain
