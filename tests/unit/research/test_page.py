"""The page and its document, from made-up results; and the pipeline from end to end on a small cluster."""

from dataclasses import replace
from pathlib import Path

import pytest
from results_samples import COST, GOALS, make_case, make_result, make_results, make_section, world_in

from research.agents.__main__ import AGENTS
from research.results.__main__ import main, selected_sections
from research.results.cases import FULL, QUICK, Candidate, Effort, Goal, candidate_of, plan_of
from research.results.document import (
    CaseResult,
    Results,
    fingerprint_of,
    read_results,
    write_results,
)
from research.results.page import results_page
from research.results.plots import write_plots
from research.results.provenance import revision
from research.results.running import run_sections
from research.results.sections import CANDIDATES, SECTIONS
from slurm_energy.errors import ConfigError, EvaluationError
from slurm_energy.evaluation.arena.plan import checked_plan
from slurm_energy.twin.world.file import world_names

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "results.md"
RULES = {"first": 10.0, "second": 8.0, "third": 9.0}


def page_of(result: CaseResult) -> str:
    return results_page((make_section(),), make_results(result), "results")


def test_a_table_names_the_strongest_rule_and_differences_from_the_reference() -> None:
    page = page_of(make_result(RULES, misses={"first": 3.0}))
    assert "| **`second`** | 8.0 [5.8, 10.2] | - | -20.00 [-20.00, -20.00] |" in page
    assert "| `first` | 10.0 [7.3, 12.7] | 3 | - |" in page
    assert page.index("**`second`**") < page.index("`third` |") < page.index("| `first` | 10.0")


def test_the_summary_has_a_line_for_each_of_few_policies_and_counts_their_goals() -> None:
    page = page_of(make_result({**RULES, "net": 6.0}, misses={"first": 3.0, "net": 3.0}))
    line = next(line for line in page.splitlines() if line.startswith("| ["))
    assert line.endswith("| `net` | 1 | -40.0 % | -25.0 % | 4 of 4 |") and page.index(line) < page.index(
        "## How to read"
    )
    many = page_of(make_result({**RULES, "a": 6.0, "b": 5.0, "c": 7.0}))
    assert "| `b` | 1 | -50.0 % | -37.5 % |" in many and "| `a` | 1 |" not in many


def test_verdicts_follow_the_numbers() -> None:
    good = page_of(make_result({**RULES, "net": 6.0}, misses={"first": 3.0, "net": 3.0}))
    assert "| `one` | cheaper than the strongest rule (second) | `net` | -25.00 [-25.00, -25.00] % | - | met |" in good
    assert "| `one` | no more misses than first | `net` | +0.00 [+0.00, +0.00] | - | met |" in good
    bad = page_of(make_result({**RULES, "net": 9.0}, misses={"first": 3.0, "net": 4.0}))
    assert (
        "| `one` | cheaper than the strongest rule (second) | `net` | +12.50 [+12.50, +12.50] % | - | missed |" in bad
    )
    assert "| `one` | no more misses than first | `net` | +1.00 [+1.00, +1.00] | - | missed |" in bad


def test_why_a_goal_is_missed_is_told_once_and_only_where_it_is() -> None:
    goals = (
        Goal(text="cheaper", figure=COST, kind="percent", most=0.0, why="The rule is\n    exact."),
        Goal(text="no misses", figure="misses", kind="value", most=0.0, why="Nobody keeps them."),
        Goal(text="no growth", figure="queue_growth_percent", kind="value", most=1.0, why="Never told."),
    )
    section = make_section(make_case("one", goals=goals), make_case("two", goals=goals))
    bad = make_result({**RULES, "net": 9.0, "other": 9.5}, misses={"net": 0.0, "other": 0.0})
    worse = make_result({**RULES, "net": 9.0}, misses={"net": 2.0})
    page = results_page((section,), Results(cases={"one": bad, "two": worse}), "results")
    assert page.count("Why goals are missed:") == 1
    assert "- *cheaper* (`one`, `two`): The rule is exact.\n" in page
    assert "- *no misses* (`two`): Nobody keeps them.\n" in page
    assert "Never told" not in page
    good = make_result({**RULES, "net": 1.0}, misses={"net": 0.0})
    assert "Why goals" not in results_page((section,), Results(cases={"one": good}), "results")


def test_the_revision_of_runs_is_stated_and_others_are_listed() -> None:
    result = make_result(RULES)
    result.inputs = {"first": "aa", "second": "aa, checkpoint 12", "third": "bb"}
    assert "9 runs, most at revision aa. At others: `one: third` at bb." in page_of(result)
    result.inputs["third"] = "aa"
    assert "9 runs, all at revision aa." in page_of(result)
    result.inputs = {}
    assert "9 runs, all at revision unknown." in page_of(result)


