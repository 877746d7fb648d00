from typing import Any

import pytest
from guard_questions import clocks, decide, routing_to
from policy_factory import (
    A40,
    A100,
    make_config,
    make_job,
    make_node,
    make_partition,
    make_snapshot,
)

from slurm_energy.domain.decision import EnergyDecision, Reason


def test_users_single_partition_is_never_changed() -> None:
    config = make_config(routing_open=True)
    decision = decide(make_job(partitions=("a40",)), policy=routing_to("a100"), config=config)
    assert decision.partitions is None
    assert Reason.USER_PARTITION in decision.reasons
    assert Reason.PARTITION_NOT_ALLOWED in decision.reasons


def test_users_list_is_narrowed_inside_the_list() -> None:
    decision = decide(make_job(partitions=("a40", "a100")))
    assert decision.partitions == ("a100",)
    assert clocks(decision) == {A100: 1290, A40: 1455}, "it starts on an A40 if Slurm finds no room on the A100"
    assert decision.message.startswith("partition a100 first (no slower than on a40): a100 at 1290 of 1410 MHz")


def test_partition_outside_the_users_list_is_refused() -> None:
    decision = decide(make_job(partitions=("a40", "v100")), policy=routing_to("a100"))
    assert decision.partitions is None
    assert Reason.PARTITION_NOT_ALLOWED in decision.reasons


def test_job_without_partition_stays_in_the_default_one_while_routing_is_closed() -> None:
    decision = decide(make_job(), policy=routing_to("a40"))
    assert decision.partitions is None
    assert {Reason.ROUTING_CLOSED, Reason.PARTITION_NOT_ALLOWED} <= set(decision.reasons)


def test_open_routing_sends_the_job_to_the_cheapest_partition_with_room() -> None:
    partitions = (make_partition("a40", is_default=True), make_partition("a100"))
    decision = decide(make_job(), snapshot=make_snapshot(partitions=partitions), config=make_config(routing_open=True))
    assert decision.partitions == ("a100",)
    assert clocks(decision) == {A100: 1290, A40: 1455}


def test_open_routing_that_finds_the_default_partition_best_changes_none() -> None:
    decision = decide(make_job(), config=make_config(routing_open=True))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290}


def test_open_routing_goes_only_to_the_sites_list() -> None:
    partitions = (make_partition("a40", is_default=True), make_partition("a100"), make_partition("v100"))
    config = make_config(routing_open=True, routing_partitions=("v100",))
    snapshot = make_snapshot(partitions=partitions)
    decision = decide(make_job(), snapshot=snapshot, policy=routing_to("a100"), config=config)
    assert decision.partitions is None


def test_list_stays_when_no_partition_has_room() -> None:
    nodes = [make_node(f"{name}-1", name, name, allocated=4) for name in ("a100", "a40")]
    decision = decide(make_job(partitions=("a40", "a100")), snapshot=make_snapshot(*nodes))
    assert decision.partitions is None
    assert Reason.NO_IDLE_PARTITION in decision.reasons


def test_partition_in_which_the_job_would_wait_is_refused() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    decision = decide(make_job(partitions=("a40", "a100")), snapshot=make_snapshot(*nodes), policy=routing_to("a100"))
    assert decision.partitions is None
    assert Reason.NO_IDLE_PARTITION in decision.reasons


def test_slower_partition_is_refused_when_it_breaks_the_bound_against_where_slurm_starts_the_job() -> None:
    decision = decide(make_job(partitions=("a100", "a40")), policy=routing_to("a40"))
    assert decision.partitions is None
    assert Reason.SLOWDOWN_BOUND in decision.reasons


def test_list_stays_when_only_one_partition_has_room() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    decision = decide(make_job(partitions=("a100", "a40")), snapshot=make_snapshot(*nodes))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290, A40: 1455}


def test_open_routing_takes_a_slower_partition_when_the_default_one_is_full() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    config = make_config(routing_open=True, less_gpu_memory=True)
    decision = decide(make_job(), snapshot=make_snapshot(*nodes), config=config)
    assert decision.partitions == ("a40",)
    assert clocks(decision) == {A40: 1455, A100: 1290}, "it starts in its own partition if that has room first"
    assert decision.message.startswith("partition a40 first: a40 at 1455 of 1740 MHz")
    assert decision.message_in_place.startswith("a40 at 1455 of 1740 MHz")
    assert "another choice of partition and a lower GPU clock" in decision.announcement
    assert "a lower GPU clock" in decision.announcement_in_place and "partition" not in decision.announcement_in_place


def test_a_job_is_not_sent_to_gpus_of_less_memory_than_it_would_have_had_unless_its_user_or_the_site_says_so() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    cluster = make_snapshot(*nodes)
    decision = decide(make_job(), snapshot=cluster, config=make_config(routing_open=True))
    assert decision.partitions is None
    assert any("a40 has GPUs of less memory" in note for note in decision.notes)
    named = decide(make_job(partitions=("a100", "a40")), snapshot=cluster, config=make_config(routing_open=True))
    assert not any("less memory" in note for note in named.notes)
    assert any("a40 alone has room now" in note for note in named.notes)


def test_list_with_gpus_outside_the_catalogue_stays() -> None:
    nodes = [make_node("a1", "a100", "a100"), make_node("b1", "a40", "mi300x")]
    decision = decide(make_job(partitions=("a100", "a40")), snapshot=make_snapshot(*nodes))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290}


