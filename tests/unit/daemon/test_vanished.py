from collections.abc import Sequence
from dataclasses import replace

from slurm_energy.daemon.snapshot.process import VanishedJobs
from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.json_client import ClusterReading

GONE = JobState(
    job_id=JobId(7),
    user_name="alice",
    user_id=1000,
    name="train",
    state="VANISHED",
    partitions=(PartitionName("a100"),),
    submitted_at_seconds=1000.0,
    admin_comment="energy:0123456789abcdef",
)
ENDED = replace(GONE, state="COMPLETED", user_id=-1, ended_at_seconds=1700.0, admin_comment="")


class FakeAccounting:
    def __init__(self, *answers: tuple[JobState, ...] | SlurmError) -> None:
        self.answers = list(answers)
        self.asked: list[list[int]] = []

    def read_cluster(self) -> ClusterReading:
        raise AssertionError("not asked here")

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        self.asked.append(list(job_ids))
        answer = self.answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer


def test_accounting_tells_the_end_and_the_queue_told_the_user_and_the_decision() -> None:
    vanished = VanishedJobs(FakeAccounting((ENDED,)), accounting=True)
    settled = vanished.settle([GONE], 0.0)
    assert settled.changed == (replace(ENDED, user_id=1000, admin_comment="energy:0123456789abcdef"),)
    assert settled.vanished == ()


def test_late_accounting_is_asked_again_but_not_at_every_reading() -> None:
    running = replace(ENDED, state="RUNNING", ended_at_seconds=None)
    accounting = FakeAccounting((running,), SlurmError("slurmdbd is away"), (ENDED,))
    vanished = VanishedJobs(accounting, accounting=True)
    assert vanished.settle([GONE], 0.0).changed == ()
    assert vanished.settle([], 1.0).changed == ()
    assert vanished.settle([], 10.0).changed == ()
    assert len(vanished.settle([], 20.0).changed) == 1
    assert accounting.asked == [[7], [7], [7]]


def test_a_job_that_accounting_never_knows_is_lost_after_ten_minutes() -> None:
    vanished = VanishedJobs(FakeAccounting((), ()), accounting=True)
    assert vanished.settle([GONE], 0.0).vanished == ()
    assert vanished.settle([], 600.0).vanished == (GONE,)
    assert vanished.settle([], 700.0).vanished == ()


def test_an_earlier_job_of_the_same_number_is_not_the_one_asked_about() -> None:
    earlier = replace(ENDED, submitted_at_seconds=5.0)
    assert VanishedJobs(FakeAccounting((earlier,)), accounting=True).settle([GONE], 0.0).changed == ()


def test_without_accounting_a_vanished_job_is_lost_at_once() -> None:
    accounting = FakeAccounting()
    assert VanishedJobs(accounting, accounting=False).settle([GONE], 0.0).vanished == (GONE,)
    assert accounting.asked == []
