"""The graph of a cluster and its queue, which lives on: changes are put in, blocks are taken out.

What a graph holds depends on the last snapshot alone, whichever way it came there; only the slots, which are the
numbers of its vertices, depend on the way. Time enters in steps, so that a running job does not change at every
snapshot.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from math import floor, isfinite

import numpy as np

from slurm_energy.domain.cluster import ClusterSnapshot, JobState, NodeState
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName
from slurm_energy.energy_model.catalog import CATALOGUE_LIMITS, BoardLimits
from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import DeviceBlock, FabricBlock, Indices, QueueBlock, TopBlock
from slurm_energy.graph.groups import GroupTable, bucket_of, fabric_block, switch_of
from slurm_energy.graph.job_features import QueueFacts
from slurm_energy.graph.job_table import JobVertexChanges, JobVertices
from slurm_energy.graph.node_table import NodeTable
from slurm_energy.graph.partitions import Changes, Frame, Memberships
from slurm_energy.graph.top import Places, top_block
from slurm_energy.graph.wait_table import WaitTable, queue_block

__all__ = ["TIME_STEP_SECONDS", "Changes", "ClusterGraph"]
TIME_STEP_SECONDS = 60.0


class ClusterGraph:
    """Vertices and edges of one snapshot, with slots that stay while it is updated.

    Args:
        gpu_types: The site's catalogue names of its GRES types.
        board_limits: Power limits of the site's boards.
        time_step_seconds: Times are as of the last multiple of it.
    """

    def __init__(
        self,
        gpu_types: Mapping[str, str] | None = None,
        board_limits: BoardLimits = CATALOGUE_LIMITS,
        *,
        time_step_seconds: float = TIME_STEP_SECONDS,
    ) -> None:
        if not time_step_seconds > 0.0:
            raise ValueRangeError(f"time step {time_step_seconds} s of the graph is not above 0")
        self._gpu_types = dict(gpu_types or {})
        self._limits = board_limits
        self._step = time_step_seconds
        self._now = 0.0
        self._begin(Frame(ClusterSnapshot(cluster=ClusterName(""), taken_at_seconds=0.0)))

    def update(self, snapshot: ClusterSnapshot) -> Changes:
        """Bring the graph to a snapshot; return what is different.

        Nodes and jobs that are the same objects, or equal, cost a look. Of several with one name, the last counts.
        """
        return _at_once(self.update_steps(snapshot))

    def update_steps(self, snapshot: ClusterSnapshot) -> Generator[None, None, Changes]:
        """Do what `update` does in a few short steps, for who has others waiting; begun, it must be brought to its end.

        In between the graph is neither the old nor the new one.
        """
        frame = Frame(snapshot)
        rebuilt = not frame.same_numbers(self.frame)
        if rebuilt:
            self._begin(frame)
        else:
            self._set_frame(frame)
        nodes = {node.name: node for node in snapshot.nodes}
        states, index = self.nodes.states, self.nodes.index
        for name in [name for name in index if name not in nodes]:
            self.remove_node(name)
        for name, node in nodes.items():
            slot = index.get(name)
            if slot is None or (states[slot] is not node and states[slot] != node):
                self.set_node(node)
        yield
        jobs = {job.job_id: job for job in snapshot.jobs}
        entries = self.jobs.entries
        for job_id in [job_id for job_id in entries if job_id not in jobs]:
            self.remove_job(job_id)
        for job_id, job in jobs.items():
            entry = entries.get(job_id)
            if entry is None or (entry.job is not job and entry.job != job):
                self.set_job(job)
        yield
        changes = yield from self._refresh(snapshot.taken_at_seconds, rebuilt=rebuilt)
        return changes

    def set_node(self, node: NodeState) -> None:
        """Put in a node or its new state; what follows from it is worked out by `refresh`."""
        slot = self.nodes.set_node(node)
        self.members.set_node(slot, self.frame.places(node.partitions), self.nodes.kinds_of(node))
        cluster = self.frame.cluster_of(node.partitions)
        self.nodes.store["cluster"][slot] = cluster
        self.groups.set_node(slot, node.name, bucket_of(node, cluster))
        self._dirty_nodes.add(slot)
        self._gone_nodes.discard(slot)

    def remove_node(self, name: NodeName) -> None:
        """Take out a node; its running jobs stay, without it."""
        slot = self.nodes.remove_node(name)
        if slot is not None:
            self.members.remove_node(slot)
            self.groups.remove_node(slot, name)
            self._dirty_nodes.discard(slot)
            self._gone_nodes.add(slot)

    def set_job(self, job: JobState) -> None:
        """Put in a job or its new state; one that neither waits nor runs leaves."""
        self.jobs.set_job(job)
        self._jobs_touched = True

    def remove_job(self, job_id: JobId) -> None:
        """Take out a job."""
        self.jobs.remove_job(job_id)
        self._jobs_touched = True

    def refresh(self, now_seconds: float) -> Changes:
        """Work out what follows from single changes, as of this Unix time; `update` does it by itself."""
        return _at_once(self._refresh(now_seconds, rebuilt=False))

    @property
    def facts(self) -> QueueFacts:
        """What the columns of a submitted job take from the queue."""
        totals = self.jobs.totals
        return QueueFacts(highest_priority=totals.highest_priority(), user_shares=totals.shares)

    @property
    def now_seconds(self) -> float:
        """The moment that times are as of: the last multiple of the time step."""
        return self._now

    @property
    def partition_index(self) -> dict[PartitionName, int]:
        """Numbers of the partitions in all blocks."""
        return self.frame.partition_index

    @property
    def node_index(self) -> dict[NodeName, int]:
        """Slots of the nodes."""
        return self.nodes.index

    @property
    def node_slots(self) -> Indices:
        """Slots of all nodes, ascending."""
        return self.nodes.store.slots

    @property
    def group_slots(self) -> Indices:
        """Slots of all groups, ascending: their order in `top_block`."""
        return self.groups.store.slots

    @property
    def task_slots(self) -> Indices:
        """Slots of all jobs that are vertices, ascending."""
        return self.jobs.store.slots

    @property
    def queue_slots(self) -> Indices:
        """Slots of the pending jobs, and of the running ones that others wait for; ascending."""
        return np.array(sorted(self.jobs.in_queue(self.jobs.entries)), dtype=np.int64)

    @property
    def num_pending(self) -> int:
        """Entries of the queue, those beyond the bound included."""
        return self.jobs.totals.num_pending

    def groups_of(self, node_slots: Iterable[int]) -> frozenset[int]:
        """Return the groups of some nodes."""
        return frozenset(self.groups.group_of[slot] for slot in node_slots)

    def nodes_of_groups(self, group_slots: Iterable[int] | Indices) -> Indices:
        """Return the node slots of whole groups, in the order that `fabric_block` of the same groups has them."""
        return self.groups.nodes_of(self.groups.store.checked(group_slots))

    def component_of(self, task_slots: Iterable[int] | Indices) -> Indices:
        """Return the slots of all jobs that hang together with some by dependencies, ascending."""
        wanted = self.jobs.store["job"][self.jobs.store.checked(task_slots)]
        jobs = self.jobs.dependencies.component(JobId(job) for job in wanted.tolist())
        return np.array(sorted(self.jobs.slots_of(jobs)), dtype=np.int64)

    def device_block(self, node_slots: Iterable[int] | Indices) -> DeviceBlock:
        """Return whole nodes, in the order of the slots."""
        return self.nodes.block(self.nodes.store.checked(node_slots), self.jobs)

    def running_slots(self, node_slots: Iterable[int] | Indices) -> Indices:
        """Return the slots of the jobs in `device_block` of the same nodes, in its order."""
        return self.nodes.running(self.nodes.store.checked(node_slots))

    def fabric_block(self, group_slots: Iterable[int] | Indices) -> FabricBlock:
        """Return whole groups, in the order of the slots; their nodes are those of `nodes_of_groups`."""
        return fabric_block(self.nodes, self.groups, self.members, self.groups.store.checked(group_slots))

    def queue_block(self, task_slots: Iterable[int] | Indices) -> QueueBlock:
        """Return jobs in the order of the slots, with the dependencies between them and their partitions."""
        return queue_block(self.jobs, self.waits, self.jobs.store.checked(task_slots))

    def top_block(self) -> TopBlock:
        """Return the top, groups in the order of `group_slots`."""
        return top_block(
            Places(frame=self.frame, nodes=self.nodes.store, groups=self.groups, members=self.members),
            self.jobs.totals.demands,
        )

    def _begin(self, frame: Frame) -> None:
        """Start without nodes and jobs."""
        self.frame = frame
        self.nodes = NodeTable(self._gpu_types, self._limits)
        self.groups = GroupTable()
        self.members = Memberships(len(frame.partitions))
        self.jobs = JobVertices()
        self.waits = WaitTable(self._gpu_types, self._limits)
        self._dirty_nodes: set[int] = set()
        self._gone_nodes: set[int] = set()
        self._dirty_groups: set[int] = set()
        self._jobs_touched = self._top_touched = True

    def _set_frame(self, frame: Frame) -> None:
        """Take new values of partitions, clusters and switches that keep their numbers."""
        if frame.same_values(self.frame):
            return
        before, after = self.frame.switches, frame.switches
        switches = {name for name in (*before, *after) if before.get(name) != after.get(name)}
        if switches:
            self._dirty_groups.update(
                group for group, bucket in self.groups.bucket_of_group.items() if switch_of(bucket) in switches
            )
        self.frame = frame
        self._top_touched = True

    def _refresh(self, now_seconds: float, *, rebuilt: bool) -> Generator[None, None, Changes]:
        self._now = floor(now_seconds / self._step) * self._step if isfinite(now_seconds) else 0.0
        job_changes = self.jobs.refresh(self._now)
        yield
        nodes = self._refresh_nodes(job_changes)
        groups, gone_groups = self._refresh_groups(nodes)
        touched = self._top_touched or self._jobs_touched or bool(nodes or self._gone_nodes or groups or gone_groups)
        yield
        tasks: set[int] = set()
        if touched or job_changes.vertices:
            tasks = yield from self._refresh_queue(job_changes)
        left = self.jobs.slots_of(job_changes.parts) - tasks
        changes = Changes(
            nodes=frozenset(nodes),
            groups=frozenset(groups),
            tasks=frozenset(tasks),
            gone_nodes=frozenset() if rebuilt else frozenset(self._gone_nodes),
            gone_groups=frozenset() if rebuilt else frozenset(gone_groups),
            gone_tasks=frozenset() if rebuilt else job_changes.gone | left,
            top=touched,
            rebuilt=rebuilt,
        )
        self._dirty_nodes, self._gone_nodes, self._dirty_groups = set(), set(), set()
        self._jobs_touched = self._top_touched = False
        return changes

    def _refresh_nodes(self, jobs: JobVertexChanges) -> set[int]:
        """Work out nodes and devices; return the nodes in which something is different."""
        self.nodes.write_nodes(self._dirty_nodes)
        index = self.nodes.index
        inside = self._dirty_nodes | {index[name] for name in jobs.nodes if name in index}
        self.nodes.write_devices(inside, self.jobs)
        return inside | {index[name] for name in self.jobs.nodes_of(jobs.vertices) if name in index}

    def _refresh_groups(self, nodes: Collection[int]) -> tuple[set[int], set[int]]:
        """Work out groups and switches; return the groups in which something is different, and those given up."""
        regrouped, gone = self.groups.regroup()
        fabric = regrouped | (self._dirty_groups - gone) | self.groups_of(self._dirty_nodes)
        self.groups.write(fabric, self.nodes.states.__getitem__, self.frame.switches.get)
        return fabric | self.groups_of(nodes), gone

    def _refresh_queue(self, jobs: JobVertexChanges) -> Generator[None, None, set[int]]:
        """Work out what is known of waiting in each partition; return the jobs of the queue to look at again."""
        if self._jobs_touched:
            self.waits.forget()
        self.waits.pair_up(self.jobs, self.frame, self.members.types())
        yield
        waits = self.waits.refresh(self.jobs, self.frame, self.members.sums(self.nodes.store), self.members.types())
        store = self.jobs.store
        waiting = [JobId(int(store["job"][slot])) for slot in waits if store.is_live(slot)]
        return self.jobs.in_queue(jobs.parts | self.jobs.dependencies.component(waiting))


def _at_once(steps: Generator[None, None, Changes]) -> Changes:
    """Return what the steps end with."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            changes: Changes = end.value
            return changes
