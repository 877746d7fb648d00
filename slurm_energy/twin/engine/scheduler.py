"""One scheduling pass, as Slurm makes it: the queue in its order, then backfill around the first job that waits.

A pass asks about each job that could start now. The answer is a placement, a time until which the job is put off, or
None to let it wait; the guard brings every placement inside what job and cluster allow.
"""

from collections.abc import Callable, Generator, Mapping
from math import inf
from typing import NamedTuple

from slurm_energy.policy.jobs import (
    WaitingJob,
)
from slurm_energy.policy.placement import Discipline, Placement, Postponement
from slurm_energy.twin.adapters.view import TwinView, may_share
from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job import NO_STAGING, Allocation, Job, JobRun, Staging
from slurm_energy.twin.engine.places import Place
from slurm_energy.twin.engine.reservation import Reservation, reservation
from slurm_energy.twin.engine.waiting import JobQueue, Waiting, in_order

Answer = Placement | Postponement | None
Pass = Generator[Job, Answer, None]
"""Yields each job that is asked about, and is sent the answer."""
_NOTHING_CLOSED: frozenset[int] = frozenset()
_WITHIN = 1.0 + 1e-9


class Scheduler:
    """Starts jobs that wait, in order; with EASY backfill also later ones that delay no other job."""

    def __init__(  # noqa: PLR0913, PLR0917  # the parts of one run, put together once
        self,
        places: tuple[Place, ...],
        execution: Execution,
        waiting: Waiting,
        view: TwinView,
        discipline: Discipline,
        backfill_depth: int,
        staging_of: Callable[[JobRun, int, float], Staging],
        postpone: Callable[[JobRun, float], None],
    ) -> None:
        self.easy = discipline.backfill == "easy"
        self._plans_by_estimates = discipline.run_times == "estimates"
        self.clamped = 0
        self.declined = 0
        self._places = places
        self._execution = execution
        self._waiting = waiting
        self._view = view
        self._depth = backfill_depth
        self._staging_of = staging_of
        self._postpone = postpone
        self._unlimited = all(place.partition.max_time_seconds == inf for place in places)
        self._sharing = any(place.pool.jobs_per_gpu > 1 for place in places)
        self._has_ways = bool(execution.world.ingresses)
        self.only_heads = not (self.easy or self._sharing)
        """Whether only the first job of a queue can ever start: then `first_startable` and `answered` are a pass over
        a queue that is alone."""
        self._room: list[int] = []
        """Of the job that `first_startable` found."""

    def run(self, queues: list[JobQueue], now: float, backfill: bool) -> Pass:
        """Make one pass over these queues, each of which holds a job: in their common order, then backfill."""
        closed: set[int] = set()
        holders: dict[int, JobRun] = {}
        open_queues = list(queues)
        view = self._view
        while open_queues:
            queue = open_queues[0] if len(open_queues) == 1 else min(open_queues, key=JobQueue.head_key)
            run = queue.head()
            room = view.fresh_room(run.job, queue.places, closed)
            if self._sharing or any(room):
                answer = yield run.job
                placement = self._guarded(run.job, answer, room, now)
                if placement is not None or _is_put_off(answer, now):
                    queue.take_head()
                    if placement is not None:
                        self._start(run, placement, now)
                    else:
                        self._put_off(run, answer)
                    if not queue.size:
                        open_queues.remove(queue)
                    continue
            for place in queue.places:
                pool_index = self._places[place].pool_index
                if pool_index not in holders:
                    holders[pool_index] = run
                    closed.update(self._execution.places_of_pool[pool_index])
            open_queues.remove(queue)
        if backfill and self.easy and holders:
            yield from self._backfill(queues, holders, now)

    def first_startable(self, queue: JobQueue) -> JobRun | None:
        """Return the first job of a queue if there is one and it could start now."""
        if not queue.size:
            return None
        run = queue.head()
        room = self._view.room_anywhere(run.job, queue.places)
        if room is None:
            return None
        self._room = room
        return run

    def answered(self, queue: JobQueue, run: JobRun, answer: Answer, now: float) -> bool:
        """Carry out the answer about the job that `first_startable` returned; return whether it left its queue."""
        job, room = run.job, self._room
        if (
            job.is_plain
            and isinstance(answer, Placement)
            and not (self._has_ways and job.routed_place is None)
            and self._execution.start_plain(run, answer, room, now)
        ):
            queue.take_head()
            self._left(job, now)
            return True
        placement = self._guarded(job, answer, room, now)
        if placement is not None:
            queue.take_head()
            self._start(run, placement, now)
        elif _is_put_off(answer, now):
            queue.take_head()
            self._put_off(run, answer)
        else:
            return False
        return True

    def _backfill(self, queues: list[JobQueue], holders: dict[int, JobRun], now: float) -> Pass:
        """Start later jobs that fit now and do not delay the first waiting job of any pool."""
        execution, sharing = self._execution, self._sharing
        free = execution.free_gpus
        places = sorted({place for queue in queues for place in queue.places})
        max_free = max(free[place] for place in places)
        if max_free == 0 and not sharing:
            return
        held = {id(run) for run in holders.values()}
        kept = self._reservations(holders, now)
        for queue, run in in_order(queues, self._depth):
            least = run.job.gpu_counts[0]
            if id(run) in held or (least > max_free and not sharing):
                continue
            room = self._view.fresh_room(run.job, queue.places, self._closed_to(run, least, kept, now))
            if not (sharing or any(room)):
                continue
            answer = yield run.job
            placement = self._guarded(run.job, answer, room, now)
            if placement is None:
                if _is_put_off(answer, now):
                    queue.remove(run)
                    self._put_off(run, answer)
                continue
            allocation = self._around(run, placement, kept, now)
            if allocation is None:
                continue
            queue.remove(run)
            self._start(run, placement, now, allocation or None)
            max_free = max(free[place] for place in places)
            if max_free == 0 and not sharing:
                return

    def _reservations(self, holders: dict[int, JobRun], now: float) -> dict[int, Reservation]:
        """Return what is kept for the first waiting job of each pool in which anything is free."""
        execution = self._execution
        ends = execution.expected_ends
        return {
            pool_index: reservation(
                execution.pools[pool_index],
                run.job,
                ends[pool_index] if ends else [],
                now,
                whole_nodes=execution.world.backfill_reserves_nodes,
            )
            for pool_index, run in holders.items()
            if execution.pools[pool_index].free_total or self._sharing
        }

    def _closed_to(self, run: JobRun, least: int, kept: dict[int, Reservation], now: float) -> set[int]:
        """Return the places where a job would delay the reserved one whatever the rule said."""
        closed: set[int] = set()
        ends_at = now + self._shortest(run)
        for pool_index, reserved in kept.items():
            if not reserved.may_pass(ends_at, least):
                closed.update(self._execution.places_of_pool[pool_index])
        return closed

    def _around(self, run: JobRun, placement: Placement, kept: dict[int, Reservation], now: float) -> Allocation | None:
        """Return where a job can start and leave the reservation of its pool alone, and count it there.

        None if it cannot; an empty allocation where nodes do not matter or it shares another's GPU.
        """
        pool_index = self._places[placement.place].pool_index
        reserved = kept.get(pool_index)
        if reserved is None:
            return []
        pool = self._execution.pools[pool_index]
        longest = self._longest(run, placement)
        if placement.partner is not None:
            owner = pool.runs[placement.partner]
            ends_at, leaves = now + longest, owner.expected_end_seconds
            if ends_at <= leaves or leaves > reserved.shadow_seconds:
                return []
            if not reserved.allows(ends_at, placement.gpus, owner.allocation):
                return None
            reserved.use(ends_at, placement.gpus, owner.allocation)
            return []
        for without in (_NOTHING_CLOSED, reserved.kept_nodes) if pool.by_node else (_NOTHING_CLOSED,):
            allocation = pool.find(run.job, placement.gpus, without=without, wish=placement.node)
            if allocation is None:
                return None
            ends_at = self._execution.nodes.up_seconds(pool_index, allocation, now) + longest
            if reserved.allows(ends_at, placement.gpus, allocation):
                reserved.use(ends_at, placement.gpus, allocation)
                return allocation
        return None

    def _shortest(self, run: JobRun) -> float:
        """Return the least that a job can be expected to take anywhere, for the same purpose as `_longest`."""
        limit = run.job.time_limit_seconds
        if limit < inf and not self._plans_by_estimates:
            return min(limit, *(self._places[place].partition.max_time_seconds for place in run.allowed))
        return 0.0

    def _longest(self, run: JobRun, placement: Placement) -> float:
        """Return how long a job may take: its limit, else its estimate at this placement, or by that at once."""
        limit = min(run.job.time_limit_seconds, self._places[placement.place].partition.max_time_seconds)
        if limit < inf and not self._plans_by_estimates:
            return limit
        rows = self._execution.estimates.rows(run.job.kind, run.job.gpu_counts)
        seconds = rows.seconds[placement.place][rows.column[placement.gpus]][placement.clock]
        return min(limit, max(0.0, run.job.estimated_units - run.units_kept) * seconds)

    def _guarded(self, job: Job, answer: Answer, room: list[int], now: float) -> Placement | None:
        """Return the placement that may be carried out."""
        if answer is None or isinstance(answer, Postponement):
            self.declined += 1
            return None
        if not 0 <= answer.place < len(room):
            self.clamped += 1
            return None
        if answer.partner is not None:
            return self._shared(job, answer)
        rows = self._execution.estimates.rows(job.kind, job.gpu_counts)
        if job.is_plain and self._unlimited and answer.gpus <= room[answer.place]:
            column = rows.column.get(answer.gpus)
            if column is not None and 0 <= answer.clock < rows.num_clocks[answer.place]:
                return answer
        placement, clamped = guarded_placement(
            answer,
            job,
            room[answer.place],
            rows.seconds[answer.place],
            rows.column,
            now,
            self._places[answer.place].partition.max_time_seconds,
        )
        self.clamped += clamped
        return placement

    def _shared(self, job: Job, answer: Placement) -> Placement | None:
        """Return a placement beside a running job if both may share; else nothing."""
        place = self._places[answer.place]
        partner = self._execution.pools[place.pool_index].runs.get(answer.partner if answer.partner is not None else -1)
        good = (
            partner is not None
            and place.pool.jobs_per_gpu > 1
            and job.shareable
            and may_share(partner)
            and partner.place == answer.place
            and 1 in job.gpu_counts
            and place.device.pair(job.kind, partner.kind) is not None
        )
        if not good or partner is None:
            self.clamped += 1
            return None
        return answer._replace(gpus=1, clock=partner.set_clock)

    def _put_off(self, run: JobRun, answer: Answer) -> None:
        """Let a job that was taken from its queue come back when the rule said."""
        assert isinstance(answer, Postponement)
        self._view.forget_room()
        self._postpone(run, answer.until_seconds)

    def _start(self, run: JobRun, placement: Placement, now: float, allocation: Allocation | None = None) -> None:
        job = run.job
        self._left(job, now)
        plain = job.is_plain and job.routed_place is not None
        staging = NO_STAGING if plain else self._staging_of(run, placement.place, now)
        self._execution.start(run, placement, staging, now, allocation)

    def _left(self, job: Job, now: float) -> None:
        """Note that a job waits no more."""
        view, waiting, routed = self._view, self._waiting, job.routed_place
        view.forget_room()
        waiting.count -= 1
        waiting.moment_seconds += now
        if routed is not None:
            view.waiting_jobs[routed] -= 1


