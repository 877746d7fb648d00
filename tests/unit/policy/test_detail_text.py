"""What a policy tells of its answer: checked by the guard, in words for people, stored and read again."""

from math import inf, nan
from typing import Any

import pytest
from guard_questions import AnswerPolicy, decide
from policy_factory import make_job

from slurm_energy.domain.decision import AnswerDetails, EnergyDecision, OptionCost, PolicyAnswer
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.policy.detail_text import costs_document, detail_sentences


def cost(name: str = "a100", energy: float = 9.6e6, **changes: Any) -> OptionCost:
    values: dict[str, Any] = {"parts": {"energy": energy, "slowdown": 0.7e6, "time": 0.0}, "clock_mhz": 1080}
    return OptionCost(partition=PartitionName(name), **{**values, **changes})


def told(details: Any) -> AnswerDetails:
    decision: EnergyDecision = decide(make_job(), policy=AnswerPolicy(PolicyAnswer(details=details)))
    return decision.details


def test_sentences_tell_the_least_cost_the_runner_up_and_the_factors() -> None:
    second = cost("v100", 19.2e6, clock_mhz=None, gpu_type=GpuTypeName("v100-sxm2-16gb"))
    details = AnswerDetails(options=(cost(full_parts={"energy": 13.4e6}), second), factors={"slowdown": 1.5})
    assert detail_sentences(details) == (
        "least cost: a100 at 1080 MHz: 10.3 MJ = energy 9.6 MJ + slowdown 700 kJ",
        "runner-up (+93.2%): v100 on v100-sxm2-16gb, its dearest GPU type,: 19.9 MJ = energy 19.2 MJ + slowdown 700 kJ",
        "at its highest clock it would cost 13.4 MJ = energy 13.4 MJ",
        "learned price of slowdown: 1.5 times the configured one",
    )
    assert detail_sentences(AnswerDetails()) == ()


def test_a_learned_price_that_is_the_configured_one_is_left_out() -> None:
    factors = {"slowdown": 1.0, "scarcity": 0.8, "waking": 1.0004, "energy": 1.31}
    assert detail_sentences(AnswerDetails(factors=factors)) == (
        "learned price of scarcity: 0.8 times the configured one",
        "learned price of energy: 1.31 times the configured one",
    )
    assert detail_sentences(AnswerDetails(factors={"slowdown": 1.0})) == ()


def test_the_document_has_a_row_for_each_option_and_null_where_nothing_was_weighed() -> None:
    assert costs_document(AnswerDetails(options=(cost(),))) == {
        "factors": None,
        "options": [{"partition": "a100", "mhz": 1080, "energy": 9.6e6, "slowdown": 0.7e6, "time": 0.0}],
    }
    assert costs_document(AnswerDetails(attention={"queue": 0.4})) is None


def test_the_guard_keeps_what_can_be_read_and_leaves_out_the_rest() -> None:
    wild = cost("a" * 500 + "\x1b", parts={"energy": nan, "time": inf, "slowdown": 1e301, "host": 5.25, 3: 4.0})
    options = (wild, "no option", cost("a40"))
    details = told(AnswerDetails(options=options, factors={"x" * 500: 1.0}, attention=dict[str, Any](queue="much")))  # type: ignore[arg-type]
    assert [one.partition for one in details.options] == ["a" * 200, "a40"]
    assert details.options[0].parts == {"host": 5.25, "int": 4.0}
    assert (details.factors, details.attention) == ({"x" * 200: 1.0}, {})


@pytest.mark.parametrize("details", [None, "words", 5, AnswerDetails(options=7)])  # type: ignore[arg-type]
def test_details_that_are_none_never_cost_a_job_its_decision(details: Any) -> None:
    decision = decide(make_job(), policy=AnswerPolicy(PolicyAnswer(details=details)))
    assert decision.details == AnswerDetails()


def test_an_answer_of_a_thousand_options_is_cut() -> None:
    many = AnswerDetails(options=tuple(cost() for _ in range(1_000)), factors={str(n): 1.0 for n in range(99)})
    details = told(many)
    assert (len(details.options), len(details.factors)) == (4, 16)


def test_details_come_back_from_their_stored_form() -> None:
    details = told(AnswerDetails(options=(cost(),), factors={"slowdown": 1.5}, preference={"a100": 0.75}))
    assert from_plain(AnswerDetails, to_plain(details)) == details
