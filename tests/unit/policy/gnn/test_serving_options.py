"""The options of a submitted job: which are open, what they cost, and which clocks there are to choose from."""

from dataclasses import replace
from math import inf, isfinite, log, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_cluster import A100, V100, case_of, lab, node, site, submitted
from small_clusters import NOW, make_node, make_partition, make_snapshot

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus
from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.energy_model.relative_speed import relative_cost
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import option_rows
from slurm_energy.graph.partitions import ClusterFacts
from slurm_energy.policy.base import Case
from slurm_energy.policy.gnn.serving_options import (
    MAX_CLOCKS,
    ServedOption,
    expected_seconds,
    is_trial,
    partitions_to_name,
    served_options,
)
from slurm_energy.policy.guard.partitions import allowed_partitions
from slurm_energy.policy.oracle import oracle_clocks
from slurm_energy.policy.site.comparison import with_room
from slurm_energy.policy.site.type_bound import default_candidate

HOUR = RuntimeEstimate(seconds=3600.0, upper_seconds=4000.0, source="history")


def shown_of(snapshot: ClusterSnapshot) -> ClusterFacts:
    graph = ClusterGraph()
    graph.update(snapshot)
    return ClusterFacts(graph.partition_index, graph.facts, graph.members.sums(graph.nodes.store))


def served(
    job: JobRequest,
    snapshot: ClusterSnapshot,
    config: Config | None = None,
    runtime: RuntimeEstimate | None = None,
    *,
    with_clocks: bool = True,
    **changes: Any,
) -> dict[str, ServedOption]:
    """Return the options by the name of their partition."""
    case = case_of(job, snapshot, config, runtime, **changes)
    found = served_options(case, shown_of(snapshot), with_clocks=with_clocks)
    return {str(one.candidate.partition.name): one for one in found}


def open_ones(found: dict[str, ServedOption]) -> list[str]:
    return [name for name, one in found.items() if one.option.open]


# Which are open.

slurm_types = st.sampled_from(("a100", "a100", "a40", "a40", "v100", "h100", "mi300x", None))
names = ("p0", "p1", "p2")


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    nodes = tuple(
        make_node(
            f"n{number}",
            partition=draw(st.sampled_from(names)),
            available=draw(st.sampled_from((True, True, True, False))),
            gpus=tuple(
                NodeGpus(slurm_type=kind, count=4, allocated=draw(st.sampled_from((0, 0, 2, 4))))
                for kind in draw(st.lists(slurm_types, max_size=2, unique=True))
            ),
        )
        for number in range(draw(st.integers(1, 6)))
    )
    partitions = tuple(
        make_partition(
            name,
            is_default=name == "p0",
            up=draw(st.sampled_from((True, True, True, False))),
            allow_groups=draw(st.sampled_from(((), (), ("chem",)))),
            max_time_minutes=draw(st.sampled_from((None, 60.0, 1440.0))),
        )
        for name in names
    )
    return make_snapshot(nodes, (), partitions)


jobs = st.builds(
    submitted,
    st.sampled_from((1, 1, 2, 4, 8)),
    gpu_type=st.sampled_from((None, None, None, "a100", "a40")),
    to=st.sampled_from(((), (), ("p0",), ("p1", "p2"), ("p2", "p1", "p0"))),
    time_limit_minutes=st.sampled_from((None, 30.0, 600.0)),
    max_slowdown=st.sampled_from((None, 0.0, 0.3, 2.0)),
    array=st.sampled_from((None, None, None, "1-9")),
)


