from slurm_energy.evaluation.gate.sheet import (
    STAGE_NAMES,
    FigureInterval,
    ReviewItem,
    ScoreSheet,
    StageResult,
    StageVerdict,
)
from slurm_energy.learning.nightly.judgement import sheet_document
from slurm_energy.reporting.candidates import _sheet_lines
from slurm_energy.reporting.score_sheet import score_sheet_html


def make_sheet(*, stopped: bool = False) -> ScoreSheet:
    saving = FigureInterval(mean=0.051, low=0.04, high=0.062)
    stages = []
    for name in STAGE_NAMES:
        verdict = StageVerdict.STOPPED if stopped and name == "sandbox" else StageVerdict.PASSED
        stages.append(
            StageResult(
                stage=name,
                verdict=verdict,
                summary=f"stage {name} <b>looked</b> at everything that there was to look at, and found it in order",
                score=0.8 if name != "logic" else None,
                intervals={"saving in the twin": saving} if name == "twin" else {},
                series={"real": (900.0, 950.0), "forecast": (910.0, 930.0)} if name == "impact" else {},
                details=("clock bound <i>: proved, 12 rows",) if name == "logic" else (),
                seconds=1.5,
            )
        )
        if verdict is StageVerdict.STOPPED:
            break
    return ScoreSheet(
        candidate_id="c-20260101",
        incumbent_id="configured",
        judged_at_seconds=1_800_000_000.0,
        stages=tuple(stages),
        value=0.0 if stopped else 0.9,
        weights={} if stopped else {"twin": 0.25},
        review=(
            ReviewItem(
                job="4 GPUs in a100, 600 min",
                incumbent="unchanged",
                candidate="a100-sxm4-80gb 1290 MHz",
                uncertainty=0.98,
                joules=2e6,
                why="uncertain",
            ),
        ),
    )


def shown(sheet: ScoreSheet) -> str:
    return "\n".join(_sheet_lines(sheet_document(sheet)))


def test_lines_say_verdict_value_and_each_stage() -> None:
    text = shown(make_sheet())
    assert "Gate: passed, value 0.900\n  HyperScore        105.2\n" in text
    assert all(f"\n  {name} " in text for name in STAGE_NAMES)
    assert "4 GPUs in a100, 600 min: unchanged -> a100-sxm4-80gb 1290 MHz" in text


def test_lines_of_a_stopped_candidate_name_the_stage_and_no_value() -> None:
    text = shown(make_sheet(stopped=True))
    assert "Gate: not passed" in text and "  sandbox          STOPPED" in text
    assert "HyperScore" not in text


def test_intervals_are_on_the_page() -> None:
    assert "+5.10% (+4.00% to +6.20%)" in score_sheet_html(make_sheet())


def test_page_escapes_what_it_is_given_and_has_its_plots() -> None:
    page = score_sheet_html(make_sheet())
    assert "&lt;b&gt;looked" in page
    assert page.count("<svg") == 3
    assert "HyperScore 105.2" in page
    assert "Stopped" in score_sheet_html(make_sheet(stopped=True))


def test_what_was_checked_one_by_one_is_on_the_page_and_in_the_document_alone() -> None:
    sheet = make_sheet()
    text = shown(sheet)
    assert "everything that there was" in text and "clock bound" not in text
    assert "clock bound &lt;i&gt;: proved, 12 rows" in score_sheet_html(sheet)
    assert "clock bound <i>: proved, 12 rows" in sheet.to_json()
    assert ScoreSheet.from_json(sheet.to_json()) == sheet
