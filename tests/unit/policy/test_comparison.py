"""Partitions by what runs of the job's name measured, and by tables where they say too little."""

from dataclasses import replace
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_factory import (
    A40,
    A100,
    H100,
    MEASURED_BOARDS,
    NOW,
    V100,
    ids,
    make_config,
    make_job,
    make_node,
    make_partition,
    make_snapshot,
)
from work_samples import make_work

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.board_limits import BoardLimits
from slurm_energy.energy_model.relative_speed import relative_cost
from slurm_energy.policy.base import Candidate, DecisionContext, Policy
from slurm_energy.policy.baselines import FixedClockPolicy
from slurm_energy.policy.candidates import JobOnCluster
from slurm_energy.policy.comparison import MOST_DOUBT, TypeComparison
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.time_room import slowdown_room

LIMITS = BoardLimits(site_watts={GpuTypeName(name): watts for name, watts in MEASURED_BOARDS.items()})
LIGHT = make_work({A100: (100.0, 120.0), A40: (104.0, 80.0), V100: (300.0, 60.0)}, doubt=0.05)
"""Nearly as fast on an A40, for two thirds of the power."""


def decide(
    job: JobRequest, work: WorkEstimate | None, snapshot: ClusterSnapshot | None = None, *, routing_open: bool = True
) -> EnergyDecision:
    guard = Guard(make_config(routing_open=routing_open), ids=ids())
    return guard.decide(OraclePolicy(), job, snapshot or make_snapshot(), NOW, work=work)


def test_runs_of_the_name_count_where_their_doubt_is_small() -> None:
    cost = TypeComparison(limits=LIMITS, work=LIGHT).cost(A40, A100)
    assert cost is not None
    assert cost.source == "runs of this name"
    assert cost.time_ratio == cost.worst_time_ratio == pytest.approx(1.04 * exp(0.05**2 / 2))
    assert cost.energy_ratio == pytest.approx(cost.time_ratio * 80.0 / 120.0)


@pytest.mark.parametrize(
    ("one", "other", "work"),
    [
        (A40, A100, None),
        (A40, A100, make_work({A100: (1.0, 1.0), A40: (1.0, 1.0)}, doubt=MOST_DOUBT + 0.01)),
        (H100, A100, LIGHT),
        (A100, A100, LIGHT),
    ],
    ids=["no runs", "too much doubt", "a type without", "the same type"],
)
def test_tables_count_where_runs_say_too_little(
    one: GpuTypeName, other: GpuTypeName, work: WorkEstimate | None
) -> None:
    assert TypeComparison(limits=LIMITS, work=work).cost(one, other) == relative_cost(one, other, LIMITS)


def test_a_light_job_goes_where_it_is_cheap_and_as_fast_and_the_decision_says_why() -> None:
    decision = decide(make_job(partitions=("a100", "a40", "v100")), LIGHT)
    assert decision.partitions == (PartitionName("a40"),)
    note = next(note for note in decision.notes if note.startswith("beside a100"))
    assert "a40 takes 1.04 times as long and 0.69 of the energy, by runs of this name (7 on a100" in note
    assert "v100 takes 3.00 times as long" in note


def test_without_runs_the_same_job_stays_on_the_fast_type() -> None:
    decision = decide(make_job(partitions=("a100", "a40", "v100")), None)
    assert decision.partitions == (PartitionName("a100"),)
    assert any("a40 takes 2." in note and "by workloads measured on both" in note for note in decision.notes)
    assert any("v100 takes 2." in note and "by data sheets" in note for note in decision.notes)


def test_a_type_that_runs_found_too_slow_for_the_bound_is_not_named() -> None:
    slow = make_work({A100: (100.0, 120.0), A40: (108.0, 10.0), V100: (300.0, 60.0)})
    assert decide(make_job(partitions=("a100", "a40")), slow).partitions == (PartitionName("a100"),)
    bold = decide(make_job(partitions=("a100", "a40"), max_slowdown=0.1), slow)
    assert bold.partitions == (PartitionName("a40"),)


