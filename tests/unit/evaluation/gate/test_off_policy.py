from dataclasses import replace

import pytest
from gate_samples import make_log

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.gate.off_policy import LoggedDecision, off_policy_estimate, off_policy_result
from slurm_energy.evaluation.gate.sheet import FigureInterval, StageVerdict


def test_log_of_chance_decisions_tells_what_the_other_choice_saves() -> None:
    # Half of the decisions are low already: all low saves 0.1 against 0.05 spent less so far.
    found = off_policy_estimate(make_log(2000, saving=0.1))
    assert found is not None
    assert found.saving.low <= 1.0 - 0.9 / 0.95 <= found.saving.high
    assert found.saving.high - found.saving.low < 0.03
    assert found.decisions == 2000


def test_rarely_made_choice_counts_by_how_likely_it_was() -> None:
    found = off_policy_estimate(make_log(4000, saving=0.2, share=0.1))
    assert found is not None
    assert found.saving.low <= 1.0 - 0.8 / 0.98 <= found.saving.high


@pytest.mark.slow
def test_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    truth = 1.0 - 0.9 / 0.95
    held = 0
    for seed in range(60):
        found = off_policy_estimate(make_log(600, saving=0.1, seed=seed))
        assert found is not None
        held += found.saving.low <= truth <= found.saving.high
    assert held >= 51


def test_short_log_is_not_judged() -> None:
    assert off_policy_estimate(make_log(49, saving=0.1)) is None
    assert off_policy_result(None, None).verdict is StageVerdict.NOT_JUDGED


def test_candidate_good_in_the_twin_and_bad_in_the_log_is_stopped() -> None:
    found = off_policy_estimate(make_log(2000, saving=-0.2))
    twin = FigureInterval(mean=0.08, low=0.06, high=0.10)
    result = off_policy_result(found, twin)
    assert result.verdict is StageVerdict.STOPPED
    assert "disagree beyond both intervals" in result.summary


def test_twin_within_the_logs_interval_passes() -> None:
    result = off_policy_result(
        off_policy_estimate(make_log(2000, saving=0.1)), FigureInterval(mean=0.05, low=0.03, high=0.07)
    )
    assert result.verdict is StageVerdict.PASSED
    assert result.score is not None
    assert result.score > 0.9


def test_logged_decision_that_could_not_happen_is_refused() -> None:
    with pytest.raises(ValueRangeError, match=r"probability 0\.0"):
        LoggedDecision(user="u", group="g", action="", probability=0.0, cost=1.0, candidate_action="")


def test_names_that_one_user_alone_has_are_known_by_their_own_runs() -> None:
    # Nothing was drawn by chance: half of each user's runs were low, and cost a tenth less.
    rows = [
        LoggedDecision(
            user=f"user{user}",
            group=f"user{user}/train",
            action="low" if number % 2 else "",
            probability=1.0,
            cost=0.9 if number % 2 else 1.0,
            candidate_action="low",
        )
        for user in range(10)
        for number in range(40)
    ]
    found = off_policy_estimate(rows)
    assert found is not None
    assert found.saving.mean == pytest.approx(1.0 - 0.9 / 0.95, abs=0.01)


def test_action_that_was_never_done_is_not_judged() -> None:
    rows = [replace(row, candidate_action="lower still") for row in make_log(400, saving=0.1)]
    assert off_policy_estimate(rows) is None
    assert "ever tried" in off_policy_result(None, None).summary
