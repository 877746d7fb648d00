"""Small clusters and queues as sampling sees them."""

import numpy as np

from slurm_energy.policy.gnn.ablation.sampling_plan import NodeFacts, TaskFacts

StratumMembers = list[tuple[int, int]]


def make_nodes(
    count: int,
    memberships: StratumMembers | None = None,
    *,
    nodes_per_group: int = 4,
    degree: list[int] | None = None,
    critical_path_seconds: list[float] | None = None,
    gpus_free: list[float] | None = None,
    devices: list[int] | None = None,
) -> NodeFacts:
    """Return nodes of one partition, or with the (node, partition) that are given."""
    pairs = [(node, 0) for node in range(count)] if memberships is None else memberships
    return NodeFacts(
        degree=np.array(degree or [4] * count, dtype=np.int64),
        devices=np.array(devices or [4] * count, dtype=np.int64),
        critical_path_seconds=np.array(critical_path_seconds or [0.0] * count, dtype=np.float32),
        gpus_free=np.array(gpus_free or [1.0] * count, dtype=np.float32),
        group=np.arange(count) // nodes_per_group,
        member_node=np.array([node for node, _ in pairs], dtype=np.int64),
        member_partition=np.array([partition for _, partition in pairs], dtype=np.int64),
    )


def make_tasks(
    count: int,
    waits: StratumMembers | None = None,
    depends: list[tuple[int, int]] | None = None,
    critical_path_seconds: list[float] | None = None,
) -> TaskFacts:
    """Return jobs that wait for one partition, or with the (job, partition) that are given."""
    pairs = [(task, 0) for task in range(count)] if waits is None else waits
    return TaskFacts(
        critical_path_seconds=np.array(critical_path_seconds or [60.0] * count, dtype=np.float32),
        depends_index=np.array(depends or [], dtype=np.int64).reshape(-1, 2).T,
        wait_task=np.array([task for task, _ in pairs], dtype=np.int64),
        wait_partition=np.array([partition for _, partition in pairs], dtype=np.int64),
    )


def make_cluster(count: int, partitions: int, seed: int = 0) -> NodeFacts:
    """Return a random cluster: one partition of everything, and others that cover it with some overlap."""
    random = np.random.default_rng(seed)
    pairs = [(node, 0) for node in range(count)]
    pairs += [(node, 1 + node * (partitions - 1) // count) for node in range(count)]
    pairs += [(node, 1) for node in range(count) if node * (partitions - 1) // count > 0 and random.random() < 0.1]
    return make_nodes(
        count,
        sorted(set(pairs)),
        nodes_per_group=16,
        degree=random.integers(2, 40, count).tolist(),
        critical_path_seconds=random.exponential(3600.0, count).tolist(),
        gpus_free=random.random(count).tolist(),
        devices=random.choice([4, 8], count).tolist(),
    )
