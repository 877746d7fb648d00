"""Reports and explanations as people and programs read them."""

import csv
import io
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from slurm_energy.domain.decision import AnswerDetails, ClockChoice, OptionCost, RuntimeEstimate
from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.domain.plain import from_plain
from slurm_energy.domain.report import (
    ComparisonRecord,
    DecisionRecord,
    EnergyReport,
    EnergySum,
    EnergyUse,
    ExplainRecord,
    FacilityRecord,
    GpuOutcomeRecord,
    GroupEnergyRecord,
    JobEnergyRecord,
    ReasonRecord,
)
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.reporting.energy_table import render_table
from slurm_energy.reporting.explanation import render_decisions, render_explain
from slurm_energy.reporting.machine import render_csv, render_explain_json, render_json
from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.templates import render_html

A100 = GpuTypeName("a100-sxm4-80gb")
HOSTILE = "=x\n[red]\x1b[31m<script>alert('1')</script>\u202e$(id)"
KNOWN = EnergySum(joules=12_345.0, readings=2, coverage_share=0.985, error_share=0.01)
NO_READING = EnergySum(joules=None)


def make_job(**changes: Any) -> JobEnergyRecord:
    values: dict[str, Any] = {
        "cluster": ClusterName("lab"),
        "job_id": JobId(77),
        "submitted_at_seconds": 1_790_000_000.0,
        "submit_time_known": True,
        "gpu": KNOWN,
        "host": NO_READING,
        "attempts": 1,
        "name": "train",
        "user_id": 1000,
        "user_name": "ada",
        "partition": PartitionName("a100"),
        "state": "COMPLETED",
        "wait_seconds": 50.0,
        "run_seconds": 725.0,
        "saving_joules": 1500.0,
    }
    return JobEnergyRecord(**{**values, **changes})


def make_report(*jobs: JobEnergyRecord, **changes: Any) -> EnergyReport:
    gpu = EnergySum(joules=12_345.0, readings=3, unknown_readings=1, coverage_share=0.6)
    total = GroupEnergyRecord(
        group="total", jobs=len(jobs), jobs_without_energy=1, gpu=gpu, host=NO_READING, saving_joules=1500.0
    )
    return EnergyReport(**{"kind": "job", "cluster": ClusterName("lab"), "total": total, "jobs": jobs, **changes})


def make_groups() -> EnergyReport:
    groups = tuple(
        GroupEnergyRecord(group=name, jobs=2, jobs_without_energy=0, gpu=KNOWN, host=NO_READING, mean_wait_seconds=5.0)
        for name in ("ada", HOSTILE)
    )
    return make_report(kind="user", groups=groups)


def printed(render: Any, record: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    render(record, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


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


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (EnergySum(joules=7_655.0, readings=1), "-10.0 % against GPUs and processors here"),
        (NO_READING, "+45.8 % against GPUs here"),
    ],
)
def test_slurms_own_figure_stands_beside_ours_with_the_difference(host: EnergySum, said: str) -> None:
    story = replace(make_story(), job=make_job(slurm_energy_joules=18_000.0, host=host))
    text = printed(render_explain, story)
    assert f"Slurm's own acct_gather_energy 18.0 kJ: {said}" in text


def test_slurms_own_figure_is_not_compared_with_a_part_of_the_job() -> None:
    unknown = EnergySum(joules=12_345.0, readings=2, unknown_readings=1)
    story = replace(make_story(), job=make_job(slurm_energy_joules=18_000.0, gpu=unknown))
    assert "against" not in next(line for line in printed(render_explain, story).splitlines() if "acct_gather" in line)


def test_a_page_shows_what_all_comes_to_before_its_plots_and_rows() -> None:
    page = render_html(make_months())
    assert page.index('class="parts"') < page.index("<svg") < page.index('class="rows"')


def test_json_is_the_record() -> None:
    report = make_report(make_job(name=HOSTILE), make_job(gpu=NO_READING))
    document = json.loads(render_json(report))
    assert document["jobs"][1]["gpu"]["joules"] is None
    assert from_plain(EnergyReport, document) == report


