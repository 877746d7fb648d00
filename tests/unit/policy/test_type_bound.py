"""How much slower a job may become on the GPU type of another partition; the order of a list decides nothing else."""

from itertools import permutations

import pytest
from guard_questions import clocks, decide, routing_to
from policy_factory import A40, A100, H100, make_config, make_job, make_node, make_partition, make_snapshot
from work_samples import make_work

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.policy.registry import create_policy

SLOW_AND_CHEAP = make_work({A100: (100.0, 420.0), A40: (112.0, 250.0), H100: (60.0, 900.0)}, doubt=0.001)
"""An A40 takes 12 % longer than an A100 for two thirds of its energy; an H100 takes 1.3 times its energy."""
SHORT = RuntimeEstimate(seconds=600.0, upper_seconds=700.0, source="history", runs=9)
"""Far inside every time limit."""
NAMES = ("a100", "a40", "h100")


def cluster(*names: str, full: tuple[str, ...] = ()) -> ClusterSnapshot:
    nodes = [make_node(f"{name}-1", name, name, allocated=4 if name in full else 0) for name in names]
    return make_snapshot(*nodes, partitions=tuple(make_partition(name) for name in names))


def sent(names: tuple[str, ...], bound: float, full: tuple[str, ...] = (), **job: float) -> EnergyDecision:
    config = make_config(routing_open=True, max_type_slowdown=bound)
    return decide(
        make_job(partitions=names, **job),
        snapshot=cluster(*names, full=full),
        config=config,
        work=SLOW_AND_CHEAP,
        runtime=SHORT,
    )


def start(names: tuple[str, ...], decision: EnergyDecision, full: tuple[str, ...] = ()) -> str:
    """Return where Slurm starts the job: the first partition with room, those that were named before the others."""
    return next(str(name) for name in (*(decision.partitions or ()), *names) if name not in full)


def test_a_job_goes_to_a_slower_type_within_the_types_own_bound_and_keeps_all_of_the_clocks() -> None:
    near, far = sent(("a100", "a40"), 0.05), sent(("a100", "a40"), 0.15)
    assert (near.partitions, far.partitions) == (None, ("a40",))
    assert clocks(far) == {A40: 1455, A100: 1290}, "5 % of the clock beside the 12 % of the type"


def test_the_line_says_against_what_and_how_much_slower_the_type_is() -> None:
    assert "partition a40 first (at most 12 % longer than on a100): a40 at" in sent(("a100", "a40"), 0.15).message
    faster = sent(("h100", "a100"), 2.0)
    assert "partition a100 first (at most 67 % longer than on h100)" in faster.message
    back = decide(
        make_job(partitions=("a40", "a100")),
        snapshot=cluster("a40", "a100"),
        config=make_config(routing_open=True),
        work=make_work({A40: (112.0, 300.0), A100: (100.0, 100.0)}, doubt=0.001),
        runtime=SHORT,
    )
    assert "partition a100 first (no slower than on a40)" in back.message


def test_a_users_own_bound_is_of_type_and_clock_together() -> None:
    assert sent(("a100", "a40"), 2.0, max_slowdown=0.1).partitions is None
    both = sent(("a100", "a40"), 0.0, max_slowdown=0.14)
    assert both.partitions == ("a40",)
    assert clocks(both).get(A40, 1740) > 1455, "2 % are left of 14 %"


def test_whatever_policy_names_it_a_type_beyond_the_bound_is_refused() -> None:
    config = make_config(routing_open=True, max_type_slowdown=0.05)
    snapshot = cluster("a100", "a40")
    decision = decide(
        make_job(partitions=("a100", "a40")),
        snapshot=snapshot,
        config=config,
        work=SLOW_AND_CHEAP,
        runtime=SHORT,
        policy=routing_to("a40"),
    )
    assert decision.partitions is None and Reason.SLOWDOWN_BOUND in decision.reasons


@pytest.mark.parametrize("policy", ["oracle", "total-cost:V=0"])
@pytest.mark.parametrize("full", [(), ("a40",), ("a100",), ("h100",)])
def test_a_job_starts_in_the_same_partition_in_whatever_order_they_are_listed(
    policy: str, full: tuple[str, ...]
) -> None:
    chosen = set()
    config = make_config(routing_open=True, max_type_slowdown=2.0, name=policy)
    for names in permutations(NAMES):
        decision = decide(
            make_job(partitions=names),
            snapshot=cluster(*names, full=full),
            config=config,
            work=SLOW_AND_CHEAP,
            runtime=SHORT,
            policy=create_policy(config),
        )
        chosen.add(start(names, decision, full))
    assert chosen == {"a100" if "a40" in full else "a40"}


@pytest.mark.parametrize("first", NAMES)
def test_beyond_where_slurm_starts_it_the_order_counts_for_nothing(first: str) -> None:
    orders = [names for names in permutations(NAMES) if names[0] == first]
    assert len({start(names, sent(names, 0.15)) for names in orders}) == 1


@pytest.mark.parametrize("policy", ["oracle", "total-cost:V=0"])
def test_tables_that_do_not_fit_together_choose_alike_in_every_order(policy: str) -> None:
    # Without runs an A100 and an A40 are compared by measurement, and each with V100 and H100 by data sheets.
    names = ("a100", "a40", "v100", "h100")
    config = make_config(routing_open=True, max_type_slowdown=10.0, name=policy)
    chosen = set()
    for order in permutations(names):
        decision = decide(
            make_job(partitions=order),
            snapshot=cluster(*order),
            config=config,
            policy=create_policy(config),
            runtime=SHORT,
        )
        chosen.add(start(order, decision))
    assert len(chosen) == 1