@given(clusters(), jobs, st.booleans(), st.booleans(), st.sampled_from((None, HOUR)))
def test_where_routing_is_open_the_open_options_are_those_that_the_guard_lets_through(
    snapshot: ClusterSnapshot, job: JobRequest, routing_open: bool, in_group: bool, runtime: RuntimeEstimate | None
) -> None:
    config = site(routing_open=routing_open)
    groups = ("chem",) if in_group else ()
    case = case_of(job, snapshot, config, runtime, user_groups=groups)
    found = served_options(case, shown_of(snapshot), with_clocks=True)
    assert [one.candidate for one in found] == list(case.candidates)
    if not case.may_route:
        assert all(one.candidate.is_submitted_to for one in found if one.option.open)
        return
    for one in found:
        verdict = allowed_partitions((one.candidate.partition.name,), case, config.guard)
        # Time limit and deadline are the guard's own matter: the options tell of them in columns.
        taken_back = set(verdict.reasons) - {Reason.TIME_LIMIT, Reason.DEADLINE}
        assert one.option.open == (not taken_back or one.stays), (one.candidate, verdict)
        if one.stays:
            # Too slow to be named, and open all the same: Slurm starts the job there if nothing is named.
            # The guard names the first of a partition's types that breaks anything, so that its word may be the limit.
            assert taken_back == {Reason.SLOWDOWN_BOUND} or taken_back < set(verdict.reasons)
            assert one.candidate is default_candidate(with_room(case.candidates))
            assert partitions_to_name(one, case) is None


def test_every_partition_with_room_is_open_where_the_bound_allows_it() -> None:
    # The worst workload takes more than three times as long on an A40: too slow beside an A100 under any bound.
    assert open_ones(served(submitted(), lab())) == ["a100", "v100"]
    assert open_ones(served(submitted(max_slowdown=0.05), lab())) == ["a100"]
    busy = tuple(node(f"n-{name}", name, name, free=0 if name == "a100" else 4) for name in ("a100", "a40", "v100"))
    # Work in double precision, which an A40 hardly has, takes thirteen times as long there as on a V100.
    assert open_ones(served(submitted(), lab(nodes=busy))) == ["v100"]


def test_a_partition_too_slow_to_be_named_is_open_where_slurm_starts_the_job_anyway() -> None:
    partitions = (make_partition("a40", is_default=True), make_partition("a100"))
    nodes = (node("n1", "a100", "a100"), node("n2", "a40", "a40"))
    job, snapshot = submitted(max_slowdown=0.05), lab(nodes=nodes, partitions=partitions)
    found = served(job, snapshot)
    assert open_ones(found) == ["a40", "a100"]
    assert (found["a40"].stays, found["a100"].stays) == (False, False)
    case = case_of(job, snapshot)
    (stays, _) = served_options(case, shown_of(snapshot), with_clocks=True)
    assert partitions_to_name(stays, case) is None
    assert [one.room for one in found["a40"].types] == [0.05]
    full = lab(nodes=(nodes[0], node("n2", "a40", "a40", free=0)), partitions=partitions)
    assert open_ones(served(job, full)) == ["a100"]


def test_where_routing_is_closed_the_job_goes_where_it_was_sent_and_only_there() -> None:
    found = served(submitted(), lab(), site(routing_open=False))
    assert open_ones(found) == list(found) == ["a100"]
    full = lab(nodes=(node("n1", "a100", free=0),))
    waiting = served(submitted(), full, site(routing_open=False))["a100"].option
    assert (waiting.open, waiting.has_room) == (True, False)
    array = served(submitted(to=("a100", "a40"), array="1-4"), lab())
    assert open_ones(array) == ["a100", "a40"]


def test_unknown_types_are_closed_and_have_no_cost() -> None:
    nodes = (node("n1", "a100"), node("n2", "a40", "mi300x"), node("n3", "v100", None))
    found = served(submitted(), lab(nodes=nodes))
    assert open_ones(found) == ["a100"]
    for name in ("a40", "v100"):
        option = found[name].option
        assert (option.seconds, option.joules, option.clocks) == (None, None, ())


@pytest.mark.usefixtures("h100_without_sheet")
def test_a_partition_with_a_type_that_nobody_can_compare_closes_the_choice() -> None:
    nodes = (node("n1", "a100"), node("n2", "a40", "h100"))
    assert open_ones(served(submitted(), lab(nodes=nodes))) == []


