"""`slurm-energy arena` and `slurm-energy twin` as people run them; published figures of world chsac."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.cli.main import main

PUBLISHED = {
    "dp": (60_595, 11.80, [9_996, 15_166, 20_271, 25_672, 30_957, 36_083]),
    "ucb1": (63_111, 11.70, [9_401, 14_224, 19_007, 24_055, 28_868, 33_572]),
    "jointnf": (67_396, 10.34, [8_059, 12_228, 16_382, 20_712, 24_889, 28_908]),
    "dp-full": (67_193, 12.65, None),
}
"""Completed jobs, J/unit in the published metric, queue at the end of days 2 to 7."""

Compare = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Return a function that runs a comparison and returns exit code and JSON."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        path = tmp_path / "arena.json"
        code = main(["arena", "run", *words, "--json", str(path)])
        return code, json.loads(path.read_text()) if path.exists() else {}

    return run


def words_of(*policies: str) -> list[str]:
    return [word for policy in policies for word in ("--policy", policy)]


def without_wall_clock(document: dict[str, Any]) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = document["runs"]
    for run in runs:
        run["figures"].pop("mean_decision_seconds")
    return runs


def test_published_figures_come_out_exactly(compare: Compare) -> None:
    code, document = compare("--world", "chsac", "--compat", "--first-seed", "123", *words_of(*PUBLISHED))
    assert code == 0
    runs = {run["policy"]: run for run in document["runs"]}
    for policy, (completed, joules_per_unit, queue) in PUBLISHED.items():
        figures = runs[policy]["figures"]
        assert figures["completed_jobs"] == completed
        assert round(figures["published_joules_per_unit"], 2) == joules_per_unit
        if queue is not None:
            assert runs[policy]["waiting_jobs_at_day_end"][1:] == queue
    assert runs["dp-full"]["waiting_jobs_at_day_end"][-1] == 29_504
    assert all(not summary["differences_percent"] for summary in document["summaries"])


def test_rules_that_look_at_the_load_come_near_the_bound(compare: Compare) -> None:
    code, document = compare(
        "--world", "chsac", "--hours", "24", "--first-seed", "123", *words_of("greedy", "price:V=20", "slurm-default")
    )
    assert code == 0
    greedy, price, default = (run for run in document["runs"])
    assert greedy["figures"]["joules_per_unit"] == pytest.approx(8.55, abs=0.03)
    assert price["figures"]["mean_run_seconds"] == pytest.approx(1451.0, abs=30.0)
    assert price["bounds"]["bound_frontier_turnaround_gap_percent"] == pytest.approx(0.1, abs=0.3)
    assert document["bound_joules_per_unit"]["mean"] == pytest.approx(8.476, abs=0.03)
    assert default["figures"]["joules_per_unit"] > 11.0
    for run in document["runs"]:
        assert run["figures"]["total_joules"] >= run["bounds"]["bound_joules"]


def test_figures_do_not_depend_on_the_number_of_processes(compare: Compare) -> None:
    words = ("--world", "chsac", "--hours", "2", "--seeds", "2", *words_of("masked-random", "greedy"))
    one, two = (without_wall_clock(compare(*words, "--workers", workers)[1]) for workers in ("1", "2"))
    assert one == two
    assert len(one) == 4


def test_a_policy_that_fails_costs_the_others_nothing(compare: Compare, capfd: pytest.CaptureFixture[str]) -> None:
    code, document = compare("--world", "chsac", "--hours", "1", *words_of("greedy", "fixed-clock:h900=0.5"))
    assert code == 1
    assert [run["policy"] for run in document["runs"]] == ["greedy"]
    assert [failure["policy"] for failure in document["failures"]] == ["fixed-clock:h900=0.5"]
    captured = capfd.readouterr()
    assert "no place has device 'h900'" in captured.err
    assert "greedy" in captured.out


def test_static_clocks_are_found_on_other_arrivals(compare: Compare) -> None:
    code, document = compare("--world", "lab", "--hours", "6", "--seeds", "2", *words_of("slurm-default", "fixed-dvfs"))
    assert code == 0
    (sweep,) = document["sweeps"]
    assert sweep["rule"].startswith("fixed-dvfs:f=")
    assert sweep["seed"] not in document["plan"]["seeds"]
    figures = {summary["policy"]: summary["figures"]["joules_per_unit"]["mean"] for summary in document["summaries"]}
    assert figures["fixed-dvfs"] < figures["slurm-default"]


def test_a_workload_is_written_changed_and_compared(
    compare: Compare, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "jobs.csv", tmp_path / "arena.html"
    assert main(["twin", "workload", "--world", "chsac", "--hours", "1", "--output", str(path)]) == 0
    code, document = compare("--world", "chsac", "--workload", str(path), *words_of("greedy"), "--html", str(page))
    assert code == 0
    (run,) = document["runs"]
    assert run["figures"]["completed_jobs"] == len(path.read_text().splitlines()) - 1
    assert run["figures"]["unfinished_jobs"] == 0
    assert "<svg" in page.read_text()
    path.write_text(path.read_text() + "0,0,-5,training,1,0\n")
    assert main(["arena", "run", "--world", "chsac", "--workload", str(path), "--policy", "greedy"]) == 1
    assert "column true_units" in capfd.readouterr().err
    code, document = compare("--world", "chsac", "--workload", str(path), *words_of("greedy"), "--skip-bad")
    assert (code, document["runs"][0]["bad_rows"]) == (0, 1)


def test_a_site_replays_its_own_history(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    header = "JobID|Submit|Start|End|State|Partition|AllocTRES|Timelimit|User|Account|JobName|NNodes|NodeList"
    rows = [
        f"{job}|2026-03-01T12:{job:02d}:00|2026-03-01T12:{job:02d}:00|2026-03-01T13:{job:02d}:00|COMPLETED|gpu|"
        f"cpu=8,gres/gpu=4,node=1|1-00:00:00|ann|acc|train|1|n{job % 2}"
        for job in range(1, 21)
    ]
    path, figures = tmp_path / "week.txt", tmp_path / "replay.json"
    path.write_text("\n".join([header, *rows]) + "\n")
    assert main(["twin", "replay", "--sacct", str(path), "--json", str(figures)]) == 0
    document = json.loads(figures.read_text())
    assert [run["policy"] for run in document["runs"]] == ["slurm-default", "adaptive-price"]
    assert document["runs"][0]["figures"]["unfinished_jobs"] == 0
    assert any("every GPU is taken for a100" in note for note in document["notes"])
    assert "every GPU is taken for a100" in capfd.readouterr().out


def test_lists_say_what_there_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["arena", "policies"]) == 0
    assert main(["arena", "worlds"]) == 0
    assert main(["twin", "workload"]) == 0
    printed = capfd.readouterr().out
    assert "adaptive-price" in printed and "chsac" in printed and "rate_per_second" in printed
    assert main(["arena", "policies", "--json"]) == 0
    assert {"price", "clairvoyant", "daemon/oracle"} <= {entry["name"] for entry in json.loads(capfd.readouterr().out)}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--world", "nowhere", "--policy", "greedy"], 1, "not in the package"),
        (["--world", "chsac", "--policy", "gredy"], 1, "known: slurm-default"),
        (["--world", "chsac"], 2, "at least one --policy"),
        (["--world", "chsac", "--policy", "greedy", "--reference", "dp"], 1, "is not one of the policies"),
        (["--world", "chsac", "--policy", "greedy", "--json", "/nowhere/x.json"], 1, "does not exist"),
    ],
)
def test_errors_come_before_the_runs_and_say_what_to_do(
    words: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["arena", "run", *words]) == code
    assert message in capfd.readouterr().err
