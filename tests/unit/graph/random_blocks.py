"""Random states of a small cluster, as the network is given them."""

import numpy as np

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DecisionBlock, DeviceBlock, FabricBlock, QueueBlock, TopBlock
from slurm_energy.policy.gnn.network import Blocks

GPUS_OF_NODES = (2, 4, 0, 3, 8, 1)
GROUP_OF_NODES = (0, 0, 0, 1, 1, 1)
PARTITIONS_OF_NODES = ((0,), (0, 1), (2,), (0,), (1,), (1, 2))


def features(generator: np.random.Generator, rows: int, columns: tuple[schema.Feature, ...]) -> np.ndarray:
    return generator.uniform(-1.0, 1.0, (rows, len(columns))).astype(np.float32)


def whole(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()


def random_state(seed: int = 0, tasks: int = 5) -> Blocks:
    """Six nodes in two groups, three partitions, two clusters, one spine, jobs with dependencies."""
    random = np.random.default_rng(seed)
    gpu_node = np.repeat(np.arange(len(GPUS_OF_NODES)), GPUS_OF_NODES).astype(np.int64)
    links = [
        (one, other)
        for one in range(len(gpu_node))
        for other in range(len(gpu_node))
        if one != other and gpu_node[one] == gpu_node[other]
    ]
    link_x = features(random, len(links), schema.LINK)
    for row, (one, other) in enumerate(links):  # a link is the same in both directions
        if one > other:
            link_x[row] = link_x[links.index((other, one))]
    runs = [(0, 0), (0, 1), (1, 6), (2, 10), (2, 11), (2, 12)]
    members = [(node, partition) for node, found in enumerate(PARTITIONS_OF_NODES) for partition in found]
    waits = [(task, partition) for task in range(tasks) for partition in range(3) if (task + partition) % 2 == 0]
    depends = [(task, task + 1) for task in range(tasks - 1)]
    constraint_x = features(random, 8, schema.CONSTRAINT)
    constraint_x[:, :4] = np.tile(np.eye(4, dtype=np.float32), (2, 1))
    return Blocks(
        devices=DeviceBlock(
            node_x=features(random, len(GPUS_OF_NODES), schema.NODE),
            gpu_x=features(random, len(gpu_node), schema.GPU),
            gpu_node=gpu_node,
            link_index=whole(links),
            link_x=link_x,
            task_x=features(random, 3, schema.TASK),
            run_index=whole(runs),
            run_x=features(random, len(runs), schema.RUNS),
        ),
        fabric=FabricBlock(
            node_group=np.array(GROUP_OF_NODES, dtype=np.int64),
            uplink_x=features(random, len(GPUS_OF_NODES), schema.UPLINK),
            switch_x=features(random, 2, schema.SWITCH),
            member_node=whole(members)[0],
            member_partition=whole(members)[1],
        ),
        queue=QueueBlock(
            task_x=features(random, tasks, schema.TASK),
            depends_index=whole(depends),
            depends_x=features(random, len(depends), schema.DEPENDS),
            wait_task=whole(waits)[0],
            wait_partition=whole(waits)[1],
            wait_x=features(random, len(waits), schema.OPTION),
        ),
        top=TopBlock(
            partition_x=features(random, 3, schema.PARTITION),
            partition_cluster=np.array([0, 0, 1], dtype=np.int64),
            cluster_x=features(random, 2, schema.CLUSTER),
            constraint_x=constraint_x,
            constraint_cluster=np.repeat(np.arange(2, dtype=np.int64), 4),
            group_cluster=np.array([0, 1], dtype=np.int64),
            spine_x=features(random, 1, schema.SWITCH),
            spine_cluster=np.array([0], dtype=np.int64),
            trunk_index=whole([(0, 0), (1, 0)]),
            trunk_x=features(random, 2, schema.UPLINK),
        ),
    )


def random_decision(seed: int = 0, jobs: int = 2) -> DecisionBlock:
    """Each job has three options in partition 0, two in 1, one in 2 which is closed; three clocks an option."""
    random = np.random.default_rng(1000 + seed)
    partition = np.tile(np.array([0, 0, 0, 1, 1, 2], dtype=np.int64), jobs)
    count = len(partition)
    return DecisionBlock(
        job_x=features(random, jobs, schema.TASK),
        job_cluster=np.zeros(jobs, dtype=np.int64),
        option_job=np.repeat(np.arange(jobs, dtype=np.int64), 6),
        option_partition=partition,
        option_x=features(random, count, schema.OPTION),
        option_open=partition != 2,
        clock_option=np.repeat(np.arange(count, dtype=np.int64), 3),
        clock_x=features(random, 3 * count, schema.CLOCK),
        clock_open=np.tile(np.array([True, True, False]), count),
    )