def test_a_partition_in_which_one_type_is_unknown_is_closed() -> None:
    nodes = (node("n1", "a100"), node("n2", "v100", "v100"), node("n3", "v100", "mi300x"))
    found = served(submitted(), lab(nodes=nodes))
    assert found["v100"].candidate.gpu_types == (V100,)
    assert found["v100"].option.has_room
    assert open_ones(found) == ["a100"]


@pytest.mark.usefixtures("h100_without_sheet")
def test_a_full_partition_with_a_type_that_nobody_can_compare_has_no_cost_and_closes_nothing() -> None:
    nodes = (node("n1", "a100"), node("n2", "v100", "v100"), node("n3", "a40", free=0), node("n4", "a40", "h100", 0))
    found = served(submitted(), lab(nodes=nodes))
    assert open_ones(found) == ["a100", "v100"]
    assert (found["a40"].option.seconds, found["a40"].option.joules) == (None, None)


def test_a_partition_of_processors_is_told_and_closed_for_a_job_that_wants_gpus() -> None:
    nodes = (make_node("c1", 0, partition="a100"), node("n2", "a40", "a40"))
    # A job for the default partition, which has no GPU.
    option = served(submitted(), lab(nodes=nodes), site(routing_open=False))["a100"].option
    assert option.is_cpu
    assert not option.open
    assert option.seconds is None
    assert option.gpus_free_after is None


def test_partitions_that_the_published_state_does_not_know_are_left_out() -> None:
    case = case_of(submitted(), lab())
    assert {str(one.partition.name) for one in case.candidates} == {"a100", "a40", "v100"}
    known = lab(partitions=(make_partition("a40"), make_partition("a100")))
    found = served_options(case, shown_of(known), with_clocks=True)
    # Their numbers are those of the published state, whatever the order of the candidates.
    numbers = {str(one.candidate.partition.name): one.option.partition for one in found}
    assert numbers == {"a100": 1, "a40": 0}


# What they cost.


def test_cost_is_that_of_the_fastest_type_with_room_times_the_types_own_ratio() -> None:
    found = served(submitted(2), lab(), runtime=HOUR)
    limits = case_of(submitted(), lab()).board_limits
    cost = relative_cost(V100, A100, limits)
    assert cost is not None
    curves = [curve.on_board(500.0) for curve in curves_of(A100)]
    watts = float(np.mean([curve.watts(curve.high_clock_mhz) for curve in curves]))
    fast, slow = found["a100"].option, found["v100"].option
    assert fast.seconds_full == pytest.approx(3600.0)
    assert fast.joules_full == pytest.approx(2 * 3600.0 * watts)
    assert slow.seconds_full == pytest.approx(3600.0 * cost.time_ratio)
    assert slow.joules_full == pytest.approx(2 * 3600.0 * watts * cost.energy_ratio)
    # At the oracle's clock inside its bound, each is slower and takes less energy.
    for option, gpu_type in ((fast, A100), (slow, V100)):
        table = clock_table_of(gpu_type, power_limit_watts=limits.watts(gpu_type))
        assert table is not None
        point = table.best(2.0)
        assert point is not None
        assert point.slowdown > 0.0 > point.energy_change
        assert option.seconds_full is not None and option.joules_full is not None
        assert option.seconds == pytest.approx(option.seconds_full * (1.0 + point.slowdown))
        assert option.joules == pytest.approx(option.joules_full * (1.0 + point.energy_change))


def test_a_partition_of_two_types_costs_what_its_slower_one_does() -> None:
    mixed = (node("n1", "a100", "a100"), node("n2", "v100", "v100"), node("n3", "v100", "a100"))
    found = served(submitted(), lab(nodes=mixed), runtime=HOUR)
    alone = served(submitted(), lab(), runtime=HOUR)
    assert found["v100"].option.seconds == pytest.approx(alone["v100"].option.seconds)
    assert found["v100"].clocks == ()
    assert found["v100"].option.open