def test_doubt_uses_up_the_bound() -> None:
    sure = make_work({A100: (100.0, 120.0), A40: (104.0, 80.0)}, doubt=0.0)
    unsure = make_work({A100: (100.0, 120.0), A40: (104.0, 80.0)}, doubt=0.3)
    job = make_job(partitions=("a100", "a40"))
    assert decide(job, sure).partitions == (PartitionName("a40"),)
    assert decide(job, unsure).partitions == (PartitionName("a100"),)


def test_a_clock_gets_only_what_the_type_left_of_the_bound() -> None:
    decision = decide(make_job(partitions=("a100", "a40")), LIGHT)
    assert all(clock.predicted_slowdown <= 1.05 / (1.04 * exp(0.05**2 / 2)) - 1.0 for clock in decision.clocks)


def drawing(watts: float, runs: int = 7) -> WorkEstimate:
    return replace(make_work({A100: (100.0, watts), A40: (250.0, watts)}), runs_by_type={A100: runs})


def test_a_name_that_draws_far_less_than_what_was_measured_keeps_the_default_clock() -> None:
    # Boards of 500 W: the least of the measured programs draws 421 W at the default clock.
    job = make_job(partitions=("a100",))
    usual, light = decide(job, drawing(400.0)), decide(job, drawing(300.0))
    assert [clock.gpu_type for clock in usual.clocks] == [A100]
    assert light.clocks == ()
    assert any("runs of this name draw 300 W, far less than any measured workload" in note for note in light.notes)
    assert not any("far less" in note for note in usual.notes)


@pytest.mark.parametrize("policy", [FixedClockPolicy({A100: 900}, 0.5), OraclePolicy()], ids=lambda policy: policy.name)
def test_no_policy_gets_a_lower_clock_for_such_a_name_past_the_guard(policy: Policy) -> None:
    guard = Guard(make_config(), ids=ids())
    decision = guard.decide(policy, make_job(partitions=("a100",)), make_snapshot(), NOW, work=drawing(100.0))
    assert decision.clocks == ()


def test_one_run_or_a_type_that_others_were_seen_on_says_too_little_of_how_much_a_name_draws() -> None:
    assert [clock.gpu_type for clock in decide(make_job(partitions=("a100",)), drawing(100.0, runs=1)).clocks] == [A100]
    assert [clock.gpu_type for clock in decide(make_job(partitions=("a40",)), drawing(100.0)).clocks] == [A40]


H100_CLUSTER = make_snapshot(
    make_node("a1", "a100", "a100"),
    make_node("h1", "h100", "h100"),
    partitions=(make_partition("a100", is_default=True), make_partition("h100")),
)
DEARER_ON_H100 = make_work({A100: (100.0, 420.0), H100: (60.0, 910.0)})


def test_a_job_is_not_sent_to_a_faster_type_that_costs_more_than_where_slurm_starts_it() -> None:
    decision = decide(make_job(), DEARER_ON_H100, H100_CLUSTER)
    assert decision.partitions is None
    assert any("it is not sent elsewhere" in note for note in decision.notes)
    assert [clock.gpu_type for clock in decision.clocks] == [A100]


def test_it_is_sent_there_where_that_saves_energy() -> None:
    cheaper = make_work({A100: (100.0, 380.0), H100: (44.0, 560.0)})
    assert decide(make_job(), cheaper, H100_CLUSTER).partitions == (PartitionName("h100"),)
    # Without runs the data sheets say the same.
    assert decide(make_job(), None, H100_CLUSTER).partitions == (PartitionName("h100"),)


def test_where_slurm_would_make_it_wait_the_faster_type_is_named_though_it_costs_more() -> None:
    full = replace(H100_CLUSTER, nodes=(make_node("a1", "a100", "a100", allocated=4), H100_CLUSTER.nodes[1]))
    assert decide(make_job(), DEARER_ON_H100, full).partitions == (PartitionName("h100"),)


