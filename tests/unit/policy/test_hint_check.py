"""The guard on node hints: only where the site opened them, and never where Slurm could refuse the job for one."""

from typing import Any

import pytest
from policy_factory import NOW, changes_job, ids, make_config, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import NodeState
from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode, GpuDemand, JobRequest
from slurm_energy.policy.base import Case
from slurm_energy.policy.guard import Guard


class HintingPolicy:
    """Prefers a feature, and names partitions if it is told some."""

    name = "made-up"
    version = "0"

    def __init__(self, prefer: str | None, partitions: tuple[str, ...] = ()) -> None:
        names = tuple(PartitionName(name) for name in partitions) or None
        self._answer = PolicyAnswer(prefer=prefer, partitions=names)

    def decide(self, case: Case) -> PolicyAnswer:
        return self._answer


def plain(name: str = "a100-1", **changes: Any) -> NodeState:
    return make_node(name, "a100", "a100", **{"features": ("plain",), **changes})


def nvlink(name: str = "a100-2", **changes: Any) -> NodeState:
    return make_node(name, "a100", "a100", **{"features": ("big", "nvlink"), **changes})


ELSEWHERE = make_node("a40-1", "a40", "a40", features=("ib",))


def decide(
    job: JobRequest,
    *nodes: NodeState,
    prefer: str | None = "nvlink",
    partitions: tuple[str, ...] = (),
    **settings: Any,
) -> EnergyDecision:
    config = make_config(**{"node_hints": True, **settings})
    snapshot = make_snapshot(*(nodes or (plain(), nvlink(), ELSEWHERE)))
    return Guard(config, ids()).decide(HintingPolicy(prefer, partitions), job, snapshot, NOW)


def dropped_with(decision: EnergyDecision, words: str) -> bool:
    """Return whether there is no hint, with a note that says why."""
    return decision.prefer is None and any(
        note.startswith("the policy preferred node feature ") and words in note for note in decision.notes
    )


def test_a_feature_of_an_available_node_passes_and_the_person_is_told() -> None:
    decision = decide(make_job())
    assert decision.prefer == "nvlink"
    assert decision.message == "nodes with nvlink first; opt out with --energy=off"
    assert not any("feature" in note for note in decision.notes)


def test_no_hint_is_no_note() -> None:
    decision = decide(make_job(), prefer=None)
    assert (decision.prefer, decision.message, decision.notes) == (None, "", ())


def test_a_site_that_has_not_opened_hints_gives_none() -> None:
    assert dropped_with(decide(make_job(), node_hints=False), "this site has not opened (routing.node_hints)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": "plain"}, "own constraint"),
        ({"features": "nvlink"}, "own constraint"),
        ({"prefer": "plain"}, "own preference"),
        ({"reservation": "maintenance"}, "reservation"),
    ],
    ids=str,
)
def test_what_the_user_said_of_the_nodes_stands(changes: dict[str, Any], words: str) -> None:
    assert dropped_with(decide(make_job(**changes)), words)


@pytest.mark.parametrize("feature", ["nowhere", "NVLINK", "ib", "nv"])
def test_a_feature_of_no_node_where_the_job_may_start_is_dropped(feature: str) -> None:
    assert dropped_with(decide(make_job(), prefer=feature), "too few nodes have")


def test_a_feature_of_an_unavailable_node_is_dropped() -> None:
    assert dropped_with(decide(make_job(), plain(), nvlink(available=False)), "too few nodes have")


def test_a_busy_node_may_be_preferred() -> None:
    busy = nvlink(allocated=4, cpus_allocated=64)
    assert decide(make_job(), plain(), busy).prefer == "nvlink"


@pytest.mark.parametrize(
    ("job", "able"),
    [
        ({"gpus": 4}, True),
        ({"gpus": 5}, False),
        ({"gpus": 8, "nodes_min": 2}, False),  # of two nodes only one has the feature
        ({"tasks": 16, "cpus_per_task": 4}, True),
        ({"tasks": 17, "cpus_per_task": 4}, False),
        ({"memory_per_node_mib": 256_000.0}, True),
        ({"memory_per_node_mib": 256_001.0}, False),
        ({"gpu_type": "a100"}, True),
        ({"gpu_type": "h100"}, False),
    ],
    ids=str,
)
def test_the_nodes_with_the_feature_must_be_able_to_run_the_job(job: dict[str, Any], able: bool) -> None:
    mixed = make_node("h1", "a100", "h100", count=8, cpus=128, memory_mib=256_000.0, features=("plain",))
    decision = decide(make_job(**{"gpus": 1, **job}), mixed, nvlink())
    assert (decision.prefer == "nvlink") is able


def test_gpus_of_each_type_asked_for_must_be_there() -> None:
    both = (GpuDemand(count=1, slurm_type="a100"), GpuDemand(count=1, slurm_type="a40"))
    assert dropped_with(decide(make_job(gpu_type="a100", gpus=1), plain(), make_node("x", "a100", "a40")), "few")
    job = JobRequest(user_id=1000, gpus=both, time_limit_minutes=60.0)
    assert dropped_with(decide(job), "too few nodes have")


def test_a_job_of_two_nodes_needs_two_with_the_feature() -> None:
    job = make_job(gpus=8, nodes_min=2)
    assert decide(job, plain(), nvlink(), nvlink("a100-3")).prefer == "nvlink"


def test_a_job_that_names_no_memory_may_be_given_as_much_as_the_largest_node_has() -> None:
    large = plain(memory_mib=512_000.0)
    assert dropped_with(decide(make_job(), large, nvlink()), "too few nodes have")
    assert decide(make_job(memory_per_node_mib=1000.0), large, nvlink()).prefer == "nvlink"
    assert dropped_with(decide(make_job(), plain(memory_mib=None), nvlink()), "too few nodes have")


def test_one_of_several_partitions_is_enough() -> None:
    assert decide(make_job(partitions=("a40", "a100")), prefer="ib").prefer == "ib"
    assert dropped_with(decide(make_job(partitions=("a40",)), prefer="nvlink"), "too few nodes have")


def test_a_feature_of_the_partition_that_the_answer_left_is_dropped() -> None:
    slow_enough = {"max_slowdown": 2.0}
    decision = decide(make_job(partitions=("a40", "a100")), prefer="ib", partitions=("a100",), **slow_enough)
    assert decision.partitions == ("a100",)
    assert dropped_with(decision, "too few nodes have")


def test_observe_records_the_hint_and_gives_none() -> None:
    decision = decide(make_job(mode=EnergyMode.OBSERVE))
    assert not changes_job(decision)
    assert decision.notes[0] == "would have been: nodes with nvlink first"


def test_partition_and_hint_are_told_together() -> None:
    decision = decide(make_job(partitions=("a40", "a100")), partitions=("a100",), max_slowdown=2.0)
    assert decision.message.startswith("partition a100 first (no slower than on a40), nodes with nvlink first")


def test_a_job_of_the_default_partition_lands_there_alone() -> None:
    default = (make_partition("a40", is_default=True), make_partition("a100"))
    snapshot = make_snapshot(plain(), nvlink(), ELSEWHERE, partitions=default)
    decision = Guard(make_config(node_hints=True), ids()).decide(HintingPolicy("nvlink"), make_job(), snapshot, NOW)
    assert dropped_with(decision, "too few nodes have")
