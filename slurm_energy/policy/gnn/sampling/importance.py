"""What sampling knows of nodes and jobs, and how much each matters."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import Floats, Indices

Doubles = NDArray[np.float64]

LARGEST_NODE_RATIO = 4.0
"""Importance of the most important node over that of the least, at most."""
LARGEST_TASK_RATIO = 3.0
"""The same for jobs."""
_PATH_SCALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeFacts:
    """What is known of all nodes without running the network; a node's number is its row."""

    degree: Indices
    """Links between its devices, runs of jobs on them and uplinks, [nodes]."""
    devices: Indices
    """GPUs, or sockets where it has none: what the work of a node grows with, [nodes]."""
    critical_path_seconds: Floats
    """Longest over the jobs that run there, [nodes]."""
    gpus_free: Floats
    """Share, [nodes]."""
    group: Indices
    """As in `FabricBlock`, [nodes]."""
    member_node: Indices
    """Node of each membership, [members]."""
    member_partition: Indices
    """Its partition, [members]."""

    def __post_init__(self) -> None:
        count = len(self.degree)
        for name in ("devices", "critical_path_seconds", "gpus_free", "group"):
            _same_length(name, len(getattr(self, name)), count)
        _same_length("member_partition", len(self.member_partition), len(self.member_node))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskFacts:
    """What is known of all jobs of the queue without running the network; a job's number is its row."""

    critical_path_seconds: Floats
    """[tasks]."""
    depends_index: Indices
    """As in `QueueBlock`, [2, dependencies]."""
    wait_task: Indices
    """Pending job of each (job, partition), [waits]."""
    wait_partition: Indices
    """Its partition, [waits]."""

    def __post_init__(self) -> None:
        if self.depends_index.ndim != 2 or self.depends_index.shape[0] != 2:
            raise ValueRangeError(f"depends_index has shape {self.depends_index.shape}, [2, dependencies] is needed")
        _same_length("wait_partition", len(self.wait_partition), len(self.wait_task))


def node_importance(facts: NodeFacts) -> Doubles:
    """Return how much each node matters, from 1 to `LARGEST_NODE_RATIO`, [nodes].

    importance = 1 + degree / largest degree + path / largest path + share of GPUs in use,
    with path = ln(1 + critical path / 60 s).

    High degree and critical path are those of section 3.3 of the paper, heavy use that of section 4.3. Nodes that
    stand idle are alike, so that few of them tell of all. The bound keeps the weights of the sample bounded: no node
    weighs more than 4 times what it would in a uniform sample.
    """
    used = 1.0 - np.clip(np.nan_to_num(facts.gpus_free.astype(np.float64), nan=1.0), 0.0, 1.0)
    importance: Doubles = 1.0 + _share(facts.degree) + _share(_path(facts.critical_path_seconds)) + used
    return importance


def task_importance(facts: TaskFacts) -> Doubles:
    """Return how much each job matters, from 1 to `LARGEST_TASK_RATIO`, [tasks].

    importance = 1 + dependencies / largest number of them + path / largest path, as for nodes.
    """
    degree = np.bincount(facts.depends_index.ravel(), minlength=len(facts.critical_path_seconds))
    importance: Doubles = 1.0 + _share(degree) + _share(_path(facts.critical_path_seconds))
    return importance


def _path(seconds: Floats) -> Doubles:
    known = np.nan_to_num(seconds.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    logarithm: Doubles = np.log1p(np.maximum(known, 0.0) / _PATH_SCALE_SECONDS)
    return logarithm


def _share(values: Indices | Doubles) -> Doubles:
    """Return values over the largest, zeros where none is above 0."""
    largest = float(values.max(initial=0.0))
    shares: Doubles = values / largest if largest > 0.0 else np.zeros(len(values))
    return shares


def _same_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise ValueRangeError(f"{name} has {length} entries, {expected} are needed")
