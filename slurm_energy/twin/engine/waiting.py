"""What jobs wait for: queues, one for each set of places, and other jobs.

An event looks only at the queues that it can help. Dependencies and limits of arrays keep jobs out of them.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter

from slurm_energy.twin.engine.job import HELD, Job, JobRun

QueueKey = tuple[float, float, int]
_COMPACT_AT = 4096


def queue_key(job: Job, second: float) -> QueueKey:
    """Return what orders the queue: priority, then submission time or expected run time in s, then job id."""
    return (0.0 if job.is_plain else -job.priority, second, job.job_id)


class JobQueue:
    """Jobs with the same possible places, in their order. Taking the head is O(1), adding at the end O(log n)."""

    __slots__ = ("_head", "_items", "places", "size")

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places
        self._items: list[JobRun] = []
        self._head = 0
        self.size = 0
        """Jobs that wait."""

    def add(self, run: JobRun) -> bool:
        """Put a job where its key belongs; return whether it is the first now."""
        items, size = self._items, self.size
        self.size = size + 1
        if not size:
            items.append(run)
            return True
        key = run.queue_key
        if items[-1].queue_key < key:
            items.append(run)
            return False
        index = bisect_right(items, key, lo=self._head, key=_key)
        items.insert(index, run)
        return index == self._head

    def head(self) -> JobRun:
        """Return the first job."""
        return self._items[self._head]

    def head_key(self) -> QueueKey:
        """Return the key of the first job."""
        return self._items[self._head].queue_key

    def take_head(self) -> None:
        """Remove the first job."""
        items, head = self._items, self._head
        self.size -= 1
        items[head] = _NO_JOB
        self._head = head = head + 1
        if head >= _COMPACT_AT and head * 2 >= len(items):
            del items[:head]
            self._head = 0

    def remove(self, run: JobRun) -> None:
        """Remove a job from anywhere."""
        index = bisect_left(self._items, run.queue_key, lo=self._head, key=_key)
        if index >= len(self._items) or self._items[index] is not run:
            raise ValueError(f"job {run.job_id} is not in this queue")
        del self._items[index]
        self.size -= 1

    def first(self, count: int) -> list[JobRun]:
        """Return up to `count` jobs from the head."""
        return self._items[self._head : self._head + count]


class Waiting:
    """All queues of a run. Queues that can take each other's devices are looked at together."""

    def __init__(self, pool_of_place: Sequence[int]) -> None:
        self.count = 0
        """Jobs that wait, put off or not."""
        self.postponed = 0
        """Those of them that are in no queue: put off until a time of their own."""
        self.moment_seconds = 0.0
        """Times at which jobs left the queues less times at which they came: see `job_seconds`."""
        self.queue_of_place: list[JobQueue | None] = [None for _ in pool_of_place]
        """Of the jobs that wait for one place alone, where there is one."""
        self._pool_of_place = pool_of_place
        self._by_places: dict[tuple[int, ...], JobQueue] = {}
        self.together: list[list[JobQueue]] = [[] for _ in pool_of_place]
        """By place: the queues that share a pool with one that uses the place, or with one of those, and so on.
        The same lists for ever."""

    def queue(self, places: tuple[int, ...]) -> JobQueue:
        """Return the queue of a set of places, made when it is the first time."""
        found = self._by_places.get(places)
        if found is None:
            found = self._by_places[places] = JobQueue(places)
            if len(places) == 1:
                self.queue_of_place[places[0]] = found
            self._group()
        return found

    def queue_for(self, allowed: tuple[int, ...], routed_place: int | None) -> JobQueue:
        """Return the queue of a job: that of the place to which it was routed, else of all that it may use."""
        if routed_place is None:
            return self.queue(allowed)
        return self.queue_of_place[routed_place] or self.queue((routed_place,))

    def job_seconds(self, now: float) -> float:
        """Return the time that all jobs together have waited until now."""
        return self.moment_seconds + self.count * now

    def take_touched(self, places: set[int]) -> list[JobQueue]:
        """Return the queues with jobs on which a change in these places may bear, without doubles; empty the set."""
        place = places.pop()
        if not places:  # mostly
            queues = self.together[place]
            if len(queues) == 1:
                return queues if queues[0].size else _NO_QUEUES
            return [queue for queue in queues if queue.size]
        places.add(place)
        found: dict[int, JobQueue] = {}
        for each in sorted(places):
            found.update((id(queue), queue) for queue in self.together[each] if queue.size)
        places.clear()
        return list(found.values())

    def _group(self) -> None:
        """Find again which queues belong together: a new set of places has come."""
        group_of = {pool: {pool} for pool in self._pool_of_place}
        for places in self._by_places:
            joined = set().union(*(group_of[self._pool_of_place[place]] for place in places))
            for pool in joined:
                group_of[pool] = joined
        for place, pool in enumerate(self._pool_of_place):
            self.together[place][:] = [
                queue for places, queue in self._by_places.items() if self._pool_of_place[places[0]] in group_of[pool]
            ]

    def release(self) -> None:
        """Let go of the jobs of a run that is over."""
        self._by_places.clear()
        for queues in self.together:
            queues.clear()
        self.queue_of_place.clear()

    def all_queues(self) -> list[JobQueue]:
        """Return every queue."""
        return list(self._by_places.values())


