"""A network of prices as a policy, asked through the guard: what it pays decides, and it says so."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from math import exp, log, nan, tanh
from pathlib import Path
from typing import Any

import pytest
import torch
from served_cluster import A100, case_of, guarded, lab, node, site, submitted
from small_clusters import NOW, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.detail_text import costs_document, detail_sentences
from slurm_energy.policy.gnn.checkpoint import save_checkpoint
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import load_policy
from slurm_energy.policy.gnn.priced_answers import PublishedPrices
from slurm_energy.policy.gnn.serving import PricedPolicy
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.prices import JOB_PRICES

PRICES = NetworkConfig(hidden=12, heads=6, policy="prices")
SHORT = RuntimeEstimate(seconds=600.0, upper_seconds=700.0, source="history")
DISCOUNT = -1e3
"""Raw price of the smallest factor, exp(-3)."""


def network_of(raw: Mapping[str, float] | None = None, devices: float = 0.0, **config: Any) -> HierarchicalNetwork:
    """Return a network that answers every job with these raw prices, all others 0."""
    network = create_network(replace(PRICES, **config), seed=1)
    assert network.prices is not None
    with torch.no_grad():
        for name, value in (raw or {}).items():
            network.prices.last.bias[JOB_PRICES.index(name)] = value
        network.prices.scarcity.bias.fill_(devices)
    return network


def policy_of(raw: Mapping[str, float] | None = None, devices: float = 0.0, **config: Any) -> PricedPolicy:
    return PricedPolicy(network_of(raw, devices, **config), ClusterGraph(), version="1")


def clock(decision: EnergyDecision) -> int:
    (choice,) = decision.clocks
    return choice.sm_clock_mhz


def costs(decision: EnergyDecision) -> dict[str, Any]:
    found = costs_document(decision.details)
    assert found is not None, decision.notes
    return found


def full(gpus_free: int = 0) -> ClusterSnapshot:
    """Return the lab without room where jobs go by default."""
    nodes = (node("a100-1", "a100", free=gpus_free), node("a100-2", "a100", free=0), *lab().nodes[2:])
    return lab(nodes=nodes)


ROOMY = site(max_slowdown=1.5, routing_open=False)


@pytest.mark.parametrize("hierarchy", ["hierarchical", "flat"])
@pytest.mark.parametrize("routing_open", [True, False])
def test_every_job_gets_a_decision_of_the_policy(hierarchy: str, routing_open: bool) -> None:
    policy = policy_of(hierarchy=hierarchy)
    for job in (submitted(), submitted(4, max_slowdown=0.1), submitted(to=("v100", "a100")), submitted(to=("a40",))):
        decision = guarded(policy, job, lab(), site(routing_open=routing_open))
        assert Reason.POLICY in decision.reasons
        assert not {Reason.POLICY_ERROR, Reason.SLOWDOWN_BOUND, Reason.NO_IDLE_PARTITION} & set(decision.reasons)
        assert (decision.policy, decision.policy_version) == ("gnn", "1")
        assert decision.partitions is None or set(decision.partitions) <= {"a100", "a40", "v100"}
        if not routing_open and not job.partitions:
            assert decision.partitions is None


def test_a_network_that_makes_slowdown_nearly_free_is_the_oracle() -> None:
    policy = policy_of({"slowdown_joules": DISCOUNT})
    for bound in (0.03, 0.1, 0.2):
        config = site(max_slowdown=bound, routing_open=False)
        ours, exact = (guarded(one, submitted(), lab(), config, SHORT) for one in (policy, OraclePolicy()))
        assert ours.clocks == exact.clocks


def test_the_dearer_the_network_makes_slowdown_the_higher_the_clock() -> None:
    found = [
        clock(guarded(policy_of({"slowdown_joules": raw}), submitted(), lab(), ROOMY, SHORT))
        for raw in (-4.0, 0.0, 1.0)
    ]
    assert found == sorted(found)
    assert found[0] < found[-1]
    dearest = guarded(policy_of({"slowdown_joules": 1e3}), submitted(), lab(), ROOMY, SHORT)
    assert clock(dearest) > found[-1]


def test_a_saver_pays_a_third_of_what_a_balanced_job_pays_for_slowdown() -> None:
    policy, config = policy_of(), replace(ROOMY, policy=replace(ROOMY.policy, saver_max_slowdown=1.5))
    modes = (None, EnergyMode.BALANCED, EnergyMode.SAVER)
    decisions = {mode: guarded(policy, submitted(mode=mode), lab(), config, SHORT) for mode in modes}
    price = {
        mode: costs(decision)["options"][0]["slowdown"] / decision.clocks[0].predicted_slowdown
        for mode, decision in decisions.items()
    }
    assert price[EnergyMode.BALANCED] == price[None] == pytest.approx(3.0 * price[EnergyMode.SAVER], rel=1e-4)
    saver = PricedPolicy(network_of(), ClusterGraph(), version="1", default_mode=EnergyMode.SAVER)
    assert guarded(saver, submitted(), lab(), config, SHORT).details == decisions[EnergyMode.SAVER].details


def test_the_bound_holds_whatever_the_prices_are() -> None:
    for bound in (0.0, 0.02, 0.05):
        decision = guarded(
            policy_of({"slowdown_joules": DISCOUNT}), submitted(), lab(), site(max_slowdown=bound), SHORT
        )
        assert all(choice.predicted_slowdown <= bound for choice in decision.clocks)
        assert Reason.SLOWDOWN_BOUND not in decision.reasons


def test_gpus_cost_something_only_where_a_queue_waits_for_them() -> None:
    policy = policy_of()
    waiting = tuple(make_job(number, partitions=(PartitionName("a100"),)) for number in range(1, 6))
    cases = {
        "empty": lab(),
        "full": full(),
        "just room": full(gpus_free=1),
        "all free GPUs are waited for": lab(jobs=waiting, nodes=full(gpus_free=4).nodes),
        "a queue, and room for all of it": lab(jobs=waiting),
        "a queue elsewhere": lab(jobs=tuple(replace(job, partitions=(PartitionName("v100"),)) for job in waiting)),
    }
    scarce, clocks = {}, {}
    for name, snapshot in cases.items():
        policy.warm_up(snapshot)
        decision = guarded(policy, submitted(), snapshot, ROOMY, SHORT)
        scarce[name] = costs(decision)["options"][0]["scarcity"] > 0.0
        clocks[name] = clock(decision)
    assert {name for name, is_scarce in scarce.items() if is_scarce} == {"full", "all free GPUs are waited for"}
    assert clocks["full"] > clocks["empty"] == clocks["just room"]


def test_promised_gpus_are_not_free() -> None:
    policy, claims = policy_of(), {PartitionName("a100"): 8.0}
    decision = guarded(policy, submitted(), lab(), ROOMY, SHORT, claimed_gpus=claims)
    assert costs(decision)["options"][0]["scarcity"] > 0.0


def test_scarce_gpus_cost_what_they_draw_times_the_networks_factor() -> None:
    for devices, factor in ((0.0, 1.0), (1.0, exp(3.0 * tanh(1.0 / 3.0)))):
        policy = policy_of(devices=devices)
        found = costs(guarded(policy, submitted(2), full(), ROOMY, SHORT))
        assert found["factors"]["scarcity"] == pytest.approx(factor, abs=1e-4)
        option = found["options"][0]
        highest = guarded(policy_of({"slowdown_joules": 1e3}, 1e3), submitted(2), full(), ROOMY, SHORT)
        joules_full = costs(highest)["options"][0]["energy"] + 2 * 60.0 * SHORT.seconds  # a free A100 draws 60 W
        slowdown = option["slowdown"] / (0.3 * least(ROOMY))
        assert option["scarcity"] == pytest.approx(factor * joules_full * (1.0 + slowdown), rel=1e-3)


def least(config: Any) -> float:
    """Return the least energy of a job of two GPUs on the default partition."""
    decision = guarded(policy_of({"slowdown_joules": DISCOUNT}), submitted(2, max_slowdown=1.5), lab(), config, SHORT)
    option = costs(decision)["options"][0]
    return float(option["energy"] + option["host"])


def test_the_cheapest_partition_is_named_and_a_network_can_move_the_job() -> None:
    config = site(max_slowdown=1.9)
    snapshot = lab()
    options = costs(guarded(policy_of(), submitted(), snapshot, config, SHORT))["options"]
    totals = [sum(value for part, value in option.items() if part not in ("partition", "mhz")) for option in options]
    assert len(options) > 1 and totals == sorted(totals)
    assert options[0]["partition"] == "a100"
    only_slow = lab(nodes=tuple(one for one in lab().nodes if one.partitions[0] != "a100"))
    decision = guarded(policy_of(), submitted(), only_slow, config, SHORT)
    assert decision.partitions == (PartitionName("v100"),)


def test_notes_tell_the_cost_the_runner_up_and_the_factors_in_plain_text() -> None:
    decision = guarded(policy_of({"slowdown_joules": log(2.0)}), submitted(), lab(), site(max_slowdown=1.9), SHORT)
    told = detail_sentences(decision.details)
    starts = [sentence.split(" ")[0] for sentence in told]
    assert starts == ["least", "runner-up", "at", "learned"]
    assert told[0].startswith("least cost: a100 at ")
    assert " = energy " in told[0] and " + host " in told[0] and " + slowdown " in told[0]
    assert "v100" in told[1] or "a40" in told[1]
    factor = exp(3.0 * tanh(log(2.0) / 3.0))
    assert told[3] == f"learned price of slowdown: {factor:.3g} times the configured one"
    assert costs(decision)["factors"]["slowdown"] == pytest.approx(factor, abs=1e-4)
    assert all(one.isascii() and one.isprintable() and len(one) <= 200 for one in (*told, *decision.notes))


def test_a_gpu_type_without_curves_is_priced_at_its_highest_clock() -> None:
    snapshot = lab(nodes=(node("n1", "a100", "h100"),))
    decision = guarded(policy_of(), submitted(), snapshot, ROOMY, SHORT)
    assert {Reason.POLICY, Reason.UNKNOWN_GPU_TYPE} <= set(decision.reasons)
    assert decision.clocks == ()
    assert costs(decision)["options"][0]["mhz"] is None


@pytest.mark.parametrize("types", [("mi300x",), ("mi300x", "a100"), (None,), ("h100", "a100")])
def test_where_costs_cannot_be_told_the_exact_clocks_stay(types: tuple[str | None, ...]) -> None:
    nodes = tuple(node(f"n{index}", "a100", name) for index, name in enumerate(types))
    snapshot = lab(nodes=nodes, partitions=(make_partition("a100", is_default=True),))
    ours, exact = (guarded(one, submitted(), snapshot, ROOMY, SHORT) for one in (policy_of(), OraclePolicy()))
    assert Reason.POLICY_ERROR not in ours.reasons
    if types != ("mi300x", "a100"):  # there what is known of the partition is an A100, and that has a price
        assert ours.clocks == exact.clocks


def test_prices_that_are_no_numbers_are_an_error_and_not_an_answer() -> None:
    policy = policy_of()
    policy.warm_up(lab())
    policy._prices.published.last_bias[:] = nan
    with pytest.raises(PolicyError, match="not finite"):
        policy.decide(case_of(submitted(), lab()))
    decision = guarded(policy, submitted(), lab())
    assert (decision.partitions, decision.clocks) == (None, ())
    assert Reason.POLICY_ERROR in decision.reasons
    with pytest.raises(PolicyError, match="not finite"):
        policy_of(devices=nan).warm_up(lab())


def changing() -> list[ClusterSnapshot]:
    jobs = tuple(make_job(number, partitions=(PartitionName("a100"),)) for number in range(1, 6))
    return [lab(), lab(jobs=jobs, nodes=full(1).nodes), lab(jobs=jobs[2:])]


def random_policy() -> PricedPolicy:
    """Return a policy whose prices really depend on the state."""
    network = create_network(PRICES, seed=3)
    assert network.prices is not None
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in (network.prices.last, network.prices.scarcity):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
    return PricedPolicy(network, ClusterGraph(), version="1")


def test_the_way_to_a_snapshot_does_not_matter_and_asking_changes_nothing() -> None:
    there, fresh = random_policy(), random_policy()
    seen = []
    for snapshot in changing():
        there.warm_up(snapshot)
        seen.append(guarded(there, submitted(), snapshot, runtime=SHORT))
        assert guarded(there, submitted(), snapshot, runtime=SHORT).details == seen[-1].details
    fresh.warm_up(changing()[-1])
    assert guarded(fresh, submitted(), changing()[-1], runtime=SHORT) == seen[-1]
    assert seen[0].details != seen[1].details, "the state moves the prices"


def test_what_is_detached_answers_the_same_and_stays_where_it_was() -> None:
    policy = random_policy()
    assert policy.detached() is None
    first, second = changing()[:2]
    policy.warm_up(first)
    detached = pickle.dumps(policy.detached())
    before = guarded(policy, submitted(), first, runtime=SHORT)
    policy.warm_up(second)
    assert guarded(policy, submitted(), second, runtime=SHORT).details != before.details
    left = pickle.loads(detached)
    assert guarded(left, submitted(), first, runtime=SHORT) == before


def test_between_steps_the_prices_are_those_of_the_state_before_also_while_partitions_are_numbered_anew() -> None:
    policy = random_policy()
    policy.warm_up(lab())
    before = guarded(policy, submitted(), lab(), runtime=SHORT)
    names = ("new", "v100", "a40", "a100")
    after = lab(
        partitions=tuple(make_partition(name, is_default=name == "a100", max_time_minutes=1440.0) for name in names),
        nodes=(node("new-1", "new"), *reversed(lab().nodes)),
    )
    steps = 0
    for _ in policy.warm_up_steps(after):
        steps += 1
        assert guarded(policy, submitted(), lab(), runtime=SHORT) == before
    assert steps >= 2
    fresh = random_policy()
    fresh.warm_up(after)
    assert guarded(policy, submitted(), after, runtime=SHORT) == guarded(fresh, submitted(), after, runtime=SHORT)


def job_row(monkeypatch: pytest.MonkeyPatch, snapshot: ClusterSnapshot, **changes: Any) -> Floats:
    """Return the columns with which the network is asked for a job's prices."""
    policy, given = policy_of(), list[Floats]()
    original = PublishedPrices.job_raw

    def listened(prices: PublishedPrices, job_x: Floats) -> Floats:
        given.append(job_x)
        return original(prices, job_x)

    policy.warm_up(snapshot)
    job = submitted(**changes)
    with monkeypatch.context() as patch:
        patch.setattr(PublishedPrices, "job_raw", listened)
        policy.decide(case_of(job, snapshot))
    return given[-1]