def test_what_would_stay_free_counts_the_job_and_what_was_promised_since() -> None:
    nodes = (node("n1", "a100", free=3), node("n2", "a100", free=4), node("n3", "a40", "a40", free=4))

    def left(**changes: Any) -> float | None:
        return served(submitted(2), lab(nodes=nodes), **changes)["a100"].option.gpus_free_after

    assert left() == pytest.approx(5 / 8)
    assert left(claimed_gpus={PartitionName("a100"): 3.0}) == pytest.approx(2 / 8)
    assert left(claimed_gpus={PartitionName("a100"): inf}) == 0.0


def test_flags_tell_of_room_and_of_where_the_job_was_sent() -> None:
    nodes = (node("n1", "a100", free=0), node("n2", "a40", "a40"), node("n3", "v100", "v100", free=0))
    found = served(submitted(), lab(nodes=nodes))
    assert [(one.option.has_room, one.option.is_where_submitted) for one in found.values()] == [
        (False, True),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("runtime", "limit", "expected"),
    [
        (HOUR, 600.0, 3600.0),
        (None, 600.0, 28_800.0),
        (None, None, 3600.0),
        (None, 0.0, 3600.0),
        (None, -5.0, 3600.0),
        (RuntimeEstimate(seconds=0.0, upper_seconds=0.0, source="history"), 100.0, 4800.0),
    ],
)
def test_length_is_historys_else_a_share_of_the_limit_else_an_hour(
    runtime: RuntimeEstimate | None, limit: float | None, expected: float
) -> None:
    job = submitted(time_limit_minutes=limit)
    case = Case(job=job, snapshot=lab(), now_seconds=NOW, max_slowdown=0.1, runtime=runtime)
    assert expected_seconds(case) == pytest.approx(expected)


@pytest.mark.parametrize("limit", [None, nan, inf, 1e-300])
def test_a_length_that_is_no_number_leaves_columns_that_are(limit: float | None) -> None:
    found = served(
        submitted(time_limit_minutes=limit),
        lab(partitions=tuple(make_partition(name, is_default=name == "a100") for name in ("a100", "a40", "v100"))),
    )
    assert np.isfinite(option_rows([one.option for one in found.values()])).all()


# Clocks.


