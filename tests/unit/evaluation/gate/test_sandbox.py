from dataclasses import replace

import pytest
from gate_samples import make_candidate

from slurm_energy.config import Config
from slurm_energy.domain.decision import ClockChoice, PolicyAnswer
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.evaluation.gate import decisions
from slurm_energy.evaluation.gate.sandbox import Observed, SandboxLimits, observe, sandbox_result
from slurm_energy.evaluation.gate.sheet import StageVerdict
from slurm_energy.evaluation.gate.states import edge_states
from slurm_energy.policy.base import Case, Policy

LIMITS = SandboxLimits(states=200, latency_milliseconds=1e6)


class Made:
    name = "made"
    version = "0"

    def __init__(self, answer: PolicyAnswer | Exception) -> None:
        self.answer = answer

    def decide(self, case: Case) -> PolicyAnswer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def seen(monkeypatch: pytest.MonkeyPatch, answer: PolicyAnswer | Exception) -> Observed:
    def make(config: Config) -> Policy:
        return Made(answer)

    monkeypatch.setattr(decisions, "create_policy", make)
    return observe(make_candidate(), Config(), edge_states(LIMITS.states, seed=1))


def clock(gpu_type: str, mhz: int, slowdown: float = 0.0) -> PolicyAnswer:
    choice = ClockChoice(
        gpu_type=GpuTypeName(gpu_type),
        sm_clock_mhz=mhz,
        default_clock_mhz=1410,
        predicted_slowdown=slowdown,
        predicted_energy_change=-0.1,
    )
    return PolicyAnswer(clocks=(choice,))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (clock("a40", 1455, float("nan")), "not finite"),
        (clock("h200-sxm-141gb", 1410), "outside what was open"),
        (PolicyAnswer(partitions=(PartitionName("nowhere"),)), "outside what was open"),
        (ValueError("no"), "were errors"),
    ],
)
def test_bad_answers_stop_a_candidate(
    monkeypatch: pytest.MonkeyPatch, answer: PolicyAnswer | Exception, words: str
) -> None:
    result = sandbox_result(seen(monkeypatch, answer), "", None, LIMITS)
    assert result.verdict is StageVerdict.STOPPED
    assert words in result.summary


@pytest.mark.parametrize("name", ["oracle", "slurm-default", "total-cost"])
def test_shipped_rules_pass_and_repeat_themselves(name: str) -> None:
    found, again = (observe(make_candidate(name), Config(), edge_states(200, seed=2)) for _ in range(2))
    assert found.errors == found.not_finite == found.mask_violations == 0
    assert found.digest == again.digest
    assert sandbox_result(found, "", found, LIMITS).verdict is StageVerdict.PASSED


def test_more_changes_by_the_guard_than_the_incumbent_has_stop_a_candidate() -> None:
    usual = Observed(states=1000, answers=1000, guard_changes=50)
    within, beyond = (sandbox_result(replace(usual, guard_changes=count), "", usual, LIMITS) for count in (59, 61))
    assert within.verdict is StageVerdict.PASSED
    assert beyond.verdict is StageVerdict.STOPPED
    assert "the guard changed 6.1%" in beyond.summary


def test_slow_candidate_and_one_that_does_not_come_back_are_stopped() -> None:
    slow = Observed(states=10, answers=10, latency_milliseconds=21.0)
    limits = replace(LIMITS, latency_milliseconds=20.0)
    assert "took up to 21.0 ms" in sandbox_result(slow, "", None, limits).summary
    gone = sandbox_result(None, "ended by a limit", None, limits)
    assert (gone.verdict, gone.summary) == (StageVerdict.STOPPED, "the candidate ended by a limit")


@pytest.mark.slow
def test_incumbent_over_ten_thousand_states_makes_no_error() -> None:
    found = observe(make_candidate(), Config(), edge_states(10_000))
    assert (found.errors, found.not_finite, found.mask_violations) == (0, 0, 0)
