"""Learned prices where jobs are placed when they can start: what the network says is what the optimiser pays."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from served_cluster import guarded, lab, submitted
from small_worlds import make_job, make_pool, make_world
from toy_cluster import TOY, toy_jobs

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import Reason
from slurm_energy.errors import ConfigError
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.partitions import ClusterFacts
from slurm_energy.learning.prices.collector import ExploringPriceRule
from slurm_energy.learning.prices.settings import PriceEpisodeSettings
from slurm_energy.policy.gnn import priced_answers
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.policy.gnn.price_head import PRICED_JOB
from slurm_energy.policy.gnn.priced_answers import Look, PricedRule
from slurm_energy.policy.gnn.serving import NetworkPrices
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, Postponement
from slurm_energy.policy.prices import JOB_PRICES
from slurm_energy.policy.registry import create_policy, create_rule
from slurm_energy.policy.rules.settings import TotalCostSettings
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.simulation import run


class FixedPrices:
    """Says the same of every job, and counts the looks."""

    def __init__(self, **raw: float) -> None:
        self.raw = np.array([raw.get(name, 0.0) for name in JOB_PRICES], dtype=np.float32)
        self.graph = ClusterGraph()
        self.looks = 0
        self.columns: list[np.ndarray] = []

    @property
    def device_raw(self) -> np.ndarray:
        return np.zeros(len(self.graph.partition_index), dtype=np.float32)

    @property
    def look(self) -> Look:
        graph = self.graph
        return Look(self, ClusterFacts(graph.partition_index, graph.facts, graph.members.sums(graph.nodes.store)))

    def follow(self, snapshot: ClusterSnapshot) -> None:
        self.looks += 1
        self.graph.update(snapshot)

    def job_raw(self, job_x: np.ndarray) -> np.ndarray:
        self.columns.append(job_x)
        return self.raw


def rule_of(source: FixedPrices, **settings: Any) -> PricedRule:
    return PricedRule(lambda: source, TotalCostSettings(**settings), refresh_seconds=3600.0)


def test_a_factor_is_the_same_as_another_setting_of_the_rule() -> None:
    jobs = toy_jobs(seed=1, count=60)
    raw = 3.0 * np.arctanh(np.log(8.0) / 3.0)
    learned = run(TOY, jobs, rule_of(FixedPrices(time_watts=float(raw)), time_watts=1000.0))
    rule = run(TOY, jobs, create_rule("total-cost:V=8000"))
    other = run(TOY, jobs, create_rule("total-cost:V=1000"))
    assert learned.total_joules == pytest.approx(rule.total_joules, rel=1e-9)
    assert learned.total_joules != pytest.approx(other.total_joules, rel=1e-6)


def test_the_cluster_is_looked_at_now_and_then_and_jobs_are_priced_each() -> None:
    source = FixedPrices()
    outcome = run(TOY, toy_jobs(seed=2, count=80), rule_of(source))
    assert 1 < source.looks <= outcome.end_seconds / 3600.0 + 1
    assert len(source.columns) >= 80
    assert all(column.shape == (PRICED_JOB,) and np.isfinite(column).all() for column in source.columns)


def test_a_cluster_whose_nodes_draw_nothing_more_awake_pays_for_none() -> None:
    world = make_world(make_pool("plain", gpus_per_node=4))
    free = run(world, toy_jobs_of_training(), rule_of(FixedPrices(share=9.0, opened_nodes=9.0, waking=9.0)))
    plain = run(world, toy_jobs_of_training(), create_rule("total-cost:V=20"))
    assert free.total_joules == plain.total_joules


def toy_jobs_of_training() -> Workload:
    return Workload(name="few", jobs=tuple(make_job(number, submitted=50.0 * number) for number in range(1, 30)))


def test_a_real_network_runs_a_whole_workload_and_repeats_itself() -> None:
    torch.set_num_threads(1)
    network = create_network(NetworkConfig(policy="prices", hidden=12, pooling="coarsening"), seed=4).eval()
    outcomes = [run(TOY, toy_jobs(seed=3, count=40), PricedRule(lambda: NetworkPrices(network))) for _ in range(2)]
    assert outcomes[0].total_joules == outcomes[1].total_joules
    assert outcomes[0].state.count("COMPLETED") == 40


def test_the_arena_makes_it_from_text() -> None:
    rule = create_contender("learned-price:checkpoint=shipped,V=5,slowdown=0.3,refresh=300")
    assert rule.name == "learned-price"
    with pytest.raises(ConfigError, match="checkpoint"):
        create_contender("learned-price:V=5")
    with pytest.raises(ConfigError, match="no setting"):
        create_contender("learned-price:checkpoint=shipped,speed=1")


def test_jobs_of_the_arena_can_pay_by_their_mode_as_those_of_the_daemon_do() -> None:
    rule = create_contender("learned-price:checkpoint=shipped,by_mode=1")
    outcome = run(TOY, toy_jobs(seed=3, count=12), rule)
    assert outcome.state.count("COMPLETED") == 12
    with pytest.raises(ConfigError, match="V has no effect"):
        create_contender("learned-price:checkpoint=shipped,by_mode=1,V=5")


def test_prices_can_be_learned_from_jobs_that_pay_by_their_mode() -> None:
    network = create_network(NetworkConfig(policy="prices", hidden=12, pooling="coarsening"), seed=4).eval()
    rule = ExploringPriceRule(network, PriceEpisodeSettings(world="", by_mode=True), Random(1))
    outcome = run(TOY, toy_jobs(seed=3, count=12), rule)
    steps, cost = rule.steps(outcome.end_seconds)
    assert len(steps) >= 11 and cost > 0.0  # the last one ends with the run


def test_arena_training_and_daemon_ask_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Counted(PricedRule):
        def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
            asked.append(type(view).__name__)
            return super().place(job, view)

    monkeypatch.setattr(priced_answers, "PricedRule", Counted)
    arena = create_contender("learned-price:checkpoint=shipped")
    run(TOY, toy_jobs(seed=3, count=2), arena)
    assert set(asked) == {"TwinView"}
    asked.clear()
    daemon = create_policy(Config(policy=PolicyConfig(name="gnn", checkpoint="shipped")))
    assert Reason.POLICY in guarded(daemon, submitted(), lab()).reasons
    assert set(asked) == {"SnapshotView"}
    assert issubclass(ExploringPriceRule, PricedRule)


def test_the_arena_s_rule_decides_at_a_submission_too() -> None:
    rule = create_contender("learned-price:checkpoint=shipped,V=0,slowdown=0.3")
    decision = guarded(rule, submitted(), lab())
    assert Reason.POLICY in decision.reasons and Reason.POLICY_ERROR not in decision.reasons
    assert decision.clocks
