from math import log, nan

import numpy as np
import pytest

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.options import ClockOption, RunOption, decision_block, together
from slurm_energy.graph.schema import CLOCK, OPTION, TASK

JOB = np.arange(len(TASK), dtype=np.float32)


def rows(features: tuple, array: np.ndarray) -> list[dict[str, float]]:  # type: ignore[type-arg]
    return [dict(zip((feature.name for feature in features), row.tolist(), strict=True)) for row in array]


def test_options_of_one_partition_lie_together_with_their_clocks() -> None:
    slow, fast = ClockOption(relative_clock=0.5, open=False), ClockOption(relative_clock=1.0, is_default=True)
    options = [
        RunOption(partition=4, gpus=1, clocks=(slow, fast)),
        RunOption(partition=2, gpus=1, open=False),
        RunOption(partition=4, gpus=2, clocks=(fast,)),
    ]
    block = decision_block(JOB, options, cluster=3)
    assert block.option_partition.tolist() == [4, 4, 2]
    assert block.option_open.tolist() == [True, True, False]
    assert block.clock_option.tolist() == [0, 0, 1]
    assert block.clock_open.tolist() == [False, True, True]
    assert block.option_job.tolist() == [0, 0, 0]
    assert block.job_cluster.tolist() == [3]
    np.testing.assert_array_equal(block.job_x, JOB[None, :])
    assert together(options) == [options[0], options[2], options[1]]


def test_costs_are_against_the_best_option() -> None:
    options = [
        RunOption(partition=0, gpus=1, seconds=100.0, joules=4000.0, seconds_full=90.0, joules_full=5000.0),
        RunOption(partition=1, gpus=2, seconds=50.0, joules=8000.0, seconds_full=45.0, joules_full=9000.0),
    ]
    first, second = rows(OPTION, decision_block(JOB, options).option_x)
    assert first["relative_seconds"] == pytest.approx(log(2.0))
    assert first["relative_joules"] == 0.0
    assert first["relative_seconds_full"] == pytest.approx(log(90.0 / 50.0))
    assert second["relative_joules_full"] == pytest.approx(log(9000.0 / 4000.0))
    assert second["relative_seconds_full"] == pytest.approx(log(45.0 / 50.0))
    assert first["cost_known"] == second["cost_known"] == 1.0


@pytest.mark.parametrize("cost", [None, nan, 0.0, -1.0, float("inf")])
def test_a_cost_that_nobody_knows_is_no_cost(cost: float | None) -> None:
    options = [
        RunOption(partition=0, gpus=1, seconds=cost, joules=cost, seconds_full=cost),
        RunOption(partition=1, gpus=1, seconds=10.0, joules=100.0),
    ]
    first, second = rows(OPTION, decision_block(JOB, options).option_x)
    assert first["cost_known"] == first["relative_seconds"] == first["relative_seconds_full"] == 0.0
    assert (second["cost_known"], second["relative_seconds"]) == (1.0, 0.0)


def test_every_column_has_its_figure() -> None:
    clock = ClockOption(
        relative_clock=0.8,
        slowdown=0.1,
        energy_change=-0.2,
        is_oracle=True,
        bound_left=0.05,
        power_change=-0.3,
    )
    option = RunOption(
        partition=0,
        gpus=3,
        count_position=0.5,
        has_room=True,
        is_where_submitted=True,
        wait_seconds=60.0,
        gpus_free_after=0.25,
        wake_joules=1e4,
        communication=0.1,
        is_cpu=True,
        clocks=(clock,),
    )
    block = decision_block(JOB, [option])
    values = {
        "has_room": 1,
        "is_where_submitted": 1,
        "gpus": 3,
        "count_position": 0.5,
        "wait_seconds": 60.0,
        "gpus_free_after": 0.25,
        "wake_joules": 1e4,
        "communication": 0.1,
        "is_cpu": 1,
    }
    assert rows(OPTION, block.option_x) == [
        {feature.name: pytest.approx(feature.scaled(values.get(feature.name)), abs=1e-6) for feature in OPTION}
    ]
    clocks = {name: getattr(clock, name) for name in (feature.name for feature in CLOCK)}
    assert rows(CLOCK, block.clock_x) == [
        {feature.name: pytest.approx(feature.scaled(clocks[feature.name]), abs=1e-6) for feature in CLOCK}
    ]


def test_a_job_without_options_has_empty_rows() -> None:
    block = decision_block(JOB, [])
    assert block.option_x.shape == (0, len(OPTION))
    assert block.clock_x.shape == (0, len(CLOCK))
    assert block.option_open.dtype == block.clock_open.dtype == np.bool_


def test_columns_of_another_width_are_refused() -> None:
    with pytest.raises(ValueRangeError, match=r"shape \(3,\)"):
        decision_block(JOB[:3], [])
