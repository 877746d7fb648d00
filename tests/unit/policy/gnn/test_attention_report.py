"""What the attention report says, against rollouts and paths worked out by hand."""

import itertools
import json
import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slurm_energy.errors import PolicyError
from slurm_energy.policy.gnn.attention_report import (
    attention_report,
    bottlenecks,
    critical_path,
    job_shares,
)
from slurm_energy.policy.gnn.embeddings import TopKind
from slurm_energy.policy.gnn.top_level import OBJECTIVES

_KINDS = [
    TopKind.JOB,
    TopKind.PARTITION,
    TopKind.PARTITION,
    TopKind.QUEUE,
    TopKind.QUEUE,
    TopKind.FABRIC,
    TopKind.CLUSTER,
    TopKind.POWER,
    TopKind.COOLING,
    TopKind.CARBON,
    TopKind.QUALITY,
]
_NAMES = ["job", "a100", "v100", "a100", "v100", "fabric", "cluster", "power", "cooling", "carbon", "quality"]
_ROOM = [None, 0.9, 0.1] + [None] * 8
_V = len(_KINDS)


def _attention(layers: int = 2, heads: int = 6, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(heads, _V, _V, generator=draw).mul(2.0).softmax(-1) for _ in range(layers)]


def _looks_at(rows: dict[int, dict[int, float]]) -> Tensor:
    """Return one layer of three equal heads with the given rows; other rows are zero."""
    layer = torch.zeros(3, _V, _V)
    for row, weights in rows.items():
        for column, weight in weights.items():
            layer[:, row, column] = weight
    return layer


def _mean(layers: list[Tensor]) -> Tensor:
    return torch.stack(layers).double().mean(1)


def _by_matrices(layers: list[Tensor]) -> Tensor:
    """Return the job's row of the product of (I + A) / 2, the job's own share taken out."""
    flow = torch.eye(_V, dtype=torch.float64)
    for layer in layers:
        flow = (torch.eye(_V) + layer.double().mean(0)) / 2.0 @ flow
    row = flow[0].clone()
    row[0] = 0.0
    return row / row.sum()


def test_shares_are_those_of_an_attention_rollout_by_matrices() -> None:
    layers = _attention(layers=3)
    row = _by_matrices(layers)
    shares = attention_report(layers, _KINDS, _NAMES, room=_ROOM).shares
    assert shares.queue == pytest.approx(float(row[3] + row[4]))
    assert shares.bottleneck == pytest.approx(float(row[5] + row[2]))
    assert shares.capacity == pytest.approx(float(row[1]))
    assert shares.cluster == pytest.approx(float(row[6]))
    assert shares.energy == pytest.approx(float(row[7] + row[8] + row[9]))
    assert shares.deadline == pytest.approx(float(row[10]))


def test_shares_of_an_objective_are_those_of_its_third_of_the_heads() -> None:
    layers = _attention()
    report = attention_report(layers, _KINDS, _NAMES)
    assert tuple(report.objectives) == OBJECTIVES
    for number, name in enumerate(OBJECTIVES):
        row = _by_matrices([layer[2 * number : 2 * number + 2] for layer in layers])
        assert report.objectives[name].queue == pytest.approx(float(row[3] + row[4]))
        assert report.objectives[name].deadline == pytest.approx(float(row[10]))


@given(st.integers(0, 10_000), st.integers(1, 4), st.lists(st.booleans(), min_size=_V * _V, max_size=_V * _V))
def test_shares_add_up_to_one_unless_the_job_looks_at_nothing(seed: int, depth: int, flags: list[bool]) -> None:
    allowed = torch.tensor(flags).view(_V, _V)
    layers = [layer * allowed for layer in _attention(depth, seed=seed)]
    layers = [layer / layer.sum(-1, keepdim=True).clamp(min=1e-30) for layer in layers]
    report = attention_report(layers, _KINDS, _NAMES, room=_ROOM)
    for shares in (report.shares, *report.objectives.values()):
        values = asdict(shares).values()
        assert all(0.0 <= value <= 1.0 + 1e-9 for value in values)
        assert sum(values) == pytest.approx(1.0 if bool(allowed[0, 1:].any()) else 0.0)


def test_the_partition_with_the_least_room_is_a_bottleneck_when_several_are_known() -> None:
    layers = [_looks_at({0: {1: 0.6, 2: 0.4}})]
    assert attention_report(layers, _KINDS, _NAMES, room=_ROOM).shares.bottleneck == pytest.approx(0.4)
    assert attention_report(layers, _KINDS, _NAMES).shares.capacity == pytest.approx(1.0)
    one_known: list[float | None] = [None, 0.2, math.nan] + [None] * 8
    assert attention_report(layers, _KINDS, _NAMES, room=one_known).shares.capacity == pytest.approx(1.0)


