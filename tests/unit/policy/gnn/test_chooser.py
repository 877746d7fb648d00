"""A network at work: which option an answer names, and which state it is made from."""

from itertools import permutations

import numpy as np
import pytest
import torch
from block_parts import SMALL
from small_clusters import make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import PartitionName
from slurm_energy.errors import PolicyError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import ClockOption, RunOption
from slurm_energy.policy.gnn.chooser import Choice, NetworkChooser
from slurm_energy.policy.gnn.network import create_network

JOB: Floats = np.linspace(-1.0, 1.0, len(schema.TASK), dtype=np.float32)


def snapshot(*names: str, nodes: int = 4, jobs: int = 2) -> ClusterSnapshot:
    names = names or ("p", "q")
    return make_snapshot(
        tuple(make_node(f"n{number}", partition=names[number % len(names)]) for number in range(nodes)),
        tuple(make_job(number) for number in range(jobs)),
        tuple(make_partition(name) for name in names),
    )


def chooser(seed: int = 1) -> NetworkChooser:
    return NetworkChooser(create_network(SMALL, seed=seed), ClusterGraph())


def option(partition: int, gpus: int = 1, clocks: tuple[bool, ...] = (), *, is_open: bool = True) -> RunOption:
    return RunOption(
        partition=partition,
        gpus=gpus,
        seconds=100.0 * (1 + partition) / gpus,
        joules=1000.0 * gpus,
        open=is_open,
        clocks=tuple(
            ClockOption(relative_clock=(number + 1) / len(clocks), power_change=-0.1 * number, open=one)
            for number, one in enumerate(clocks)
        ),
    )


def choose(one: NetworkChooser, options: list[RunOption]) -> Choice:
    choice = one.choose(JOB, options)
    assert choice is not None
    return choice


@pytest.mark.slow
def test_the_order_of_the_options_does_not_change_which_one_is_chosen() -> None:
    one = chooser()
    one.follow_at_once(snapshot())
    options = [option(0, 1), option(1, 1), option(0, 2, (True, True)), option(1, 4, (True,), is_open=False)]
    first = choose(one, options)
    by_option = {id(item): share for item, share in zip(options, first.probabilities, strict=True)}
    assert sum(first.probabilities) == pytest.approx(1.0, abs=1e-5)
    assert first.probabilities[3] == 0.0
    assert first.probabilities[first.option] == max(first.probabilities)
    assert len({round(share, 6) for share in first.probabilities}) == 4
    for order in permutations(options):
        found = choose(one, list(order))
        assert order[found.option] is options[first.option]
        assert found.probabilities == pytest.approx([by_option[id(item)] for item in order], abs=1e-5)


def test_a_clock_is_counted_among_those_of_its_own_option_and_is_open() -> None:
    one = chooser()
    one.follow_at_once(snapshot())
    # The only open option comes last in the block: the clocks of the others lie before it.
    options = [
        option(1, 2, (False, True, False)),
        option(0, 1, (True, True), is_open=False),
        option(1, 1, (True, True, True), is_open=False),
    ]
    for order in permutations(options):
        choice = choose(one, list(order))
        assert order[choice.option] is options[0]
        assert choice.clock == 1


def test_the_likeliest_clock_is_that_of_the_networks_own_figures() -> None:
    one = chooser()
    one.follow_at_once(snapshot())
    choice = choose(one, [option(0, 1, (True,) * 5)])
    assert choice.clock == int(choice.decisions.clock_log_prob.argmax())


def test_an_option_without_open_clocks_has_none() -> None:
    one = chooser()
    one.follow_at_once(snapshot())
    assert choose(one, [option(0, 1, (False, False))]).clock is None
    assert choose(one, [option(0, 1)]).clock is None


def test_where_nothing_is_open_there_is_no_choice() -> None:
    one = chooser()
    one.follow_at_once(snapshot())
    assert one.choose(JOB, []) is None
    assert one.choose(JOB, [option(0, is_open=False), option(1, is_open=False)]) is None


def test_before_the_first_state_a_choice_is_refused() -> None:
    with pytest.raises(PolicyError, match="no state of the cluster yet"):
        chooser().choose(JOB, [option(0)])


@pytest.mark.parametrize("where", ["decision.policy.partition.0.weight", "top.norm.weight", "device.gpu."])
def test_weights_that_are_not_finite_are_refused_and_never_answered(where: str) -> None:
    one = chooser()
    for name, parameter in one.network.named_parameters():
        if name.startswith(where):
            parameter.data.fill_(torch.nan)
    one.follow_at_once(snapshot())
    with pytest.raises(PolicyError, match="answer is not finite"):
        one.choose(JOB, [option(0), option(1)])


@pytest.mark.slow
def test_until_a_snapshot_is_followed_to_its_end_answers_are_those_of_the_one_before() -> None:
    one = chooser()
    before, after = snapshot(), snapshot(nodes=6, jobs=9)
    one.follow_at_once(before)
    options = [option(0), option(1), option(0, 2)]
    old = choose(one, options).probabilities
    steps = one.follow(after)
    seen = 0
    for _ in steps:
        if choose(one, options).probabilities == old:
            seen += 1
    assert seen >= 2
    assert choose(one, options).probabilities != old
    fresh = chooser()
    fresh.follow_at_once(after)
    assert choose(one, options).probabilities == pytest.approx(choose(fresh, options).probabilities, abs=1e-5)
    assert one.snapshot is after


def test_steps_that_are_broken_off_are_made_up_by_the_next_snapshot() -> None:
    one, fresh = chooser(), chooser()
    next(one.follow(snapshot(nodes=6)))
    steps = one.follow(snapshot(jobs=5))
    for _ in range(2):
        next(steps)
    last = snapshot(nodes=5, jobs=3)
    one.follow_at_once(last)
    fresh.follow_at_once(last)
    options = [option(0), option(1)]
    assert choose(one, options).probabilities == pytest.approx(choose(fresh, options).probabilities, abs=1e-5)


def test_the_same_snapshot_again_is_no_step_and_the_same_state() -> None:
    one = chooser()
    now = snapshot()
    one.follow_at_once(now)
    published = one.state()[0]
    assert list(one.follow(now)) == []
    assert one.state()[0] is published


def test_partitions_keep_their_numbers_until_the_state_with_the_new_ones_is_published() -> None:
    one = chooser()
    one.follow_at_once(snapshot("p", "q"))
    assert list(one.cluster_facts.partition_index) == ["p", "q"]
    steps = one.follow(snapshot("new", "q", "p"))
    next(steps)
    assert list(one.graph.partition_index) == ["new", "q", "p"]
    assert one.cluster_facts.partition_index == {PartitionName("p"): 0, PartitionName("q"): 1}
    assert len(one.state()[0].pooled) == 2
    for _ in steps:
        assert len(one.cluster_facts.partition_index) == len(one.state()[0].pooled)
    assert list(one.cluster_facts.partition_index) == ["new", "q", "p"]
    assert len(one.state()[0].pooled) == 3


@pytest.mark.parametrize("nodes", [0, 1])
def test_a_cluster_of_hardly_anything_is_answered(nodes: int) -> None:
    one = chooser()
    one.follow_at_once(snapshot("p", nodes=nodes, jobs=0))
    assert choose(one, [option(0)]).option == 0
    assert choose(one, [option(0)]).probabilities == pytest.approx([1.0])