def test_a_policy_that_lacks_seeds_is_told_to_lack_them_and_meets_nothing() -> None:
    result = make_result({**RULES, "net": 6.0}, misses={"first": 3.0, "net": 3.0})
    del result.runs["net"][2]
    page = page_of(result)
    assert "`net` (2 of 3 seeds)" in page and "| met |" not in page
    assert page.count("| open |") == len(GOALS)


@pytest.mark.slow
def test_the_page_is_what_the_results_say() -> None:
    results = read_results(PAGE.with_suffix("") / "results.json")
    assert results_page(SECTIONS, results, "results") == PAGE.read_text(encoding="utf-8")


def test_a_column_that_says_nothing_is_left_out_and_failures_are_told() -> None:
    result = make_result(RULES, misses=dict.fromkeys(RULES, 0.0))
    result.failures.append("third, seed 4: out of memory")
    page = page_of(result)
    assert "missed |" not in page.split("### ")[1].splitlines()[3]
    assert "Failed: third, seed 4: out of memory" in page


def test_the_document_comes_back_as_it_was_written(tmp_path: Path) -> None:
    results = Results(cases={"one": make_result(RULES, misses={"first": 3.0})}, wall_seconds=12.5, is_quick=True)
    path = tmp_path / "deep" / "results.json"
    write_results(path, results)
    assert read_results(path) == results
    before = path.read_bytes()
    write_results(path, read_results(path))
    assert path.read_bytes() == before


