"""How much nodes and jobs matter."""

import dataclasses
from math import log1p

import numpy as np
import pytest
from sampling_factory import make_cluster, make_nodes, make_tasks

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.ablation.sampling_plan import (
    LARGEST_NODE_RATIO,
    LARGEST_TASK_RATIO,
    node_importance,
    task_importance,
)


def test_importance_of_a_node_is_the_documented_sum() -> None:
    facts = make_nodes(2, degree=[8, 2], critical_path_seconds=[60.0, 180.0], gpus_free=[0.25, 1.0])
    expected = [1 + 1 + log1p(1) / log1p(3) + 0.75, 1 + 0.25 + 1 + 0]
    assert node_importance(facts) == pytest.approx(expected)


@pytest.mark.parametrize(
    "more",
    [{"degree": [4, 9]}, {"critical_path_seconds": [10.0, 900.0]}, {"gpus_free": [1.0, 0.5]}],
    ids=["degree", "critical path", "use"],
)
def test_more_of_one_thing_makes_a_node_more_important(more: dict[str, list[float]]) -> None:
    low, high = node_importance(make_nodes(2, **more))  # type: ignore[arg-type]  # lists of int or float by name
    assert high > low


def test_importance_is_bounded_both_ways() -> None:
    importance = node_importance(make_cluster(200, 4))
    assert importance.min() >= 1.0
    assert importance.max() <= LARGEST_NODE_RATIO
    jobs = task_importance(make_tasks(5, depends=[(0, 1), (0, 2), (0, 3)], critical_path_seconds=[1e9, 1, 0, 0, 0]))
    assert jobs.min() >= 1.0
    assert jobs.max() == LARGEST_TASK_RATIO


def test_unknown_readings_count_as_idle() -> None:
    facts = make_nodes(2, critical_path_seconds=[float("nan"), 0.0], gpus_free=[float("nan"), 1.0])
    assert node_importance(facts) == pytest.approx([2.0, 2.0])


def test_a_job_with_dependents_on_a_long_path_is_more_important_than_one_alone() -> None:
    alone, first, second = task_importance(make_tasks(3, depends=[(1, 2)], critical_path_seconds=[60.0, 7200.0, 60.0]))
    assert first > second > alone


def test_renumbering_nodes_renumbers_their_importance() -> None:
    facts, order = make_cluster(50, 3), np.random.default_rng(1).permutation(50)
    names = ("degree", "devices", "critical_path_seconds", "gpus_free", "group")
    moved = dataclasses.replace(facts, **{name: getattr(facts, name)[order] for name in names})
    assert np.array_equal(node_importance(moved), node_importance(facts)[order])


def test_no_nodes_and_no_jobs_have_no_importance() -> None:
    assert node_importance(make_nodes(0)).shape == (0,)
    assert task_importance(make_tasks(0)).shape == (0,)


def test_facts_of_different_length_are_refused() -> None:
    with pytest.raises(ValueRangeError, match="gpus_free has 3 entries, 2 are needed"):
        dataclasses.replace(make_nodes(2), gpus_free=np.zeros(3, dtype=np.float32))
    with pytest.raises(ValueRangeError, match="wait_partition has 0 entries"):
        dataclasses.replace(make_tasks(2), wait_partition=np.zeros(0, dtype=np.int64))
    with pytest.raises(ValueRangeError, match="depends_index has shape"):
        dataclasses.replace(make_tasks(2), depends_index=np.zeros((3, 1), dtype=np.int64))
