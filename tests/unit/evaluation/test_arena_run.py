"""One run: its figures, its bounds, and the sweep for static clocks."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from arena_samples import world_file

from slurm_energy.errors import ConfigError, EvaluationError
from slurm_energy.evaluation.arena_plan import ArenaPlan, workload_of_plan, world_of_plan
from slurm_energy.evaluation.arena_run import RunRecord, run_one
from slurm_energy.evaluation.metrics import metrics_of
from slurm_energy.evaluation.sweep import SWEEP_SEED, sweep_seed, swept_rule
from slurm_energy.policy.rules.registry import create_rule
from slurm_energy.twin.simulation import run


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

    monkeypatch.setattr("slurm_energy.evaluation.arena_run.run", losing)
    with pytest.raises(EvaluationError, match="energy is lost or counted twice"):
        run_one(make_plan(tmp_path), "greedy", "greedy", 1)


def test_work_that_was_not_paid_for_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(*arguments: object, **keywords: object) -> object:
        outcome = run(*arguments, **keywords)  # type: ignore[arg-type]  # passed on as they came
        outcome.energy_joules *= 0.2
        outcome.total_joules = outcome.jobs_joules + sum(outcome.joules_by_component.values())
        return outcome

    monkeypatch.setattr("slurm_energy.evaluation.arena_run.run", generous)
    with pytest.raises(EvaluationError, match="below the"):
        run_one(make_plan(tmp_path), "greedy", "greedy", 1)


def test_a_sweep_uses_no_seed_of_the_comparison() -> None:
    assert sweep_seed((1, 2)) == SWEEP_SEED
    assert sweep_seed((SWEEP_SEED, SWEEP_SEED + 1)) == SWEEP_SEED + 2


def test_a_sweep_finds_the_best_clocks_that_all_pairs_have(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    found = swept_rule(plan, "fixed-clock")
    world = world_of_plan(plan)
    jobs = workload_of_plan(plan, world, found.seed)

    def score(thrifty: float, hungry: float) -> float:
        rule = create_rule(f"fixed-clock:thrifty={thrifty},hungry={hungry}")
        metrics = metrics_of(run(world, jobs, rule, seed=found.seed, horizon_seconds=3600.0), world)
        assert metrics.jobs_by_state.get("PENDING", 0) == 0
        assert metrics.joules_per_unit is not None
        return metrics.joules_per_unit

    best = min(product((0.4, 0.6, 0.8, 1.0), (0.5, 0.75, 1.0)), key=lambda pair: score(*pair))
    assert found.rule == f"fixed-clock:thrifty={best[0]:g},hungry={best[1]:g}"
    assert found.seconds == 3600.0


def test_one_relative_clock_for_all_is_swept_alone(tmp_path: Path) -> None:
    found = swept_rule(make_plan(tmp_path), "fixed-dvfs")
    assert found.rule in {f"fixed-dvfs:f={value:g}" for value in (0.4, 0.5, 0.6, 0.75, 0.8, 1.0)}
    assert found.runs <= 8


def test_clocks_are_not_tuned_on_the_jobs_of_a_file_alone(tmp_path: Path) -> None:
    text = world_file(tmp_path).read_text()
    bare = tmp_path / "bare.toml"
    bare.write_text(text[: text.index("[workload]")] + text[text.index("[devices.thrifty]") :])
    plan = make_plan(tmp_path, world=str(bare), workload=tmp_path / "jobs.csv")
    with pytest.raises(EvaluationError, match=r"fixed-clock:thrifty=0\.8"):
        swept_rule(plan, "fixed-clock")
