"""Which jobs wait for which: kept up to date, cut into its weakly connected parts, with longest chains."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from slurm_energy.domain.cluster import JobDependency
from slurm_energy.domain.ids import JobId

Dependencies = Mapping[JobId, JobDependency]
_NONE: Dependencies = {}


class DependencyGraph:
    """Live jobs and their dependencies; one on a job that is not live is remembered until that job appears."""

    def __init__(self) -> None:
        self._needs: dict[JobId, Dependencies] = {}
        """By live job that needs others, then by the job it needs."""
        self._live: set[JobId] = set()
        self._waiting: dict[JobId, set[JobId]] = {}
        """By the job that is needed, live or not."""

    def set_job(self, job_id: JobId, dependencies: Iterable[JobDependency]) -> set[JobId]:
        """Put a job in with what it needs; return the live jobs whose part of the graph this may have changed.

        A dependency of a job on itself is left out, and of several on one job the first counts.
        """
        needs: dict[JobId, JobDependency] = {}
        for dependency in dependencies:
            if dependency.job_id != job_id:
                needs.setdefault(dependency.job_id, dependency)
        before = self._needs.get(job_id, _NONE)
        if job_id in self._live and list(before.values()) == list(needs.values()):
            return set()
        touched = self.remove_job(job_id)
        self._live.add(job_id)
        if not needs and job_id not in self._waiting:
            return touched
        if needs:
            self._needs[job_id] = needs
        for needed in needs:
            self._waiting.setdefault(needed, set()).add(job_id)
        return touched | {job_id, *self.neighbours(job_id)}

    def remove_job(self, job_id: JobId) -> set[JobId]:
        """Take a job out; return the live jobs that were beside it."""
        if job_id not in self._live:
            return set()
        touched = set(self.neighbours(job_id))
        self._live.discard(job_id)
        for needed in self._needs.pop(job_id, _NONE):
            waiting = self._waiting[needed]
            waiting.discard(job_id)
            if not waiting:
                del self._waiting[needed]
        return touched

    def needs(self, job_id: JobId) -> Iterable[JobDependency]:
        """Yield what a live job needs of live jobs."""
        return (item for needed, item in self._needs.get(job_id, _NONE).items() if needed in self._live)

    def dependents(self, job_id: JobId) -> Collection[JobId]:
        """Return the live jobs that wait for a job."""
        return self._waiting.get(job_id, ())

    def neighbours(self, job_id: JobId) -> Iterable[JobId]:
        """Yield the live jobs that a job needs and those that wait for it."""
        yield from (needed for needed in self._needs.get(job_id, _NONE) if needed in self._live)
        yield from self._waiting.get(job_id, ())

    def component(self, seeds: Iterable[JobId]) -> set[JobId]:
        """Return every live job that hangs together with one of the seeds, those included that are live."""
        found = self._live.intersection(seeds)
        # Most jobs neither need another nor are needed.
        queue = deque(job for job in found if job in self._needs or job in self._waiting)
        while queue:
            for other in self.neighbours(queue.popleft()):
                if other not in found:
                    found.add(other)
                    queue.append(other)
        return found

    def critical_paths(self, jobs: Collection[JobId], seconds: Mapping[JobId, float]) -> dict[JobId, float]:
        """Return, for whole parts of the graph, the longest chain of run times from each job to the last needing it.

        Jobs in a circle can never start. Links between jobs of a circle, and those to it, add nothing to a chain.

        Args:
            jobs: Whole weakly connected parts.
            seconds: Expected run time of each of them.
        """
        longest = {job: seconds[job] for job in jobs}
        open_dependents = {job: len(self._waiting[job]) for job in jobs if job in self._waiting}
        ready = deque(job for job in jobs if job in self._needs and job not in open_dependents)
        while ready:
            job = ready.popleft()
            for dependency in self.needs(job):
                needed = dependency.job_id
                longest[needed] = max(longest[needed], seconds[needed] + longest[job])
                open_dependents[needed] -= 1
                if open_dependents[needed] == 0:
                    ready.append(needed)
        return longest
