"""Reports as people and programs read them."""

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from energy_records import (
    ENDED,
    HOSTILE,
    MEASURED,
    NO_READING,
    make_groups,
    make_job,
    make_report,
    printed,
)

from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.domain.plain import from_plain
from slurm_energy.domain.report import (
    EnergyReport,
    EnergySum,
    EnergyUse,
    FacilityRecord,
    GroupEnergyRecord,
)
from slurm_energy.reporting.energy_table import render_table
from slurm_energy.reporting.machine import render_csv, render_json
from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.templates import render_html


def test_job_table_shows_energy_with_error_wait_run_and_saving() -> None:
    text = printed(render_table, make_report(make_job()))
    row = next(line for line in text.splitlines() if "COMPLETED" in line)
    for cell in ("77", "ada", "train", "a100", "12.3 kJ ± 1 %", "no reading", "98 %", "50 s", "12:05", "1.50 kJ"):
        assert cell in row


def test_unknown_energy_is_told_and_never_shown_as_zero() -> None:
    unknown = EnergySum(joules=None, readings=1, unknown_readings=1, coverage_share=0.0)
    job = make_job(gpu=unknown, saving_joules=None, unknown_reasons=("energy counter not supported",))
    text = printed(render_table, make_report(make_job(), job))
    assert "unknown" in text and "0 J" not in text
    assert "1 of 3 GPU readings are unknown: not in the sums, not zero." in text
    assert "1 of 2 jobs ran without any known GPU reading." in text
    assert "unknown: energy counter not supported" in text


def test_saving_is_said_to_be_a_prediction() -> None:
    assert "by the model's prediction for the clocks that were applied" in printed(
        render_table, make_report(make_job())
    )


def test_requeued_job_is_one_row_with_its_attempts() -> None:
    assert "COMPLETED (2 attempts)" in printed(render_table, make_report(make_job(attempts=2)))


def test_array_task_has_its_usual_name() -> None:
    job = make_job(array_job_id=JobId(70), array_task="7")
    assert " 70_7 " in printed(render_table, make_report(job))


def test_group_table_has_a_total() -> None:
    text = printed(render_table, make_groups())
    assert any(line.split()[:2] == ["total", "0"] for line in text.splitlines())


def test_report_without_rows_says_so() -> None:
    assert printed(render_table, make_report()).strip() == "No jobs match."


def test_left_out_rows_are_told() -> None:
    text = printed(render_table, make_report(make_job(), rows_left_out=3))
    assert "3 more rows are left out; they are in the total." in text


@pytest.mark.parametrize("field", ["name", "user_name", "partition", "state"])
def test_hostile_text_does_nothing_in_a_terminal(field: str) -> None:
    text = printed(render_table, make_report(make_job(**{field: HOSTILE})), width=400)
    assert "\x1b" not in text and "\u202e" not in text
    assert "=x\\x0a[red]\\x1b[31m<script>" in text


def test_hostile_text_does_nothing_in_html() -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: set[str] = set()

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.found.add(tag)

    page = render_html(make_report(make_job(name=HOSTILE), cluster=ClusterName("<b>lab")))
    tags = Tags()
    tags.feed(page)
    assert not tags.found & {"script", "b"}
    assert "&lt;script&gt;" in page and "12.3 kJ ± 1 %" in page


def make_months() -> EnergyReport:
    """Return a report with everything a row may have, of two accounts and two months."""
    known = EnergySum(joules=1.8e9, readings=9, coverage_share=1.0, error_share=0.05, timing_error_share=0.001)
    groups = tuple(
        GroupEnergyRecord(
            group=name,
            jobs=1234,
            jobs_without_energy=0,
            gpu=known,
            host=EnergySum(joules=3.6e8, readings=9),
            mean_wait_seconds=90.0,
            mean_run_seconds=3600.0,
            saving_joules=1.8e8,
            use=EnergyUse(
                saving_low_joules=1.2e8,
                saving_high_joules=2.4e8,
                idle_gpu_joules=3.6e8,
                utilisation=0.87,
                cost=123.45,
                co2_grams=250_000.0,
            ),
            since_seconds=begin,
            until_seconds=begin + 86_400.0,
        )
        for begin in (1_790_000_000.0, 1_790_086_400.0)
        for name in ("a-physics-group-with-a-long-name", "chem$is$try")
    )
    return make_report(
        kind="account",
        groups=groups,
        total=replace(groups[0], group="total", since_seconds=None, until_seconds=None),
        since_seconds=1_790_000_000.0,
        until_seconds=1_790_172_800.0,
        facility=FacilityRecord(pue=1.25, currency="EUR", sources=("contract 4711",)),
    )