def test_of_partitions_that_a_job_lists_slurm_takes_the_highest_tier_first() -> None:
    tiers = (make_partition("a100", is_default=True), make_partition("h100", priority_tier=9))
    cluster = make_snapshot(*H100_CLUSTER.nodes, partitions=tiers)
    job = make_job(partitions=("a100", "h100"))
    # Slurm starts it on the H100 then, where it costs more; the A100 is outside the bound.
    assert decide(job, DEARER_ON_H100, cluster).partitions == (PartitionName("h100"),)
    assert decide(job, DEARER_ON_H100, H100_CLUSTER).partitions is None


def test_a_name_that_sheets_sent_elsewhere_runs_where_slurm_starts_it_before_it_is_sent_there_again() -> None:
    def tried(**runs: int) -> WorkEstimate:
        known = {GpuTypeName(name.replace("_", "-")): number for name, number in runs.items()}
        return replace(make_work({H100: (60.0, 190.0)}), runs_by_type=known)

    first = decide(make_job(), tried(h100_sxm5_80gb=1), H100_CLUSTER)
    assert first.partitions == (PartitionName("h100"),)
    third = decide(make_job(), tried(h100_sxm5_80gb=2), H100_CLUSTER)
    assert third.partitions is None
    assert any("this run is left to Slurm" in note for note in third.notes)
    assert decide(make_job(), tried(h100_sxm5_80gb=2, a100_sxm4_80gb=1), H100_CLUSTER).partitions is None
    # With runs on both and still too much doubt the sheets have the word again.
    both = tried(h100_sxm5_80gb=2, a100_sxm4_80gb=2)
    assert decide(make_job(), both, H100_CLUSTER).partitions == (PartitionName("h100"),)


@pytest.mark.parametrize(("watts", "stays"), [(420.0, False), (120.0, True)], ids=["as measured", "far less"])
def test_measured_workloads_are_a_guide_to_names_that_draw_as_they_do(watts: float, stays: bool) -> None:
    partitions = (make_partition("a40", is_default=True), make_partition("a100"))
    cluster = make_snapshot(make_node("a1", "a100", "a100"), make_node("n1", "a40", "a40"), partitions=partitions)
    runs = replace(make_work({A100: (100.0, watts)}), runs_by_type={A100: 2})
    decision = decide(make_job(), runs, cluster)
    assert decision.partitions == (None if stays else (PartitionName("a100"),))
    assert any("this run is left to Slurm" in note for note in decision.notes) == stays


def test_a_mixed_partition_is_judged_by_its_dearest_type() -> None:
    mixed = make_snapshot(
        make_node("a1", "a100", "a100"),
        make_node("m1", "mixed", "a40"),
        make_node("m2", "mixed", "v100"),
        partitions=(make_partition("a100", is_default=True), make_partition("mixed")),
    )
    job = make_job(partitions=("a100", "mixed"))
    both = make_work({A100: (100.0, 120.0), A40: (100.0, 50.0), V100: (100.0, 60.0)})
    one = make_work({A100: (100.0, 120.0), A40: (100.0, 50.0), V100: (100.0, 160.0)})
    assert decide(job, both, mixed).partitions == (PartitionName("mixed"),)
    assert decide(job, one, mixed).partitions == (PartitionName("a100"),)


figures = st.fixed_dictionaries(
    {name: st.tuples(st.floats(1.0, 1e4), st.floats(10.0, 1000.0)) for name in (A100, A40, V100)}
)