def test_a_job_is_told_apart_by_its_work_beside_the_mean_job_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    where: dict[str, Any] = {"running_on": "a100-1", "partitions": (PartitionName("a100"),)}
    jobs = tuple(make_job(number, gpus=2, time_limit_minutes=60.0, **where) for number in range(1, 4))
    snapshot = lab(jobs=jobs)
    # Of all of them half the limit is taken to be needed. The others draw what their type does at its default clock,
    # this one what it does at its cheapest.
    like_them = job_row(monkeypatch, snapshot, gpus=2, time_limit_minutes=60.0)
    larger = job_row(monkeypatch, snapshot, gpus=4, time_limit_minutes=120.0)
    assert like_them[-2] == larger[-2] == 1.0
    assert -0.1 < like_them[-1] < 0.0
    assert larger[-1] - like_them[-1] == pytest.approx(log(4.0) / 4.0, abs=1e-6)
    assert job_row(monkeypatch, lab(), gpus=4, time_limit_minutes=120.0)[-1] == 0.0, "no job, no mean"
    assert job_row(monkeypatch, snapshot, gpus=4, time_limit_minutes=None)[-1] == 0.0, "no length, no work"


ODD: dict[str, ClusterSnapshot] = {
    "no node": lab(nodes=()),
    "no partition": make_snapshot((), (), ()),
    "no gpu": lab(nodes=(make_node("c1", 0, partition="a100"), make_node("c2", 0, partition="a40"))),
    "no default partition": lab(partitions=(make_partition("a100"), make_partition("a40"))),
    "unknown type": lab(nodes=(node("n1", "a100", "mi300x"), node("n2", "v100", "v100"))),
    "nothing is known": lab(nodes=(node("n1", "a100", None), node("n2", "v100", "x" * 200))),
    "all down": lab(nodes=tuple(replace(one, available=False, states=("DOWN",)) for one in lab().nodes)),
    "a job of nowhere": lab(jobs=(make_job(1, partitions=(PartitionName("gone"),)), make_job(2, running_on="gone"))),
    "a job that does not say what it asks for": lab(
        jobs=(make_job(1, partitions=(PartitionName("a100"),), gpus=None),)
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_whatever_the_cluster_is_like_there_is_an_answer(name: str) -> None:
    policy = policy_of()
    for job in (
        submitted(),
        submitted(2, gpu_type="v100"),
        submitted(to=("a100", "v100")),
        submitted(array="1-3"),
        submitted(time_limit_minutes=nan),
        submitted(time_limit_minutes=None),
        submitted(time_limit_minutes=float("inf")),
        submitted(time_limit_minutes=1e-9),
        submitted(deadline_seconds=NOW - 10.0),
        submitted(nodes_min=0),
    ):
        for is_open in (True, False):
            decision = guarded(policy, job, ODD[name], site(routing_open=is_open))
            assert Reason.POLICY_ERROR not in decision.reasons, decision.notes
            assert all(note.isprintable() for note in decision.notes)


def test_a_checkpoint_of_prices_is_served_with_the_sites_settings(tmp_path: Path) -> None:
    network = network_of({"slowdown_joules": 1.0})
    metadata = CheckpointMetadata(
        name="gnn", version="7", architecture=PRICES, training_data_sha256="0" * 64, created_at_seconds=1.0
    )
    save_checkpoint(tmp_path / "one", network.state_dict(), metadata)
    config = replace(site(name="gnn", checkpoint=str(tmp_path / "one")), gpu_types={"big": "a100-sxm4-80gb"})
    policy = load_policy(config)
    assert isinstance(policy, PricedPolicy)
    snapshot = lab(nodes=(node("n1", "a100", "big"),))
    decision = guarded(policy, submitted(), snapshot, config, SHORT)
    assert decision.policy_version == "7"
    assert [choice.gpu_type for choice in decision.clocks] == [A100]
    assert costs(decision)["factors"]["slowdown"] == pytest.approx(exp(3.0 * tanh(1.0 / 3.0)), abs=1e-3)
