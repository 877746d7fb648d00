"""The results page's quick form, and what the policy of the package must show in it. Long runs are `make results`."""

from dataclasses import replace
from statistics import mean

import pytest

from research.results import __main__ as command
from research.results.__main__ import main, selected_sections
from research.results.cases import Case, Effort, candidate_of
from research.results.document import CaseResult, Results, read_results
from research.results.running import run_sections
from research.results.sections import CANDIDATES, SECTIONS

pytestmark = pytest.mark.timeout(1800)

LEARNED, DAEMON = "learned prices", "the daemon"
CASES = ("philly-a100", "chsac-0.04", "wakeup")
LIMITS = "philly-a100-limits"
SHOWN = ("slurm-default", "fixed-clock", "total-cost:V=0,slowdown=0.3")
"""The rules of the mixed cluster that are looked at here; the page has ten more."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of a quick run of three cases."""
    page = tmp_path_factory.mktemp("quick") / "results.md"
    only = [part for case in CASES for part in ("--only", case)]
    sections = [replace(section, cases=tuple(map(with_rules_shown, section.cases))) for section in SECTIONS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "SECTIONS", sections)
        assert main(["--write", str(page), "--quick", "--seeds", "1", "--workers", "2", *only]) == 0
    text = page.read_text(encoding="utf-8")
    assert all(f"(`{case}`)" in text for case in CASES) and f"`{LEARNED}`" in text
    return read_results(page.with_suffix("") / "results.json")


def with_rules_shown(case: Case) -> Case:
    return replace(case, rules=SHOWN) if case.key == CASES[0] else case


@pytest.fixture(scope="module")
def limited() -> CaseResult:
    """Return two days with time limits, and with a near deadline of every job: else few are missed in two days."""
    return run_with_limits(("deadline_share", 1.0), ("max_slack", 6.0), length_share=0.25)


@pytest.fixture(scope="module")
def tight() -> CaseResult:
    """Return two days with limits drawn for the fastest GPU type, so that some jobs cannot end in time on others."""
    return run_with_limits(("limit_seconds_per_unit", 1.0), length_share=0.25)


def run_with_limits(*settings: tuple[str, float], length_share: float) -> CaseResult:
    """Run the case with time limits, longer than the quick form: in its first hours few jobs wait for anything."""
    section = selected_sections(SECTIONS, [LIMITS])[0]
    (case,) = section.cases
    plan = replace(case.plan, settings=(*case.plan.settings, *settings))
    section = replace(section, cases=(replace(case, plan=plan, rules=(case.reference,)),))
    candidates = [candidate_of(text) for text in CANDIDATES]
    effort = Effort(length_share=length_share, max_seeds=1)
    found = run_sections([section], candidates, effort, Results(), workers=2).cases[LIMITS]
    assert found.failures == [] and sorted(found.runs) == sorted((LEARNED, DAEMON, "slurm-default"))
    return found


def over(case: CaseResult, figure: str, policy: str, reference: str) -> float:
    """Return by how many per cent a policy's figure is above a reference's, in the mean over the same seeds."""
    runs, others = case.runs[policy], case.runs[reference]
    return 100.0 * mean(runs[seed][figure] / others[seed][figure] - 1.0 for seed in runs)


def test_the_shipped_policy_saves_a_fifth_on_the_mixed_cluster_and_slows_nobody_down(quick: Results) -> None:
    case = quick.cases["philly-a100"]
    assert over(case, "joules_per_unit", LEARNED, "slurm-default") < -20.0
    assert over(case, "joules_per_unit", LEARNED, "fixed-clock") < -10.0
    assert over(case, "mean_bounded_slowdown", LEARNED, "slurm-default") < 5.0


def test_the_daemon_saves_energy_on_the_mixed_cluster_and_slows_nobody_down(quick: Results) -> None:
    case = quick.cases["philly-a100"]
    # It shows -13 %, and -18 % in the long runs, where it has time to learn what jobs are.
    assert over(case, "joules_per_unit", DAEMON, "slurm-default") < -6.5
    assert over(case, "mean_bounded_slowdown", DAEMON, "slurm-default") <= 5.0


@pytest.mark.parametrize("policy", [LEARNED, DAEMON])
def test_no_more_jobs_miss_their_deadline_and_none_runs_into_its_limit(limited: CaseResult, policy: str) -> None:
    misses = {label: mean(run["deadline_misses"] for run in runs.values()) for label, runs in limited.runs.items()}
    assert misses["slurm-default"] > 5.0  # else there would be nothing to miss fewer of
    assert misses[policy] <= misses["slurm-default"]
    assert all(run["timeouts"] == 0.0 for run in limited.runs[policy].values())
    assert over(limited, "joules_per_unit", policy, "slurm-default") < -6.5


@pytest.mark.long
@pytest.mark.parametrize("policy", [LEARNED, DAEMON])
def test_no_job_runs_into_a_limit_that_it_would_meet_on_another_gpu_type(tight: CaseResult, policy: str) -> None:
    assert all(run["timeouts"] > 0.0 for run in tight.runs["slurm-default"].values())
    assert all(run["timeouts"] == 0.0 for run in tight.runs[policy].values())


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