@given(figures, st.floats(0.0, 0.6), st.sampled_from((0.0, 0.05, 0.3)), st.booleans(), st.sets(st.integers(0, 2)))
def test_a_job_is_only_sent_where_its_runs_keep_the_bound_and_save_energy(
    by_type: dict[GpuTypeName, tuple[float, float]], doubt: float, bound: float, listed: bool, full: set[int]
) -> None:
    names = ("a100", "a40", "v100")
    nodes = tuple(
        make_node(name, name, name, allocated=4 if number in full else 0) for number, name in enumerate(names)
    )
    work = make_work(by_type, doubt=doubt)
    job = make_job(partitions=names if listed else (), max_slowdown=bound)
    decision = decide(job, work, make_snapshot(*nodes))
    if decision.partitions is None:
        return
    type_of = {PartitionName("a100"): A100, PartitionName("a40"): A40, PartitionName("v100"): V100}
    free = [gpu_type for number, gpu_type in enumerate(type_of.values()) if number not in full]
    (chosen,) = (type_of[name] for name in decision.partitions)
    assert chosen in free
    if doubt > 0.0:
        return  # of two types with doubt each may be the slower one in the mean
    seconds = {gpu_type: by_type[gpu_type][0] for gpu_type in free}
    assert seconds[chosen] <= min(seconds.values()) * (1.0 + bound) * (1.0 + 1e-9)
    own = next((gpu_type for gpu_type in free if listed or gpu_type == A100), None)
    if own is not None and bound == 0.0:  # with a bound, clocks move energy as well
        joules = {gpu_type: by_type[gpu_type][0] * by_type[gpu_type][1] for gpu_type in free}
        assert joules[chosen] <= joules[own] * (1.0 + 1e-9)


def limited(seconds: float, gpu_type: GpuTypeName | None) -> RuntimeEstimate:
    return RuntimeEstimate(seconds=seconds, upper_seconds=seconds, source="history", gpu_type=gpu_type)


@pytest.mark.parametrize(
    ("runtime", "work", "has_clock"),
    [
        (limited(3000.0, A100), None, True),
        (limited(1500.0, A40), make_work({A100: (100.0, 420.0), A40: (104.0, 280.0)}), True),
        (limited(3400.0, A40), None, True),  # an A40 takes 2.2 times as long at least: the job needs half an hour
        (limited(1700.0, H100), None, False),  # an A100 takes 2.3 times as long: an hour, which is the limit
        (limited(1700.0, None), None, True),  # nobody knows of which type it speaks
    ],
    ids=["the type itself", "by runs", "by measured workloads", "by data sheets", "unknown"],
)
def test_a_run_time_on_another_type_is_what_the_time_limit_is_held_against(
    runtime: RuntimeEstimate, work: WorkEstimate | None, has_clock: bool
) -> None:
    job = make_job(partitions=("a100",), time_limit_minutes=60.0)
    guard = Guard(make_config(), ids=ids())
    decision = guard.decide(OraclePolicy(), job, make_snapshot(), NOW, runtime, work=work)
    assert bool(decision.clocks) == has_clock
    assert (Reason.TIME_LIMIT in decision.reasons) == (not has_clock)


def test_a_data_sheet_never_makes_a_run_shorter() -> None:
    cluster = make_snapshot(make_node("h1", "h100", "h100"), partitions=(make_partition("h100", is_default=True),))
    job, guard = make_job(time_limit_minutes=60.0), Guard(make_config(), ids=ids())
    policy = FixedClockPolicy({}, 0.05)
    assert guard.decide(policy, job, cluster, NOW, limited(3600.0, A100)).estimate == limited(3600.0, A100)
    case = JobOnCluster(job=job, snapshot=cluster, user_groups=())
    candidate = Candidate(partition=cluster.partitions[0], gpu_types=(H100,), has_idle_room=True)
    context = DecisionContext(
        now_seconds=NOW, candidates=(candidate,), may_route=False, max_slowdown=0.05, runtime=limited(3600.0, A100)
    )
    room = slowdown_room(H100, case, context, (candidate,), make_config().guard)
    assert room.time_limit == pytest.approx(-make_config().guard.time_limit_margin)
