"""Rates of job types on GPU types, alone and beside a neighbour, against measured ones that were not shown."""

import numpy as np
import pytest
from measured_data import MEASURED

from research.estimates.baselines import gradient_boosting, matrix_completion, mean_of_name, nearest_names
from research.estimates.data import (
    GAVEL_SHEETS,
    ZEUS_SHEETS,
    read_h100_neighbours,
    read_neighbours,
    read_rates,
    read_zeus,
    work_of,
)
from research.estimates.judging import (
    by_similarity,
    few_pairs_given,
    judge_left_out_rates,
    judge_neighbours,
    judge_rates,
    one_run,
    type_never_seen,
)
from slurm_energy.estimation.rates import (
    Beside,
    MeasuredNeighbour,
    MeasuredRate,
    RatePlace,
    Work,
    fit_neighbours,
    fit_power,
    fit_rates,
)

FAMILIES = {"LM", "ResNet-50", "Transformer", "Recommendation"}


@pytest.fixture(scope="module")
def single_gpu_rates() -> list[MeasuredRate]:
    return [row for row in read_rates(MEASURED) if row.place.gpus == 1 and row.work.family in FAMILIES]


@pytest.mark.slow
def test_a_rate_on_a_type_never_seen_is_nearer_than_by_simpler_estimators(single_gpu_rates: list[MeasuredRate]) -> None:
    pytest.importorskip("sklearn", reason="boosted trees need scikit-learn (extra `dev`)")
    questions = list(type_never_seen(single_gpu_rates, ["v100"]))
    ours = judge_rates(single_gpu_rates, questions, by_similarity)
    assert ours.mean_error < 0.15
    for simpler in (mean_of_name, nearest_names, matrix_completion, gradient_boosting):
        assert judge_rates(single_gpu_rates, questions, simpler).mean_error > 1.2 * ours.mean_error


def test_intervals_of_rates_cover_what_they_say(single_gpu_rates: list[MeasuredRate]) -> None:
    found = judge_rates(
        single_gpu_rates, list(type_never_seen(single_gpu_rates, ["k80", "p100", "v100"])), by_similarity
    )
    assert found.covered is not None
    assert 0.85 <= found.covered <= 1.0


def test_one_measurement_elsewhere_corrects_the_other_types(single_gpu_rates: list[MeasuredRate]) -> None:
    name = "Transformer (batch size 32)"
    unseen = fit_rates([row for row in single_gpu_rates if row.work.name != name], GAVEL_SHEETS)
    mine = {row.place.gpu_type: row for row in single_gpu_rates if row.work.name == name}
    refined = unseen.refined([mine["p100"]])
    for kind in ("k80", "v100"):
        before, after = (model.estimate(work_of(name), RatePlace(kind)) for model in (unseen, refined))
        assert abs(np.log(after.middle / mine[kind].value)) < abs(np.log(before.middle / mine[kind].value))
        assert after.log_doubt < before.log_doubt


def test_a_refined_model_is_the_one_fitted_to_all(single_gpu_rates: list[MeasuredRate]) -> None:
    kernel_of = fit_rates(single_gpu_rates, GAVEL_SHEETS).process
    refined = fit_rates(single_gpu_rates[:-3], GAVEL_SHEETS).refined(single_gpu_rates[-3:]).process
    assert kernel_of is not None
    assert refined is not None
    np.testing.assert_allclose(refined.precision, kernel_of.precision, rtol=1e-6, atol=1e-6)


def test_what_was_never_measured_has_the_widest_interval(single_gpu_rates: list[MeasuredRate]) -> None:
    model = fit_rates(single_gpu_rates, GAVEL_SHEETS)
    known = model.estimate(work_of("LM (batch size 10)"), RatePlace("v100"))
    strange = model.estimate(Work("x" * 10_000, "", float("nan")), RatePlace("no such board", -3, True))
    empty = fit_rates([]).estimate(Work("", "", -1.0), RatePlace(""))
    assert known.log_doubt < strange.log_doubt
    assert strange.log_doubt > 0.5
    assert empty.lower < empty.middle < empty.upper


def test_contradictory_and_impossible_measurements_are_borne(single_gpu_rates: list[MeasuredRate]) -> None:
    one = single_gpu_rates[0]
    bad = [
        MeasuredRate(work=one.work, place=one.place, value=value)
        for value in (0.0, float("nan"), -1.0, one.value / 300)
    ]
    usual = fit_rates(single_gpu_rates, GAVEL_SHEETS).estimate(one.work, one.place)
    found = fit_rates([*single_gpu_rates, one, *bad], GAVEL_SHEETS).estimate(one.work, one.place)
    assert found.middle == pytest.approx(usual.middle, rel=0.02)


def test_five_pairs_of_a_new_gpu_type_tell_the_others() -> None:
    found = judge_neighbours(
        read_h100_neighbours(MEASURED), list(few_pairs_given(read_h100_neighbours(MEASURED), 5, 8))
    )
    assert found.mean_error < 0.13


@pytest.mark.slow
def test_a_pair_never_tried_is_known_from_the_others() -> None:
    rows = [row for row in read_neighbours(MEASURED) if row.beside.gpu_type == "p100"]
    name = "LM (batch size 20)"
    hidden = [name in {row.beside.work.name, row.beside.neighbour.name} for row in rows]
    model = fit_neighbours([row for row, one in zip(rows, hidden, strict=True) if not one])
    asked = [row for row, one in zip(rows, hidden, strict=True) if one]
    errors = [abs(model.estimate(row.beside).middle / row.value - 1.0) for row in asked]
    assert np.mean(errors) < 0.1


def test_neighbours_that_leave_the_gpu_idle_do_not_slow_each_other_before_anything_is_measured() -> None:
    one, other = Work("a"), Work("b")
    free, crowded = fit_neighbours([]), Beside(one, other, "h100-sxm5-80gb", use=0.9)
    assert free.estimate(Beside(one, other, "h100-sxm5-80gb")).middle == 1.0
    assert free.estimate(crowded).middle == pytest.approx(1.0 / 1.9)
    measured = MeasuredNeighbour(beside=crowded, value=0.9)
    assert free.refined([measured]).estimate(crowded).middle > 0.75


def test_power_on_a_type_never_seen_is_near_what_was_measured() -> None:
    _, watts = read_zeus(MEASURED)
    rows = [row for row in watts if row.work.family in {"resnet50", "bert_base_uncased"}]
    found = judge_left_out_rates(rows, list(type_never_seen(rows, ["v100"])), fit_power(rows, ZEUS_SHEETS))
    assert found.mean_error < 0.06


def test_questions_after_one_run_show_that_run(single_gpu_rates: list[MeasuredRate]) -> None:
    for question in one_run(single_gpu_rates, ["k80"], elsewhere=True):
        asked = [row for row, one in zip(single_gpu_rates, question.asked, strict=True) if one]
        shown = [row for row, one in zip(single_gpu_rates, question.hidden, strict=True) if not one]
        assert [row.place.gpu_type for row in shown if row.work == asked[0].work] == ["k80"]
