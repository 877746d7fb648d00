"""Embeddings that are kept between decisions and recomputed only where something changed.

The levels were cut so that a change stays where it is: a device changes its node, a node its group, a group what the
partitions get from it, a job its own dependencies. What is put together from all groups and jobs are sums, and those
are few. The result equals that of a full computation up to rounding.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from slurm_energy.graph import schema
from slurm_energy.graph.cluster_graph import Changes, ClusterGraph
from slurm_energy.policy.gnn.embeddings import (
    Contributions,
    Fabric,
    PartitionSums,
    Published,
    add_up,
    floats,
    indices,
    largest_by,
)
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork

NODES_A_STEP = 12
"""Nodes in one step: a waiting request is looked for after each."""
GROUPS_A_STEP = 3
TASKS_A_STEP = 128
LONG_REFRESH = 16
"""A refresh of more than so many steps is of the whole cluster, and takes eight steps in one: it is rare."""
_HOTTEST = schema.column(schema.NODE, "hottest")
_CRITICAL = schema.column(schema.TASK, "critical_path_seconds")


class StateKeeper(Protocol):
    """Keeps what decisions are made from up to date with a graph."""

    published: Published | None
    """The state at the top as of the last complete refresh; None before the first."""

    @property
    def is_stale(self) -> bool:
        """Whether what changed has not been worked out and published yet."""
        ...

    def note(self, changes: Changes) -> None:
        """Remember what changed."""
        ...

    def steps(self) -> Iterator[None]:
        """Do what is to be done in short steps; the new state is published in the last one."""
        ...


def keeper_of(network: HierarchicalNetwork, graph: ClusterGraph) -> StateKeeper:
    """Return the way of keeping the state that fits a network."""
    if network.config.sampling == "full" and network.config.hierarchy == "hierarchical":
        return EmbeddingCache(network, graph)
    from slurm_energy.policy.gnn.ablation.sampled_state import SampledState, WholeState  # noqa: PLC0415  # not served

    return (SampledState if network.config.sampling == "sampled" else WholeState)(network, graph)


class EmbeddingCache:
    """The embeddings of one graph under one network, which must have a hierarchy."""

    def __init__(self, network: HierarchicalNetwork, graph: ClusterGraph) -> None:
        self.published: Published | None = None
        self._network = network
        self._graph = graph
        hidden, heads = network.config.hidden, network.config.heads
        self._hidden, self._heads = hidden, heads
        self._nodes: set[int] = set()
        self._groups: set[int] = set()
        self._tasks: set[int] = set()
        self._stale = False
        self._node_device = torch.zeros(0, hidden)
        """From the device level, by node slot."""
        self.node = torch.zeros(0, hidden)
        """After the fabric level, by node slot; what the assignment head reads."""
        self._switch = torch.zeros(0, hidden)
        self._congestion = torch.zeros(0)
        self._group_weight = torch.zeros(0, 0, heads)
        """What each group offers to each partition, [groups, partitions, heads]."""
        self._group_value = torch.zeros(0, 0, hidden)
        self._group_heat = torch.zeros(0, 0)
        self._waits = RowPool(hidden, heads)
        self.forget()

    @property
    def is_stale(self) -> bool:
        """Whether what changed has not been worked out and published yet."""
        return self._stale

    def forget(self) -> None:
        """Drop everything: the next refresh works out all of the graph."""
        graph = self._graph
        self._nodes, self._groups = set(graph.node_slots.tolist()), set(graph.group_slots.tolist())
        self._tasks = set(graph.queue_slots.tolist())
        self._stale = True
        groups, partitions = 1 + max(self._groups, default=-1), len(graph.partition_index)
        self._group_weight = torch.zeros(groups, partitions, self._heads)
        self._group_value = torch.zeros(groups, partitions, self._hidden)
        self._group_heat = torch.zeros(groups, partitions)
        self._waits.clear(partitions)

    def note(self, changes: Changes) -> None:
        """Remember what changed in the graph."""
        if changes.rebuilt:
            self.forget()
            return
        self._nodes = (self._nodes - changes.gone_nodes) | changes.nodes
        self._groups = (self._groups - changes.gone_groups) | changes.groups
        self._tasks = (self._tasks - changes.gone_tasks) | changes.tasks
        self._forget_groups(changes.gone_groups)
        self._waits.remove(changes.gone_tasks)
        self._stale = self._stale or bool(changes)

    def steps(self) -> Iterator[None]:
        """Bring the embeddings up to the graph, a little at a time, then publish."""
        yield from self._device_steps()
        yield from self._fabric_steps()
        yield from self._queue_steps()
        if self._stale:
            self._publish()
            self._stale = False

    def refresh(self) -> None:
        """Bring everything up to the graph at once."""
        for _ in self.steps():
            pass

    def _device_steps(self) -> Iterator[None]:
        while self._nodes:
            slots = _some(self._nodes, NODES_A_STEP)
            self._work_out_nodes(slots)
            self._nodes.difference_update(slots)
            yield

    def _work_out_nodes(self, slots: list[int]) -> None:
        with torch.inference_mode():
            result = self._network.device(self._graph.device_block(slots))
            where = torch.tensor(slots)
            self._node_device = _grown(self._node_device, slots[-1])
            self._node_device[where] = result.node
        self._groups |= self._graph.groups_of(slots)

    def _fabric_steps(self) -> Iterator[None]:
        while self._groups:
            slots = _some(self._groups, GROUPS_A_STEP)
            self._work_out_groups(slots)
            self._groups.difference_update(slots)
            yield

    @torch.inference_mode()
    def _forget_groups(self, slots: Iterable[int]) -> None:
        known = [slot for slot in slots if slot < len(self._group_weight)]
        for table in (self._group_weight, self._group_value, self._group_heat):
            table[known] = 0.0

    def _work_out_groups(self, slots: list[int]) -> None:
        nodes = self._graph.nodes_of_groups(slots)
        block = self._graph.fabric_block(slots)
        partitions = self._group_weight.shape[1]
        with torch.inference_mode():
            where, groups = indices(nodes), torch.tensor(slots)
            result = self._network.fabric(block, self._node_device[where])
            self.node = _grown(self.node, int(nodes.max(initial=-1)))
            self.node[where] = result.node
            last = slots[-1]
            self._switch, self._congestion = _grown(self._switch, last), _grown(self._congestion, last)
            self._switch[groups], self._congestion[groups] = result.switch, result.congestion
            member = indices(block.member_node)
            owner = indices(block.node_group)[member] * partitions + indices(block.member_partition)
            count = len(slots) * partitions
            hottest = floats(self._graph.nodes.store["x"][nodes])[:, _HOTTEST]
            offered = result.offered
            tables = (
                _summed(offered.weight[member], owner, count),
                _summed(offered.value[member], owner, count),
                largest_by(hottest[member], owner, count),
            )
            self._group_weight = _grown(self._group_weight, last)
            self._group_value = _grown(self._group_value, last)
            self._group_heat = _grown(self._group_heat, last)
            kept = (self._group_weight, self._group_value, self._group_heat)
            for table, new in zip(kept, tables, strict=True):
                table[groups] = new.view(len(slots), *table.shape[1:])

    def _queue_steps(self) -> Iterator[None]:
        while self._tasks:
            slots = self._graph.component_of(_some(self._tasks, TASKS_A_STEP)).tolist()
            self._work_out_tasks(slots)
            self._tasks.difference_update(slots)
            yield

    def _work_out_tasks(self, slots: list[int]) -> None:
        block = self._graph.queue_block(slots)
        with torch.inference_mode():
            result = self._network.queue(block)
            task = indices(block.wait_task)
            critical = floats(block.task_x)[:, _CRITICAL][task]
            owner = indices(block.wait_partition)
            self._waits.put(slots, task.tolist(), owner, result.asked, critical)

    def _publish(self) -> None:
        graph = self._graph
        groups = indices(graph.group_slots)
        with torch.inference_mode():
            offered = Contributions(self._group_weight[groups].sum(0), self._group_value[groups].sum(0))
            heat = self._group_heat[groups]
            asked, critical = self._waits.sums()
            sums = PartitionSums(offered, asked, heat.amax(0) if len(groups) else critical * 0.0, critical)
            fabric = Fabric(self.node, self._switch[groups], self._congestion[groups], offered)
            self.published = self._network.top(graph.top_block(), sums, fabric)


class RowPool:
    """One row for each (job, partition); sums by partition are taken over all rows, so nothing drifts."""

    def __init__(self, hidden: int, heads: int) -> None:
        self._partitions = 0
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._size = 0
        self._owner = torch.zeros(0, dtype=torch.int64)
        """Partition of each row; one past the last for rows that are free."""
        self._weight = torch.zeros(0, heads)
        self._value = torch.zeros(0, hidden)
        self._critical = torch.zeros(0)

    @torch.inference_mode()
    def clear(self, partitions: int) -> None:
        """Forget all rows."""
        self._partitions = partitions
        self._rows_of.clear()
        self._free.clear()
        self._size = 0
        self._owner.fill_(partitions)

    @torch.inference_mode()
    def remove(self, tasks: Iterable[int]) -> None:
        """Free the rows of some jobs; jobs without rows are no fault."""
        rows = [row for task in tasks for row in self._rows_of.pop(task, ())]
        if rows:
            self._owner[rows] = self._partitions
            self._free += rows

    @torch.inference_mode()
    def put(
        self, tasks: list[int], task_of_row: list[int], owner: Tensor, asked: Contributions, critical: Tensor
    ) -> None:
        """Replace the rows of some jobs.

        Args:
            tasks: Slots of the jobs.
            task_of_row: For each row, the position of its job in `tasks`.
            owner: Partition of each row, [rows].
            asked: Contributions, [rows].
            critical: Critical path of the job of each row, [rows].
        """
        self.remove(tasks)
        rows = [self._free.pop() if self._free else self._fresh() for _ in task_of_row]
        for row, position in zip(rows, task_of_row, strict=True):
            self._rows_of.setdefault(tasks[position], []).append(row)
        self._grow()
        if rows:
            where = torch.tensor(rows)
            self._owner[where], self._critical[where] = owner, critical
            self._weight[where], self._value[where] = asked.weight, asked.value

    @torch.inference_mode()
    def sums(self) -> tuple[Contributions, Tensor]:
        """Return the sums by partition, and the longest critical path by partition."""
        partitions, size = self._partitions, self._size
        owner = self._owner[:size]
        total = add_up(Contributions(self._weight[:size], self._value[:size]), owner, partitions + 1)
        critical = largest_by(self._critical[:size], owner, partitions + 1)
        return Contributions(total.weight[:partitions], total.value[:partitions]), critical[:partitions]

    def _fresh(self) -> int:
        self._size += 1
        return self._size - 1

    def _grow(self) -> None:
        short = self._size - len(self._owner)
        if short <= 0:
            return
        more = max(short, len(self._owner))
        self._owner = torch.cat([self._owner, self._owner.new_full((more,), self._partitions)])
        self._critical = torch.cat([self._critical, self._critical.new_zeros(more)])
        self._weight = torch.cat([self._weight, self._weight.new_zeros(more, self._weight.shape[1])])
        self._value = torch.cat([self._value, self._value.new_zeros(more, self._value.shape[1])])


def whole_blocks(graph: ClusterGraph) -> Blocks:
    """Return the whole state of a graph, nodes in the order of their groups."""
    groups = graph.group_slots
    return Blocks(
        devices=graph.device_block(graph.nodes_of_groups(groups)),
        fabric=graph.fabric_block(groups),
        queue=graph.queue_block(graph.queue_slots),
        top=graph.top_block(),
    )


def _some(slots: set[int], step: int) -> list[int]:
    """Return the slots of the next step, ascending."""
    return sorted(slots)[: 8 * step if len(slots) > LONG_REFRESH * step else step]


def _summed(rows: Tensor, owner: Tensor, owners: int) -> Tensor:
    return rows.new_zeros(owners, rows.shape[1]).index_add_(0, owner, rows)


def _grown(table: Tensor, last: int) -> Tensor:
    """Return a table with a row `last`, with room to spare when it had to grow."""
    if last < len(table):
        return table
    larger = table.new_zeros(max(last + 1, 2 * len(table)), *table.shape[1:])
    larger[: len(table)] = table
    return larger