def in_order(queues: list[JobQueue], depth: int) -> Iterator[tuple[JobQueue, JobRun]]:
    """Return up to `depth` jobs of several queues by their keys, as they stand now."""
    lists = [[(queue, run) for run in queue.first(depth)] for queue in queues]
    return islice(lists[0] if len(lists) == 1 else merge(*lists, key=_key_of_second), depth)


_key: Callable[[JobRun], QueueKey] = attrgetter("queue_key")


def _key_of_second(item: tuple[JobQueue, JobRun]) -> QueueKey:
    return item[1].queue_key


_NO_QUEUES: list[JobQueue] = []
_NO_JOB: JobRun = None  # type: ignore[assignment]  # a slot that is not read again


class Precedence:
    """Which jobs wait for others, by job id; a parent that never comes is waited for until the end."""

    def __init__(self, runs: dict[int, JobRun]) -> None:
        self.is_needed = False
        """Whether any job so far has a dependency or belongs to a limited array."""
        self._runs = runs
        self._children: dict[int, list[tuple[JobRun, bool]]] = {}
        self._active_tasks: dict[int, int] = {}
        self._waiting_tasks: dict[int, deque[JobRun]] = {}

    def add(self, run: JobRun) -> bool:
        """Take in a job that has come; return whether it can never start because a parent has failed already.

        Slurm leaves such a job pending unless it is asked to end it (--kill-on-invalid-dep, kill_invalid_depend); here
        it ends, as it does when the parent fails later, so that no run waits for it.
        """
        never = False
        job = run.job
        for parents, must_succeed in ((job.after_ok, True), (job.after_any, False)):
            for parent in parents:
                self.is_needed = True
                known = self._runs.get(parent)
                if known is None or not _has_ended(known):
                    run.parents_left += 1
                    self._children.setdefault(parent, []).append((run, must_succeed))
                elif must_succeed and known.state != "COMPLETED":
                    never = True
        return never

    def holds(self, run: JobRun) -> bool:
        """Return whether a job must wait for others before it can queue; takes its array's slot if not."""
        if run.parents_left:
            return True
        job = run.job
        if job.array_id is None or job.array_limit <= 0:
            return False
        self.is_needed = True
        active = self._active_tasks.get(job.array_id, 0)
        if active >= job.array_limit:
            self._waiting_tasks.setdefault(job.array_id, deque()).append(run)
            return True
        self._active_tasks[job.array_id] = active + 1
        return False

    def ended(self, run: JobRun) -> tuple[list[JobRun], list[JobRun]]:
        """Return the jobs that may queue now that this one has ended, and those that never will."""
        ready: list[JobRun] = []
        hopeless: list[JobRun] = []
        succeeded = run.state == "COMPLETED"
        for child, must_succeed in self._children.pop(run.job_id, ()):
            if child.phase != HELD:
                continue
            if must_succeed and not succeeded:
                hopeless.append(child)
                continue
            child.parents_left -= 1
            if child.parents_left == 0 and not self.holds(child):
                ready.append(child)
        job = run.job
        if job.array_id is not None and job.array_limit > 0 and run.first_started_seconds <= run.ended_seconds:
            self._active_tasks[job.array_id] -= 1
            tasks = self._waiting_tasks.get(job.array_id)
            if tasks:
                self._active_tasks[job.array_id] += 1
                ready.append(tasks.popleft())
        return ready, list({id(child): child for child in hopeless}.values())

    def criticality(self, job_id: int) -> float:
        """Return the share of a job's delay that reaches the end of its graph; see `ClusterView.criticality`."""
        shares: dict[int, float] = {}
        stack = [(job_id, False)]
        while stack:
            current, is_open = stack.pop()
            children = [child for child, _ in self._children.get(current, ()) if child.phase == HELD]
            if is_open or not children:
                reached = [shares.get(child.job_id, 0.0) / max(1, child.parents_left) for child in children]
                shares[current] = sum(reached) if children else 1.0
                shares[current] = min(1.0, shares[current])
            elif current not in shares:
                shares[current] = 0.0  # a cycle holds its jobs for ever: it adds nothing
                stack.append((current, True))
                stack.extend((child.job_id, False) for child in children if child.job_id not in shares)
        return shares[job_id]

    def data_is_here(self, run: JobRun, place: int) -> bool:
        """Return whether a job's input is where it starts: all its parents ran in the same place."""
        parents = (*run.job.after_ok, *run.job.after_any)
        return bool(parents) and all(parent in self._runs and self._runs[parent].place == place for parent in parents)


def _has_ended(run: JobRun) -> bool:
    return run.ended_seconds < float("inf")
