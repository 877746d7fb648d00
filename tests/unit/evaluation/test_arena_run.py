"""One run: its figures and its bounds."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from arena_samples import world_file

from slurm_energy.errors import ConfigError, EvaluationError
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.arena.run import RunRecord, run_one
from slurm_energy.twin.engine.simulation import run


def make_plan(folder: Path, **changes: object) -> ArenaPlan:
    return replace(ArenaPlan(policies=("greedy",), world=str(world_file(folder))), **changes)  # type: ignore[arg-type]  # per field


def without_wall_clock(record: RunRecord) -> RunRecord:
    return replace(record, metrics=replace(record.metrics, mean_decision_seconds=None))


def test_the_same_plan_and_seed_give_the_same_record(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    one, two = (without_wall_clock(run_one(plan, "masked-random", "masked-random", 3)) for _ in range(2))
    assert one == two
    assert one.metrics.completed_jobs > 30


def test_all_policies_meet_the_same_arrivals(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    records = [run_one(plan, name, name, 3) for name in ("greedy", "slurm-default", "masked-random")]
    assert len({record.metrics.jobs for record in records}) == 1


@pytest.mark.slow
def test_a_run_is_held_against_bound_and_frontier(tmp_path: Path) -> None:
    found = run_one(make_plan(tmp_path), "greedy", "greedy", 1, with_frontier=True)
    assert found.bounds is not None and found.frontier is not None
    assert 0.0 <= found.bounds.gap_percent < 60.0
    assert found.bounds.frontier_run_gap_percent is not None
    line = found.frontier.joules_per_unit
    assert all(later <= earlier * (1.0 + 1e-9) for earlier, later in pairwise(line))


def test_a_drained_run_leaves_no_job_and_has_no_frontier(tmp_path: Path) -> None:
    found = run_one(make_plan(tmp_path, drain=True), "greedy", "greedy", 1, with_frontier=True)
    assert (found.metrics.unfinished_jobs, found.frontier) == (0, None)
    assert found.bounds is not None
    assert found.bounds.by_arrival_times and found.bounds.frontier_run_joules_per_unit is None
    assert found.bounds.arrivals_joules_per_unit <= found.bounds.joules_per_unit * (1.0 + 1e-9)


def test_samples_keep_the_energy_of_the_run(tmp_path: Path) -> None:
    found = run_one(make_plan(tmp_path), "greedy", "greedy", 1)
    edges = (0.0, *found.samples.seconds)
    joules = sum(w * (b - a) for w, a, b in zip(found.samples.mean_watts, edges, edges[1:], strict=False))
    assert joules == pytest.approx(found.metrics.total_joules)
    assert len(found.samples.seconds) <= 401


def test_a_rule_that_does_not_fit_the_world_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no place has device 'h100'"):
        run_one(make_plan(tmp_path), "fixed-clock", "fixed-clock:h100=0.5", 1)


def test_energy_that_is_lost_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(*arguments: object, **keywords: object) -> object:
        outcome = run(*arguments, **keywords)  # type: ignore[arg-type]  # passed on as they came
        outcome.total_joules *= 1.0001
        return outcome

    monkeypatch.setattr("slurm_energy.evaluation.arena.run.run", losing)
    with pytest.raises(EvaluationError, match="energy is lost or counted twice"):
        run_one(make_plan(tmp_path), "greedy", "greedy", 1)


def test_work_that_was_not_paid_for_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(*arguments: object, **keywords: object) -> object:
        outcome = run(*arguments, **keywords)  # type: ignore[arg-type]  # passed on as they came
        outcome.energy_joules *= 0.2
        outcome.total_joules = outcome.jobs_joules + sum(outcome.joules_by_component.values())
        return outcome

    monkeypatch.setattr("slurm_energy.evaluation.arena.run.run", generous)
    with pytest.raises(EvaluationError, match="below the"):
        run_one(make_plan(tmp_path), "greedy", "greedy", 1)