def make_story() -> ExplainRecord:
    decision = DecisionRecord(
        decision_id=DecisionId("d0000001"),
        cluster=ClusterName("lab"),
        policy="oracle",
        policy_version="1",
        mode=EnergyMode.BALANCED,
        decided_at_seconds=1_790_000_000.0,
        asked=JobRequest(
            user_id=1000,
            gpus=(GpuDemand(count=2, slurm_type="a100"),),
            time_limit_minutes=90.0,
            options=EnergyOptions(mode=EnergyMode.BALANCED, max_slowdown=0.05),
        ),
        partitions=(PartitionName("a100"),),
        clocks=(
            ClockChoice(
                gpu_type=A100,
                sm_clock_mhz=1275,
                default_clock_mhz=1410,
                predicted_slowdown=0.05,
                predicted_energy_change=-0.13,
                power_limit_watts=400.0,
            ),
        ),
        reasons=(ReasonRecord(code="POLICY", sentence="The policy chose this setting."),),
        notes=("a note", "attention: 41 % on the queue of a100"),
        details=AnswerDetails(attention={"queue": 0.41, "energy": 0.2}),
        estimate=RuntimeEstimate(seconds=600.0, upper_seconds=900.0, source="history"),
        snapshot_age_seconds=1.25,
        message="",
        prefer="nvlink",
    )
    gpu = GpuOutcomeRecord(
        node=NodeName("gpu001"),
        restart_count=0,
        gpu_uuid=GpuUuid("GPU-1"),
        gpu_name="NVIDIA A100-SXM4-80GB",
        gpu_type=A100,
        asked_clock_mhz=1275,
        applied_clock_mhz=1275,
        observed_clock_mhz=1270.4,
        default_clock_mhz=1410,
        joules=12_345.0,
        reason=None,
        source=EnergySource.COUNTER,
        scope=EnergyScope.GPU,
        coverage_seconds=20.0,
        error_share=0.01,
        utilisation=0.9,
    )
    lost = replace(
        gpu, gpu_uuid=GpuUuid("GPU-2"), joules=None, reason="no end reading", flags=(QualityFlag.INCOMPLETE,)
    )
    comparisons = (
        ComparisonRecord(quantity="SM clock", unit="MHz", predicted=1275.0, actual=1270.4, basis="mean of samples"),
        ComparisonRecord(quantity="run time", unit="s", predicted=630.0, actual=None, basis="still runs"),
        ComparisonRecord(quantity="GPU energy", unit="share", predicted=-0.13, actual=-0.12, basis="against 3 runs"),
    )
    return ExplainRecord(
        job=make_job(name=HOSTILE),
        decision=decision,
        gpus=(gpu, lost),
        comparisons=comparisons,
        events=("gpu001: \x1b[2J cleared",),
    )


def test_explanation_tells_the_whole_story() -> None:
    text = printed(render_explain, make_story(), width=240)
    for part in (
        "Job 77 on lab",
        "2 x a100, partitions none named, time limit 1:30:00",
        "mode balanced, at most 5 % longer",
        f"d0000001 by oracle 1 at {moment_text(1_790_000_000.0)}, on a picture of the cluster 1.2 s old",
        "a100-sxm4-80gb at 1275 of 1410 MHz: predicted, by other programs: -13.0 % energy, +5.0 % run time on boards",
        "run time at the default clock 10:00, at most 15:00 (from history)",
        "The policy chose this setting. (POLICY)",
        "prefers nodes with feature nvlink",
        "a note",
        "attention: 41 % on the queue of a100",
        "12.3 kJ ± 1 %",
        "no end reading",
        "incomplete",
        "1270 MHz",
        "-12.0 %",
        "still runs",
    ):
        assert part in text
    assert "attention shares" not in text
    assert "\x1b" not in text and "\\x1b[2J cleared" in text