def test_a_vertex_that_looks_at_nothing_keeps_what_it_is_given() -> None:
    layers = [_looks_at({3: {7: 1.0}}), _looks_at({0: {3: 0.5, 5: 0.5}})]
    shares = job_shares(_mean(layers), _KINDS)
    # Half of the queue's quarter goes on to power; the network has no row and keeps its quarter.
    assert [shares[3], shares[5], shares[7]] == pytest.approx([0.25, 0.5, 0.25])


def test_the_critical_path_is_the_best_chain_of_all_chains() -> None:
    layers = _attention(layers=2, heads=3, seed=4)
    time = [layer[0].double() for layer in layers]
    _, best = max((float(time[1][0, i] * time[0][i, j]), (i, j)) for i, j in itertools.product(range(_V), repeat=2))
    found = critical_path(torch.stack(time), _KINDS, _NAMES)
    words = ["the job", "the capacity of a100", "the capacity of v100", "the queue of a100", "the queue of v100"]
    words += ["the network", "the cluster as a whole", "power", "cooling", "carbon", "deadlines"]
    expected = [words[i] for i in best if i != 0]
    assert list(found) == [key for key, _ in itertools.groupby(expected)]


def test_the_critical_path_goes_from_the_job_outwards_and_names_a_vertex_once() -> None:
    layers = [_looks_at({3: {5: 0.9, 3: 0.1}}), _looks_at({0: {3: 0.7, 4: 0.3}})]
    assert critical_path(_mean(layers), _KINDS, _NAMES) == ("the queue of a100", "the network")
    stays = [_looks_at({3: {3: 1.0}}), _looks_at({0: {3: 1.0}})]
    assert critical_path(_mean(stays), _KINDS, _NAMES) == ("the queue of a100",)
    assert critical_path(_mean([_looks_at({})]), _KINDS, _NAMES) == ()


def test_critical_path_and_bottlenecks_are_those_of_the_time_heads() -> None:
    layer = _looks_at({0: {4: 1.0}})
    layer[1:] = _looks_at({0: {5: 1.0}})[1:]
    report = attention_report([layer], _KINDS, _NAMES)
    assert report.critical_path == ("the queue of v100",)
    assert [item.words for item in report.bottlenecks] == ["the queue of v100"]


def test_bottlenecks_are_the_resources_at_which_all_vertices_look() -> None:
    layers = [_looks_at({0: {3: 0.4, 7: 0.6}, 6: {3: 0.5, 2: 0.5}, 7: {5: 0.2, 10: 0.8}})]
    found = bottlenecks(_mean(layers), _KINDS, _NAMES)
    assert [item.words for item in found] == ["the queue of a100", "the capacity of v100", "the network"]
    assert [item.share for item in found] == pytest.approx([0.9 / 1.6, 0.5 / 1.6, 0.2 / 1.6])
    assert bottlenecks(_mean([_looks_at({0: {7: 1.0}})]), _KINDS, _NAMES) == ()
    assert len(bottlenecks(_mean(layers), _KINDS, _NAMES, count=1)) == 1


def test_sentences_say_what_was_looked_at() -> None:
    layer = _looks_at({0: {3: 0.41, 10: 0.22, 7: 0.18, 6: 0.1, 1: 0.09}})
    layer[1] = _looks_at({0: {3: 0.41, 10: 0.22, 7: 0.37}})[1]
    layer[2] = _looks_at({0: {3: 0.1, 10: 0.9}})[2]
    assert attention_report([layer], _KINDS, _NAMES).sentences() == [
        "attention: 45 % on deadlines, 31 % on the queue of a100, 18 % on power",
        "most looked at for time at the queue of a100, energy at the queue of a100, fairness at deadlines",
        "critical path: the queue of a100",
    ]


def test_vertices_of_the_same_words_are_taken_together() -> None:
    kinds = [TopKind.JOB, TopKind.FABRIC, TopKind.POWER, TopKind.FABRIC]
    layer = torch.zeros(3, 4, 4)
    layer[:, 0] = torch.tensor([0.0, 0.3, 0.4, 0.3])
    report = attention_report([layer], kinds, ["j", "rack1", "p", "rack2"], "plain")
    assert report.sentences() == ["attention: 60 % on the network, 40 % on power"]


