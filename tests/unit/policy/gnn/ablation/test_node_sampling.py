"""Who is drawn, how often, and what sums over those drawn are worth."""

import numpy as np
import pytest
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.ablation.sampling import (
    StratumMembers,
    inclusion_probabilities,
    stratify,
    systematic_sample,
)

Doubles = NDArray[np.float64]


def memberships(pairs: list[tuple[int, int]], candidate: list[bool]) -> StratumMembers:
    """Return (member, partition) as arrays."""
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return StratumMembers(both[:, 0], both[:, 1], np.array(candidate, dtype=np.bool_))


def totals(values: Doubles, probability: Doubles, draws: int, seed: int = 0) -> Doubles:
    """Return the weighted sum of each of many samples."""
    generator = np.random.default_rng(seed)
    found = np.empty(draws)
    for draw in range(draws):
        kept = systematic_sample(probability, generator)
        found[draw] = (values[kept] / probability[kept]).sum()
    return found


def test_probabilities_follow_importance_and_add_up_to_the_size() -> None:
    assert inclusion_probabilities(np.array([1.0, 2.0, 3.0, 4.0]), 2.0) == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_who_would_be_above_one_is_certain_and_the_others_share_the_rest() -> None:
    # 3 x 10/14 and then, of what is left, 2 x 2/4 are above or at 1.
    assert inclusion_probabilities(np.array([10.0, 2.0, 1.0, 1.0]), 3.0) == pytest.approx([1.0, 1.0, 0.5, 0.5])


def test_strata_have_budgets_of_their_own() -> None:
    importance, stratum = np.array([1.0, 3.0, 1.0, 2.0, 9.0]), np.array([1, 1, 0, 0, 0])
    together = inclusion_probabilities(importance, np.array([2.0, 1.0]), stratum=stratum)
    apart = [inclusion_probabilities(importance[:2], 1.0), inclusion_probabilities(importance[2:], 2.0)]
    assert together == pytest.approx(np.concatenate(apart))


def test_a_size_that_is_not_below_the_number_of_members_keeps_all() -> None:
    assert inclusion_probabilities(np.array([5.0, 1.0]), 2.0).tolist() == [1.0, 1.0]
    assert inclusion_probabilities(np.array([5.0, 1.0]), 7.5).tolist() == [1.0, 1.0]
    assert inclusion_probabilities(np.zeros(0), 3.0).shape == (0,)


def test_with_costs_it_is_the_expected_cost_that_is_met() -> None:
    importance, cost = np.array([9.0, 1.0, 2.0, 1.0]), np.array([2.0, 1.0, 2.0, 3.0])
    probability = inclusion_probabilities(importance, 4.0, cost)
    assert probability == pytest.approx([1.0, 0.25, 0.5, 0.25])
    assert (probability * cost).sum() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("importance", "budget", "cost"),
    [
        ([1.0, 0.0], 1.0, 1.0),
        ([1.0, float("nan")], 1.0, 1.0),
        ([1.0, 1.0], 0.0, 1.0),
        ([1.0, 1.0], float("nan"), 1.0),
        ([1.0, 1.0], 1.0, 0.0),
        ([1.0, 1.0], 1.0, float("nan")),
    ],
)
def test_importance_budget_and_cost_must_be_above_zero(importance: list[float], budget: float, cost: float) -> None:
    with pytest.raises(ValueRangeError, match="must be above 0"):
        inclusion_probabilities(np.array(importance), budget, np.full(2, cost))


def test_each_member_is_drawn_as_often_as_its_probability_says() -> None:
    draws, generator = 4000, np.random.default_rng(1)
    probability = inclusion_probabilities(np.random.default_rng(2).uniform(1.0, 4.0, 40), 8.0)
    probability[:3] = 1.0, 0.95, 0.0
    counts = np.zeros(40)
    for _ in range(draws):
        counts[systematic_sample(probability, generator)] += 1
    deviation = np.sqrt(draws * probability * (1.0 - probability))
    # 40 members: chance of any beyond 4.5 sigma is 3 in 10,000.
    assert (np.abs(counts - draws * probability) <= 4.5 * deviation).all()


def test_strata_and_groups_leave_the_probabilities_as_they_are() -> None:
    draws, generator = 4000, np.random.default_rng(3)
    stratum, group = np.repeat([0, 1, 2], [10, 20, 10]), np.arange(40) // 5
    probability = np.concatenate(
        [inclusion_probabilities(np.random.default_rng(4).uniform(1.0, 4.0, n), 3.0) for n in (10, 20, 10)]
    )
    counts = np.zeros(40)
    for _ in range(draws):
        kept = systematic_sample(probability, generator, stratum, group)
        assert np.bincount(stratum[kept], minlength=3).tolist() == [3, 3, 3]
        counts[kept] += 1
    deviation = np.sqrt(draws * probability * (1.0 - probability))
    assert (np.abs(counts - draws * probability) <= 4.5 * deviation).all()


