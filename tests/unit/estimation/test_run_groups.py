from math import inf, log

import numpy as np
import pytest
from measured_names import A40, A100, DAY, make_run

from slurm_energy.domain.work import FailedRuns
from slurm_energy.estimation.run_groups import RUNS_PER_TYPE, JobName, group_runs


def test_runs_are_grouped_by_user_name_and_type() -> None:
    runs = [
        make_run("a", A100, seconds=100.0),
        make_run("a", A100, seconds=400.0),
        make_run("a", A40, seconds=50.0),
        make_run("a", A100, seconds=7.0, user=1001),
    ]
    groups = group_runs(runs)
    assert groups.names == (JobName(1000, "a"), JobName(1001, "a"))
    assert groups.gpu_types == (A100, A40)
    assert groups.runs.tolist() == [[2, 1], [1, 0]]
    assert groups.means[0, 0].tolist() == pytest.approx([log(200.0), log(50.0)])
    assert groups.means[0, 1].tolist() == pytest.approx([log(300.0)] * 2)
    assert groups.variances[1, :, 1].tolist() == [inf, inf]


def test_runs_with_the_most_frequent_number_of_gpus_count() -> None:
    runs = [make_run("a", gpus=8, seconds=10.0), *(make_run("a", gpus=2, seconds=60.0) for _ in range(2))]
    groups = group_runs(runs)
    assert groups.runs.tolist() == [[2]]
    assert groups.means[0, 0, 0] == pytest.approx(log(60.0))


def test_the_newest_runs_of_a_type_count() -> None:
    old = [make_run("a", seconds=1.0, ended_at_seconds=0.0) for _ in range(5)]
    new = [make_run("a", seconds=100.0, ended_at_seconds=1.0) for _ in range(RUNS_PER_TYPE)]
    groups = group_runs([*new, *old])
    assert groups.runs.tolist() == [[RUNS_PER_TYPE]]
    assert groups.means[0, 0, 0] == pytest.approx(log(100.0))


def test_a_run_on_one_type_is_not_held_against_one_that_is_months_younger() -> None:
    day = 86_400.0
    old = [make_run("a", A40, ended_at_seconds=0.0), make_run("b", A40, ended_at_seconds=0.0)]
    new = [make_run("a", A100, ended_at_seconds=31.0 * day), make_run("b", A100, ended_at_seconds=29.0 * day)]
    groups = group_runs([*old, *new])
    assert groups.gpu_types == (A100, A40)
    assert groups.runs.tolist() == [[1, 0], [1, 1]]


def test_a_name_whose_runs_differ_has_a_mean_of_less_weight_and_more_runs_give_more() -> None:
    steady = [make_run("steady", seconds=100.0 + number) for number in range(8)]
    generic = [make_run("job.sh", seconds=10.0 ** (number % 4)) for number in range(8)]
    few = [make_run("few", seconds=100.0 + number) for number in range(2)]
    groups = group_runs([*steady, *generic, *few])
    spread = dict(zip((name.name for name in groups.names), groups.variances[:, 0, 0].tolist(), strict=True))
    assert spread["steady"] < spread["few"] < spread["job.sh"]


def test_equal_runs_are_not_taken_to_be_free_of_doubt() -> None:
    groups = group_runs([make_run("a") for _ in range(20)])
    assert np.all(groups.variances > 0.0)


def test_the_order_of_the_runs_does_not_matter() -> None:
    runs = [make_run(f"n{number % 3}", seconds=10.0 + number, ended_at_seconds=float(number)) for number in range(30)]
    one, other = group_runs(runs), group_runs(runs[::-1])
    assert one.names == other.names
    assert np.array_equal(one.means, other.means)
    assert np.array_equal(one.variances, other.variances)


def test_of_two_numbers_of_gpus_that_are_as_frequent_the_smaller_counts() -> None:
    groups = group_runs([make_run("a", gpus=gpus, seconds=gpus * 10.0) for gpus in (8, 2, 8, 2)])
    assert (groups.gpus, groups.runs.tolist()) == ((2,), [[2]])


def test_a_name_of_few_runs_is_taken_to_be_as_steady_as_most_names_are() -> None:
    def spread(of_others: float) -> float:
        random = np.random.default_rng(1)
        others = [
            make_run(f"n{number}", seconds=float(np.exp(random.normal(5.0, of_others))), ended_at_seconds=float(run))
            for number in range(40)
            for run in range(10)
        ]
        groups = group_runs([*others, make_run("few", seconds=100.0), make_run("few", seconds=101.0)])
        place = [name.name for name in groups.names].index("few")
        return float(groups.variances[place, 0, 0])

    assert spread(0.02) < 0.5 * spread(0.5)


def test_runs_of_a_day_each_show_how_steady_a_name_is() -> None:
    steady = group_runs([make_run("a", ended_at_seconds=day * DAY) for day in range(20)])
    loose = group_runs(
        [make_run("a", seconds=100.0 * 2.0 ** (day % 3), ended_at_seconds=day * DAY) for day in range(20)]
    )
    assert steady.variances[0, 0, 0] < 0.001
    assert loose.variances[0, 0, 0] > 5.0 * steady.variances[0, 0, 0]


@pytest.mark.parametrize("name", ["wrap", "sbatch", "interactive", ""])
def test_names_that_slurm_gives_by_itself_are_none(name: str) -> None:
    failures = [FailedRuns(user=1000, name=name, gpu_type=A40, runs=9)]
    groups = group_runs([make_run(name), make_run("mine")], failures)
    assert [one.name for one in groups.names] == ["mine"]
    assert groups.failed == {}


def test_the_spread_of_a_names_power_is_told() -> None:
    steady = [
        make_run(name, watts=300.0 + run, ended_at_seconds=run * DAY)
        for name in ("steady", "steady-2", "steady-3")
        for run in range(12)
    ]
    mixed = [make_run("mixed", watts=40.0 if run % 2 else 400.0, ended_at_seconds=run * DAY) for run in range(12)]
    groups = group_runs([*steady, *mixed])
    spread = dict(zip((one.name for one in groups.names), groups.spreads[:, 1].tolist(), strict=True))
    assert spread["steady"] < 0.1
    assert spread["mixed"] > 0.8
