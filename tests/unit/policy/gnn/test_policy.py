"""The network as a policy, asked through the guard: always an answer, always one that may be given."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from served_cluster import A100, SMALL, V100, case_of, guarded, lab, node, site, submitted
from served_network import job_columns, options_policy, policy_of, saved
from small_clusters import NOW, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import ClusterSnapshot, GpuReading
from slurm_energy.domain.decision import EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import CheckpointError, ConfigError
from slurm_energy.graph import schema
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.checkpoint_files import DOCUMENT_FILE, sha256
from slurm_energy.policy.detail_text import detail_sentences
from slurm_energy.policy.gnn.configuration import Clocks, NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import GnnPolicy, load_policy
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.registry import create_rule

NETWORKS = [
    SMALL,
    replace(SMALL, attention="none"),
    replace(SMALL, attention="plain"),
    replace(SMALL, hierarchy="flat"),
    replace(SMALL, hierarchy="vector", attention="none"),
    replace(SMALL, sampling="sampled"),
]
SHORT = RuntimeEstimate(seconds=600.0, upper_seconds=700.0, source="history")
"""Far below every time limit."""
TAKEN_BACK = {Reason.PARTITION_NOT_ALLOWED, Reason.NO_IDLE_PARTITION, Reason.SLOWDOWN_BOUND, Reason.POLICY_ERROR}


def loving(network: HierarchicalNetwork, column: str, strength: float) -> HierarchicalNetwork:
    """Return a network that ranks partitions by one column of their options alone."""
    layers: Any = network.decision.policy.partition
    first, second, last = layers[0], layers[2], layers[4]
    with torch.no_grad():
        for layer in (first, second, last):
            layer.weight.zero_()
        for layer in (first, second):
            layer.bias.fill_(1.0)
        place = first.weight.shape[1] - len(schema.OPTION) + schema.column(schema.OPTION, column)
        first.weight[0, place] = strength
        second.weight[0, 0] = last.weight[0, 0] = 1.0
    return network


def clocks(decision: EnergyDecision) -> dict[str, int]:
    return {clock.gpu_type: clock.sm_clock_mhz for clock in decision.clocks}


@pytest.mark.parametrize("config", NETWORKS, ids=lambda one: f"{one.hierarchy}-{one.attention}-{one.sampling}")
@pytest.mark.parametrize("who", ["oracle", "learned"])
def test_every_job_gets_a_decision_that_the_guard_leaves_as_it_is(config: NetworkConfig, who: Clocks) -> None:
    policy = policy_of(config, clocks=who)
    jobs = submitted(), submitted(4, max_slowdown=0.1), submitted(to=("v100", "a100")), submitted(to=("a40",))
    for job, routing_open in product(jobs, (True, False)):
        decision = guarded(policy, job, lab(), site(routing_open=routing_open))
        assert not TAKEN_BACK & set(decision.reasons)
        assert Reason.POLICY in decision.reasons
        assert decision.partitions is None or set(decision.partitions) <= {"a100", "a40", "v100"}
        assert (decision.policy, decision.policy_version) == ("gnn", "1")
        if not routing_open and not job.partitions:
            assert decision.partitions is None


def test_the_partition_that_the_network_ranks_first_is_named() -> None:
    for strength, expected in ((8.0, (PartitionName("v100"),)), (-8.0, (PartitionName("a100"),))):
        network = loving(create_network(SMALL, seed=1), "relative_seconds", strength)
        policy = GnnPolicy(network, ClusterGraph(), version="1")
        decision = guarded(policy, submitted(), lab(), runtime=SHORT)
        # The submitted default partition is no change, and is not named.
        assert (decision.partitions or (PartitionName("a100"),)) == expected
        answer = policy.decide(case_of(submitted(), lab()))
        if expected == (PartitionName("v100"),):
            assert answer.partitions == expected
        else:
            assert answer.partitions is None


def least_energy() -> PlacementRule:
    """Return a rule that only looks at what GPUs draw beyond being free."""
    rule = create_rule("price:V=0,wake=0")
    rule.take_site(site())
    return rule


def test_clocks_are_those_of_least_energy_where_the_network_does_not_choose_them() -> None:
    # The submitted default partition stays behind the chosen one: the job may start in either.
    for strength, expected in ((8.0, [V100, A100]), (-8.0, [A100])):
        network = loving(create_network(SMALL, seed=1), "relative_seconds", strength)
        job = submitted(max_slowdown=1.9)
        decision = guarded(GnnPolicy(network, ClusterGraph(), version="1"), job, lab(), runtime=SHORT)
        assert list(clocks(decision)) == expected
        forced = replace(lab(), nodes=tuple(one for one in lab().nodes if one.partitions[0] == "a100"))
        if expected == [A100]:
            assert clocks(decision) == clocks(guarded(least_energy(), job, forced, runtime=SHORT))


def test_a_learned_clock_is_the_likeliest_of_the_chosen_partition_and_differs_with_the_network() -> None:
    found = {
        clocks(guarded(policy_of(seed=seed, clocks="learned"), submitted(to=("a100",)), lab())).get(A100)
        for seed in range(1, 9)
    }
    assert len(found) > 1


@pytest.mark.parametrize("who", ["oracle", "learned"])
def test_notes_tell_the_preference_and_what_was_looked_at(who: Clocks) -> None:
    decision = guarded(policy_of(clocks=who), submitted(), lab())
    (preference,) = detail_sentences(decision.details)
    assert preference.startswith("the network's preference: ")
    shares = dict(part.rsplit(" ", 1) for part in preference.split(": ")[1].split(", "))
    assert set(shares) == {"a100", "v100"}  # a40 is too slow beside the others
    assert sum(int(share.rstrip("%")) for share in shares.values()) in (99, 100, 101)
    assert any(note.startswith("attention: ") for note in decision.notes)
    assert any(note.startswith("critical path: ") for note in decision.notes)
    assert sum(decision.details.attention.values()) == pytest.approx(1.0, abs=0.01)
    assert all(note.isascii() and note.isprintable() for note in decision.notes)


def test_a_network_without_attention_has_no_sentences_of_it() -> None:
    decision = guarded(policy_of(replace(SMALL, attention="none")), submitted(), lab())
    assert not any(note.startswith(("attention: ", "critical path: ")) for note in decision.notes)
    assert decision.details.preference


def changing() -> list[ClusterSnapshot]:
    """Return three snapshots of a cluster at work."""
    jobs = tuple(make_job(number, partitions=(PartitionName("a100"),)) for number in range(1, 6))
    busy = (node("a100-1", "a100", free=1), *lab().nodes[1:])
    return [lab(), lab(jobs=jobs, nodes=busy), lab(jobs=jobs[2:])]


@pytest.mark.parametrize("config", NETWORKS, ids=lambda one: f"{one.hierarchy}-{one.attention}-{one.sampling}")
def test_the_same_snapshots_in_the_same_order_give_the_same_answers(config: NetworkConfig) -> None:
    runs = []
    for _ in range(2):
        policy, answers = policy_of(config, clocks="learned"), []
        for snapshot in changing():
            policy.warm_up(snapshot)
            answers += [guarded(policy, submitted(gpus), snapshot) for gpus in (1, 2, 1)]
        runs.append(answers)
    assert runs[0] == runs[1]
    assert runs[0][0].notes == runs[0][2].notes  # asking changes nothing


def test_the_way_to_a_snapshot_does_not_matter() -> None:
    there, fresh = policy_of(), policy_of()
    for snapshot in changing():
        there.warm_up(snapshot)
    fresh.warm_up(changing()[-1])
    assert guarded(there, submitted(), changing()[-1]) == guarded(fresh, submitted(), changing()[-1])


def test_between_steps_the_answer_is_that_of_the_state_before_also_while_partitions_are_numbered_anew() -> None:
    policy = policy_of()
    policy.warm_up(lab())
    before = guarded(policy, submitted(), lab())
    names = ("new", "v100", "a40", "a100")
    after = lab(
        partitions=tuple(make_partition(name, is_default=name == "a100") for name in names),
        nodes=(node("new-1", "new"), *reversed(lab().nodes)),
    )
    steps = policy.warm_up_steps(after)
    seen = 0
    for _ in steps:
        # Asked with the old snapshot, as whoever holds it would.
        decision = guarded(policy, submitted(), lab())
        assert Reason.POLICY_ERROR not in decision.reasons
        seen += decision == before
        # Asked with the new one, a partition that the network does not know yet is not chosen.
        early = guarded(policy, submitted(), after)
        assert Reason.POLICY_ERROR not in early.reasons
    assert seen >= 2
    fresh = policy_of()
    fresh.warm_up(after)
    assert guarded(policy, submitted(), after) == guarded(fresh, submitted(), after)


def reading(index: int, value: float) -> GpuReading:
    return GpuReading(
        index=index,
        utilisation=value,
        memory_used_gib=value,
        memory_gib=value,
        sm_clock_mhz=value,
        power_watts=value,
        temperature_celsius=value,
        efficiency_change=value,
    )


ODD: dict[str, ClusterSnapshot] = {
    "no pending job": lab(),
    "one node": lab(nodes=(node("n1", "a100"),)),
    "no gpu": lab(nodes=(make_node("c1", 0, partition="a100"), make_node("c2", 0, partition="a40"))),
    "no node": lab(nodes=()),
    "no partition": make_snapshot((), (), ()),
    "no default partition": lab(partitions=(make_partition("a100"), make_partition("a40"))),
    "not for this user": lab(
        partitions=(make_partition("a100", is_default=True), make_partition("v100", allow_groups=("chem",)))
    ),
    "default not for this user": lab(
        partitions=(make_partition("a100", is_default=True, allow_groups=("chem",)), make_partition("v100"))
    ),
    "unknown type": lab(nodes=(node("n1", "a100", "mi300x"), node("n2", "v100", "v100"))),
    "unknown type beside known": lab(nodes=(node("n1", "a100"), node("n2", "v100", None))),
    "nothing is known": lab(nodes=(node("n1", "a100", None), node("n2", "v100", "x" * 200))),
    "readings that are no number": lab(
        nodes=tuple(
            replace(one, gpu_readings=tuple(reading(place, nan) for place in range(4)), power_watts=nan)
            for one in lab().nodes
        )
    ),
    "absurd readings": lab(
        nodes=tuple(
            replace(one, gpu_readings=tuple(reading(place, -1e30) for place in range(9)), power_watts=1e30)
            for one in lab().nodes
        )
    ),
    "all full": lab(nodes=tuple(node(str(one.name), str(one.partitions[0]), free=0) for one in lab().nodes)),
    "all down": lab(nodes=tuple(replace(one, available=False, states=("DOWN",)) for one in lab().nodes)),
    "a node in a partition that is not there": lab(nodes=(node("n1", "gone"), *lab().nodes)),
    "a job of nowhere": lab(jobs=(make_job(1, partitions=(PartitionName("gone"),)), make_job(2, running_on="gone"))),
}


IN_EVERY_NETWORK = {"no node", "no partition", "readings that are no number"}
"""What `make unit` shows to every network, and not to one alone."""


@pytest.mark.parametrize(
    ("config", "name"),
    [
        pytest.param(
            config,
            name,
            id=f"{config.hierarchy}-{config.sampling}-{name}",
            marks=() if config is SMALL or name in IN_EVERY_NETWORK else pytest.mark.slow,
        )
        for config in (SMALL, *NETWORKS[3:])
        for name in ODD
    ],
)
def test_whatever_the_cluster_is_like_there_is_an_answer(name: str, config: NetworkConfig) -> None:
    snapshot = ODD[name]
    for who in ("oracle", "learned"):
        policy = policy_of(config, clocks=who)
        for job in (submitted(), submitted(2, gpu_type="v100"), submitted(to=("a100", "v100")), submitted(array="1-3")):
            for is_open in (True, False):
                decision = guarded(policy, job, snapshot, site(routing_open=is_open))
                assert Reason.POLICY_ERROR not in decision.reasons, decision.notes
                assert all(note.isprintable() for note in decision.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_limit_minutes": nan},
        {"time_limit_minutes": None},
        {"memory_per_node_mib": nan},
        {"deadline_seconds": NOW - 10.0},
        {"nodes_min": 0},
        {"cpus_per_task": 10_000},
        {"features": "\x1b[31m"},
        {"submitted_at_seconds": nan},
        {"user_id": 0},
    ],
)
def test_whatever_the_job_is_like_there_is_an_answer(changes: dict[str, Any]) -> None:
    decision = guarded(policy_of(clocks="learned"), submitted(**changes), lab())
    assert Reason.POLICY_ERROR not in decision.reasons, decision.notes


def test_history_of_no_length_is_no_fault() -> None:
    for seconds in (0.0, 1e-9, 1e12):
        runtime = RuntimeEstimate(seconds=seconds, upper_seconds=seconds, source="history")
        assert Reason.POLICY_ERROR not in guarded(policy_of(), submitted(), lab(), runtime=runtime).reasons


def test_where_nothing_has_room_the_job_stays_and_gets_the_clock_of_least_energy() -> None:
    full = lab(nodes=(node("n1", "a100", free=0), node("n2", "v100", "v100", free=0)))
    decision, least = (guarded(policy, submitted(), full) for policy in (policy_of(), least_energy()))
    assert decision.partitions is None
    assert clocks(decision) == clocks(least)
    assert Reason.NO_IDLE_PARTITION in decision.reasons


def test_a_network_that_is_not_finite_is_a_fault_that_the_guard_tells_of() -> None:
    policy = policy_of()
    for parameter in policy._chooser.network.top.parameters():
        parameter.data.fill_(torch.nan)
    decision = guarded(policy, submitted(), lab())
    assert Reason.POLICY_ERROR in decision.reasons
    assert decision.partitions is None
    assert any("the network's answer is not finite" in note for note in decision.notes)


# Checkpoints.


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("who", ["oracle", "learned"])
@pytest.mark.parametrize("config", [SMALL, replace(SMALL, hierarchy="flat", attention="plain"), NETWORKS[4]])
def test_a_loaded_policy_decides_as_the_network_that_was_saved(
    tmp_path: Path, config: NetworkConfig, who: Clocks
) -> None:
    network = create_network(config, seed=7)
    settings = site(name="gnn", checkpoint=str(saved(tmp_path / "one", network)), clocks=who)
    loaded = load_policy(settings)
    limits = case_of(submitted(), lab()).board_limits
    own = GnnPolicy(network, ClusterGraph({}, limits), version="2026.11-a", clocks=who)
    other = GnnPolicy(create_network(config, seed=8), ClusterGraph({}, limits), version="2026.11-a", clocks=who)
    decisions = [
        [guarded(policy, job, lab(), settings) for job in (submitted(), submitted(4), submitted(to=("v100", "a40")))]
        for policy in (loaded, own, other)
    ]
    assert decisions[0] == decisions[1]
    assert decisions[0] != decisions[2]
    assert decisions[0][0].policy_version == "2026.11-a"


def test_a_site_says_what_time_and_energy_are_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(saved(tmp_path / "one", create_network(SMALL, seed=7)))
    config = site(name="gnn", checkpoint=folder, balanced_time_weight=0.9, saver_time_weight=0.0)
    policy = options_policy(config)
    for mode, worth in ((None, 0.9), (EnergyMode.SAVER, 0.0), (EnergyMode.OBSERVE, 0.9)):
        row = job_columns(policy, monkeypatch, submitted(mode=mode), config)
        assert (row["time_weight"], row["energy_weight"]) == pytest.approx((worth, 1.0 - worth))


def test_a_loaded_policy_has_the_sites_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(saved(tmp_path / "one", create_network(SMALL, seed=7)))
    config = replace(
        site(name="gnn", checkpoint=folder, default_mode="saver", threads=2), gpu_types={"big": "a100-sxm4-80gb"}
    )
    policy = options_policy(config)
    assert torch.get_num_threads() == 2
    assert job_columns(policy, monkeypatch, submitted(), config)["energy_weight"] == pytest.approx(0.8)
    snapshot = lab(nodes=(node("n1", "a100", "big"), node("n2", "v100", "v100")))
    policy.warm_up(snapshot)
    graph = policy._chooser.graph
    types = {str(name): graph.nodes.kinds_of(graph.nodes.states[slot]) for name, slot in graph.node_index.items()}
    assert types == {"n1": (GpuTypeName("a100-sxm4-80gb"),), "n2": (V100,)}
    torch.set_num_threads(1)


@pytest.mark.parametrize(("trained", "opened"), [(True, True), (True, False), (False, True)])
def test_node_hints_are_given_where_the_site_opens_them_and_the_head_was_trained(
    trained: bool, opened: bool, tmp_path: Path
) -> None:
    metrics = {"node_agreement": 0.9} if trained else {}
    folder = str(saved(tmp_path / "one", create_network(SMALL, seed=7), metrics=metrics))
    config = site(name="gnn", checkpoint=folder)
    config = replace(config, routing=replace(config.routing, node_hints=opened))
    assert options_policy(config)._node_hints == (trained and opened)


def test_without_a_checkpoint_there_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.checkpoint is empty"):
        load_policy(site(name="gnn", checkpoint=""))
    with pytest.raises(CheckpointError):
        load_policy(site(name="gnn", checkpoint=str(tmp_path / "nothing")))


def test_a_checkpoint_of_another_schema_version_is_refused_with_both_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "one", create_network(SMALL, seed=7))
    other = schema.SCHEMA_VERSION + 41
    document = json.loads((folder / DOCUMENT_FILE).read_text())
    del document["document_sha256"]
    document["schema_version"] = other
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    (folder / DOCUMENT_FILE).write_text(json.dumps({**document, "document_sha256": sha256(text.encode())}))
    with pytest.raises(CheckpointError, match=rf"schema version {other}\b.*\b{schema.SCHEMA_VERSION}\b"):
        load_policy(site(name="gnn", checkpoint=str(folder)))


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    network = create_network(SMALL, seed=7)
    folder = saved(tmp_path / "one", network, architecture=replace(SMALL, hidden=24))
    with pytest.raises(CheckpointError, match="shape"):
        load_policy(site(name="gnn", checkpoint=str(folder)))
