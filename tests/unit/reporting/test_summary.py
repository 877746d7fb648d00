from dataclasses import replace
from typing import Any

import pytest
from energy_records import make_job, make_report, make_story

from slurm_energy.domain.report import EnergyUse, ExplainRecord, FacilityRecord
from slurm_energy.reporting.summary import advice_lines, summary_lines


def story(*uses: float | None, **job: Any) -> ExplainRecord:
    record = make_story()
    gpus = tuple(replace(record.gpus[0], restart_count=0, utilisation=use) for use in uses)
    return replace(record, gpus=gpus, job=replace(record.job, attempts=1, **{"run_seconds": 3000.0, **job}))


def test_a_summary_has_energy_cost_and_what_idle_gpus_drew() -> None:
    use = EnergyUse(
        utilisation=0.22, idle_gpu_joules=3000.0, cost=0.471, co2_grams=566.0,
        saving_low_joules=700.0, saving_high_joules=2300.0,
    )  # fmt: skip
    report = make_report(make_job(), facility=FacilityRecord(currency="EUR"))
    report = replace(report, total=replace(report.total, use=use))
    text = "\n".join(summary_lines(replace(make_story(), job=make_job()), report))
    for part in (
        "job 77",
        "12.3 kJ ± 1 %",
        "22 % of the time",
        "3.00 kJ, 24 %",
        "0.47 EUR",
        "566 g",
        "700 J to 2.30 kJ",
    ):
        assert part in text


def test_a_summary_of_unknown_energy_names_the_reason_and_no_zero() -> None:
    unknown = make_job(gpu=replace(make_job().gpu, joules=None), saving_joules=None, unknown_reasons=("no counter",))
    text = "\n".join(summary_lines(replace(make_story(), job=unknown), make_report(unknown)))
    assert "unknown" in text and "no counter" in text and " 0" not in text


@pytest.mark.parametrize(
    ("uses", "words"),
    [
        ((0.0, 0.9, 0.01, 0.8), ["2 of 4 GPUs did nothing: ask for 2."]),
        (
            (0.0, 0.02),
            ["The GPUs did nothing: use a partition without GPUs, or check"],
        ),
        ((0.2, 0.2), ["The GPUs worked 20 % of the time"]),
        ((0.9, 0.9), []),
        ((0.0, None), []),
        ((), []),
    ],
)
def test_advice_is_given_for_what_was_seen_alone(uses: tuple[float | None, ...], words: list[str]) -> None:
    found = advice_lines(replace(story(*uses), decision=None))
    assert len(found) == len(words)
    assert all(line.startswith(word) for line, word in zip(found, words, strict=True))


def test_a_short_run_is_not_judged() -> None:
    assert advice_lines(story(0.0, 0.9, run_seconds=299.0)) == []


def test_a_time_limit_that_was_far_too_long_is_named_and_a_requeued_job_is_not_judged_by_it() -> None:
    record = story(0.9, run_seconds=600.0)
    assert record.decision is not None
    asked = replace(record.decision.asked, time_limit_minutes=240.0)
    record = replace(record, decision=replace(record.decision, asked=asked))
    assert advice_lines(record) == ["It took 10:00 of 4:00:00 (--time): a shorter limit lets a job start earlier."]
    assert advice_lines(replace(record, job=replace(record.job, attempts=2))) == []
