"""A comparison in a terminal, as JSON and as a page."""

import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from arena_results import HOSTILE, make_context, make_result, without_runs
from rich.console import Console

from slurm_energy.evaluation.arena.summary import Estimate, summary_of
from slurm_energy.reporting.arena.document import arena_document, notes_of, render_arena_json
from slurm_energy.reporting.arena.page import render_arena_page
from slurm_energy.reporting.arena.tables import (
    WIDTH,
    arena_tables,
    estimate_text,
    number_text,
    print_arena,
    signed_text,
)


def printed(hostile: bool = False) -> str:
    stream = StringIO()
    result = make_result(hostile=hostile)
    print_arena(summary_of(result), make_context(), Console(file=stream, width=WIDTH, highlight=False))
    return stream.getvalue()


def page(hostile: bool = False) -> str:
    result = make_result(hostile=hostile)
    return render_arena_page(result, summary_of(result), make_context(f"slurm-energy {HOSTILE}"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (9.0744, "9.074"), (12345.6, "12,346"), (0.5, "0.500"), (1e-5, "1.0e-05"), (-2.25, "-2.250")],
)
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert number_text(value) == text


def test_an_estimate_shows_the_longer_arm_of_its_interval() -> None:
    assert estimate_text(Estimate(mean=9.0744, low=9.07, high=9.09, seeds=3)) == "9.074 ± 0.016"
    assert estimate_text(Estimate(mean=9.0744, low=9.07439, high=9.07441, seeds=3)) == "9.074 ± <0.001"
    assert estimate_text(Estimate(mean=9.0744, low=None, high=None, seeds=1)) == "9.074"
    assert estimate_text(None) == "-"
    assert signed_text(Estimate(mean=-2.0, low=-2.5, high=-1.8, seeds=3)) == "-2.00 ± 0.50"


def test_the_main_table_has_the_bound_and_the_gap_to_it() -> None:
    main = arena_tables(summary_of(make_result()))[0]
    assert [row[0] for row in main.rows] == ["slurm-default", "greedy", "bound"]
    column = main.headings.index("J/unit")
    assert main.rows[2][column] == "8.400 ± 0.000"
    assert main.rows[0][main.headings.index(">bound %")] == "+5.88"
    assert main.is_reference == (True, False, False)


def test_columns_in_which_nothing_stands_are_left_out() -> None:
    headings = {heading for table in arena_tables(summary_of(make_result())) for heading in table.headings}
    assert headings.isdisjoint({"Publ.", "CPU %", "kg CO2", "Misses", ">budget s"})


def test_lines_fit_a_terminal_of_120_columns() -> None:
    assert max(map(len, printed().splitlines())) <= WIDTH


def test_a_terminal_shows_hostile_names_without_obeying_them() -> None:
    assert "\x1b[31m" not in printed(hostile=True)


def test_the_summary_pairs_seeds_with_the_reference() -> None:
    found = summary_of(make_result()).of("greedy").differences_percent["joules_per_unit"]
    assert found.mean == pytest.approx(-10.0)
    assert [found.low, found.high] == pytest.approx([-10.0, -10.0])


def test_json_is_finite_and_names_every_run_and_unit() -> None:
    result = make_result()
    document = json.loads(render_arena_json(result, summary_of(result), make_context()))
    assert (document["format"], document["format_version"]) == ("slurm-energy-arena", 1)
    assert [(run["policy"], run["seed"]) for run in document["runs"]] == [
        ("slurm-default", 1),
        ("slurm-default", 2),
        ("greedy", 1),
        ("greedy", 2),
    ]
    assert document["summaries"][1]["figures"]["mean_run_seconds"]["seeds"] == 2
    assert document["bound_joules_per_unit"]["mean"] == pytest.approx(8.4)
    assert document["plan"]["reference"] == "slurm-default"


def test_every_figure_has_a_unit_in_its_name() -> None:
    units = (
        "_joules", "_seconds", "_watts", "_units", "_per_unit", "_jobs", "_misses", "_decisions", "_slowdown", "_share",
        "_hours", "_percent", "_grams",
    )  # fmt: skip
    result = make_result()
    document = arena_document(result, summary_of(result), make_context())
    names = {name for run in document["runs"] for name in (*run["figures"], *run["bounds"])}
    assert {name for name in names if not name.endswith(units)} <= {"jobs", "decisions", "restarts", "cost"}


def test_a_page_stands_alone() -> None:
    text = page()
    assert text.count("<svg") == 3
    links = set(re.findall(r"""(?:href|src)\s*=\s*["']([^"'#][^"']*)""", text))
    assert links == set()
    assert "<script" not in text and "@import" not in text and "url(http" not in text


def test_ids_in_a_page_are_unique() -> None:
    ids = re.findall(r'\bid="([^"]+)"', page())
    assert len(ids) == len(set(ids))


def test_a_page_escapes_hostile_names() -> None:
    text = page(hostile=True)
    assert "<script>alert" not in text and "<b>be</b>" not in text
    assert "\x1b" not in text
    assert "it could not &lt;b&gt;be&lt;/b&gt;" in text


@pytest.mark.slow
def test_the_same_comparison_makes_the_same_page() -> None:
    assert page() == page()


def test_a_comparison_in_which_all_failed_still_has_a_page_and_a_table() -> None:
    result = without_runs(make_result(hostile=True))
    summary = summary_of(result)
    assert "failed" in render_arena_page(result, summary, make_context())
    stream = StringIO()
    print_arena(summary, make_context(), Console(file=stream, width=WIDTH))
    assert stream.getvalue() == ""


def test_notes_tell_what_weakens_the_figures() -> None:
    notes = notes_of(make_result(seeds=(1,)), ("Assumed: this.",))
    assert notes[0] == "Assumed: this."
    assert any("One seed" in note for note in notes)
    assert any("left unfinished" in note for note in notes)


def test_jobs_that_nothing_could_run_are_told_with_the_kinds_that_nobody_knows() -> None:
    result = make_result(seeds=(1,))

    def refused(count: int, kinds: tuple[str, ...]) -> str:
        runs = [
            replace(
                record,
                unknown_kinds=kinds,
                metrics=replace(record.metrics, jobs_by_state={"COMPLETED": 100 - count, "REJECTED": count}),
            )
            for record in result.runs
        ]
        return " ".join(notes_of(replace(result, runs=tuple(runs))))

    assert "refused" not in refused(0, ())
    some = refused(10, ("bert\x1b[31m",))
    assert "10 of 100 jobs were refused" in some and "figures are of the others" in some
    assert "kind bert" in some and "\x1b" not in some
    every = refused(100, tuple(f"kind-{number}" for number in range(10)))
    assert "every figure is of no work" in every and "kind-7 and 2 more" in every
    assert "No device" not in refused(3, ())
