"""Which decision a job has that carries none: from the snapshot, else from one question to Slurm for all who ask."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from test_reuse import cluster

from slurm_energy.daemon import uncarried
from slurm_energy.daemon.uncarried import UncarriedDecisions
from slurm_energy.domain.cluster import ClusterSnapshot, JobState
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.ids import DecisionId, JobId
from slurm_energy.domain.job import EnergyMode

DECISION = DecisionId("abcdef0123456789")
ENTRY = DecisionEntry(decision_id=DECISION, mode=EnergyMode.BALANCED)


class Slurm:
    """Answers for every job below a hundred, and counts the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[JobId, ...]] = []

    def __call__(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        self.asked.append(tuple(job_ids))
        return {job_id: f"energy:{DECISION}" for job_id in job_ids if job_id < 100}


def decisions(slurm: Slurm) -> UncarriedDecisions:
    found = UncarriedDecisions(slurm)
    found.keep(DECISION, ENTRY)
    return found


def shown(job_id: int, comment: str) -> ClusterSnapshot:
    job = JobState(
        job_id=JobId(job_id),
        user_name="alice",
        user_id=1000,
        name="train",
        state="RUNNING",
        partitions=(),
        submitted_at_seconds=0.0,
        admin_comment=comment,
    )
    return replace(cluster(), jobs=(job,))


def test_a_job_of_the_snapshot_costs_no_question_whether_it_was_decided_or_not() -> None:
    slurm = Slurm()

    async def ask() -> list[DecisionId | None]:
        held = decisions(slurm)
        return [await held.decision_of(JobId(7), shown(7, text)) for text in (f"energy:{DECISION}", "")]

    assert asyncio.run(ask()) == [DECISION, None]
    assert slurm.asked == []


def test_many_jobs_that_start_at_once_are_one_question() -> None:
    slurm = Slurm()

    async def ask() -> list[DecisionId | None]:
        held = decisions(slurm)
        return await asyncio.gather(*(held.decision_of(JobId(number), None) for number in (*range(1, 41), 200)))

    assert asyncio.run(ask()) == [DECISION] * 40 + [None]
    assert [len(asked) for asked in slurm.asked] == [41]


def test_without_a_decision_that_a_node_could_ask_for_slurm_is_not_asked() -> None:
    slurm = Slurm()
    assert asyncio.run(UncarriedDecisions(slurm).decision_of(JobId(7), None)) is None
    assert slurm.asked == []


def test_what_is_kept_and_what_is_asked_is_bounded() -> None:
    slurm = Slurm()
    held = UncarriedDecisions(slurm)
    for number in range(uncarried.MAX_ENTRIES + 5):
        held.keep(DecisionId(f"{number:016x}"), ENTRY)
    assert len(held.entries) == uncarried.MAX_ENTRIES

    async def ask() -> list[DecisionId | None]:
        many = range(1, uncarried.MAX_JOBS + 20)
        return await asyncio.gather(*(held.decision_of(JobId(number), None) for number in many))

    asyncio.run(ask())
    assert max(len(asked) for asked in slurm.asked) <= uncarried.MAX_JOBS
