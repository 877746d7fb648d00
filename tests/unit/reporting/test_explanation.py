"""Explanations and lists of decisions as people and programs read them."""

import csv
import io
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from energy_records import (
    ENDED,
    MEASURED,
    NO_READING,
    make_job,
    make_report,
    make_story,
    printed,
)

from slurm_energy.domain.decision import AnswerDetails, OptionCost, RuntimeEstimate
from slurm_energy.domain.ids import DecisionId, JobId, PartitionName
from slurm_energy.domain.report import (
    EnergySum,
    ExplainRecord,
)
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.reporting.energy_table import job_energy_text, render_table
from slurm_energy.reporting.explanation import render_decisions, render_explain
from slurm_energy.reporting.machine import render_csv, render_explain_json
from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.templates import render_html


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
    assert "1275 of 1410 MHz: assumed, from another GPU: -13.0 % energy" in text
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
    assert "learned price of slowdown: 1.5 times the configured one" in text


def test_explanation_of_a_hint_alone_does_not_say_that_nothing_was_changed() -> None:
    changes = {"partitions": None, "clocks": ()}
    assert "nothing was changed" not in printed(render_explain, with_decision(**changes))
    assert "nothing was changed" in printed(render_explain, with_decision(**changes, prefer=None))


def test_explanation_without_decision_says_so() -> None:
    alone = replace(make_story(), decision=None, comparisons=(), gpus=(), events=())
    assert "nothing: this job carries no decision" in printed(render_explain, alone)
    named = replace(alone, job=make_job(decision_id=DecisionId("d0000001")))
    assert "decision d0000001 has not reached the database" in printed(render_explain, named)


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


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"state": "PENDING", "ended_at_seconds": None, "started_at_seconds": None}, "not started"),
        ({"state": "CANCELLED", "ended_at_seconds": ENDED - 30.0, "started_at_seconds": None}, "never ran"),
        ({"state": "RUNNING", "ended_at_seconds": None}, "not measured: no GPU"),
        ({"state": "COMPLETED", "ended_at_seconds": ENDED - 30.0}, "not measured: no GPU"),
        ({"state": "COMPLETED", "ended_at_seconds": ENDED - 3600.0}, "not measured: no GPU"),
        ({"state": None, "ended_at_seconds": None}, "not measured: no GPU"),
        ({"gpu_count": 1, "ended_at_seconds": ENDED - 30.0}, "report on its way"),
        ({"gpu_count": None, "ended_at_seconds": ENDED - 30.0}, "report on its way"),
        ({"gpu_count": None, "ended_at_seconds": ENDED - 3600.0}, "no report"),
        ({"host": EnergySum(joules=500.0, readings=1), "ended_at_seconds": ENDED - 30.0}, "500 J"),
        ({"host": EnergySum(joules=None, readings=2, unknown_readings=2), "ended_at_seconds": ENDED - 30.0}, "unknown"),
    ],
)
def test_no_report_is_awaited_of_a_job_without_gpus(changes: dict[str, Any], host: str) -> None:
    times = {"gpu_count": 0, "started_at_seconds": ENDED - 4000.0}
    job = make_job(**{"gpu": NO_READING, "host": EnergySum(joules=None), **times, **changes})
    assert job_energy_text(job, job.host, ENDED).startswith(host)
    shown = printed(lambda report, console: render_table(report, console, ENDED), make_report(job))
    assert host in next(line for line in shown.splitlines() if " 77 " in line)
    told = printed(lambda record, console: render_explain(record, console, ENDED), replace(make_story(), job=job))
    assert f"host energy {host}" in told


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
