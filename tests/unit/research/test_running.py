"""Which runs are kept, and which are made again."""

from pathlib import Path

import pytest
from results_samples import COST, make_case, make_section, world_in

from research.results import program, running
from research.results.cases import FULL, Candidate, Section, candidate_of
from research.results.document import Results
from research.results.program import maker_of, program_digest, program_of
from research.results.running import run_sections

PLANTED = {COST: -1.0}
"""What no run gives: it is there afterwards if the run was kept."""


def section_in(folder: Path) -> Section:
    return make_section(make_case(world=world_in(folder), rules=("greedy",), reference="greedy", goals=()))


def run_again(section: Section, results: Results, *candidates: Candidate, reuse: bool = True) -> Results:
    return run_sections((section,), candidates, FULL, results, reuse=reuse, workers=1)


def planted(results: Results) -> Results:
    """Return results whose every run is replaced by what no run gives."""
    for case in results.cases.values():
        case.runs = {label: dict.fromkeys(by_seed, PLANTED) for label, by_seed in case.runs.items()}
    return results


def kept(results: Results) -> set[str]:
    """Return the labels of the policies whose runs are the planted ones."""
    return {label for label, by_seed in results.cases["one"].runs.items() if PLANTED in by_seed.values()}


def test_runs_are_kept_only_if_asked_and_only_of_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, mine = section_in(tmp_path), candidate_of("mine::edp")
    results = planted(run_again(section, Results(), mine))
    assert kept(run_again(section, results, mine)) == {"greedy", "mine"}
    monkeypatch.setattr(running, "maker_of", lambda _text: "another")
    changed = run_again(section, results, mine)
    assert kept(changed) == set() and set(changed.cases["one"].makers.values()) == {"another"}
    monkeypatch.undo()
    assert kept(run_again(section, planted(changed), mine, reuse=False)) == set()


def test_a_policy_of_changed_weights_is_run_again_and_the_rules_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = section_in(tmp_path)
    mine = candidate_of("mine::price:V=7")
    results = planted(run_again(section, Results(), mine))
    monkeypatch.setattr(running, "maker_of", lambda text: maker_of(text) + ("+new" if text == mine.text else ""))
    assert kept(run_again(section, results, mine)) == {"greedy"}


def test_learned_policies_of_another_call_stay_with_their_makers_and_old_rules_go(tmp_path: Path) -> None:
    section = section_in(tmp_path)
    results = planted(run_again(section, Results(), candidate_of("mine::edp")))
    results.cases["one"].makers["mine"] = "another program"
    more = run_again(section, results, candidate_of("other::price:V=7"))
    case = more.cases["one"]
    assert sorted(case.runs) == ["greedy", "mine", "other"] and kept(more) == {"greedy", "mine"}
    assert case.makers["mine"] == "another program" and sorted(case.learned) == ["mine", "other"]
    case.learned.remove("mine")
    assert sorted(run_again(section, more).cases["one"].runs) == ["greedy", "other"]


def test_what_makes_a_run_is_the_program_and_the_checkpoints_files(tmp_path: Path) -> None:
    assert maker_of("greedy") == maker_of("learned-price:checkpoint=shipped,V=2") == program_digest()
    folder = tmp_path / "last"
    text = f"learned-price:V=20,checkpoint={folder}"
    assert maker_of(text) == program_digest()  # whoever runs it will be told that it is not there
    folder.mkdir()
    for name in ("checkpoint.json", "weights.safetensors"):
        (folder / name).write_bytes(b"1")
    first = maker_of(text)
    (folder / "weights.safetensors").write_bytes(b"2")
    assert len({first, maker_of(text), program_digest()}) == 3
    assert program_of(first) == program_of(maker_of(text)) == program_digest()


def test_the_digest_follows_what_makes_runs_and_not_what_tells_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_PACKAGE", tmp_path)
    names = ("twin/engine.py", "twin/worlds/a.toml", "policy/shipped/weights.safetensors")
    made = (*names, "evaluation/results/measuring.py")
    told = ("cli/arena.py", "evaluation/results/page.py", "README.md")
    for name in (*made, *told):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")

    def digest_after(name: str) -> str:
        (tmp_path / name).write_text("2")
        return program.program_digest.__wrapped__()

    first = program.program_digest.__wrapped__()
    assert {digest_after(name) for name in told} == {first}
    assert len({first, *(digest_after(name) for name in made)}) == 1 + len(made)
