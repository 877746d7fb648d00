"""What a comparison refuses before it runs anything, and the jobs it makes."""

from pathlib import Path
from typing import Any

import pytest
from arena_samples import world_file

from slurm_energy.errors import ConfigError, EvaluationError, PolicyError, ValueRangeError
from slurm_energy.evaluation.arena.plan import (
    ArenaPlan,
    checked_plan,
    run_horizon_seconds,
    seeds_from,
    workload_of_plan,
)


def make_plan(folder: Path, **changes: Any) -> ArenaPlan:
    values: dict[str, Any] = {"policies": ("greedy", "slurm-default"), "world": str(world_file(folder))}
    return ArenaPlan(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"policies": ()}, EvaluationError, "no policy is named"),
        ({"policies": ("greedy", "greedy")}, EvaluationError, "named twice"),
        ({"policies": ("gredy",)}, PolicyError, "known: slurm-default"),
        ({"policies": ("price:V=-1",)}, ValueRangeError, "V=-1"),
        ({"world": "nowhere"}, ConfigError, "'nowhere' is not in the package"),
        ({"world": None}, EvaluationError, "no world is named"),
        ({"seeds": ()}, EvaluationError, "0 seeds"),
        ({"seeds": (-1,)}, EvaluationError, "from 0 up"),
        ({"horizon_seconds": 0.0}, EvaluationError, "not a finite time above 0"),
        ({"horizon_seconds": float("nan")}, EvaluationError, "not a finite time above 0"),
        ({"reference": "dp"}, EvaluationError, "'dp' is not one of the policies greedy, slurm-default"),
        ({"policies": ("price:V=1", "price:V=2"), "reference": "price"}, EvaluationError, "is 2 of the policies"),
        ({"compat": True, "drain": True}, EvaluationError, "exclude each other"),
        ({"compat": True, "workload": Path("jobs.csv")}, EvaluationError, "the jobs here come from a file"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        checked_plan(make_plan(tmp_path, **changes))


def test_a_world_without_jobs_asks_for_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    text = world_file(tmp_path).read_text()
    path.write_text(text[: text.index("[workload]")] + text[text.index("[devices.thrifty]") :])
    with pytest.raises(EvaluationError, match="--workload FILE"):
        checked_plan(make_plan(tmp_path, world=str(path)))


def test_the_reference_is_the_first_policy_or_the_one_named_shortly(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, policies=("greedy", "price:V=5"))
    assert plan.reference_policy == "greedy"
    assert make_plan(tmp_path, policies=plan.policies, reference="price").reference_policy == "price:V=5"


def test_the_length_of_a_run_is_that_of_the_world_unless_another_is_given(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    world = checked_plan(plan)
    assert run_horizon_seconds(plan, world) == 3600.0
    assert run_horizon_seconds(make_plan(tmp_path, horizon_seconds=60.0), world) == 60.0
    assert run_horizon_seconds(make_plan(tmp_path, horizon_seconds=60.0, drain=True), world) is None
    assert run_horizon_seconds(make_plan(tmp_path, workload=Path("jobs.csv")), world) is None


def test_every_seed_has_its_own_arrivals_until_the_length_of_the_run(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, horizon_seconds=7200.0)
    world = checked_plan(plan)
    one, two = (workload_of_plan(plan, world, seed).jobs for seed in (1, 2))
    assert [job.true_units for job in one[:5]] != [job.true_units for job in two[:5]]
    assert 3600.0 < one[-1].submitted_seconds <= 7200.0


def test_jobs_of_a_file_after_the_length_of_the_run_stay_out(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submitted_seconds,true_units,kind\n0,10,training\n50,10,training\n150,10,training\n")
    plan = make_plan(tmp_path, workload=path, horizon_seconds=100.0)
    assert [job.submitted_seconds for job in workload_of_plan(plan, checked_plan(plan), 1).jobs] == [0.0, 50.0]


def test_seeds_follow_the_first() -> None:
    assert seeds_from(5, 3) == (5, 6, 7)
