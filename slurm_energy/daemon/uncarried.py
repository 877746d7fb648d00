"""Decisions of jobs that cannot carry one to their nodes (job_submit/lua): their nodes ask by the job's number."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.ids import DecisionId, JobId, decision_in_comment

MAX_ENTRIES = 50_000
GATHER_SECONDS = 0.05
"""Nodes that ask in this time are answered by one question to Slurm."""
MAX_JOBS = 500
"""Of one question to Slurm; who comes later gets no decision."""
ANSWER_SECONDS = 0.8
"""A node waits little longer."""
NONE_SUBMITTED = "no job was submitted through job_submit/lua since the daemon's start: is node.fetch_decisions meant?"

AskSlurm = Callable[[Sequence[JobId]], Mapping[JobId, str]]
"""From job numbers to their admin comments; blocks."""


class UncarriedDecisions:
    """Entries by decision, and which of them Slurm has for a job; lost at a restart. For the event loop's thread."""

    def __init__(self, ask: AskSlurm | None = None) -> None:
        self.entries: dict[DecisionId, DecisionEntry] = {}
        self.ask = ask
        self._waiting: dict[JobId, list[asyncio.Future[str]]] = {}
        self._asking: asyncio.Task[None] | None = None

    def keep(self, decision_id: DecisionId, entry: DecisionEntry) -> None:
        """Keep what the node of a job is to hear when it asks; the oldest go first."""
        self.entries[decision_id] = entry
        while len(self.entries) > MAX_ENTRIES:
            del self.entries[next(iter(self.entries))]

    async def decision_of(self, job_id: JobId, snapshot: ClusterSnapshot | None) -> DecisionId | None:
        """Return the decision that Slurm has for a job in its admin comment, which no user can write."""
        if not self.entries:
            return None
        jobs = () if snapshot is None else snapshot.jobs
        shown = next((job for job in jobs if job.job_id == job_id), None)
        comment = shown.admin_comment if shown is not None else await self._comment(job_id)
        return decision_in_comment(comment)

    async def _comment(self, job_id: JobId) -> str:
        """Return the comment of a job that started right after its submission, from one question for all such jobs."""
        if self.ask is None or (job_id not in self._waiting and len(self._waiting) >= MAX_JOBS):
            return ""
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(found)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_together())
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await found
        except TimeoutError:
            return ""

    async def _ask_together(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_SECONDS)
                asked, self._waiting = self._waiting, {}
                assert self.ask is not None
                comments = await asyncio.to_thread(self.ask, tuple(asked))
                for job_id, futures in asked.items():
                    for future in futures:
                        if not future.done():
                            future.set_result(comments.get(job_id, ""))
        finally:
            self._asking = None
