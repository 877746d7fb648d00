import json
from dataclasses import replace

import pytest
from slurm_answers import convert_jobs, convert_nodes

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import PartitionName
from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.decision_speed.synthetic_cluster import (
    CPU,
    FULL_TYPE,
    GPU_TYPES,
    NODES_A_SWITCH,
    ChangingCluster,
    ClusterSize,
    default_gpus_per_node,
    synthetic_cluster,
)
from slurm_energy.evaluation.decision_speed.synthetic_slurm import (
    SlurmTexts,
    held_positions,
    partition_text,
    topology_text,
)
from slurm_energy.slurm.convert_cluster import convert_partitions, convert_topology

NOW = 1_800_000_000.0
SIZE = ClusterSize(nodes=72, gpus_per_node=6, pending=120)


def make_cluster(seed: int = 1) -> ClusterSnapshot:
    return synthetic_cluster(SIZE, seed, NOW)


def read_back(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return what Slurm's converters make of the texts."""
    texts = SlurmTexts()
    topology = convert_topology(topology_text(snapshot))
    nodes = convert_nodes(json.loads(texts.sinfo(snapshot)))
    jobs = convert_jobs(json.loads(texts.squeue(snapshot)))
    partitions = convert_partitions(partition_text(snapshot))
    assert nodes.skipped_rows == jobs.skipped_rows == partitions.skipped_rows == 0
    return replace(
        snapshot,
        partitions=partitions.items,
        nodes=tuple(replace(node, switch=topology.leaf_by_node[node.name]) for node in nodes.items),
        jobs=jobs.items,
        switches=topology.switches,
    )


@pytest.mark.parametrize("size", [SIZE, ClusterSize(nodes=4, gpus_per_node=1, pending=0)])
def test_the_texts_of_slurm_read_back_to_the_same_snapshot(size: ClusterSize) -> None:
    snapshot = synthetic_cluster(size, 3, NOW)
    assert read_back(snapshot) == snapshot


def test_the_texts_read_back_after_changes_too() -> None:
    cluster = ChangingCluster(make_cluster(), 5)
    for _ in range(57):
        cluster.step(0.25)
    assert read_back(cluster.snapshot) == cluster.snapshot


def test_the_same_seed_gives_the_same_cluster_and_another_another() -> None:
    assert make_cluster(1) == make_cluster(1)
    assert make_cluster(1) != make_cluster(2)


def test_seven_of_ten_gpus_are_held_and_jobs_hold_exactly_what_nodes_tell() -> None:
    snapshot = make_cluster()
    held = {node.name: sum(gpus.allocated for gpus in node.gpus) for node in snapshot.nodes}
    assert 0.65 < sum(held.values()) / SIZE.gpus < 0.75
    positions = held_positions(snapshot)
    assert {name: len(positions.get(name, ())) for name in held} == held
    assert all(len(set(places)) == len(places) for places in positions.values())


def test_there_are_six_partitions_one_of_them_without_gpus() -> None:
    snapshot = make_cluster()
    gpus = {name: sum(node.gpu_count for node in nodes) for name, nodes in snapshot.nodes_by_partition.items()}
    assert len(gpus) == 6
    assert [name for name, count in gpus.items() if count == 0] == [CPU]
    assert [partition.name for partition in snapshot.partitions if partition.is_default] == ["gpu"]


def test_only_the_full_type_has_no_room_whatever_the_size() -> None:
    for nodes in (4, 16, 256):
        size = ClusterSize(nodes=nodes, gpus_per_node=default_gpus_per_node(nodes), pending=50)
        snapshot = synthetic_cluster(size, 1, NOW)
        members = snapshot.nodes_by_partition
        idle = {name: sum(node.gpus_idle for node in members[PartitionName(name)]) for name in GPU_TYPES}
        assert [name for name, count in idle.items() if count == 0] == [FULL_TYPE]
        assert not {name for job in snapshot.jobs if job.state == "PENDING" for name in job.partitions} & (
            set(GPU_TYPES) - {FULL_TYPE}
        )


def test_no_leaf_switch_has_more_than_32_nodes_and_all_hang_on_the_core() -> None:
    snapshot = make_cluster()
    leaves = [node.switch for node in snapshot.nodes]
    assert max(leaves.count(leaf) for leaf in set(leaves)) == NODES_A_SWITCH
    assert {switch.parent for switch in snapshot.switches if switch.name in leaves} == {"core"}


def test_some_jobs_wait_for_others_that_wait_themselves() -> None:
    snapshot = make_cluster()
    waiting = {job.job_id for job in snapshot.jobs if job.state == "PENDING"}
    depends = [one for job in snapshot.jobs for one in job.dependencies]
    assert len(waiting) == SIZE.pending
    assert 5 < len(depends) < 50
    assert {one.job_id for one in depends} <= waiting


def test_the_paper_s_size_has_its_number_of_gpus() -> None:
    assert ClusterSize(nodes=256, gpus_per_node=default_gpus_per_node(256), pending=0).gpus == 1536
    assert default_gpus_per_node(257) == 8


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"nodes": 3, "gpus_per_node": 6, "pending": 0}, "nodes = 3: it must be between 4 and 16384"),
        ({"nodes": 4, "gpus_per_node": 17, "pending": 0}, "gpus_per_node = 17"),
        ({"nodes": 4, "gpus_per_node": 6, "pending": -1}, "pending = -1"),
    ],
)
def test_a_size_out_of_bounds_is_refused(size: dict[str, int], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        ClusterSize(**size)


def test_a_step_changes_one_node_or_one_job_and_keeps_all_other_objects() -> None:
    cluster = ChangingCluster(make_cluster(), 2)
    kinds = set()
    for _ in range(40):
        before = cluster.snapshot
        after = cluster.step()
        old = {id(item) for item in (*before.nodes, *before.jobs)}
        new = {id(item) for item in (*after.nodes, *after.jobs)}
        assert {len(new - old), len(old - new)} in ({0, 1}, {1})
        kinds.add((len(after.nodes) - len(before.nodes), len(after.jobs) - len(before.jobs)))
    assert kinds == {(0, -1), (0, 0), (0, 1)}


def test_many_steps_leave_the_sums_as_they_were() -> None:
    cluster = ChangingCluster(make_cluster(), 2)
    steps_of_a_round = 7
    for _ in range(30 * steps_of_a_round):
        cluster.step(0.1)
    first, last = make_cluster(), cluster.snapshot

    def sums(snapshot: ClusterSnapshot) -> tuple[int, int, int]:
        states = [job.state for job in snapshot.jobs]
        return sum(node.gpus_idle for node in snapshot.nodes), states.count("PENDING"), states.count("RUNNING")

    assert sums(last) == sums(first)
    assert last.taken_at_seconds == pytest.approx(NOW + 21.0)
    assert not any(node.gpus_idle for node in last.nodes if FULL_TYPE in node.partitions)
    assert last.jobs != first.jobs
