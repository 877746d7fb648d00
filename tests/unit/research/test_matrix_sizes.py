"""Matrix products by size: figures of a run, verdicts from hand-made figures, document, plot, page and command."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from results_samples import make_case, make_result, make_section

from research.results.cases import FIRST_SEED, FULL, Effort, Section, candidate_of
from research.results.document import MatrixSizes, Results, read_results, write_results
from research.results.matrix_sizes import (
    KEY,
    RANGES,
    RULES,
    clock_rise,
    range_figures,
    ranges_as_asked,
    sized_case,
    sized_run,
)
from research.results.page import results_page
from research.results.plots import write_plots
from research.results.provenance import revision
from research.results.running import run_sections
from research.results.sections.cluster128 import TUM
from slurm_energy.twin.workloads.matrix import MATRIX_SIDES

SHORT = Effort(max_seeds=1, length_share=1.0 / 48.0)
SHORTER = Effort(max_seeds=1, length_share=1.0 / 192.0)
SECTION = replace(make_section(make_case(key=KEY)), key=KEY)
ALL_HIGH = dict.fromkeys(MATRIX_SIDES, (0.0, 1.0))
AS_ASKED = {200: (1.0, None), 400: (0.2, 0.4), 800: (0.0, 0.5), 1000: (0.0, 0.6), 1200: (0.0, 0.9), 1800: (0.0, 1.0)}


def figures_of(by_size: Mapping[int, tuple[float, float | None]], jobs: float = 10.0) -> dict[int, Mapping[str, float]]:
    """Return figures from shares on CPUs and positions between the clocks 0.5 and 1."""
    return {
        size: {"jobs": jobs, "devices": 1.0, "cpu_share": cpu_share, "settable_share": 1.0 - cpu_share}
        | ({} if position is None else {"relative_clock": 0.5 + 0.5 * position, "clock_position": position})
        for size, (cpu_share, position) in by_size.items()
    }


def made_up(**sizes: Mapping[int, tuple[float, float | None]]) -> MatrixSizes:
    return MatrixSizes(
        fingerprint="made up",
        seed=1,
        hours=12.0,
        texts={label: label for label in sizes},
        sizes={label: figures_of(by_size) for label, by_size in sizes.items()},
    )


def results_with(sizes: MatrixSizes | None) -> Results:
    return Results(cases={KEY: make_result({"first": 10.0, "second": 8.0})}, matrix_sizes=sizes)


def short_section() -> Section:
    case = replace(TUM.cases[0], rules=("greedy",), reference="greedy", goals=())
    return replace(TUM, cases=(case,))


def test_a_range_that_mostly_runs_on_cpus_is_cpu_and_else_a_third_of_the_clocks() -> None:
    levels = {}
    for position in (0.0, 0.3, 0.5, 0.7, 1.0):
        found = range_figures(figures_of({1200: (0.5, position)}), RANGES[2])
        assert found is not None
        levels[position] = found.level
    assert levels == {0.0: "low", 0.3: "low", 0.5: "middle", 0.7: "high", 1.0: "high"}
    on_cpus = range_figures(figures_of({1200: (0.51, 1.0)}), RANGES[2])
    assert on_cpus is not None and on_cpus.level == "CPU"
    assert range_figures(figures_of({1200: (0.0, 1.0)}), RANGES[1]) is None


def test_a_gpu_with_one_clock_says_nothing_of_the_choice_of_clocks() -> None:
    only = {"jobs": 10.0, "cpu_share": 0.0, "settable_share": 0.0, "relative_clock": 1.0}
    found = range_figures({1200: only}, RANGES[2])
    assert found is not None and (found.level, found.relative_clock, found.clock_position) == ("one clock", 1.0, None)
    mixed = {400: only | {"jobs": 30.0}, **figures_of({600: (0.0, 0.0)})}
    found = range_figures(mixed, RANGES[1])
    assert found is not None and found.level == "low"
    assert found.relative_clock == pytest.approx((30.0 * 1.0 + 10.0 * 0.5) / 40.0)


def test_both_limits_are_in_the_middle_range_and_every_job_counts_once() -> None:
    assert [[size for size in MATRIX_SIDES if size in sizes] for sizes in RANGES] == [
        [200],
        [400, 600, 800, 1000],
        [1200, 1400, 1600, 1800],
    ]
    few, many = figures_of({400: (1.0, None)}, jobs=10.0), figures_of({600: (0.0, 1.0)}, jobs=30.0)
    found = range_figures({**few, **many}, RANGES[1])
    assert found is not None and (found.cpu_share, found.relative_clock) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("by_size", "rise", "met"),
    [
        (AS_ASKED, "rises", (3, 3)),
        (ALL_HIGH, "flat", (1, 3)),
        ({200: (0.0, 0.0), 800: (0.0, 0.9), 1200: (0.0, 0.7)}, "does not rise", (2, 3)),
        ({200: (0.9, 1.0), 800: (0.0, 0.5), 1200: (0.0, 0.46)}, "flat", (2, 3)),
        ({200: (1.0, None), 800: (1.0, None)}, "-", (1, 2)),
    ],
)
def test_verdicts_follow_the_figures(
    by_size: Mapping[int, tuple[float, float | None]], rise: str, met: tuple[int, int]
) -> None:
    figures = figures_of(by_size)
    assert (clock_rise(figures), ranges_as_asked(figures)) == (rise, met)


def test_the_page_tells_what_is_asked_and_what_was_found() -> None:
    page = results_page((SECTION,), results_with(made_up(net=AS_ASKED, first=ALL_HIGH)), "results")
    assert "12 hours of arrivals of world `tum128`, one seed (1): a picture" in " ".join(page.split())
    assert "| *asked* | CPU or low | middle | high | rises | - |" in page
    assert (
        "| `net` | CPU: 100 % on CPUs | middle: 7 % on CPUs, clock 0.75 | high: 0 % on CPUs, clock 0.97 | rises "
        "| 3 of 3 as asked |"
    ) in page
    assert "| `first` | high: 0 % on CPUs, clock 1.00 |" in page and "| flat | 1 of 3 as asked |" in page
    assert "| `net` | - (100) | 0.70 (20) | - | 0.75 (0) |" in page
    assert "![Matrix products by size](results/matrix-sizes.svg)" in page
    elsewhere = replace(SECTION, key="other")
    assert "Matrix products" not in results_page((elsewhere,), results_with(made_up(net=AS_ASKED)), "results")


def test_the_part_comes_back_as_it_was_written(tmp_path: Path) -> None:
    sizes = made_up(net=AS_ASKED, first=ALL_HIGH)
    sizes.failures.append("third: out of memory")
    path = tmp_path / "results.json"
    write_results(path, results_with(sizes))
    known = read_results(path)
    assert known == results_with(sizes)
    assert known.matrix_sizes is not None and list(known.matrix_sizes.texts) == ["net", "first"]
    before = path.read_bytes()
    write_results(path, known)
    assert path.read_bytes() == before
    assert "Failed: third: out of memory" in results_page((SECTION,), known, "results")


def test_a_document_without_the_part_is_read_and_shown_without_it(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, results_with(None))
    assert "matrix_sizes" not in path.read_text(encoding="utf-8")
    known = read_results(path)
    assert known.matrix_sizes is None
    assert "Matrix products" not in results_page((SECTION,), known, "results")
    write_plots(tmp_path, (SECTION,), known)
    assert [file.name for file in tmp_path.glob("*.svg")] == ["tum128.svg"]


def test_where_every_run_failed_there_is_neither_table_nor_plot(tmp_path: Path) -> None:
    sizes = replace(made_up(), failures=["fcfs: out of memory"])
    page = results_page((SECTION,), results_with(sizes), "results").partition("### Matrix products")[2]
    assert "Failed: fcfs: out of memory" in page and "|" not in page and "svg" not in page
    write_plots(tmp_path, (SECTION,), results_with(sizes))
    assert [file.name for file in tmp_path.glob("*.svg")] == ["tum128.svg"]


@pytest.mark.slow
def test_the_plot_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_plots(tmp_path / folder, (SECTION,), results_with(made_up(net=AS_ASKED, first=ALL_HIGH)))
    one, two = ((tmp_path / folder / "matrix-sizes.svg").read_bytes() for folder in ("a", "b"))
    assert one == two and b"<svg" in one


def test_a_run_gives_figures_for_every_size_and_the_highest_clock_is_1() -> None:
    case = sized_case(TUM, SHORT)
    assert case is not None and case.plan.seeds == (FIRST_SEED,) and case.plan.horizon_seconds == 900.0
    fastest = sized_run(case.plan, "fcfs", "fcfs", 1)
    assert set(fastest) <= set(MATRIX_SIDES) and sum(figures["jobs"] for figures in fastest.values()) > 20
    assert {figures["relative_clock"] for figures in fastest.values()} == {1.0}
    slowest = sized_run(case.plan, "slow", "fixed-dvfs:f=0.1", 1)
    for figures in slowest.values():
        assert figures["devices"] == 1.0 and 0.0 <= figures["cpu_share"] <= 1.0
        assert figures.get("clock_position", 0.0) == 0.0
    clocks = [figures["relative_clock"] for figures in slowest.values() if figures["settable_share"] == 1.0]
    assert clocks and clocks == pytest.approx([666.0 / 875.0] * len(clocks))


def test_only_the_section_with_matrix_products_has_a_case_for_it() -> None:
    assert sized_case(make_section(), FULL) is None
    assert sized_case(replace(TUM, cases=TUM.cases[1:]), FULL) is None
    full = sized_case(TUM, FULL)
    assert full is not None and full.plan.horizon_seconds == 12.0 * 3600.0 and full.rules == RULES
    assert set(RULES) <= set(TUM.cases[0].rules)


@pytest.mark.slow
@pytest.mark.usefixtures("runs_in_this_process")
def test_the_section_runs_rules_and_candidates_and_keeps_what_is_known() -> None:
    candidates = [candidate_of("mine::tum128::edp"), candidate_of("elsewhere::frontier::edp")]
    told: list[tuple[str, int, int]] = []
    results = run_sections((short_section(),), candidates, SHORTER, Results(), workers=1)
    found = results.matrix_sizes
    assert found is not None and found.failures == [] and found.hours == 0.0625 and found.seed == FIRST_SEED
    assert found.texts == {rule: rule for rule in RULES} | {"mine": "edp"}
    assert set(found.sizes) == set(found.texts)
    kept = figures_of(AS_ASKED)
    found.sizes["mine"], found.sizes["fcfs"] = kept, kept  # would be run again if they were not kept
    changed = [candidate_of("mine::tum128::price:V=50")]
    again = run_sections(
        (short_section(),),
        changed,
        SHORTER,
        results,
        reuse=True,
        same_revisions=[revision()],
        workers=1,
        tell=lambda *step: told.append(step),
    )
    assert (
        again.matrix_sizes is not None and again.matrix_sizes.sizes["fcfs"] == kept != again.matrix_sizes.sizes["mine"]
    )
    assert told[-1] == ("tum128: matrix sizes", 1, 1)


@pytest.mark.usefixtures("runs_in_this_process")
def test_a_policy_that_fails_is_told_and_takes_nothing_from_the_others() -> None:
    results = run_sections((short_section(),), [candidate_of("fixed-clock:h100=0.5")], SHORTER, Results(), workers=1)
    found = results.matrix_sizes
    assert found is not None and set(found.sizes) == set(RULES)
    assert found.failures[0].startswith("fixed-clock:h100=0.5: ")