def test_half_a_document_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    write_results(path, make_results(make_result(RULES)))
    before = path.read_bytes()

    def full_disk(beside: Path, text: str, **_how: object) -> int:
        beside.write_bytes(text.encode()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_results(path, make_results(make_result({"first": 1.0})))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other", "format_version": 1}', '{"format": 3}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"results\.json"):
        read_results(path)


def test_plots_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    results = make_results(make_result({**RULES, "net": 6.0}))
    for folder in ("a", "b"):
        write_plots(tmp_path / folder, (make_section(),), results)
    one, two = ((tmp_path / folder / "some.svg").read_bytes() for folder in ("a", "b"))
    assert one == two and b"<svg" in one


@pytest.mark.slow
@pytest.mark.usefixtures("runs_in_this_process")
def test_a_small_section_runs_from_world_to_page_and_known_runs_are_kept(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    rules = ("greedy", "fixed-dvfs")
    plan = plan_of(world, hours=0.2, warm_up_hours=0.05, seeds=2)
    case = make_case(plan=plan, rules=rules, reference="greedy", goals=(), frontier=True)
    section = make_section(case)
    candidates = [candidate_of("mine::price:V=50"), candidate_of("elsewhere::other::edp")]
    told: list[tuple[str, int, int]] = []
    results = run_sections((section,), candidates, FULL, Results(), workers=1, tell=lambda *step: told.append(step))
    result = results.cases["one"]
    assert result.failures == []
    seeds = list(case.plan.seeds)
    assert {label: sorted(by_seed) for label, by_seed in result.runs.items()} == {
        "greedy": seeds,
        "fixed-dvfs": seeds,
        "mine": seeds,
    }
    assert result.texts["fixed-dvfs"].startswith("fixed-dvfs:f=")
    assert told[-1] == ("some: runs", 6, 6)
    for figures in (figures for by_seed in result.runs.values() for figures in by_seed.values()):
        assert figures["bound_cost_joules_per_unit"] <= figures[COST] * (1.0 + 1e-9)
        assert figures["frontier_excess_percent"] > -1e-6
    result.runs["greedy"][seeds[0]] = {COST: -1.0}  # would be run again if it were not kept
    again = run_sections(
        (section,), [candidate_of("edp")], FULL, results, reuse=True, same_revisions=[revision()], workers=1
    )
    assert again.cases["one"].runs["greedy"][seeds[0]] == {COST: -1.0}
    assert sorted(again.cases["one"].runs) == ["edp", "fixed-dvfs", "greedy", "mine"]
    write_plots(tmp_path, (section,), again)
    assert "**`" in results_page((section,), again, "results")


@pytest.mark.usefixtures("runs_in_this_process")
def test_a_policy_that_fails_is_told_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    case = make_case(world=world, rules=("greedy",), reference="greedy", goals=())
    results = run_sections(
        (make_section(case),),
        [candidate_of("fixed-clock:h100=0.5")],
        Effort(max_seeds=1, length_share=0.25),
        Results(),
        workers=1,
    )
    assert list(results.cases["one"].runs) == ["greedy"]
    assert "no place has device 'h100'" in results.cases["one"].failures[0]


def test_candidates_have_labels_and_places() -> None:
    assert candidate_of("greedy") == Candidate(label="greedy", text="greedy")
    assert candidate_of("net::wakeup,tum128::gnn:checkpoint=/a/b") == Candidate(
        label="net", text="gnn:checkpoint=/a/b", sections=("wakeup", "tum128")
    )
    section = make_section()
    assert candidate_of("a::one::greedy").runs_in(section, section.cases[0])
    assert candidate_of("a::some::greedy").runs_in(section, section.cases[0])
    assert not candidate_of("a::two::greedy").runs_in(section, section.cases[0])
    for text in ("::greedy", "net::", "a::b::c::d"):
        with pytest.raises(ConfigError):
            candidate_of(text)


def test_every_case_of_the_page_can_be_run() -> None:
    in_section = [(section, case) for section in SECTIONS for case in section.cases]
    cases = [case for _, case in in_section]
    assert len({case.key for case in cases}) == len(cases)
    for section, case in in_section:
        plan = replace(case.plan, policies=tuple(dict.fromkeys(case.all_rules.values())))
        checked_plan(plan)
        assert case.reference in case.compared_rules and len(case.compared_rules) >= 5
        assert len(case.plan.seeds) >= (4 if case.yardsticks else 5)
        assert case.plan.world in world_names()
        texts = (*CANDIDATES, *(agent.option(Path("agents")) for agent in AGENTS))
        learned = {found.label for found in map(candidate_of, texts) if found.runs_in(section, case)}
        assert all(not goal.against or goal.against in {*case.all_rules, *learned} for goal in case.goals)
        assert all(not goal.of or goal.of in learned for goal in case.goals)
        assert not case.undisturbed or case.undisturbed in {other.key for other in cases}
        assert QUICK.of(case).plan.seeds == case.plan.seeds[:2]
    places = {place for section in SECTIONS for place in (section.key, *(case.key for case in section.cases))}
    for text in (*CANDIDATES, *(agent.option(Path("agents")) for agent in AGENTS)):
        assert set(candidate_of(text).sections) <= places
    assert len({agent.label for agent in AGENTS}) == len(AGENTS)
    trained = {(agent.recipe, agent.network, agent.world, agent.begins_as) for agent in AGENTS}
    assert len({agent.name for agent in AGENTS}) == len(trained)


def test_the_fingerprint_follows_world_length_and_merit() -> None:
    case = SECTIONS[1].cases[0]
    same = fingerprint_of(case)
    assert fingerprint_of(replace(case, title="another", goals=())) == same
    others = (
        replace(case, merit=None),
        replace(case, plan=replace(case.plan, horizon_seconds=1000.0)),
        replace(case, plan=replace(case.plan, settings=(("rate_per_second", 0.01),))),
    )
    assert all(fingerprint_of(other) != same for other in others)


def test_sections_and_cases_are_chosen_by_key() -> None:
    chosen = selected_sections(SECTIONS, ["misled", "philly"])
    assert [(section.key, [case.key for case in section.cases]) for section in chosen] == [
        ("scenarios", ["misled"]),
        ("philly", ["philly-a100", "philly-a100-limits"]),
    ]
    with pytest.raises(EvaluationError, match="'nothing' is no section or case"):
        selected_sections(SECTIONS, ["nothing"])


@pytest.mark.slow
def test_the_command_writes_page_document_and_plots_and_renders_them_again(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    command = ["--write", str(page), "--workers", "1"]
    assert main([*command, "--quick", "--seeds", "1", "--only", "tum128-training", "--policy", "mine::edp"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "### Training alone (`tum128-training`)" in text and "| `mine` |" in text and "A short run" in text
    page.unlink()
    assert main([*command, "--render"]) == 0
    assert page.read_text(encoding="utf-8") == text
    assert (tmp_path / "results" / "robustness.svg").is_file()
    assert main([*command, "--only", "nothing"]) == 1


def test_a_short_run_never_replaces_long_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "results" / "results.json"
    write_results(document, make_results(make_result(RULES)))
    before = document.read_bytes()
    assert main(["--write", str(tmp_path / "results.md"), "--quick", "--only", "tum128-training"]) == 1
    assert "has long runs, which --quick would replace: --write another page" in capsys.readouterr().err
    assert document.read_bytes() == before