def _is_put_off(answer: Answer, now: float) -> bool:
    """Return whether a rule said until when a job is put off."""
    return isinstance(answer, Postponement) and now < answer.until_seconds < inf


class GuardedPlacement(NamedTuple):
    """A placement that may be carried out, and whether the guard had to change it."""

    placement: Placement | None
    clamped: bool


def guarded_placement(  # noqa: PLR0913, PLR0917  # each is one fact the engine has at hand; this runs at every start
    answer: Placement,
    job: WaitingJob,
    room: int,
    seconds_per_unit: list[list[float]],
    column: Mapping[int, int],
    now_seconds: float,
    place_limit_seconds: float = inf,
) -> GuardedPlacement:
    """Return the answer if it is possible, else the nearest that is; None when nothing is in that place.

    - a place without room for the job: it waits;
    - more devices than fit, or a count the job may not have: the largest allowed count up to it, else the least;
    - a clock beyond the place's grid: the nearest on it;
    - a clock that breaks the job's slowdown bound, or its deadline where the default clock would not, or with which it
      is expected to pass its time limit: the lowest clock above it that keeps them, the default clock if none does.

    Args:
        answer: What the rule said.
        job: The job.
        room: Largest device count that fits in that place now; 0 for none.
        seconds_per_unit: Of that place, [count][clock]; infinite beyond the grid.
        column: Row of each device count.
        now_seconds: Time of the start.
        place_limit_seconds: The partition's own time limit, which holds for jobs without one.
    """
    gpus, clock = answer.gpus, answer.clock
    free_of_bounds = job.time_limit_seconds == job.deadline_seconds == job.max_slowdown == place_limit_seconds == inf
    if free_of_bounds and gpus <= room and gpus in column:
        times = seconds_per_unit[column[gpus]]
        if 0 <= clock < len(times) and times[clock] < inf:
            return GuardedPlacement(answer, False)
    if room <= 0:
        return GuardedPlacement(None, True)
    if gpus > room or gpus not in column:
        allowed = [count for count in column if count <= min(gpus, room)]
        gpus = max(allowed) if allowed else min(column)
        if gpus > room:
            return GuardedPlacement(None, True)
    times = seconds_per_unit[column[gpus]]
    last = len(times) - 1
    while last >= 0 and times[last] == inf:
        last -= 1
    if last < 0:
        return GuardedPlacement(None, True)
    asked = last if clock == -1 else clock
    clock = min(max(asked, 0), last)
    if clock < last:
        longest = times[last] * (1.0 + job.max_slowdown) * _WITHIN
        units = job.estimated_units
        limit = min(job.time_limit_seconds, place_limit_seconds)
        if limit < inf and units > 0.0:
            # Expected to pass the limit at any clock: the estimate may be wrong, so it runs as fast as it can.
            longest = min(longest, max(limit / units, times[last]) * _WITHIN)
        left = job.deadline_seconds - now_seconds
        if left < inf and units * times[last] <= left and units > 0.0:
            longest = min(longest, left / units * _WITHIN)
        while clock < last and times[clock] > longest:
            clock += 1
    if gpus == answer.gpus and clock == asked:
        return GuardedPlacement(answer if answer.clock == clock else answer._replace(clock=clock), False)
    return GuardedPlacement(answer._replace(gpus=gpus, clock=clock), True)
