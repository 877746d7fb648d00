"""Jobs of the twin as squeue would tell them; what did not change stays the same object."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import ceil, inf

from slurm_energy.domain.cluster import JobDependency, JobState
from slurm_energy.domain.ids import JobId, NodeName, PartitionName
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import COMPUTING, ENDED, HELD, STARTING, JobRun
from slurm_energy.twin.snapshot.nodes import MEBIBYTES_PER_GIBIBYTE, PoolNodes

USER_ID = 1000
RECENT_JOBS = 100
"""Ended jobs with a deadline over which violations are counted."""
_GIBIBYTES_PER_GIGABYTE = 1e9 / 2**30


class _Known:
    """A job that has not ended, and its state at the last snapshot."""

    __slots__ = ("parents_left", "phase", "run", "started_seconds", "state")

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.phase = -1
        self.started_seconds = inf
        self.parents_left = 0
        self.state: JobState | None = None


class LiveJobs:
    """Pending and running jobs, in the order of their submission."""

    def __init__(self, view: TwinView, pools: Sequence[PoolNodes], time_offset_seconds: float) -> None:
        self._view = view
        self._pools = pools
        self._offset = time_offset_seconds
        self._live: list[_Known] = []
        self._seen = 0
        self._shown: tuple[JobState, ...] = ()
        self._missed: deque[bool] = deque(maxlen=RECENT_JOBS)
        """Of the last jobs with a deadline that ended: whether they missed it."""

    @property
    def violations(self) -> float | None:
        """Share of the recent jobs with a deadline that missed it, None before the first has ended."""
        return sum(self._missed) / len(self._missed) if self._missed else None

    def update(self, without: int | None = None) -> tuple[JobState, ...]:
        """Return the jobs as they stand, without one that is being decided; the same tuple when none changed.

        `PoolNodes.update` comes first: it gives the numbers of the devices that jobs hold.
        """
        runs = self._view.runs
        new = len(runs) - self._seen
        if new:
            self._live += [_Known(run) for run in reversed(list(islice(reversed(runs.values()), new)))]  # type: ignore[call-overload]  # a dict's values can be reversed
            self._seen = len(runs)
        moved = set().union(*(pool.moved for pool in self._pools))
        found: list[JobState] = []
        ended = False
        for known in self._live:
            run = known.run
            phase = run.phase
            if phase == ENDED:
                ended = True
                continue
            if run.job_id == without:
                continue
            if (
                phase != known.phase
                or run.started_seconds != known.started_seconds
                or (phase == HELD and run.parents_left != known.parents_left)
                or (moved and run.job_id in moved)
            ):
                self._renew(known)
            found.append(known.state)  # type: ignore[arg-type]  # a phase of -1 has made it
        if ended:
            self._forget_ended()
        shown = tuple(found)
        if shown != self._shown:
            self._shown = shown
        return self._shown

    def _renew(self, known: _Known) -> None:
        run = known.run
        state = self._state(run)
        if state != known.state:  # a job that began to compute is the same to Slurm
            known.state = state
        known.phase, known.started_seconds, known.parents_left = run.phase, run.started_seconds, run.parents_left

    def _forget_ended(self) -> None:
        for known in self._live:
            run = known.run
            if run.phase == ENDED and run.job.deadline_seconds < inf:
                self._missed.append(run.state != "COMPLETED" or run.ended_seconds > run.job.deadline_seconds)
        self._live = [known for known in self._live if known.run.phase != ENDED]

    def _state(self, run: JobRun) -> JobState:
        job, view = run.job, self._view
        runs_now = run.phase in (STARTING, COMPUTING)
        places = (run.place,) if runs_now else run.allowed if job.routed_place is None else (job.routed_place,)
        holds = self._positions(run) if runs_now else ()
        gpus = run.gpus if runs_now else job.gpu_counts[0]
        nodes = len(holds) if runs_now else ceil(gpus / view.places[places[0]].gpus_per_node) if places else 1
        estimate = view.expected_seconds(run)
        on_cpus = all(view.places[place].is_cpu for place in places) and bool(places)
        return JobState(
            job_id=JobId(job.job_id),
            user_name=job.user,
            user_id=USER_ID,
            name=job.name,
            state="RUNNING" if runs_now else "PENDING",
            partitions=tuple(dict.fromkeys(PartitionName(view.places[place].partition) for place in places)),
            submitted_at_seconds=job.submitted_seconds + self._offset,
            started_at_seconds=run.started_seconds + self._offset if runs_now else None,
            account=job.account or None,
            array_job_id=None if job.array_id is None else JobId(job.array_id),
            restart_count=run.restarts,
            time_limit_minutes=job.time_limit_seconds / 60.0 if job.time_limit_seconds < inf else None,
            nodes=",".join(name for name, _ in holds),
            node_count=nodes,
            gpu_count=0 if on_cpus and runs_now else gpus,
            cpus=job.cpus or None,
            priority=round(job.priority),
            dependencies=() if runs_now else self._dependencies(run),
            deadline_seconds=job.deadline_seconds + self._offset if job.deadline_seconds < inf else None,
            memory_per_node_mib=job.memory_gib * MEBIBYTES_PER_GIBIBYTE / nodes if job.memory_gib else None,
            gpu_types=job.devices,
            gpu_max_count=job.gpu_counts[-1] if len(job.gpu_counts) > 1 else None,
            exclusive=job.exclusive,
            estimated_seconds=estimate if estimate < inf and not view.hides_jobs else None,
            gpu_positions=() if on_cpus else holds,
            kind="" if view.hides_jobs else job.kind,
        )

    def _positions(self, run: JobRun) -> tuple[tuple[NodeName, tuple[int, ...]], ...]:
        pool_index = self._view.twin_places[run.place].pool_index
        name = self._view.world.pools[pool_index].name
        return tuple((NodeName(f"{name}-{node}"), numbers) for node, numbers in self._pools[pool_index].positions(run))

    def _dependencies(self, run: JobRun) -> tuple[JobDependency, ...]:
        """Return the parents that have not ended; they hand over equal parts of the job's input."""
        job = run.job
        parents = dict.fromkeys(job.after_any, False) | dict.fromkeys(job.after_ok, True)
        if not parents:
            return ()
        runs = self._view.runs
        volume = job.input_gigabytes * _GIBIBYTES_PER_GIGABYTE / len(parents) if job.input_gigabytes else None
        return tuple(
            JobDependency(job_id=JobId(parent), needs_success=needs_success, data_gib=volume)
            for parent, needs_success in parents.items()
            if parent not in runs or runs[parent].phase != ENDED
        )
