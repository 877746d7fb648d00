"""Jobs of the graph: their vertices, what they wait for, and where they run."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import isnan

import numpy as np

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId, NodeName
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.columns import ColumnStore, Scaler
from slurm_energy.graph.holdings import Holding, node_names, spread
from slurm_energy.graph.job_features import (
    MOVING_COLUMNS,
    RUNNING_STATES,
    TASK_SCALER,
    JobFigures,
    job_figures,
    moving_columns,
    still_row,
    time_figures,
)
from slurm_energy.graph.job_relations import DependencyGraph, QueueTotals
from slurm_energy.graph.schema import RUNS, TASK

MAX_PENDING = 2_000
"""Pending jobs that become vertices; the rest counts in the features of the partitions."""
RUN_SCALER = Scaler(RUNS)
_SHARE, _PATH, _DEPENDENTS = 1, 2, 3
"""Columns of `queue` behind the priority."""


@dataclass(slots=True)
class JobEntry:
    """A live job with what was worked out from it."""

    job: JobState
    figures: JobFigures
    names: dict[NodeName, int]
    """Nodes that it runs on, numbered in order."""
    positions: dict[NodeName, tuple[int, ...]]
    slot: int = -1
    """Vertex, -1 for a pending job beyond the bound."""

    @property
    def devices(self) -> int:
        """Devices of a running job: its GPUs, else one CPU per node."""
        known = sum(map(len, self.positions.values()))
        return max(1, known or self.figures.gpus or len(self.names))

    def holding(self, name: NodeName) -> Holding:
        """Return what it holds of a node."""
        return Holding(
            task=self.slot,
            devices=spread(self.figures.gpus, len(self.names), self.names[name]),
            positions=self.positions.get(name),
            slurm_types=self.job.gpu_types,
        )


class JobVertices:
    """Live jobs: running and pending ones; those that have ended are no part of the graph."""

    def __init__(self) -> None:
        self.entries: dict[JobId, JobEntry] = {}
        self.on_node: dict[NodeName, set[JobId]] = {}
        """Running jobs by node, whether or not the node is known."""
        self.store = ColumnStore(
            {
                "x": (np.float32, len(TASK)),
                "run_x": (np.float32, len(RUNS)),
                "times": (np.float64, 5),
                "queue": (np.float64, 4),
                "job": (np.int64, 0),
                "devices": (np.float64, 0),
                "position_known": (np.float64, 0),
            }
        )
        self.dependencies = DependencyGraph()
        self.totals = QueueTotals()
        self.queue: list[JobId] = []
        """Pending vertices in the order of the queue."""
        self._dirty: set[JobId] = set()
        """Jobs whose own columns are to be written."""
        self._parts: set[JobId] = set()
        """Seeds of the parts of the dependency graph to look at again."""
        self._nodes: set[NodeName] = set()
        self._gone: set[int] = set()
        self._clock: tuple[float, float] | None = None

    def set_job(self, job: JobState) -> None:
        """Take a job in, or its new state; one that has ended leaves."""
        if job.state != "PENDING" and job.state not in RUNNING_STATES:
            self.remove_job(job.job_id)
            return
        entry = _entry(job)
        before = self.entries.get(job.job_id)
        if before is not None:
            entry.slot = before.slot
            self.totals.remove(before.job, before.figures)
            self._leave_nodes(before)
        self.entries[job.job_id] = entry
        self.totals.add(job, entry.figures)
        for name in entry.names:
            self.on_node.setdefault(name, set()).add(job.job_id)
        self._nodes.update(entry.names)
        self._parts |= self.dependencies.set_job(job.job_id, job.dependencies)
        self._dirty.add(job.job_id)

    def remove_job(self, job_id: JobId) -> None:
        """Let a job leave; nothing happens when it is not there."""
        entry = self.entries.pop(job_id, None)
        if entry is None:
            return
        self.totals.remove(entry.job, entry.figures)
        self._leave_nodes(entry)
        self._parts |= self.dependencies.remove_job(job_id)
        self._dirty.discard(job_id)
        if entry.slot >= 0:
            self._release(entry)

    def refresh(self, now_seconds: float) -> "JobVertexChanges":
        """Bring the vertices up to date after changes, as seen at this Unix time; return what is different."""
        self._choose()
        rows = [self.entries[job_id] for job_id in self._dirty]
        written = self._write_still([entry for entry in rows if entry.slot >= 0])
        moved = self._write_chains() | self._write_shares() | {entry.slot for entry in rows}
        clock = (now_seconds, self.totals.highest_priority())
        if clock != self._clock:
            moved = set(map(int, self.store.slots))
            self._clock = clock
        moved.discard(-1)
        different = written | self._write_moving(moved)
        seeds = self._parts | {JobId(int(job)) for job in self.store["job"][sorted(different)]}
        changes = JobVertexChanges(
            vertices=frozenset(different),
            parts=frozenset(self.dependencies.component(seeds)),
            nodes=frozenset(self._nodes),
            gone=frozenset(slot for slot in self._gone if not self.store.is_live(slot)),
        )
        self._dirty, self._parts, self._nodes, self._gone = set(), set(), set(), set()
        return changes

    def slots_of(self, jobs: Iterable[JobId]) -> set[int]:
        """Return the vertices of some live jobs; a pending job beyond the bound has none."""
        return {slot for job in jobs if (slot := self.entries[job].slot) >= 0}

    def in_queue(self, jobs: Iterable[JobId]) -> set[int]:
        """Return the vertices of those live jobs that wait, or that hang together with others by dependencies."""
        found = set()
        for job in jobs:
            entry = self.entries[job]
            if entry.slot >= 0 and (not entry.figures.is_running or any(self.dependencies.neighbours(job))):
                found.add(entry.slot)
        return found

    def nodes_of(self, slots: Iterable[int]) -> set[NodeName]:
        """Return the nodes that some vertices run on, whether or not they are known."""
        jobs = (self.entries[JobId(int(self.store["job"][slot]))] for slot in slots)
        return {name for entry in jobs for name in entry.names}

    def holdings(self, name: NodeName) -> list[Holding]:
        """Return what running jobs hold of a node, in the order of their numbers."""
        return [self.entries[job].holding(name) for job in sorted(self.on_node.get(name, ()))]

    def _leave_nodes(self, entry: JobEntry) -> None:
        for name in entry.names:
            jobs = self.on_node[name]
            jobs.discard(entry.job.job_id)
            if not jobs:
                del self.on_node[name]
        self._nodes.update(entry.names)

    def _release(self, entry: JobEntry) -> None:
        self.store.free(entry.slot)
        self._gone.add(entry.slot)
        entry.slot = -1

    def _choose(self) -> None:
        """Give vertices to the running jobs and to the first pending ones, and take them from the others."""
        if not self._dirty and not self.totals.queue_changed:
            return
        chosen = self.totals.first(MAX_PENDING)
        waiting = set(chosen)
        self._dirty.update(job_id for job_id in chosen if self.entries[job_id].slot < 0)
        for job_id in {*self.queue, *self._dirty}:
            entry = self.entries.get(job_id)
            if entry is None:
                continue
            wanted = entry.figures.is_running or job_id in waiting
            if wanted and entry.slot < 0:
                entry.slot = self.store.take()
                self.store["job"][entry.slot] = job_id
                self._parts.add(job_id)
            elif not wanted and entry.slot >= 0:
                self._release(entry)
                self._parts.add(job_id)
        self.queue = chosen

    def _write_still(self, entries: Collection[JobEntry]) -> set[int]:
        """Write what stays in the columns of some jobs; return the slots in which something is different."""
        if not entries:
            return set()
        slots = np.array([entry.slot for entry in entries])
        rows = TASK_SCALER.scaled([still_row(entry.job, entry.figures) for entry in entries])
        store = self.store
        rows[:, MOVING_COLUMNS] = store["x"][slots[:, None], MOVING_COLUMNS]
        different = slots[(rows != store["x"][slots]).any(axis=1)]
        store["x"][slots] = rows
        store["times"][slots] = [time_figures(entry.figures) for entry in entries]
        store["devices"][slots] = [entry.devices for entry in entries]
        store["position_known"][slots] = [float(bool(entry.positions)) for entry in entries]
        store["queue"][slots, 0] = [entry.figures.priority for entry in entries]
        # A vertex that is new, or another user's by a mistake of Slurm's, has no share yet.
        store["queue"][slots, _SHARE] = [self.totals.shares.get(entry.job.user_id, 0.0) for entry in entries]
        return set(map(int, different))

    def _write_chains(self) -> set[int]:
        """Write critical paths and numbers of dependents of the parts that changed; return their slots."""
        jobs = self.dependencies.component(self._parts | self._dirty)
        estimates = ((job, self.entries[job].figures.estimate_seconds) for job in jobs)
        seconds = {job: 0.0 if isnan(estimate) else estimate for job, estimate in estimates}
        paths = self.dependencies.critical_paths(jobs, seconds)
        vertices = [(slot, job) for job in jobs if (slot := self.entries[job].slot) >= 0]
        if vertices:
            slots = np.array([slot for slot, _ in vertices])
            self.store["queue"][slots, _PATH] = [paths[job] for _, job in vertices]
            self.store["queue"][slots, _DEPENDENTS] = [len(self.dependencies.dependents(job)) for _, job in vertices]
        return {slot for slot, _ in vertices}

    def _write_shares(self) -> set[int]:
        """Write the shares of users where they changed; return the slots of their jobs."""
        written: set[int] = set()
        for share, jobs in self.totals.changed_shares():
            slots = self.slots_of(jobs)
            self.store["queue"][list(slots), _SHARE] = share
            written |= slots
        return written

    def _write_moving(self, moved: set[int]) -> set[int]:
        """Write the columns that move, and those of the runs; return the slots in which something is different."""
        if not moved:
            return set()
        slots = np.fromiter(sorted(moved), dtype=np.int64)
        now, highest = self._clock or (0.0, 0.0)
        store = self.store
        rows = moving_columns(store["times"][slots], store["queue"][slots], now, highest)
        runs = self._run_rows(slots, now)
        before, runs_before = store["x"][slots[:, None], MOVING_COLUMNS], store["run_x"][slots]
        different = slots[(rows != before).any(axis=1) | (runs != runs_before).any(axis=1)]
        store["x"][slots[:, None], MOVING_COLUMNS] = rows
        store["run_x"][slots] = runs
        return set(map(int, different))

    def _run_rows(self, slots: "np.ndarray[tuple[int], np.dtype[np.int64]]", now: float) -> Floats:
        """Return the RUNS columns of some jobs; all zero for those that do not run."""
        _, started, suspended, _, estimate = self.store["times"][slots].T
        ran = np.maximum(0.0, now - started - suspended)
        left = np.maximum(0.0, estimate - ran)
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = (1.0 / self.store["devices"][slots], ran / estimate, left, self.store["position_known"][slots])
        rows = RUN_SCALER.scaled(np.stack(columns, axis=1))
        rows[self.store["x"][slots, 1] == 0.0] = 0.0
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVertexChanges:
    """What a refresh found different."""

    vertices: frozenset[int]
    """Slots whose columns differ."""
    parts: frozenset[JobId]
    """Jobs of the parts of the dependency graph in which something differs."""
    nodes: frozenset[NodeName]
    """Nodes on which jobs came, went or changed."""
    gone: frozenset[int]
    """Slots that are no longer in use."""


def _entry(job: JobState) -> JobEntry:
    figures = job_figures(job)
    positions = dict(job.gpu_positions) if figures.is_running else {}
    listed = dict.fromkeys((*(node_names(job.nodes) if figures.is_running else ()), *positions))
    names = {NodeName(name): index for index, name in enumerate(listed)}
    return JobEntry(job=job, figures=figures, names=names, positions=positions)
