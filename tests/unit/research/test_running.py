"""Which runs are kept, and which are made again."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from results_samples import COST, make_case, make_section, world_in

from research.results import provenance, running
from research.results.cases import FULL, Candidate, Section, candidate_of, plan_of
from research.results.document import Results
from research.results.provenance import are_same, inputs_of, revision, revision_of
from research.results.running import run_sections

PLANTED = {COST: -1.0}
"""What no run gives: it is there afterwards if the run was kept."""


pytestmark = pytest.mark.usefixtures("runs_in_this_process")


@pytest.fixture(autouse=True)
def at_a_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the revision: a checkout with changes would keep no runs."""
    monkeypatch.setattr(provenance, "revision", lambda: "abc")


def section_in(folder: Path) -> Section:
    plan = plan_of(world_in(folder), hours=0.2, warm_up_hours=0.05, seeds=1)
    return make_section(make_case(plan=plan, rules=("greedy",), reference="greedy", goals=()))


def run_again(
    section: Section,
    results: Results,
    *candidates: Candidate,
    reuse: bool = True,
    same_revisions: Sequence[str] = (),
) -> Results:
    return run_sections((section,), candidates, FULL, results, reuse=reuse, same_revisions=same_revisions, workers=1)


def planted(results: Results) -> Results:
    """Return results whose every run is replaced by what no run gives."""
    for case in results.cases.values():
        case.runs = {label: dict.fromkeys(by_seed, PLANTED) for label, by_seed in case.runs.items()}
    return results


def kept(results: Results) -> set[str]:
    """Return the labels of the policies whose runs are the planted ones."""
    return {label for label, by_seed in results.cases["one"].runs.items() if PLANTED in by_seed.values()}


def test_runs_are_kept_only_if_asked_and_only_of_the_same_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, mine = section_in(tmp_path), candidate_of("mine::edp")
    results = planted(run_again(section, Results(), mine))
    assert kept(run_again(section, results, mine)) == {"greedy", "mine"}
    assert kept(run_again(section, results, mine, reuse=False)) == set()
    monkeypatch.setattr(provenance, "revision", lambda: "def")
    results = planted(results)
    named = run_again(section, results, mine, same_revisions=("abc",))
    assert kept(named) == {"greedy", "mine"} and set(named.cases["one"].inputs.values()) == {"abc"}
    changed = run_again(section, named, mine)
    assert kept(changed) == set() and set(changed.cases["one"].inputs.values()) == {"def"}


def test_a_policy_of_changed_weights_is_run_again_and_the_rules_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = section_in(tmp_path)
    mine = candidate_of("mine::price:V=7")
    results = planted(run_again(section, Results(), mine))
    monkeypatch.setattr(
        running, "inputs_of", lambda text: inputs_of(text) + (", checkpoint new" if text == mine.text else "")
    )
    assert kept(run_again(section, results, mine)) == {"greedy"}


def test_learned_policies_of_another_call_stay_with_their_inputs_and_old_rules_go(tmp_path: Path) -> None:
    section = section_in(tmp_path)
    results = planted(run_again(section, Results(), candidate_of("mine::edp")))
    results.cases["one"].inputs["mine"] = "another"
    more = run_again(section, results, candidate_of("other::price:V=7"))
    case = more.cases["one"]
    assert sorted(case.runs) == ["greedy", "mine", "other"] and kept(more) == {"greedy", "mine"}
    assert case.inputs["mine"] == "another" and sorted(case.learned) == ["mine", "other"]
    case.learned.remove("mine")
    assert sorted(run_again(section, more).cases["one"].runs) == ["greedy", "other"]


def test_inputs_of_a_run_are_the_revision_and_the_checkpoints_files(tmp_path: Path) -> None:
    assert inputs_of("greedy") == inputs_of("learned-price:checkpoint=shipped,V=2") == "abc"
    folder = tmp_path / "last"
    text = f"learned-price:V=20,checkpoint={folder}"
    assert inputs_of(text) == "abc"  # the run itself says that the folder is missing
    folder.mkdir()
    for name in ("checkpoint.json", "weights.safetensors"):
        (folder / name).write_bytes(b"1")
    first = inputs_of(text)
    (folder / "weights.safetensors").write_bytes(b"2")
    assert len({first, inputs_of(text), "abc"}) == 3
    assert revision_of(first) == revision_of(inputs_of(text)) == "abc"
    assert are_same(first.replace("abc", "old"), first, ["old"])
    assert not are_same(first.replace("abc", "old"), inputs_of(text), ["old"])


def test_a_revision_with_changes_is_the_same_only_if_it_is_named() -> None:
    assert are_same("abc", "abc") and not are_same("abc", "def")
    assert not are_same("abc+changes", "abc+changes") and are_same("abc+changes", "def", ["abc+changes"])
    assert not are_same("unknown", "unknown")


def test_the_revision_follows_the_source_and_says_that_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    found = revision.__wrapped__
    assert found() == "unknown"
    git("init", "-q")
    (tmp_path / "slurm_energy").mkdir()
    (tmp_path / "slurm_energy" / "one.py").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    first = found()
    assert len(first) == 12
    (tmp_path / "results.md").write_text("page")
    git("add", ".")
    git("commit", "-q", "-m", "page")
    assert found() == first
    (tmp_path / "slurm_energy" / "two.py").write_text("2")
    assert found() == f"{first}+changes"