def test_explanation_says_what_a_run_time_is_known_from_and_what_the_script_says() -> None:
    script = ScriptFeatures(programs=("python",), frameworks=("pytorch",), model="resnet50")
    estimate = RuntimeEstimate(seconds=600.0, upper_seconds=900.0, source="history", runs=7)
    story = make_story()
    assert story.decision is not None
    asked = replace(story.decision.asked, script=script)
    text = printed(render_explain, with_decision(estimate=estimate, asked=asked), width=240)
    assert "at most 15:00 (known from 7 runs; its script: python, pytorch, resnet50)" in text
    assert "its script: python, pytorch, resnet50" in text
    assumed = RuntimeEstimate(seconds=600.0, upper_seconds=900.0, source="time-limit")
    assert "(assumed: a share of the time limit)" in printed(render_explain, with_decision(estimate=assumed), width=240)


def test_explanation_says_that_figures_are_assumed() -> None:
    story = make_story()
    assert story.decision is not None
    clocks = tuple(replace(clock, is_assumed=True) for clock in story.decision.clocks)
    text = printed(render_explain, with_decision(clocks=clocks), width=240)
    assert "1275 of 1410 MHz: assumed, as on a GPU of the same chip: -13.0 % energy" in text
    assert "predicted, by other programs: -13.0" not in text


def decision_json(record: ExplainRecord) -> dict[str, Any]:
    decision: dict[str, Any] = json.loads(render_explain_json(record))["decision"]
    return decision


def with_decision(**changes: Any) -> ExplainRecord:
    story = make_story()
    assert story.decision is not None
    return replace(story, decision=replace(story.decision, **changes))


def test_json_explanation_is_the_record_with_the_shares_of_attention() -> None:
    story = make_story()
    assert decision_json(story)["attention"] == {"queue": 0.41, "energy": 0.2}


def test_json_explanation_without_shares_has_null_for_attention() -> None:
    assert decision_json(with_decision(details=AnswerDetails()))["attention"] is None
    assert "details" not in decision_json(make_story())


def test_json_explanation_of_a_job_without_decision_has_none() -> None:
    assert json.loads(render_explain_json(replace(make_story(), decision=None)))["decision"] is None


def test_json_explanation_has_what_options_cost_and_the_factors_on_prices() -> None:
    parts = {"energy": 1e6, "time": 0.0, "slowdown": 2e4}
    option = OptionCost(partition=PartitionName("a100"), clock_mhz=1275, parts=parts)
    details = AnswerDetails(options=(option,), factors={"slowdown": 1.5})
    expected = {"factors": {"slowdown": 1.5}, "options": [{"partition": "a100", "mhz": 1275, **parts}]}
    assert decision_json(with_decision(details=details))["costs"] == expected
    assert decision_json(make_story())["costs"] is None
    text = printed(render_explain, with_decision(details=details), width=240)
    assert "least cost: a100 at 1275 MHz: 1.02 MJ = energy 1 MJ + slowdown 20 kJ" in text
    assert "the network multiplies the price of slowdown 1.5" in text


def test_explanation_of_a_hint_alone_does_not_say_that_nothing_was_changed() -> None:
    changes = {"partitions": None, "clocks": ()}
    assert "nothing was changed" not in printed(render_explain, with_decision(**changes))
    assert "nothing was changed" in printed(render_explain, with_decision(**changes, prefer=None))


def test_explanation_without_decision_says_so() -> None:
    alone = replace(make_story(), decision=None, comparisons=(), gpus=(), events=())
    assert "nothing: this job carries no decision" in printed(render_explain, alone)
    named = replace(alone, job=make_job(decision_id=DecisionId("d0000001")))
    assert "decision d0000001 has not reached the database" in printed(render_explain, named)


