"""Prices are learned from bills: what the rule gets wrong about sharing nodes, a network puts right."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
import torch
from small_worlds import make_device, make_job, make_load, make_pool, make_world
from torch.nn import Parameter

from slurm_energy.errors import TrainingError, ValueRangeError
from slurm_energy.learning.prices.collector import ExploringPriceRule, PricedEpisode
from slurm_energy.learning.prices.learner import PriceLearner
from slurm_energy.learning.prices.settings import PriceEpisodeSettings, PriceLearnerSettings
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.priced_answers import PricedRule
from slurm_energy.policy.gnn.serving import NetworkPrices
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.prices import JOB_PRICES, relative_joules
from slurm_energy.policy.registry import create_rule
from slurm_energy.policy.rules.settings import TotalCostSettings
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world import SuspendSettings

SLEEP = SuspendSettings(idle_seconds=60.0, resume_seconds=10.0, suspended_watts=5.0, resume_watts=100.0)
LEAN = make_device(
    "lean", loads={"training": make_load(watts=(150.0,), seconds_per_unit=(1.0,))}, relative_clocks=(1.0,)
)
THIRSTY = make_device(
    "thirsty", loads={"training": make_load(watts=(330.0,), seconds_per_unit=(1.0,))}, relative_clocks=(1.0,)
)
WORLD = make_world(
    make_pool(
        "wide", device="lean", nodes=2, gpus_per_node=8, host_idle_watts=900.0, host_busy_watts=900.0, suspend=SLEEP
    ),
    make_pool(
        "narrow",
        device="thirsty",
        nodes=16,
        gpus_per_node=1,
        host_idle_watts=130.0,
        host_busy_watts=130.0,
        suspend=SLEEP,
    ),
    devices=(LEAN, THIRSTY),
)
"""Jobs that come one at a time are cheapest on narrow nodes, though their GPUs draw more: nobody shares a wide node."""
CONFIG = NetworkConfig(policy="prices", hidden=12, pooling="coarsening", device_layers=1)
EPISODE = PriceEpisodeSettings(world="", hours=24.0, time_watts=0.0, slowdown=0.0, refresh_seconds=7200.0, noise=0.5)


def jobs(seed: int, count: int = 20) -> Workload:
    random, now, found = Random(seed), 0.0, []
    for number in range(count):
        now += random.expovariate(1.0 / 4000.0)
        found.append(make_job(number + 1, submitted=now, units=random.uniform(300.0, 1500.0)))
    return Workload(name="alone", jobs=tuple(found))


def episode(network: HierarchicalNetwork, seed: int, workload: Workload | None = None) -> PricedEpisode:
    rule = ExploringPriceRule(network.eval(), EPISODE, Random(seed))
    outcome = run(WORLD, workload or jobs(seed), rule)
    steps, cost = rule.steps(outcome.end_seconds)
    return PricedEpisode(states=tuple(rule.states), steps=tuple(steps), cost_per_job=cost)


def learner(network: HierarchicalNetwork) -> PriceLearner:
    settings = PriceLearnerSettings(learning_rate=1e-2, states_per_batch=16)
    return PriceLearner(network, settings, noise=EPISODE.noise, seed=0)


def learned(network: HierarchicalNetwork) -> PlacementRule:
    settings = TotalCostSettings(time_watts=0.0, slowdown=0.0)
    return PricedRule(lambda: NetworkPrices(network), settings, refresh_seconds=EPISODE.refresh_seconds)


def rounds(count: int, *, length: int) -> tuple[HierarchicalNetwork, Sequence[float]]:
    torch.set_num_threads(1)
    network = create_network(CONFIG, seed=0)
    learns, costs = learner(network), []
    for number in range(count):
        figures = learns.absorb([episode(network, 1000 + number, jobs(1000 + number, length))])
        costs.append(figures["cost_per_job"])
    return network.eval(), costs


def joules(outcome: Outcome) -> float:
    return float(outcome.total_joules)


@pytest.mark.slow
def test_a_toy_cluster_with_a_known_optimum_is_learned() -> None:
    test = jobs(seed=5, count=120)
    optimum = run(WORLD, test, create_rule("total-cost:V=0,slowdown=0,opened_nodes=3"))
    assert set(optimum.place.tolist()) == {1}
    untrained = joules(run(WORLD, test, learned(create_network(CONFIG, seed=0))))
    network, _ = rounds(10, length=120)
    assert untrained > 1.1 * joules(optimum)
    assert joules(run(WORLD, test, learned(network))) < 1.02 * joules(optimum)


def test_an_untrained_network_does_what_the_rule_does() -> None:
    test = jobs(seed=6)
    rule = run(WORLD, test, create_rule("total-cost:V=0,slowdown=0"))
    network = run(WORLD, test, learned(create_network(CONFIG, seed=3)))
    assert joules(rule) == joules(network)
    assert list(rule.place) == list(network.place)


def test_one_seed_gives_one_training() -> None:
    (first, costs), (second, same) = (rounds(2, length=12) for _ in range(2))
    assert costs == same
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_restored_learner_goes_on_as_if_it_had_not_stopped() -> None:
    torch.set_num_threads(1)
    network = create_network(CONFIG, seed=0)
    whole = learner(network)
    whole.absorb([episode(network, 1)])
    kept = whole.state()
    later = episode(network, 2)
    again = create_network(CONFIG, seed=9)
    resumed = learner(again)
    whole.absorb([later])
    resumed.restore(kept)
    resumed.absorb([later])
    for mine, theirs in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_bills_add_up_to_what_the_cluster_drew() -> None:
    """All bills at no price of time are the energy beyond that of a cluster whose nodes all sleep."""
    network = create_network(CONFIG, seed=0)
    rule = ExploringPriceRule(network.eval(), EPISODE, Random(0))
    workload = jobs(7, 60)
    outcome = run(WORLD, workload, rule)
    steps, _ = rule.steps(outcome.end_seconds + SLEEP.idle_seconds)
    assert len(steps) == len(workload.jobs) - 1  # nobody is asked after the last one's end
    promised = [job.true_units * min(140.0 + 975.0 / 8.0, 320.0 + 135.0) for job in workload.jobs]
    billed = sum(step.cost * least for step, least in zip(steps, promised[:-1], strict=True))
    asleep = 18 * SLEEP.suspended_watts * outcome.end_seconds
    before_the_first_sleep = SLEEP.idle_seconds * (2 * 975.0 + 16 * 135.0)
    assert billed == pytest.approx(joules(outcome) - asleep - before_the_first_sleep, rel=0.03)


def test_devices_are_on_the_bill_at_the_price_that_the_rule_has_for_them() -> None:
    network = create_network(CONFIG, seed=0).eval()
    crowd = tuple(make_job(number, submitted=30.0 * number, units=2000.0, gpus=(1,)) for number in range(1, 60))
    costs, energies = [], []
    for scarcity in (0.0, 1e-3, 1e-2):  # too little to change a decision, yet to be seen on the bill
        rule = ExploringPriceRule(network, EPISODE, Random(3))
        rule.settings = replace(rule.settings, scarcity=scarcity)
        outcome = run(WORLD, Workload(name="crowd", jobs=crowd), rule)
        costs.append(rule.steps(outcome.end_seconds)[1])
        energies.append(joules(outcome))
    assert len(set(energies)) == 1
    assert costs[2] - costs[0] == pytest.approx(10.0 * (costs[1] - costs[0]), rel=1e-6)
    assert costs[1] > costs[0]


def test_a_fixed_price_under_the_name_of_an_earlier_release_is_answered_with_its_present_one() -> None:
    with pytest.raises(ValueRangeError, match="'opening' is called 'opened_nodes' now"):
        replace(EPISODE, fixed=("time_watts", "opening"))


def test_a_price_that_is_fixed_is_neither_tried_nor_learned() -> None:
    fixed = ("time_watts", "slowdown_joules", "waking")
    settings = replace(EPISODE, fixed=fixed)
    network = create_network(CONFIG, seed=0)
    learns = learner(network)
    for seed in (1, 2, 3):
        rule = ExploringPriceRule(network.eval(), settings, Random(seed))
        outcome = run(WORLD, jobs(seed), rule)
        steps, cost = rule.steps(outcome.end_seconds)
        tried = np.array([step.job_raw - step.job_mean for step in steps])
        assert [bool(column.any()) for column in tried.T] == [name not in fixed for name in JOB_PRICES]
        learns.absorb([PricedEpisode(states=tuple(rule.states), steps=tuple(steps), cost_per_job=cost)])
    said = np.array([step.job_mean for step in episode(network, 4).steps])
    assert [bool(np.abs(column).max() > 1e-6) for column in said.T] == [name not in fixed for name in JOB_PRICES]
    with pytest.raises(ValueRangeError, match="fixed: 'tim' is not one of time_watts"):
        replace(EPISODE, fixed=("tim",))


def test_steps_fall_from_the_first_rate_to_the_last_share_of_it() -> None:
    settings = PriceLearnerSettings(learning_rate=0.01, final_learning_rate_share=0.1, decay_rounds=10)
    rates = [settings.learning_rate_after(rounds) for rounds in (0, 5, 10, 50)]
    assert rates == pytest.approx([0.01, 0.0055, 0.001, 0.001])
    network = create_network(CONFIG, seed=0)
    learns = PriceLearner(network, replace(settings, decay_rounds=1), noise=EPISODE.noise, seed=0)
    before = [value.detach().clone() for value in network.parameters()]
    moved = []
    for seed in (1, 2):
        learns.absorb([episode(network, seed)])
        after = [value.detach().clone() for value in network.parameters()]
        moved.append(max(float((new - old).abs().max()) for new, old in zip(after, before, strict=True)))
        before = after
    assert moved[1] < 0.6 * moved[0]


def test_waiting_is_blamed_on_what_came_before_it() -> None:
    network = create_network(CONFIG, seed=0)
    rule = ExploringPriceRule(network.eval(), PriceEpisodeSettings(world="", time_watts=20.0), Random(0))
    crowd = tuple(make_job(number, submitted=10.0 * number, units=2000.0, gpus=(1,)) for number in range(1, 60))
    outcome = run(WORLD, Workload(name="crowd", jobs=crowd), rule)
    steps, _ = rule.steps(outcome.end_seconds)
    by_job = [step.waiting for step in steps]
    assert max(by_job) > 0.0
    assert all(np.isfinite(by_job))


def test_a_job_weighs_what_its_energy_is_and_costs_are_shares_of_it() -> None:
    rule = ExploringPriceRule(create_network(CONFIG, seed=0).eval(), EPISODE, Random(0))
    workload = jobs(seed=8, count=40)
    outcome = run(WORLD, workload, rule)
    steps, cost = rule.steps(outcome.end_seconds)
    weights = np.array([step.weight for step in steps])
    by_id = {job.job_id: job.true_units for job in workload.jobs}
    units = np.array([by_id[job_id] for job_id in rule._started])
    assert weights.mean() == pytest.approx(1.0)
    assert weights / weights[0] == pytest.approx(units / units[0], rel=1e-6)
    assert np.average([step.cost for step in steps], weights=weights) == pytest.approx(cost)


def test_the_lesson_of_a_large_job_outweighs_those_of_small_ones() -> None:
    """Of two jobs whose lessons contradict each other the heavier one is followed."""

    def opening_after(weights: tuple[float, float]) -> float:
        network = create_network(CONFIG, seed=0)
        real = episode(network, 1)
        step, index = real.steps[0], JOB_PRICES.index("opened_nodes")
        up, down = (step.job_mean + sign * np.eye(len(JOB_PRICES), dtype=np.float32)[index] for sign in (1, -1))
        base = step._replace(device_raw=step.device_mean, waiting=0.0)
        lessons = (
            base._replace(job_raw=up, cost=1.0, weight=weights[0]),
            base._replace(job_raw=down, cost=3.0, weight=weights[0]),
            base._replace(job_raw=up, cost=3.0, weight=weights[1]),
            base._replace(job_raw=down, cost=1.0, weight=weights[1]),
        )
        learns = learner(network)
        for _ in range(5):
            figures = learns.absorb([replace(real, steps=lessons)])
        return figures["raw_opened_nodes"]

    assert opening_after((5.0, 1.0)) > 0.0 > opening_after((1.0, 5.0))


def test_what_lies_below_the_heads_learns_at_its_own_rate() -> None:
    network = create_network(CONFIG, seed=0)
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    settings = PriceLearnerSettings(learning_rate=1e-2, encoder_rate_share=0.0)
    PriceLearner(network, settings, noise=EPISODE.noise, seed=0).absorb([episode(network, 1)])
    moved = {name for name, value in network.named_parameters() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith("prices.") for name in moved)


def test_a_network_without_prices_is_refused() -> None:
    with pytest.raises(TrainingError, match="prices"):
        PriceLearner(create_network(NetworkConfig(hidden=12), seed=0), PriceLearnerSettings(), noise=0.3, seed=0)


def test_episodes_without_an_ended_job_are_refused() -> None:
    network = create_network(CONFIG, seed=0)
    with pytest.raises(TrainingError, match="no job"):
        learner(network).absorb([PricedEpisode(states=(), steps=(), cost_per_job=inf)])


def test_all_ranks_step_equally_often_whatever_they_collected() -> None:
    def steps(batches_of_others: float) -> int:
        number = 0

        def averaging(parameters: Iterable[Parameter]) -> None:
            nonlocal number
            given = list(parameters)
            gradient = given[0].grad
            if len(given) == 1 and gradient is not None:
                gradient.copy_((gradient + batches_of_others) / 2.0)
            else:
                number += 1

        network = create_network(CONFIG, seed=0)
        settings = PriceLearnerSettings(states_per_batch=16, head_steps=0)
        PriceLearner(network, settings, noise=0.5, seed=0, average=averaging).absorb([episode(network, 1)])
        return number

    own = steps(0.0) * 2  # the mean with none
    assert steps(float(own)) == own
    assert steps(own + 4.0) == own + 2


def test_jobs_are_told_apart_by_their_size_where_it_is_known() -> None:
    assert relative_joules(1.0, 1.0) == 0.0
    assert relative_joules(20.0, 10.0) == -relative_joules(10.0, 20.0) > 0.0
    assert [relative_joules(own, 1.0) for own in (0.0, inf, -1.0)] == [0.0, 0.0, 0.0]
    assert relative_joules(1.0, 0.0) == 0.0
