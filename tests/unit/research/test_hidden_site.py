"""The section on sites that hide their jobs, its tuning and the table with which the page opens."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from research.results.cases import QUICK, Case
from research.results.document import CaseResult, Figures, Results
from research.results.measuring import measured_run
from research.results.page import results_page
from research.results.sections import SECTIONS
from research.results.sections.hidden_site import HIDDEN, KINDS, KNOWING_RULE, NOTHING, PRODUCT, RULE, STATIC
from research.results.site_table import site_table
from research.results.tuning import Search, read_tuned
from slurm_energy.evaluation.arena.plan import ArenaPlan, jobs_with_history, workload_of_plan, world_of_plan
from slurm_energy.evaluation.contenders import create_contender

TINY = ArenaPlan(
    policies=(),
    world="mixed-hidden",
    seeds=(5,),
    horizon_seconds=20_000.0,
    history_days=1.0,
    settings=(("rate_per_second", 0.001), ("users", 6), ("names_per_kind", 1)),
)


def tiny_case() -> Case:
    return Case(key="tiny", title="", plan=TINY, rules=(), reference="")


def test_the_same_jobs_are_compared_however_much_of_the_history_is_known() -> None:
    world = world_of_plan(TINY)
    short, whole = (workload_of_plan(replace(TINY, history_days=days), world, 5) for days in (0.0, 31.0))
    assert [(job.job_id, job.submitted_seconds, job.true_units) for job in short.jobs] == [
        (job.job_id, job.submitted_seconds, job.true_units) for job in whole.jobs
    ]
    before, after = jobs_with_history(TINY, world, 5)
    assert len(before.jobs) > 20 * len(after.jobs) > 0
    assert {job.user for job in after.jobs} <= {job.user for job in before.jobs}


def test_limits_hold_on_the_slowest_gpus_on_which_a_job_may_land() -> None:
    world = world_of_plan(TINY)
    device_of = {pool.name: world.devices[pool.device] for pool in world.pools}
    for job in workload_of_plan(TINY, world, 5).jobs:
        names = job.partitions or tuple(device_of)
        slowest = max(device_of[name].loads[job.kind].seconds_per_unit[-1] for name in names)
        assert job.time_limit_seconds >= job.true_units * slowest / job.gpu_counts[0]


@pytest.mark.slow
def test_slowdown_is_none_for_slurm_itself_and_what_the_clock_makes_it_for_a_fixed_one() -> None:
    default = measured_run(tiny_case(), "slurm-default", "slurm-default", 5)
    lowest = "fixed-clock:a100=0.62,a40=0.5,v100=0.37,h100=0.63"
    slow = measured_run(tiny_case(), "slow", lowest, 5)
    assert default["slurm_place_slowdown_percent"] == pytest.approx(0.0, abs=1e-6)
    assert default["jobs_beyond_bound_percent"] == 0.0
    assert slow["slurm_place_slowdown_percent"] > 5.0
    assert slow["jobs_beyond_bound_percent"] > 0.0


@pytest.mark.slow
def test_a_search_refuses_what_makes_jobs_too_slow() -> None:
    search = Search(replace(TINY, history_days=0.0), seeds=(7,))
    order = tuple(partition.name for partition in world_of_plan(TINY).partitions)
    too_slow = "fixed-clock:a100=0.62,a40=0.5,v100=0.37,h100=0.63"
    assert search.score(order, too_slow) > 1e11 > search.score(order, "slurm-default")
    assert search.best_of(order, ("slurm-default", too_slow)) == "slurm-default"
    assert search.runs == 2


def test_every_kind_of_site_changes_one_thing() -> None:
    middle, *others = KINDS
    for kind in others:
        differing = [
            name
            for name in ("history_days", "load", "limits", "generic_names", "named_partitions")
            if getattr(kind, name) != getattr(middle, name)
        ]
        assert len(differing) == 1, kind.key
    assert HIDDEN in SECTIONS and {kind.key for kind in KINDS} == {case.key for case in HIDDEN.cases}


def test_all_policies_of_the_section_can_be_made_and_yardsticks_alone_know_more() -> None:
    for case in HIDDEN.cases:
        assert case.plan.horizon_seconds is not None and QUICK.of(case).plan.history_days == case.plan.history_days
        for label, text in case.all_rules.items():
            rule = create_contender(text)
            is_yardstick = label in dict(case.yardsticks)
            assert (rule.knowledge == "truth") == is_yardstick, label


def test_what_was_tuned_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    row = {"rate_per_second": 0.1, "named_partitions": 0.5, "order": ["b", "a"], "static": "x", "rule": "y", "runs": 3}
    path.write_text(json.dumps([row]), encoding="utf-8")
    assert read_tuned(path)[0.1, 0.5].order == ("b", "a")
    assert read_tuned(tmp_path / "none.json") == {}


def made_up() -> Results:
    def runs(energy: float, turnaround: float, beyond: float) -> dict[int, Figures]:
        return {
            seed: {
                "joules_per_unit": energy * seed,
                "mean_turnaround_seconds": turnaround,
                "jobs_beyond_bound_percent": beyond,
                "bound_gap_percent": 25.0,
            }
            for seed in (101, 102)
        }

    result = CaseResult(fingerprint="x")
    result.runs = {
        NOTHING: runs(110.0, 1000.0, 0.0),
        STATIC: runs(100.0, 1000.0, 0.0),
        PRODUCT: runs(95.0, 990.0, 1.5),
        RULE: runs(90.0, 1040.0, 20.0),
        KNOWING_RULE: runs(85.0, 1010.0, 20.0),
    }
    result.texts = {label: label for label in result.runs}
    return Results(cases={"hidden-middle": result})


def test_the_page_opens_with_one_table_of_sites() -> None:
    lines = list(site_table(made_up()))
    row = next(line for line in lines if line.startswith("| in the middle"))
    assert "| +10.0 |" in row and "-5.0 [-5.0, -5.0]" in row and "1.5 [1.5, 1.5]" in row
    assert "-15.0" in row and row.endswith("| -20.0 |")
    page = results_page(SECTIONS, made_up(), "results")
    assert page.index("## What is installed, and what it is worth") < page.index("## Summary")
    assert not list(site_table(Results()))
