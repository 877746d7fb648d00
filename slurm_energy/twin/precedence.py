"""Dependencies between jobs, and how many tasks of an array may run at once."""

from collections import deque

from slurm_energy.twin.job_run import HELD, JobRun


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
