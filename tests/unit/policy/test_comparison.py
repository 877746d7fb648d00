"""Partitions by what runs of the job's name measured, and by tables where they say too little."""

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given, settings
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
from property_examples import EXAMPLES
from work_samples import make_work

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.relative_speed import relative_cost
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.guard.clocks import slowdown_room
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.rules.slurm_order import FixedClockRule
from slurm_energy.policy.site.comparison import MAX_LOG_STD, Candidate, TypeComparison, rivals_of

LIMITS = BoardLimits(site_watts={GpuTypeName(name): watts for name, watts in MEASURED_BOARDS.items()})
LIGHT = make_work({A100: (100.0, 120.0), A40: (103.0, 80.0), V100: (300.0, 60.0)}, doubt=0.01)
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
    assert cost.time_ratio == pytest.approx(1.03)
    assert cost.worst_time_ratio == pytest.approx(1.03 * exp(1.28 * 0.01))
    assert cost.energy_ratio == pytest.approx(1.03 * exp(0.01**2 / 2) * 80.0 / 120.0)


@pytest.mark.parametrize(
    ("one", "other", "work"),
    [
        (A40, A100, None),
        (A40, A100, make_work({A100: (1.0, 1.0), A40: (1.0, 1.0)}, doubt=MAX_LOG_STD + 0.01)),
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
    runs = "by runs of this name (7 on a100, 7 on a40, 7 on v100)"
    assert f"beside a100, a40 takes 1.03 times as long and 0.69 of the energy, {runs}" in decision.notes
    assert f"beside a100, v100 takes 3.00 times as long and 1.50 of the energy, {runs}" in decision.notes


def test_without_runs_the_same_job_stays_on_the_fast_type() -> None:
    decision = decide(make_job(partitions=("a100", "a40", "v100")), None)
    assert decision.partitions is None
    assert any("a40 takes 2." in note and "by workloads measured on both" in note for note in decision.notes)
    assert any("v100 takes 2." in note and "by data sheets" in note for note in decision.notes)


def test_a_type_that_runs_found_too_slow_for_the_bound_is_not_named() -> None:
    slow = make_work({A100: (100.0, 120.0), A40: (108.0, 10.0), V100: (300.0, 60.0)})
    assert decide(make_job(partitions=("a100", "a40")), slow).partitions is None
    bold = decide(make_job(partitions=("a100", "a40"), max_slowdown=0.1), slow)
    assert bold.partitions == (PartitionName("a40"),)


def test_doubt_uses_up_the_bound() -> None:
    sure = make_work({A100: (100.0, 120.0), A40: (104.0, 80.0)}, doubt=0.0)
    unsure = make_work({A100: (100.0, 120.0), A40: (104.0, 80.0)}, doubt=0.3)
    job = make_job(partitions=("a100", "a40"))
    assert decide(job, sure).partitions == (PartitionName("a40"),)
    assert decide(job, unsure).partitions is None


def test_a_clock_gets_only_what_the_type_left_of_the_bound() -> None:
    decision = decide(make_job(partitions=("a100", "a40")), LIGHT)
    assert decision.partitions == (PartitionName("a40"),)
    assert all(clock.predicted_slowdown <= 1.05 / (1.03 * exp(1.28 * 0.01)) - 1.0 for clock in decision.clocks)


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


def test_a_name_of_which_some_runs_draw_as_much_as_was_measured_is_not_light() -> None:
    job, mixed = make_job(partitions=("a100",)), replace(drawing(150.0), watts_spread=0.9)
    assert [clock.gpu_type for clock in decide(job, mixed).clocks] == [A100]
    assert decide(job, replace(mixed, watts_spread=0.1)).clocks == ()


@pytest.mark.parametrize(
    "policy", [FixedClockRule(clocks_mhz={A100: 900}, max_slowdown=0.5), OraclePolicy()], ids=lambda policy: policy.name
)
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


def test_what_a_clock_saves_where_the_job_stays_counts() -> None:
    # An H100 would save 5 %; a lower clock on the A100, which is too slow to be named, saves more inside the bound.
    barely = make_work({A100: (100.0, 420.0), H100: (60.0, 665.0)})
    assert decide(make_job(), barely, H100_CLUSTER).partitions is None
    assert decide(make_job(max_slowdown=0.0), barely, H100_CLUSTER).partitions == (PartitionName("h100"),)


def test_nothing_is_compared_where_no_partition_is_open_to_choice() -> None:
    decision = decide(make_job(partitions=("a100", "a40"), array="1-4"), LIGHT)
    assert decision.partitions is None
    assert not any("times as long" in note for note in decision.notes)


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
    there, here = (decide(job, DEARER_ON_H100, one) for one in (cluster, H100_CLUSTER))
    assert (there.partitions, here.partitions) == (None, None)
    assert "h100, where Slurm starts the job, costs the least: it is not sent elsewhere" in there.notes
    assert "a100, where Slurm starts the job, costs the least: it is not sent elsewhere" in here.notes


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
    assert decide(job, one, mixed).partitions is None


# What holds whatever runs say.

TYPES = {PartitionName("a100"): A100, PartitionName("a40"): A40, PartitionName("v100"): V100}


@st.composite
def estimates(draw: st.DrawFn) -> WorkEstimate:
    """Return what runs say: of some types or all, with a doubt of each pair's own, from few runs or many."""
    types = draw(st.lists(st.sampled_from((A100, A40, V100)), min_size=1, unique=True))
    count = len(types)
    doubts = [[0.0] * count for _ in types]
    for one in range(count):
        for other in range(one):
            doubts[one][other] = doubts[other][one] = draw(st.sampled_from((0.0, 0.02, 0.1, 0.3, 0.39, 0.5)))
    return WorkEstimate(
        runs_by_type={name: draw(st.integers(0, 9)) for name in types},
        gpu_types=tuple(types),
        log_seconds=tuple(log(draw(st.floats(1.0, 1e4))) for _ in types),
        log_seconds_doubt=tuple(map(tuple, doubts)),
        log_watts=tuple(log(draw(st.floats(10.0, 1000.0))) for _ in types),
        failed_types=frozenset(draw(st.sets(st.sampled_from((A40, V100)), max_size=1))),
    )


@settings(max_examples=8 * EXAMPLES)
@given(estimates(), st.sampled_from((0.0, 0.05, 0.3, 2.0)), st.booleans(), st.sets(st.integers(0, 2)))
def test_a_job_is_only_sent_where_no_comparison_breaks_its_bound_and_energy_is_saved(
    work: WorkEstimate, bound: float, listed: bool, full: set[int]
) -> None:
    names = tuple(map(str, TYPES))
    nodes = tuple(
        make_node(name, name, name, allocated=4 if number in full else 0) for number, name in enumerate(names)
    )
    job = make_job(partitions=names if listed else (), max_slowdown=bound)
    config = make_config(routing_open=True, less_gpu_memory=True)
    decision = Guard(config, ids=ids()).decide(OraclePolicy(), job, make_snapshot(*nodes), NOW, work=work)
    if decision.partitions is None:
        return
    comparison = TypeComparison(limits=LIMITS, work=work)
    open_types = [gpu_type for number, gpu_type in enumerate(TYPES.values()) if number not in full]
    free = [gpu_type for gpu_type in open_types if gpu_type not in work.failed_types]
    (chosen,) = (TYPES[name] for name in decision.partitions)
    assert chosen in free
    fastest = rivals_of([candidate(name) for name in free], comparison)
    assert fastest is not None
    start = next((gpu_type for gpu_type in open_types if listed or gpu_type == A100), fastest.fastest)
    against = comparison.cost(chosen, start)
    assert against is not None and against.worst_time_ratio <= (1.0 + bound) * (1.0 + 1e-9)
    own = next((gpu_type for gpu_type in free if listed or gpu_type == A100), None)
    if own is not None and own != chosen:
        cost = comparison.cost(chosen, own)
        saved = best_saving(chosen, bound, comparison)
        assert cost is not None and cost.energy_ratio * saved <= 1.0 + 1e-9


def candidate(gpu_type: GpuTypeName) -> Candidate:
    return Candidate(partition=make_partition(gpu_type), gpu_types=(gpu_type,), has_idle_room=True)


def best_saving(gpu_type: GpuTypeName, bound: float, comparison: TypeComparison) -> float:
    """Return the least share of a type's energy that a clock inside a bound can leave."""
    table = comparison.clock_table(gpu_type)
    point = None if table is None else table.best(bound)
    return 1.0 if point is None else 1.0 + point.energy_change


def test_what_runs_say_of_one_pair_is_not_overruled_by_tables_of_two_others() -> None:
    # By runs an A40 is slower and dearer than a V100, where Slurm starts the job; an A100, never tried, beats both by
    # tables, and beside the A100 alone the A40 would look cheap.
    work = WorkEstimate(
        runs_by_type={V100: 20, A40: 20},
        gpu_types=(V100, A40),
        log_seconds=(log(100.0), log(127.0)),
        log_seconds_doubt=((0.0, 0.04), (0.04, 0.0)),
        log_watts=(log(100.0), log(159.0)),
    )
    partitions = (make_partition("v100", is_default=True), make_partition("a40"), make_partition("a100"))
    cluster = make_snapshot(*(make_node(f"n-{name}", name, name) for name in TYPES), partitions=partitions)
    decision = decide(make_job(max_slowdown=2.0), work, cluster)
    assert decision.partitions != (PartitionName("a40"),)


def test_doubt_counts_against_moving_a_job() -> None:
    # In the middle the A40 saves 4 % of the energy; with such a doubt the mean is above what staying costs.
    runs = {A100: (100.0, 420.0), A40: (60.0, 672.0)}
    partitions = (make_partition("a100", is_default=True), make_partition("a40"))
    cluster = make_snapshot(make_node("a1", "a100", "a100"), make_node("n1", "a40", "a40"), partitions=partitions)
    job = make_job(partitions=("a100", "a40"), max_slowdown=0.0)
    assert decide(job, make_work(runs, doubt=0.05), cluster).partitions == (PartitionName("a40"),)
    assert decide(job, make_work(runs, doubt=0.39), cluster).partitions is None


def test_a_type_on_which_a_name_has_only_failed_is_not_named_even_of_a_users_list() -> None:
    failed = replace(LIGHT, failed_types=frozenset({A40}))
    decision = decide(make_job(partitions=("a100", "a40")), failed)
    assert decision.partitions is None
    assert [clock.gpu_type for clock in decide(make_job(partitions=("a40",)), failed).clocks] in ([A40], [])


def test_a_name_that_ran_through_on_less_memory_may_be_sent_there() -> None:
    assert decide(make_job(), LIGHT).partitions == (PartitionName("a40"),)
    unproven = replace(LIGHT, runs_by_type={A100: 7})
    decision = decide(make_job(), unproven)
    assert decision.partitions is None
    assert any("a40 has GPUs of less memory" in note for note in decision.notes)


def test_another_number_of_gpus_than_the_runs_had_adds_to_the_doubt() -> None:
    job = make_job(gpus=4, partitions=("a100", "a40"))
    assert decide(job, replace(LIGHT, gpus=4)).partitions == (PartitionName("a40"),)
    assert decide(job, LIGHT).partitions is None


def test_a_site_that_does_not_want_it_is_decided_by_tables() -> None:
    guard = Guard(make_config(routing_open=True, learn_from_runs=False), ids=ids())
    job = make_job(partitions=("a100", "a40", "v100"))
    assert guard.decide(OraclePolicy(), job, make_snapshot(), NOW, work=LIGHT).partitions is None


def test_names_that_draw_alike_are_told_apart_from_runs_of_the_name() -> None:
    alike = replace(make_work({A100: (100.0, 380.0), A40: (103.0, 250.0)}, doubt=0.01), runs_by_type={A100: 20})
    decision = decide(make_job(partitions=("a100", "a40")), alike)
    assert any("by names that draw alike (20 on a100)" in note for note in decision.notes)


def test_a_partition_that_the_job_may_not_use_is_not_where_slurm_starts_it() -> None:
    partitions = (
        make_partition("closed", allow_groups=("others",)),
        make_partition("a100"),
        make_partition("h100"),
    )
    nodes = (make_node("c1", "closed", "a100"), *H100_CLUSTER.nodes)
    job = make_job(partitions=("closed", "a100", "h100"))
    assert decide(job, DEARER_ON_H100, make_snapshot(*nodes, partitions=partitions)).partitions is None


def limited(seconds: float, gpu_type: GpuTypeName | None) -> RuntimeEstimate:
    return RuntimeEstimate(seconds=seconds, upper_seconds=seconds, source="history", gpu_type=gpu_type)


@pytest.mark.parametrize(
    ("runtime", "work", "has_clock"),
    [
        (limited(3000.0, A100), None, True),
        (limited(1500.0, A40), make_work({A100: (100.0, 420.0), A40: (104.0, 280.0)}), True),
        (limited(3520.0, A40), None, False),  # an A100 is faster, but tables never make a run shorter
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
    policy = FixedClockRule(clocks_mhz={}, max_slowdown=0.05)
    assert guard.decide(policy, job, cluster, NOW, limited(3600.0, A100)).estimate == limited(3600.0, A100)
    candidate = Candidate(partition=cluster.partitions[0], gpu_types=(H100,), has_idle_room=True)
    case = Case(
        job=job,
        snapshot=cluster,
        now_seconds=NOW,
        candidates=(candidate,),
        may_route=False,
        max_slowdown=0.05,
        runtime=limited(3600.0, A100),
    )
    room = slowdown_room(H100, case, (candidate,), make_config().guard)
    assert room.time_limit == pytest.approx(-make_config().guard.time_limit_margin)