ENDED = 1_790_001_000.0
MEASURED = EnergySum(
    joules=12_345.0,
    readings=2,
    coverage_share=0.985,
    error_share=0.0514,
    timing_error_share=0.0014,
    calibration_error_share=0.05,
)


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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_explanation_keeps_its_numbers_whole(width: int) -> None:
    text = printed(render_explain, make_story(), width=width)
    assert max(map(len, text.splitlines())) <= width
    rows = [line for line in text.splitlines() if "gpu001" in line and "kJ" in line]
    assert rows and all("1275 MHz" in line and "12.3 kJ ± 1 %" in line for line in rows)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_decisions_keep_time_and_job_whole(width: int) -> None:
    record = make_story().decision
    assert record is not None
    several = (replace(record, job_ids=(JobId(7_123_456),)), record)
    lines = printed(render_decisions, several, width=width).splitlines()
    assert lines[0].split()[:3] == ["Decided", "at", "Job"]
    when = moment_text(record.decided_at_seconds)
    assert when in lines[2] and "7123456" in lines[2]
    assert lines[3].removeprefix(f" {when}").split()[0] == "-"
    assert all(len(line) <= width for line in lines[:4])


def test_a_decision_without_a_message_gives_its_reasons_in_words() -> None:
    record = make_story().decision
    assert record is not None
    text = printed(render_decisions, (replace(record, message=""),), width=200)
    assert record.reasons[0].sentence in text and record.reasons[0].code not in text.split()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": "PENDING", "ended_at_seconds": None}, "not started"),
        ({"state": "RUNNING", "ended_at_seconds": None}, "report at its end"),
        ({"state": None, "ended_at_seconds": None}, "report on its way"),
        ({"ended_at_seconds": ENDED - 30.0}, "report on its way"),
        ({"ended_at_seconds": ENDED - 3600.0}, "no report"),
        ({"ended_at_seconds": ENDED - 30.0, "started_at_seconds": None, "state": "CANCELLED"}, "never ran"),
        ({"gpu_count": 0, "ended_at_seconds": ENDED - 30.0}, "no GPU"),
    ],
)
def test_a_job_without_a_reading_says_why(changes: dict[str, Any], text: str) -> None:
    job = make_job(**{"gpu": NO_READING, "started_at_seconds": ENDED - 4000.0, **changes})
    shown = printed(lambda report, console: render_table(report, console, ENDED), make_report(job))
    assert text in next(line for line in shown.splitlines() if " 77 " in line)
    told = printed(lambda record, console: render_explain(record, console, ENDED), replace(make_story(), job=job))
    assert f"GPU energy {text}" in told


def test_jobs_whose_report_never_came_are_told() -> None:
    job = make_job(gpu=NO_READING, started_at_seconds=ENDED - 9000.0, ended_at_seconds=ENDED - 3600.0)
    shown = printed(lambda report, console: render_table(report, console, ENDED), make_report(job))
    assert "1 jobs have no report although they ended more than 15 minutes ago" in shown


def test_the_error_is_told_part_by_part_with_what_it_covers() -> None:
    report = make_report(make_job(gpu=MEASURED))
    report = replace(report, total=replace(report.total, gpu=MEASURED))
    pages = (
        printed(render_table, report, width=400),
        render_html(report),
        printed(render_explain, replace(make_story(), job=make_job(gpu=MEASURED)), width=400),
    )
    for page in pages:
        assert "timing (0.2 %; readings are independent: quadrature)" in page
        assert "sensors (5 %; common to boards of a type: added up" in page
        assert "without host, fans and network" in page
    row = next(csv.DictReader(io.StringIO(render_csv(report))))
    assert (row["gpu_error_share"], row["gpu_timing_error_share"], row["gpu_calibration_error_share"]) == (
        "0.0514",
        "0.0014",
        "0.05",
    )


@pytest.mark.parametrize(
    ("zone", "text"), [("UTC", "2026-09-21 14:13:20+00:00"), ("XYZ-2", "2026-09-21 16:13:20+02:00")]
)
def test_times_are_this_machines_with_their_offset(zone: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert moment_text(1_790_000_000.0) == text
        assert text in printed(render_explain, make_story(), width=240)
    finally:
        monkeypatch.undo()
        time.tzset()
