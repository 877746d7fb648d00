"""The sweep for static clocks."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import product
from pathlib import Path

import pytest
from arena_samples import WORLD, world_file

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.clock_sweep import MAX_SECONDS, SWEEP_SEED, sweep_plan, sweep_seed, swept_rule
from slurm_energy.evaluation.arena.comparison import ArenaResult
from slurm_energy.evaluation.arena.plan import ArenaPlan, world_of_plan
from slurm_energy.evaluation.arena.run import simulated_run
from slurm_energy.evaluation.metrics import metrics_of
from slurm_energy.policy.registry import create_rule
from slurm_energy.reporting.arena.document import notes_of
from slurm_energy.twin.engine.sampling import DAY_SECONDS
from slurm_energy.twin.engine.simulation import run

THRIFTY, HUNGRY = (0.4, 0.6, 0.8, 1.0), (0.5, 0.75, 1.0)
_CHANGES = {
    "horizon_seconds = 3600\n": "",
    "rate_per_second = 0.02": "rate_per_second = 0.00006",
    "median_units = 2000": "median_units = 1_000_000\nsize_sigma = 0.1",
    "max_gpus = 2": "max_gpus = 1",
    "nodes = 1\n": "nodes = 4\n",
    "power = [100, 20, 30]": "power = [10, 20, 100]",
}
FILLING_UP = reduce(lambda text, change: text.replace(*change), _CHANGES.items(), WORLD)
"""Jobs of days come so seldom that the first pool, best at a high clock, is full on the second day only."""


def make_plan(folder: Path, text: str = WORLD, **changes: object) -> ArenaPlan:
    plan = ArenaPlan(policies=("fixed-clock",), world=str(world_file(folder, text)))
    return replace(plan, **changes)  # type: ignore[arg-type]  # per field


def long_plan(folder: Path) -> ArenaPlan:
    return make_plan(folder, FILLING_UP, horizon_seconds=8.0 * DAY_SECONDS, warm_up_seconds=3.0 * DAY_SECONDS)


def score_of(plan: ArenaPlan, seed: int) -> Callable[[float, float], float]:
    def score(thrifty: float, hungry: float) -> float:
        text = f"fixed-clock:thrifty={thrifty},hungry={hungry}"
        world, _, jobs, outcome = simulated_run(plan, create_rule(text), seed)
        metrics = metrics_of(outcome, world, jobs)
        assert metrics.jobs_by_state.get("PENDING", 0) == 0
        assert metrics.joules_per_unit is not None
        return metrics.joules_per_unit

    return score


def test_a_sweep_uses_no_seed_of_the_comparison() -> None:
    assert sweep_seed((1, 2)) == SWEEP_SEED
    assert sweep_seed((SWEEP_SEED, SWEEP_SEED + 1)) == SWEEP_SEED + 2


def test_a_sweep_finds_the_best_clocks_that_all_pairs_have(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    found = swept_rule(plan, "fixed-clock")
    score = score_of(plan, found.seed)
    best = min(product(THRIFTY, HUNGRY), key=lambda pair: score(*pair))
    assert found.rule == f"fixed-clock:thrifty={best[0]:g},hungry={best[1]:g}"
    assert (found.seconds, found.untried) == (3600.0, ())


def test_the_clock_of_a_type_that_gets_jobs_only_when_the_other_is_full_is_found(tmp_path: Path) -> None:
    plan = long_plan(tmp_path)
    found = swept_rule(plan, "fixed-clock")
    score = score_of(plan, found.seed)
    best = min(product(THRIFTY, HUNGRY), key=lambda pair: score(*pair))
    assert found.rule == f"fixed-clock:thrifty={best[0]:g},hungry={best[1]:g}"
    assert found.untried == ()


def test_a_type_on_which_no_job_runs_stays_at_its_highest_clock_and_is_told(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, FILLING_UP, horizon_seconds=0.5 * DAY_SECONDS)
    found = swept_rule(plan, "fixed-clock")
    assert found.rule.endswith(",hungry=1")
    assert found.untried == ("hungry",)
    notes = notes_of(ArenaResult(plan=plan, world_name="pair", runs=(), failed=(), sweeps=(found,)))
    assert notes[-1].endswith("No clock of hungry changed anything, as no job ran there: the highest is left.")


def test_one_relative_clock_for_all_is_swept_alone(tmp_path: Path) -> None:
    found = swept_rule(make_plan(tmp_path), "fixed-dvfs")
    assert found.rule in {f"fixed-dvfs:f={value:g}" for value in (0.4, 0.5, 0.6, 0.75, 0.8, 1.0)}
    assert found.runs <= 8


def test_runs_of_a_sweep_leave_the_warm_up_out_as_the_comparison_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[object, ...]] = set()

    def noted(*arguments: object, **keywords: object) -> object:
        seen.add((keywords["seed"], keywords["horizon_seconds"], keywords["warm_up_seconds"]))
        return run(*arguments, **keywords)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr("slurm_energy.evaluation.arena.run.run", noted)
    swept_rule(make_plan(tmp_path, horizon_seconds=1800.0, warm_up_seconds=600.0), "fixed-dvfs")
    assert seen == {(SWEEP_SEED, 1800.0, 600.0)}


def test_a_sweep_differs_from_the_comparison_in_the_seed_alone(tmp_path: Path) -> None:
    for changes in (
        {"horizon_seconds": MAX_SECONDS, "warm_up_seconds": 7.0 * DAY_SECONDS},
        {"drain": True, "generator": "poisson", "settings": (("rate_per_second", 0.01),)},
        {"compat": True, "generator": "poisson"},
    ):
        plan = make_plan(tmp_path, **changes)
        assert sweep_plan(plan, world_of_plan(plan)) == replace(plan, seeds=(SWEEP_SEED,))


def test_runs_longer_than_the_longest_are_cut_and_half_of_them_counted(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, horizon_seconds=3.0 * MAX_SECONDS, warm_up_seconds=2.0 * MAX_SECONDS)
    found = sweep_plan(plan, world_of_plan(plan))
    assert (found.horizon_seconds, found.warm_up_seconds) == (MAX_SECONDS, 0.5 * MAX_SECONDS)


def test_jobs_of_a_file_are_replaced_by_those_of_the_generator(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, workload=tmp_path / "jobs.csv", warm_up_seconds=3000.0)
    found = sweep_plan(plan, world_of_plan(plan))
    assert found.is_generated and found.drain
    assert (found.horizon_seconds, found.warm_up_seconds) == (3600.0, 1800.0)


def test_clocks_are_not_tuned_on_the_jobs_of_a_file_alone(tmp_path: Path) -> None:
    text = WORLD[: WORLD.index("[workload]")] + WORLD[WORLD.index("[devices.thrifty]") :]
    plan = make_plan(tmp_path, text, workload=tmp_path / "jobs.csv")
    with pytest.raises(EvaluationError, match=r"fixed-clock:thrifty=0\.8"):
        swept_rule(plan, "fixed-clock")
