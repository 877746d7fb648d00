"""Named partitions as a preference, and what it costs that they are none: only what is known is said."""

from dataclasses import replace
from typing import Any

import pytest
from guard_questions import decide, routing_to
from policy_factory import A40, A100, NOW, make_config, make_job, make_node, make_partition, make_snapshot
from work_samples import make_work

from slurm_energy.config import Config
from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.job import EnergyOptions, JobRequest
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.estimation.site_clocks import site_clocks
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import Candidate
from slurm_energy.policy.submission.open_offer import open_offer

TWO = (make_partition("a40", is_default=True), make_partition("a100"))


def site(**routing: Any) -> Config:
    config = make_config(routing_open=True)
    return replace(config, routing=replace(config.routing, **routing))


def named(*partitions: str, opened: bool | None = None, **changes: Any) -> JobRequest:
    return make_job(partitions=partitions, options=EnergyOptions(open=opened), **changes)


@pytest.mark.parametrize(
    ("said", "default", "expected"),
    [(True, False, True), (None, True, True), (None, False, False), (False, True, False)],
)
def test_a_named_partition_is_a_preference_where_its_user_or_else_the_site_says_so(
    said: bool | None, default: bool, expected: bool
) -> None:
    decision = decide(
        named("a40", opened=said), snapshot=make_snapshot(partitions=TWO), config=site(open_by_default=default)
    )
    assert decision.partitions == (("a100",) if expected else None)
    assert decision.opens is expected
    assert (Reason.USER_PARTITION in decision.reasons) is not expected


def test_what_a_user_leaves_open_stays_closed_on_a_site_that_chooses_no_partitions() -> None:
    decision = decide(named("a40", opened=True), policy=routing_to("a100"), config=make_config(routing_open=False))
    assert decision.partitions is None
    assert not decision.opens
    assert {Reason.USER_PARTITION, Reason.ROUTING_CLOSED} <= set(decision.reasons)


@pytest.mark.parametrize("changes", [{"tied": True}, {"array": "1-3"}])
def test_a_job_for_which_no_other_partition_can_be_chosen_stays_and_does_not_count_as_left_open(
    changes: dict[str, Any],
) -> None:
    job = replace(named("a40", opened=True), **changes)
    decision = decide(job, snapshot=make_snapshot(partitions=TWO), config=site())
    assert decision.partitions is None
    assert not decision.opens


def test_a_job_whose_own_partition_is_the_only_one_does_not_count_as_left_open() -> None:
    decision = decide(named("a40", opened=True), snapshot=make_snapshot(partitions=TWO[:1]), config=site())
    assert not decision.opens


def test_who_names_a_partition_is_told_what_leaving_it_open_could_have_saved_and_by_whom() -> None:
    decision = decide(named("a40"), snapshot=make_snapshot(partitions=TWO), config=site())
    offer = decision.offer
    assert offer is not None
    assert (offer.partition, offer.source, offer.joules) == ("a100", "workloads measured on both", None)
    assert offer.energy_change < -0.01
    percent = round(-100 * offer.energy_change)
    text = f"could have saved about {percent} % of the energy in partition a100, by workloads measured on both"
    assert f"--energy-open {text}" in decision.notes
    assert decision.message.endswith(text)
    assert not any(sign.isdigit() for sign in decision.announcement)
    assert "left open (--energy-open), the job could use less energy in another partition" in decision.announcement


def test_nothing_is_said_where_the_named_partition_is_the_best() -> None:
    decision = decide(named("a100"), snapshot=make_snapshot(partitions=TWO), config=site())
    assert decision.offer is None
    assert "--energy-open" not in decision.message


@pytest.mark.parametrize("routing", [{"invite": False}, {"open": False}])
def test_no_user_is_invited_where_the_site_does_not_invite_or_chooses_no_partitions(routing: dict[str, bool]) -> None:
    assert decide(named("a40"), snapshot=make_snapshot(partitions=TWO), config=site(**routing)).offer is None


