"""The results page's quick form, and what the policy of the package must show in it. Long runs are `make results`."""

from statistics import mean

import pytest

from slurm_energy.evaluation.results.__main__ import main
from slurm_energy.evaluation.results.document import CaseResult, Results, read_results

LEARNED = "learned prices"
CASES = ("philly-a100", "chsac-0.04", "wakeup")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of a quick run of three cases."""
    page = tmp_path_factory.mktemp("quick") / "results.md"
    only = [part for case in CASES for part in ("--only", case)]
    assert main(["--write", str(page), "--quick", "--workers", "2", *only]) == 0
    text = page.read_text(encoding="utf-8")
    assert all(f"(`{case}`)" in text for case in CASES) and f"`{LEARNED}`" in text
    return read_results(page.with_suffix("") / "results.json")


def over(case: CaseResult, figure: str, policy: str, reference: str) -> float:
    """Return by how many per cent a policy's figure is above a reference's, in the mean over the same seeds."""
    runs, others = case.runs[policy], case.runs[reference]
    return 100.0 * mean(runs[seed][figure] / others[seed][figure] - 1.0 for seed in runs)


def test_the_shipped_policy_saves_a_fifth_on_the_mixed_cluster_and_slows_nobody_down(quick: Results) -> None:
    case = quick.cases["philly-a100"]
    assert over(case, "joules_per_unit", LEARNED, "slurm-default") < -20.0
    assert over(case, "joules_per_unit", LEARNED, "fixed-clock") < -10.0
    assert over(case, "mean_bounded_slowdown", LEARNED, "slurm-default") < 5.0
    assert all(run["timeouts"] == 0.0 for run in case.runs[LEARNED].values())


@pytest.mark.parametrize(
    ("key", "figure"),
    [("philly-a100", "joules_per_unit"), ("wakeup", "cost_joules_per_unit")],
)
def test_the_shipped_policy_is_no_worse_than_the_rule_it_begins_from(quick: Results, key: str, figure: str) -> None:
    case = quick.cases[key]
    rule = next(label for label in case.runs if label.startswith("total-cost"))
    assert over(case, figure, LEARNED, rule) < 1.0


def test_the_shipped_policy_is_near_the_frontier_of_the_published_sites(quick: Results) -> None:
    runs = quick.cases["chsac-0.04"].runs
    assert mean(run["frontier_excess_percent"] for run in runs[LEARNED].values()) < 1.0
    assert min(run["frontier_excess_percent"] for of in runs.values() for run in of.values()) >= 0.0
