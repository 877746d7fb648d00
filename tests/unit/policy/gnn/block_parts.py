"""Parts of blocks, cut out row by row, and small networks to try them on."""

from dataclasses import replace

import numpy as np

from slurm_energy.graph.blocks import DeviceBlock, FabricBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig

SMALL = NetworkConfig(hidden=12, heads=6, quantiles=4)
PROPAGATIONS = [replace(SMALL, propagation=mode) for mode in ("hybrid", "spatial", "spectral")]
ATTENTIONS = [replace(SMALL, attention=mode) for mode in ("objectives", "plain", "none")]
VECTOR = replace(SMALL, hierarchy="vector", attention="none")
ABLATIONS = [*PROPAGATIONS, *ATTENTIONS[1:]]


def ablation(config: NetworkConfig) -> str:
    """Return what a network is told by in the names of tests."""
    return f"{config.hierarchy}-{config.propagation}-{config.pooling}-{config.attention}"


def pairs(found: list[tuple[int, int]]) -> np.ndarray:
    return np.array(found, dtype=np.int64).reshape(-1, 2).T.copy()


def some_nodes(block: DeviceBlock, nodes: list[int]) -> DeviceBlock:
    """Return a device block of some nodes of another, in the order given."""
    gpus = [gpu for node in nodes for gpu, owner in enumerate(block.gpu_node.tolist()) if owner == node]
    links = [row for row, (one, other) in enumerate(block.link_index.T.tolist()) if one in gpus and other in gpus]
    runs = [row for row, (_, gpu) in enumerate(block.run_index.T.tolist()) if gpu in gpus]
    tasks = sorted({int(block.run_index[0, row]) for row in runs})
    return DeviceBlock(
        node_x=block.node_x[nodes],
        gpu_x=block.gpu_x[gpus],
        gpu_node=np.array([nodes.index(int(block.gpu_node[gpu])) for gpu in gpus], dtype=np.int64),
        link_index=pairs([(gpus.index(one), gpus.index(other)) for one, other in block.link_index.T[links].tolist()]),
        link_x=block.link_x[links],
        task_x=block.task_x[tasks],
        run_index=pairs([(tasks.index(task), gpus.index(gpu)) for task, gpu in block.run_index.T[runs].tolist()]),
        run_x=block.run_x[runs],
    )


def some_groups(block: FabricBlock, groups: list[int]) -> tuple[FabricBlock, list[int]]:
    """Return a fabric block of some groups of another, in the order given, and its nodes."""
    nodes = [node for group in groups for node, owner in enumerate(block.node_group.tolist()) if owner == group]
    members = [
        (place, int(partition))
        for place, node in enumerate(nodes)
        for partition in block.member_partition[block.member_node == node]
    ]
    return (
        FabricBlock(
            node_group=np.array([groups.index(int(block.node_group[node])) for node in nodes], dtype=np.int64),
            uplink_x=block.uplink_x[nodes],
            switch_x=block.switch_x[groups],
            member_node=pairs(members)[0],
            member_partition=pairs(members)[1],
        ),
        nodes,
    )