@pytest.mark.parametrize("bound", [0.0, 0.02, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("routing_open", [True, False])
def test_clocks_lie_inside_what_the_bound_leaves_and_the_oracles_is_among_them(
    bound: float, routing_open: bool
) -> None:
    job, config = submitted(max_slowdown=bound), site(routing_open=routing_open)
    case = case_of(job, lab(), config)
    for name, one in served(job, lab(), config).items():
        if not one.option.open:
            assert (one.clocks, one.option.clocks) == ((), ())
            continue
        (gpu_type,) = one.candidate.gpu_types
        room = case.type_bound.left(gpu_type) if routing_open else bound
        table = clock_table_of(gpu_type, power_limit_watts=case.board_limits.watts(gpu_type))
        assert room is not None and table is not None
        assert 1 <= len(one.clocks) <= MAX_CLOCKS + 1
        assert all(point.slowdown <= room for point in one.clocks)
        assert [point.sm_clock_mhz for point in one.clocks] == sorted({point.sm_clock_mhz for point in one.clocks})
        assert one.clocks[-1].sm_clock_mhz == one.clocks[-1].default_clock_mhz
        best = table.best(room)
        assert [clock.is_oracle for clock in one.option.clocks] == [point is best for point in one.clocks]
        assert sum(clock.is_oracle for clock in one.option.clocks) == 1
        assert [clock.is_default for clock in one.option.clocks] == [False] * (len(one.clocks) - 1) + [True]
        # The guard's own choice for a job that is sent there, unless it is the default clock.
        chosen = oracle_clocks(case, (PartitionName(name),) if routing_open else None)
        expected = {choice.sm_clock_mhz for choice in chosen if choice.gpu_type == gpu_type}
        assert expected in ({best.sm_clock_mhz}, set()) if best is not None else not expected


def test_a_clocks_columns_are_those_of_its_operating_point() -> None:
    one = served(submitted(max_slowdown=0.5), lab())["a100"]
    for point, clock in zip(one.clocks, one.option.clocks, strict=True):
        assert clock.relative_clock == point.sm_clock_mhz / point.default_clock_mhz
        assert clock.slowdown == point.slowdown
        assert clock.bound_left == pytest.approx(0.5 - point.slowdown)
        # Energy is power times time.
        assert clock.power_change is not None and clock.energy_change is not None
        assert (1.0 + clock.power_change) * (1.0 + point.slowdown) == pytest.approx(1.0 + clock.energy_change)
        assert clock.open
    assert len(one.clocks) > MAX_CLOCKS // 2


def test_clocks_are_given_only_where_the_network_is_to_choose_them() -> None:
    found = served(submitted(), lab(), with_clocks=False)
    assert all((one.clocks, one.option.clocks) == ((), ()) for one in found.values())
    assert open_ones(found) == ["a100", "v100"]


def test_a_type_that_nobody_has_measured_has_no_clocks_but_may_be_chosen() -> None:
    nodes = (node("n1", "a100", "h100"), node("n2", "a40", "h100"))
    found = served(submitted(), lab(nodes=nodes), runtime=HOUR)
    assert open_ones(found) == ["a100", "a40"]
    for name in ("a100", "a40"):
        assert found[name].clocks == ()
        assert found[name].option.seconds == pytest.approx(3600.0)
        assert isfinite(found[name].option.joules or nan)


# By runs of the job's name.

DAYS_OF_A100 = RuntimeEstimate(seconds=7200.0, upper_seconds=9000.0, source="history", gpu_type=A100)


def runs_of_a_name(runs: int = 9) -> WorkEstimate:
    """Return work that takes half as long again on a V100, for a third of the power."""
    return WorkEstimate(
        runs_by_type={A100: runs, V100: runs},
        gpu_types=(A100, V100),
        log_seconds=(0.0, log(1.5)),
        log_seconds_doubt=((0.0, 0.01), (0.01, 0.0)),
        log_watts=(log(390.0), log(130.0)),
    )


def test_time_and_energy_are_what_runs_of_the_name_measured() -> None:
    found = served(submitted(gpus=2), lab(), runtime=DAYS_OF_A100, work=replace(runs_of_a_name(), gpus=2))
    (a100,), (v100,) = found["a100"].types, found["v100"].types
    assert (a100.seconds_full, a100.joules_full) == pytest.approx((7200.0, 2 * 7200.0 * 390.0))
    assert (v100.seconds_full, v100.joules_full) == pytest.approx((1.5 * 7200.0, 2 * 1.5 * 7200.0 * 130.0), rel=1e-3)


def test_a_run_time_of_another_type_is_brought_to_the_types_at_hand() -> None:
    on_v100 = replace(DAYS_OF_A100, gpu_type=V100)
    found = served(submitted(), lab(), runtime=on_v100, work=runs_of_a_name())
    assert found["a100"].types[0].seconds_full == pytest.approx(7200.0 / 1.5)
    assert found["v100"].types[0].seconds_full == pytest.approx(7200.0)


def test_power_of_a_type_that_the_name_never_ran_on_is_that_of_the_tables() -> None:
    with_runs, without = (
        served(submitted(), lab(), runtime=DAYS_OF_A100, work=runs_of_a_name(runs))["a100"].types[0] for runs in (9, 0)
    )
    assert with_runs.joules_full == pytest.approx(7200.0 * 390.0)
    assert without.joules_full == served(submitted(), lab(), runtime=DAYS_OF_A100)["a100"].types[0].joules_full


def test_a_name_without_runs_at_home_is_left_to_slurm_once_tables_have_sent_it_away() -> None:
    work = replace(runs_of_a_name(), runs_by_type={V100: 2}, log_seconds_doubt=((0.0, 9.0), (9.0, 0.0)))
    case = case_of(submitted(), lab(), work=work)
    found = {str(one.candidate.partition.name): one for one in served_options(
        case, shown_of(lab()), with_clocks=False
    )}  # fmt: skip
    assert is_trial(found["v100"], case)
    assert partitions_to_name(found["v100"], case) is None
    assert not is_trial(found["a100"], case)