def test_heads_without_a_tie_tell_nothing_of_objectives_and_equal_weights_nothing_at_all() -> None:
    plain = attention_report(_attention(heads=4), _KINDS, _NAMES, "plain")
    assert (plain.objectives, plain.objective_subjects, plain.critical_path, plain.bottlenecks) == ({}, {}, (), ())
    assert len(plain.sentences()) == 1
    none = attention_report(_attention(heads=4), _KINDS, _NAMES, "none")
    assert none.sentences() == []
    assert sum(asdict(none.shares).values()) == pytest.approx(1.0)


def test_a_job_that_looks_at_nothing_has_no_sentences() -> None:
    report = attention_report([_looks_at({})], _KINDS, _NAMES)
    assert report.sentences() == []
    assert report.subjects == ()


@given(st.integers(0, 1000), st.lists(st.text(max_size=80), min_size=_V, max_size=_V))
def test_sentences_are_few_short_and_printable_whatever_the_names(seed: int, names: list[str]) -> None:
    report = attention_report(_attention(seed=seed), _KINDS, names)
    sentences = report.sentences()
    assert 0 < len(sentences) <= 3
    for sentence in sentences:
        assert sentence.isascii()
        assert sentence.isprintable()
        assert len(sentence) <= 200
    assert json.dumps(report.document()).isascii()


def test_the_longest_sentences_keep_to_their_bound() -> None:
    kinds = [TopKind.JOB] + [TopKind.PARTITION] * 9
    names = ["job", *(f"{number}" * 50 for number in range(1, 10))]
    layers = []
    for vertex in range(8):  # a chain through eight partitions, and the job at one of them for each objective
        layer = torch.zeros(3, 10, 10)
        layer[0, 0 if vertex == 7 else vertex + 2, vertex + 1] = 1.0
        layer[1, 0, 1], layer[2, 0, 9] = 1.0, 1.0
        layers.append(layer)
    report = attention_report(layers, kinds, names)
    assert len(report.critical_path) == 8
    assert [120 < len(sentence) <= 200 for sentence in report.sentences()] == [True] * 3


def test_shares_below_one_percent_are_not_worth_a_word() -> None:
    layer = _looks_at({0: {3: 0.991, 7: 0.009}})
    assert attention_report([layer], _KINDS, _NAMES, "plain").sentences() == ["attention: 99 % on the queue of a100"]


def test_the_document_holds_plain_numbers_and_survives_json() -> None:
    document = attention_report(_attention(), _KINDS, _NAMES, room=_ROOM).document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) == {
        "shares",
        "objectives",
        "subjects",
        "objective_subjects",
        "critical_path",
        "bottlenecks",
    }
    assert all(type(value) is float for value in document["shares"].values())


def test_what_is_not_finite_is_left_out() -> None:
    layer = _looks_at({0: {3: 0.5, 7: 0.5}})
    layer[:, 0, 7] = math.nan
    layer[:, 0, 5] = math.inf
    assert attention_report([layer], _KINDS, _NAMES).shares.queue == pytest.approx(1.0)


def test_renumbering_vertices_changes_nothing() -> None:
    layers, order = _attention(), [4, 2, 10, 0, 7, 1, 9, 3, 8, 6, 5]
    report = attention_report(layers, _KINDS, _NAMES, room=_ROOM)
    moved = attention_report(
        [layer[:, order][:, :, order] for layer in layers],
        [_KINDS[i] for i in order],
        [_NAMES[i] for i in order],
        room=[_ROOM[i] for i in order],
    )
    assert moved.sentences() == report.sentences()
    assert asdict(moved.shares) == pytest.approx(asdict(report.shares))


def test_arguments_that_do_not_fit_are_refused() -> None:
    layers = _attention()
    with pytest.raises(PolicyError, match="does not fit 10 vertices"):
        attention_report(layers, _KINDS[:-1], _NAMES)
    with pytest.raises(PolicyError, match="with 10 names"):
        attention_report(layers, _KINDS, _NAMES[:-1])
    with pytest.raises(PolicyError, match="does not fit"):
        attention_report([], _KINDS, _NAMES)
    with pytest.raises(PolicyError, match="no job among the 11"):
        attention_report(layers, [TopKind.POWER] * _V, _NAMES)
    with pytest.raises(PolicyError, match="room is given for 2 of 11"):
        attention_report(layers, _KINDS, _NAMES, room=[0.1, 0.2])
    with pytest.raises(PolicyError, match="4 attention heads are not a multiple of 3"):
        attention_report(_attention(heads=4), _KINDS, _NAMES)