@pytest.mark.usefixtures("h100_without_sheet")
def test_types_that_cannot_be_compared_leave_the_list_unchanged() -> None:
    partitions = (make_partition("a100", is_default=True), make_partition("h100"))
    nodes = (make_node("a1", "a100", "a100"), make_node("h1", "h100", "h100"))
    job = make_job(partitions=("a100", "h100"))
    decision = decide(job, snapshot=make_snapshot(*nodes, partitions=partitions))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290}


@pytest.mark.parametrize(
    "closed",
    [
        {"up": False},
        {"root_only": True},
        {"needs_reservation": True},
        {"max_time_minutes": 10.0},
        {"max_nodes": 1},
        {"allow_accounts": ("physics",)},
        {"deny_accounts": ("chem",)},
        {"allow_qos": ("high",)},
        {"deny_qos": ("normal",)},
        {"allow_groups": ("staff",)},
    ],
    ids=str,
)
def test_partition_closed_to_the_job_is_never_named(closed: dict[str, Any]) -> None:
    partitions = (make_partition("a100", **closed), make_partition("a40", is_default=True), make_partition("v100"))
    job = make_job(partitions=("a100", "a40", "v100"), account="chem", qos="normal", nodes_min=2, gpus=2)
    decision = decide(job, snapshot=make_snapshot(partitions=partitions), policy=routing_to("a100"))
    assert decision.partitions is None
    assert decision.reasons.count(Reason.PARTITION_NOT_ALLOWED) == 1
    assert any(note.startswith("partition a100 ") for note in decision.notes)


@pytest.mark.parametrize(
    ("groups", "expected"), [(("staff", "users"), ("a100",)), (("users",), None), ((), None), (None, None)]
)
def test_partition_of_certain_groups_is_open_to_their_members_only(
    groups: tuple[str, ...] | None, expected: tuple[str, ...] | None
) -> None:
    partitions = (make_partition("a100", allow_groups=("staff",)), make_partition("a40", is_default=True))
    job = make_job(partitions=("a40", "a100"))
    decision = decide(job, snapshot=make_snapshot(partitions=partitions), user_groups=groups)
    assert decision.partitions == expected


@pytest.mark.parametrize("changes", [{"array": "1-50"}, {"reservation": "maintenance"}])
def test_array_and_reservation_keep_their_partitions(changes: dict[str, Any]) -> None:
    decision = decide(make_job(partitions=("a40", "a100"), **changes))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290, A40: 1455}


LISTED = ("a40", "a100")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"a100": {"priority_tier": 0}}, "comes after another one by its priority"),
        ({"a40": {"priority_job_factor": 9}}, "comes after another one by its priority"),
        ({"a100": {"list_terms": ("QoS=part",)}}, "is open to others"),
        ({"a40": {"list_terms": ("AllowGroups=hpc",)}}, "is open to others"),
        ({"a100": {"default_terms": ("JobDefaults=DefCpuPerGPU=2",)}}, "has other defaults"),
        ({"a40": {"root_only": True}}, "stands in a list with one that is closed"),
        ({"a40": {"up": False}}, "stands behind one that is down"),
        ({"a100": {"min_nodes": 2}}, "is for jobs of more nodes"),
        ({"a100": {"max_cpus_per_node": 3}}, "allows fewer CPUs on a node"),
        ({"a100": {"max_memory_per_node_mib": 3000.0}}, "allows less memory on a node"),
    ],
    ids=str,
)
def test_a_partition_that_the_plugin_would_not_put_first_is_not_named(
    changes: dict[str, dict[str, Any]], why: str
) -> None:
    def named(**settings: dict[str, Any]) -> EnergyDecision:
        partitions = [make_partition(name, is_default=name == "a40", **settings.get(name, {})) for name in LISTED]
        snapshot = make_snapshot(
            make_node("a1", "a40", "a40"), make_node("b1", "a100", "a100"), partitions=tuple(partitions)
        )
        job = make_job(partitions=LISTED, tasks=4, memory_per_node_mib=4000.0)
        return decide(job, policy=routing_to("a100"), snapshot=snapshot)

    assert named().partitions == ("a100",)
    decision = named(**changes)
    assert decision.partitions is None
    assert any(why in note for note in decision.notes), decision.notes


def test_a_partition_that_differs_from_the_default_one_is_not_added_to_it() -> None:
    for changes in ({"placing_terms": ("OverSubscribe=EXCLUSIVE",)}, {"priority_tier": 2}):
        partitions = (make_partition("a40", is_default=True), make_partition("a100", **changes))
        nodes = [make_node("a1", "a40", "a40"), make_node("b1", "a100", "a100")]
        config = make_config(routing_open=True)
        decision = decide(make_job(), snapshot=make_snapshot(*nodes, partitions=partitions), config=config)
        assert decision.partitions is None


def test_a_default_time_limit_of_the_own_partition_is_kept_where_the_user_gave_none() -> None:
    partitions = (
        make_partition("a40", is_default=True, default_time_minutes=600.0),
        make_partition("a100", default_time_minutes=60.0),
    )
    nodes = [make_node("a1", "a40", "a40"), make_node("b1", "a100", "a100")]
    snapshot = make_snapshot(*nodes, partitions=partitions)
    ask: dict[str, Any] = {"policy": routing_to("a100"), "snapshot": snapshot}
    assert decide(make_job(partitions=LISTED, time_limit_minutes=30.0), **ask).partitions == ("a100",)
    assert decide(make_job(partitions=LISTED, time_limit_minutes=None), **ask).partitions is None


def test_a_job_that_is_tied_to_its_partitions_keeps_their_order() -> None:
    assert decide(make_job(partitions=LISTED, tied=True), policy=routing_to("a100")).partitions is None