def test_free_gpus_elsewhere_are_said_only_where_the_named_partition_has_none() -> None:
    nodes = [make_node("a40-1", "a40", "a40", allocated=4), make_node("a100-1", "a100", "a100")]
    offer = decide(named("a40"), snapshot=make_snapshot(*nodes, partitions=TWO), config=site()).offer
    assert offer is not None
    assert not offer.named_has_room
    decision = decide(named("a40"), snapshot=make_snapshot(*nodes, partitions=TWO), config=site())
    assert "partition a100 has room for this job now, a40 is not seen to have any" in decision.message


def test_a_quiet_job_is_told_nothing_and_explain_has_it_all_the_same() -> None:
    job = replace(named("a40"), options=EnergyOptions(quiet=True))
    decision = decide(job, snapshot=make_snapshot(partitions=TWO), config=site())
    assert decision.message == decision.announcement == ""
    assert any("--energy-open could have saved" in note for note in decision.notes)


def test_the_joules_are_those_of_the_whole_job_where_power_and_length_are_known_from_its_runs() -> None:
    work = make_work({A40: (300.0, 100.0), A100: (300.0, 40.0)})
    runtime = RuntimeEstimate(seconds=3600.0, upper_seconds=4000.0, source="history", gpu_type=A40, runs=4)
    job = named("a40", name="train")
    offer = decide(job, snapshot=make_snapshot(partitions=TWO), config=site(), work=work, runtime=runtime).offer
    assert offer is not None
    assert offer.source == "runs of this name"
    assert offer.joules is not None
    assert offer.joules > 0.0


def test_slowdown_is_held_against_where_slurm_would_have_started_the_job() -> None:
    decision = decide(named("a40", opened=True), snapshot=make_snapshot(partitions=TWO), config=site())
    basis = decision.slowdown
    assert basis is not None
    assert basis.type_slowdowns[A40] == 0.0
    assert basis.type_slowdowns[A100] < 0.0, "it is the faster one"
    assert (basis.bound, basis.type_bound) == (0.05, 0.05)
    own = decide(make_job(options=EnergyOptions(max_slowdown=0.2)), config=site()).slowdown
    assert own is not None
    assert (own.bound, own.type_bound) == (0.2, None), "a user's own bound is of both"


def test_in_the_mean_a_job_is_held_against_the_sites_bound_and_not_against_how_far_its_clock_may_go() -> None:
    config = make_config(slowdown_bound="mean")
    clocks = site_clocks([], [], (0.05, 0.2), BoardLimits(site_watts={A100: 500.0}), NOW)
    basis = decide(make_job(), config=config, site_clocks=clocks).slowdown
    assert basis is not None
    assert basis.bound == 0.05


def test_idle_gpus_that_are_too_few_for_the_job_are_not_called_none() -> None:
    nodes = [make_node("a40-1", "a40", "a40", allocated=1), make_node("a100-1", "a100", "a100")]
    decision = decide(named("a40", gpus=4), snapshot=make_snapshot(*nodes, partitions=TWO), config=site())
    assert "a40 has none" not in decision.message
    assert "partition a100 has room for this job now, a40 is not seen to have any" in decision.message


def test_room_in_a_named_partition_that_the_answer_may_not_name_is_room() -> None:
    job = named("a40", opened=True)
    candidates = (
        Candidate(partition=TWO[0], gpu_types=(A40,), has_idle_room=True, may_be_named=False),
        Candidate(partition=TWO[1], gpu_types=(A100,), has_idle_room=True, is_submitted_to=False),
    )
    case = Case(
        job=job, snapshot=make_snapshot(partitions=TWO), now_seconds=NOW, candidates=candidates, may_route=True,
        max_slowdown=0.05, max_type_slowdown=0.05,
    )  # fmt: skip
    offer = open_offer(case)
    assert offer is not None
    assert offer.named_has_room