def test_strata_are_drawn_without_regard_to_each_other() -> None:
    draws, generator, rare = 3000, np.random.default_rng(11), 0
    for _ in range(draws):
        kept = systematic_sample(np.array([0.9, 0.1, 0.9, 0.1]), generator, np.array([0, 0, 1, 1]))
        rare += kept.tolist() == [1, 3]
    # 1 % of the draws, 30; one start for both strata would make them 150.
    assert abs(rare - 30) <= 4.0 * np.sqrt(30)


class StartAtZero(np.random.Generator):
    """A source that only ever says 0."""

    def random(self, size: int) -> Doubles:  # type: ignore[override]  # the one form that is called
        return np.zeros(size)


def test_rounding_moves_no_point_over_the_border_of_strata() -> None:
    # Ten times 0.1 add up to less than 1: a point at 1 would be drawn from neither stratum, or twice from one.
    kept = systematic_sample(np.full(40, 0.1), StartAtZero(np.random.PCG64(0)), np.repeat(np.arange(4), 10))
    assert np.array_equal(kept // 10, np.arange(4))


def test_groups_of_enough_probability_are_all_in_the_sample() -> None:
    group = np.arange(32) // 4
    for seed in range(50):
        kept = systematic_sample(np.full(32, 0.25), np.random.default_rng(seed), group=group)
        assert np.array_equal(group[kept], np.arange(8))


def test_any_two_members_can_be_in_one_sample() -> None:
    generator, together = np.random.default_rng(5), np.zeros((8, 8), dtype=np.int64)
    for _ in range(1000):
        kept = systematic_sample(np.full(8, 0.25), generator)
        together[np.ix_(kept, kept)] += 1
    assert together.min() > 0


def test_weighted_sums_are_unbiased() -> None:
    random, draws = np.random.default_rng(6), 2000
    values, probability = random.lognormal(0.0, 1.0, 60), inclusion_probabilities(random.uniform(1.0, 4.0, 60), 10.0)
    found = totals(values, probability, draws)
    assert abs(found.mean() - values.sum()) <= 4.0 * found.std() / np.sqrt(draws)  # 4 sigma of the mean


def test_unweighted_means_are_biased_where_importance_follows_the_value() -> None:
    """The test above can fail: without the weights the sum is far off."""
    values = np.linspace(1.0, 4.0, 60)
    probability, generator = inclusion_probabilities(values, 10.0), np.random.default_rng(7)
    means = [values[systematic_sample(probability, generator)].mean() for _ in range(300)]
    assert np.mean(means) > 1.1 * values.mean()


def test_importance_that_follows_the_value_gives_less_variance_than_a_uniform_sample() -> None:
    random = np.random.default_rng(8)
    importance = random.uniform(1.0, 4.0, 60)
    values = importance * random.uniform(0.8, 1.2, 60)
    by_importance = totals(values, inclusion_probabilities(importance, 10.0), 1000).var()
    uniform = totals(values, np.full(60, 10.0 / 60.0), 1000).var()
    assert by_importance < 0.2 * uniform


def ratios(size: float, draws: int) -> tuple[Doubles, Doubles, float, float]:
    """Return estimates of a weighted mean and of its denominator, and both true values."""
    random = np.random.default_rng(9)
    score = random.normal(0.0, 1.0, 512)
    weight = np.exp(3.0 * np.tanh(score))  # as in the attention of the network
    value = weight * (score + random.normal(0.0, 1.0, 512))
    probability = inclusion_probabilities(random.uniform(1.0, 4.0, 512), size)
    generator, above, below = np.random.default_rng(10), np.empty(draws), np.empty(draws)
    for draw in range(draws):
        kept = systematic_sample(probability, generator)
        above[draw] = (value[kept] / probability[kept]).sum()
        below[draw] = (weight[kept] / probability[kept]).sum()
    return above / below, below, float(value.sum() / weight.sum()), float(weight.sum())


@pytest.mark.slow
def test_the_bias_of_attention_means_is_there_and_falls_as_one_over_the_size() -> None:
    draws = 3000
    bias, noise = {}, {}
    for size in (4.0, 16.0, 64.0):
        mean, below, true_mean, true_below = ratios(size, draws)
        bias[size], noise[size] = mean.mean() - true_mean, mean.std() / np.sqrt(draws)
        # Hartley and Ross (1954): |bias| <= deviation of the ratio x coefficient of variation of the denominator.
        assert abs(bias[size]) <= mean.std() * below.std() / true_below + 4.0 * noise[size]
    assert abs(bias[4.0]) > 6.0 * noise[4.0]
    assert abs(bias[64.0]) < abs(bias[16.0]) < abs(bias[4.0])
    for size in (16.0, 64.0):
        assert size * abs(bias[size]) <= 2.0 * 4.0 * abs(bias[4.0]) + 4.0 * size * noise[size]


def test_a_sample_is_ascending_without_repetition_and_the_same_for_the_same_seed() -> None:
    probability = inclusion_probabilities(np.linspace(1.0, 4.0, 100), 20.0)
    first, again, other = (systematic_sample(probability, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(first) == 20
    assert (np.diff(first) > 0).all()


def test_nobody_is_drawn_from_nobody() -> None:
    assert systematic_sample(np.zeros(0), np.random.default_rng(0)).shape == (0,)
    assert systematic_sample(np.zeros(5), np.random.default_rng(0)).shape == (0,)


def test_every_candidate_partition_keeps_two_members_or_all_that_it_has() -> None:
    pairs = [(n, 0) for n in range(20)] + [(20, 1)] + [(n, 2) for n in range(21, 24)] + [(n, 3) for n in range(24, 30)]
    members = memberships(pairs, [True, True, True, False])
    strata = stratify(np.ones(30), np.ones(30), members, 2.0)
    for seed in range(30):
        kept = systematic_sample(strata.probability, np.random.default_rng(seed), strata.stratum)
        assert np.bincount(np.searchsorted([20, 21, 24], kept, side="right"), minlength=4).tolist() == [2, 1, 2, 0]


def test_a_partition_that_only_smaller_ones_cover_keeps_two_members_all_the_same() -> None:
    # Members 0 to 7 are all in smaller partitions, of which none lies inside partition 0.
    pairs = [(n, 0) for n in range(8)]
    pairs += [(n, 1) for n in (0, 1, 2, 3, 8, 9)] + [(n, 2) for n in (4, 5, 6, 7, 10, 11)]
    strata = stratify(np.linspace(1.0, 2.0, 12), np.ones(12), memberships(pairs, [True, True, True]), 4.0)
    for seed in range(100):
        kept = systematic_sample(strata.probability, np.random.default_rng(seed), strata.stratum)
        assert np.count_nonzero(kept < 8) >= 2
    assert strata.probability[[6, 7]].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(20))
def test_overlapping_partitions_at_random_keep_their_least_and_unbiased_sums(seed: int) -> None:
    random = np.random.default_rng(seed)
    belongs = random.random((40, 6)) < 0.2
    pairs = [(int(n), int(p)) for n, p in zip(*np.nonzero(belongs), strict=True)]
    candidate = random.random(6) < 0.7
    strata = stratify(random.uniform(1.0, 4.0, 40), np.ones(40), memberships(pairs, candidate.tolist()), 6.0)
    useful = belongs[:, candidate].any(axis=1)
    assert np.array_equal(strata.probability > 0.0, useful)
    sums, draws = np.zeros((300, 6)), 300
    for draw in range(draws):
        kept = systematic_sample(strata.probability, np.random.default_rng(1000 + draw), strata.stratum)
        number = belongs[kept].sum(axis=0)
        assert (number >= np.minimum(2, belongs.sum(axis=0)))[candidate].all()
        sums[draw] = (belongs[kept] / strata.probability[kept, None]).sum(axis=0)
    noise = sums.std(axis=0) / np.sqrt(draws)
    assert (np.abs(sums.mean(axis=0) - belongs.sum(axis=0)) <= 4.5 * noise + 1e-9)[candidate].all()


def test_the_budget_is_in_units_of_the_cost() -> None:
    cost = np.where(np.arange(400) % 2, 8.0, 4.0)
    members = memberships([(n, 0) for n in range(400)], [True])
    strata = stratify(cost, cost, members, 0.1 * float(cost.sum()))
    assert (strata.probability * cost).sum() == pytest.approx(0.1 * cost.sum(), rel=0.02)


def test_members_of_the_context_are_a_stratum_of_their_own() -> None:
    members = memberships([(n, 0) for n in range(10)] + [(n, 1) for n in range(10, 20)], [True, False])
    context = np.arange(20) >= 15
    strata = stratify(np.ones(20), np.ones(20), members, 6.0, context)
    assert strata.stratum.tolist() == [0] * 10 + [-1] * 5 + [2] * 5
    assert strata.probability == pytest.approx([0.4] * 10 + [0.0] * 5 + [0.4] * 5)


def test_without_candidates_nobody_has_a_chance() -> None:
    members = memberships([(0, 0), (1, 0)], [False])
    assert stratify(np.ones(2), np.ones(2), members, 1.0).probability.tolist() == [0.0, 0.0]
    assert stratify(np.ones(2), np.ones(2), memberships([], []), 1.0).probability.tolist() == [0.0, 0.0]