def test_a_report_of_months_fits_80_columns_and_keeps_energy_and_money() -> None:
    report = make_months()
    lines = printed(render_table, report, width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    row = next(line for line in lines if "chem$is$try" in line)
    for cell in ("1.80 GJ ± 5 %", "123.45", "250 kg", "1234"):
        assert cell in row
    assert moment_text(report.since_seconds or 0.0)[:10] in row
    assert any(line.startswith("No room for: ") for line in lines)


def test_the_title_names_cluster_and_period() -> None:
    title, subject = printed(render_table, make_months()).splitlines()[:2]
    begin, end = (moment_text(seconds) for seconds in (1_790_000_000.0, 1_790_172_800.0))
    assert (title, subject) == ("Energy by account", f"cluster lab, {begin} to {end}")
    assert "cluster lab, the beginning to now" in printed(render_table, make_report(make_job()))


def test_the_parts_of_the_total_are_in_lines_of_their_own_and_add_up() -> None:
    text = printed(render_table, make_months())
    parts = {}
    for line in text.splitlines():
        found = re.match(r" (GPUs .*|Jobs' part of hosts|Building.*|Together)  +([\d.]+) kWh$", line)
        if found:
            parts[found.group(1).strip()] = float(found.group(2))
    assert parts == {
        "GPUs at work": 400.0,
        "GPUs idle in jobs": 100.0,
        "Jobs' part of hosts": 100.0,
        "Building (PUE 1.25)": 150.0,
        "Together": 750.0,
    }
    assert "Cost" in text and "123.45 EUR" in text and "Source: contract 4711" in text
    assert "50.0 kWh, 33.3 kWh to 66.7 kWh" in text


def test_a_page_of_periods_has_its_plots_and_prints_on_paper() -> None:
    pytest.importorskip("matplotlib")
    page = render_html(make_months())
    assert page.count("<svg") == 2 and "@media print" in page
    assert "Energy by period" in page and "a-physics-group" in page
    assert render_html(make_report(make_job())).count("<svg") == 0


def test_csv_names_the_currency_of_its_costs() -> None:
    row = next(csv.DictReader(io.StringIO(render_csv(make_months()))))
    assert (row["cost_EUR"], row["co2_grams"], row["utilisation"]) == ("123.45", "250000.0", "0.87")
    assert "cost_EUR" not in next(csv.DictReader(io.StringIO(render_csv(make_groups()))))


def test_csv_has_units_in_its_columns_and_empty_cells_for_unknown() -> None:
    jobs = (make_job(), make_job(gpu=EnergySum(joules=None, readings=1, unknown_readings=1), saving_joules=None))
    known, unknown = csv.DictReader(io.StringIO(render_csv(make_report(*jobs))))
    assert (known["gpu_joules"], known["gpu_error_share"], known["wait_seconds"]) == ("12345.0", "0.01", "50.0")
    assert (unknown["gpu_joules"], unknown["gpu_unknown_readings"], unknown["saving_joules"]) == ("", "1", "")


def test_csv_cells_of_users_are_not_formulas_and_stay_on_one_line() -> None:
    lines = render_csv(make_report(make_job(name=HOSTILE, user_name="@SUM(A1)", account="-1+1"))).splitlines()
    assert len(lines) == 2
    (row,) = csv.DictReader(io.StringIO("\n".join(lines)))
    assert (row["user_name"], row["account"]) == ("'@SUM(A1)", "'-1+1")
    assert row["name"].startswith("'=x\\x0a")


def test_csv_of_groups() -> None:
    first, second = csv.DictReader(io.StringIO(render_csv(make_groups())))
    assert (first["group"], first["jobs"], first["gpu_joules"], first["mean_run_seconds"]) == (
        "ada",
        "2",
        "12345.0",
        "",
    )
    assert second["group"].startswith("'=")


def test_a_page_shows_what_all_comes_to_before_its_plots_and_rows() -> None:
    page = render_html(make_months())
    assert page.index('class="parts"') < page.index("<svg") < page.index('class="rows"')


def test_json_is_the_record() -> None:
    report = make_report(make_job(name=HOSTILE), make_job(gpu=NO_READING))
    document = json.loads(render_json(report))
    assert document["jobs"][1]["gpu"]["joules"] is None
    assert from_plain(EnergyReport, document) == report


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_numbers_are_whole_at_any_width_and_what_has_no_room_is_named(width: int) -> None:
    names = ("train", "a name of a job that is far too long for a column")
    jobs = tuple(
        make_job(job_id=JobId(7_123_456), name=name, gpu=MEASURED, wait_seconds=43_208.0, run_seconds=725.0)
        for name in names
    )
    text = printed(render_table, make_report(*jobs), width=width)
    table = text.splitlines()[1 : 4 + len(jobs)]
    shown = table[1].split()
    for line in table[3:]:
        assert len(line) <= width
        assert "7123456" in line and "12.3 kJ ± 6 %" in line
        assert ("12:00:08" in line) == ("Wait" in shown)
        assert ("12:05" in line.split()) == ("Run" in shown)
        assert ("1.50 kJ" in line) == ("(predicted)" in shown)
    left_out = " ".join(text.split())
    for heading in ("User", "Name", "Partition", "State", "Covered", "Wait", "Run"):
        assert heading in shown or f"{heading}," in left_out or f"{heading} (" in left_out


def test_jobs_whose_report_never_came_are_told() -> None:
    job = make_job(gpu=NO_READING, started_at_seconds=ENDED - 9000.0, ended_at_seconds=ENDED - 3600.0)
    shown = printed(lambda report, console: render_table(report, console, ENDED), make_report(job))
    assert "1 jobs have no report although they ended more than 15 minutes ago" in shown
