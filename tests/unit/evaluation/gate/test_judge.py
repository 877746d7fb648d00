from dataclasses import replace

import pytest
from gate_samples import make_candidate, make_log

from slurm_energy.config import Config
from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation import gate
from slurm_energy.evaluation.gate import (
    GateHistory,
    GateSettings,
    LoadHistory,
    LoopLimits,
    SandboxLimits,
    ScoreSheet,
    StageVerdict,
    judge,
)
from slurm_energy.evaluation.gate.logic.symbols import Proof
from slurm_energy.evaluation.gate.sheet import STAGE_NAMES
from slurm_energy.evaluation.gate.twin_score import TwinOutcome, TwinRuns
from slurm_energy.policy.candidate import CandidatePolicy

SETTINGS = GateSettings(
    sandbox=SandboxLimits(states=150, latency_milliseconds=1e6),
    loop=LoopLimits(min_seeds=3, max_seeds=3),
    probe_states=150,
    isolated=False,
)


class MadeTwin(TwinRuns):
    """Says what a test wants."""

    def __init__(self, saving: float) -> None:
        object.__setattr__(self, "saving", saving)

    def compare(self, candidate: CandidatePolicy, incumbent: CandidatePolicy, seed: int) -> TwinOutcome:
        return TwinOutcome(saving=self.saving + 0.001 * (seed % 3), slower=0.0, timeouts=0)  # type: ignore[attr-defined]  # set above


@pytest.fixture(autouse=True)
def proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "proofs", lambda: (Proof(name="all", paths=1),))


def history(saving: float = 0.05) -> GateHistory:
    return GateHistory(
        twin=MadeTwin(saving),
        log=make_log(400, saving=0.1),
        load=LoadHistory(gpu_hours=(1000.0,) * 60, watts_per_gpu=400.0),
    )


def test_better_candidate_passes_every_stage_and_its_sheet_comes_back_whole() -> None:
    steps: list[str] = []
    sheet = judge(make_candidate("oracle"), make_candidate("slurm-default"), history(), SETTINGS, steps.append)
    assert sheet.passed, sheet.stopped_by
    assert tuple(steps) == tuple(stage.stage for stage in sheet.stages) == STAGE_NAMES
    assert 0.5 < sheet.value < 1.0
    assert sheet.hyperscore is not None
    assert sheet.hyperscore > 100.0
    assert sum(sheet.weights.values()) == pytest.approx(1.0)
    assert ScoreSheet.from_json(sheet.to_json()) == sheet


@pytest.mark.parametrize(
    ("candidate", "saving", "stage"),
    [
        (make_candidate("total-cost:V=-1"), 0.05, "logic"),
        (make_candidate("no-such-policy"), 0.05, "sandbox"),
        (make_candidate("slurm-default"), 0.05, "novelty"),
        (make_candidate("oracle"), -0.03, "twin"),
        (make_candidate("oracle"), 0.3, "off-policy"),
    ],
)
def test_bad_candidate_is_stopped_at_the_stage_where_it_should_be(
    candidate: CandidatePolicy, saving: float, stage: str
) -> None:
    sheet = judge(candidate, make_candidate("slurm-default"), history(saving), SETTINGS)
    assert not sheet.passed
    assert sheet.stopped_by is not None
    assert (sheet.stopped_by.stage, sheet.stages[-1].stage) == (stage, stage)
    assert (sheet.value, sheet.hyperscore) == (0.0, None)


def test_candidate_of_which_neither_twin_nor_log_says_anything_is_stopped() -> None:
    sheet = judge(make_candidate("oracle"), make_candidate("slurm-default"), GateHistory(), SETTINGS)
    verdicts = {stage.stage: stage.verdict for stage in sheet.stages}
    assert verdicts["twin"] is verdicts["impact"] is verdicts["off-policy"] is StageVerdict.NOT_JUDGED
    assert sheet.stopped_by is not None
    assert "neither twin nor log" in sheet.stopped_by.summary


def test_very_different_candidate_needs_a_person_where_the_site_says_so() -> None:
    strict = replace(SETTINGS, max_distance=0.01, person_for_different=True)
    pair = make_candidate("oracle"), make_candidate("slurm-default")
    assert judge(*pair, history(), strict).needs_person
    assert not judge(*pair, history(), replace(strict, person_for_different=False)).needs_person


def test_damaged_sheet_is_named() -> None:
    with pytest.raises(EvaluationError, match="score sheet cannot be read"):
        ScoreSheet.from_json("{")


def test_configuration_alone_judges_as_it_comes() -> None:
    sheet = judge(make_candidate("total-cost:V=-1"), make_candidate(), GateHistory(), Config())
    assert sheet.stopped_by is not None
    assert sheet.stopped_by.stage == "logic"
