"""A burst of jobs must not be sent to the same idle GPUs."""

import math
from dataclasses import replace

import pytest

from slurm_energy.daemon.state import MAX_CLAIMS, SLACK_SECONDS, Claims
from slurm_energy.domain.cluster import ClusterSnapshot, PartitionState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import ClusterName, DecisionId, PartitionName
from slurm_energy.domain.job import EnergyMode, GpuDemand, JobRequest

A100, A40 = PartitionName("a100"), PartitionName("a40")


def snapshot(taken_at: float) -> ClusterSnapshot:
    default = PartitionState(name=A40, is_default=True, up=True)
    return ClusterSnapshot(cluster=ClusterName("c"), taken_at_seconds=taken_at, partitions=(default,))


def decision(
    at: float, partitions: tuple[PartitionName, ...] | None = None, decision_id: str = "abcdefgh"
) -> EnergyDecision:
    return EnergyDecision(
        decision_id=DecisionId(decision_id),
        policy="oracle",
        policy_version="1",
        mode=EnergyMode.BALANCED,
        decided_at_seconds=at,
        partitions=partitions,
    )


def job(
    gpus: int, partitions: tuple[PartitionName, ...] = (), array: str | None = None, user_id: int = 1
) -> JobRequest:
    demands = (GpuDemand(count=gpus),) if gpus else ()
    return JobRequest(user_id=user_id, partitions=partitions, gpus=demands, array=array)


def test_jobs_decided_since_the_snapshot_count_where_they_may_start() -> None:
    claims = Claims()
    claims.add(decision(100.0, (A100,)), job(2, (A100, A40)), snapshot(99.0))
    claims.add(decision(100.1), job(4, (A100, A40)), snapshot(99.0))
    claims.add(decision(100.2), job(1), snapshot(99.0))
    assert claims.unseen_by(snapshot(99.0)) == {A100: 6.0, A40: 5.0}


def test_a_snapshot_taken_well_after_a_decision_shows_its_job_itself() -> None:
    claims = Claims()
    claims.add(decision(100.0), job(2, (A100,)), None)
    assert claims.unseen_by(snapshot(100.0 + SLACK_SECONDS)) == {A100: 2.0}
    assert claims.unseen_by(snapshot(100.1 + SLACK_SECONDS)) == {}


def test_an_array_claims_without_bound_and_a_job_without_gpus_nothing() -> None:
    claims = Claims()
    claims.add(decision(100.0), job(1, (A100,), array="1-1000"), None)
    claims.add(decision(100.0), job(0, (A40,)), None)
    assert claims.unseen_by(snapshot(100.0)) == {A100: math.inf}


def test_a_job_that_does_not_start_now_claims_nothing() -> None:
    claims = Claims()
    for _ in range(60):
        claims.add(decision(100.0), replace(job(4, (A100,)), starts_later=True), None)
    assert claims.unseen_by(snapshot(100.0)) == {}


@pytest.mark.parametrize("known", [None, ClusterSnapshot(cluster=ClusterName("c"), taken_at_seconds=1.0)])
def test_a_job_for_an_unknown_default_partition_claims_nothing(known: ClusterSnapshot | None) -> None:
    claims = Claims()
    claims.add(decision(100.0), job(1), known)
    assert claims.unseen_by(known) == {}


def submit(claims: Claims, at: float, count: int, *, accepted: bool, user_id: int = 1) -> None:
    """Decide on submissions of one GPU each, and show those that became jobs in the next snapshot."""
    for number in range(count):
        decision_id = f"d{at:07.0f}{number:04d}"
        claims.add(decision(at, (A100,), decision_id), job(1, user_id=user_id), None)
        if accepted:
            claims.appeared(DecisionId(decision_id))


def test_submissions_that_slurm_refuses_soon_claim_nearly_nothing() -> None:
    claims = Claims()
    submit(claims, 100.0, 50, accepted=False)
    assert claims.unseen_by(snapshot(100.0)) == {A100: 50.0}
    assert claims.unseen_by(snapshot(105.0)) == {}
    for number in range(50):
        claims.add(decision(106.0, (A100,), f"e{number:08d}"), job(1), None)
    assert claims.unseen_by(snapshot(105.0))[A100] < 6.0
    claims.add(decision(106.0, (A40,), "f0000000"), job(1, user_id=2), None)
    assert claims.unseen_by(snapshot(105.0))[A40] == 1.0
    claims.add(decision(106.0, (A40,), "f0000001"), job(1, array="1-100"), None)
    assert claims.unseen_by(snapshot(105.0))[A40] == 1.0


def test_a_user_whose_submissions_become_jobs_again_claims_all_he_asks_for() -> None:
    claims = Claims()
    submit(claims, 100.0, 50, accepted=False)
    claims.unseen_by(snapshot(105.0))
    submit(claims, 106.0, 60, accepted=True)
    claims.unseen_by(snapshot(110.0))
    claims.add(decision(111.0, (A100,), "e0000000"), job(4), None)
    assert claims.unseen_by(snapshot(110.0))[A100] == pytest.approx(4.0, rel=0.05)


def test_a_job_that_is_in_the_queue_claims_all_it_asks_for_until_the_snapshot_is_whole() -> None:
    claims = Claims()
    submit(claims, 100.0, 50, accepted=False)
    claims.unseen_by(snapshot(105.0))
    claims.add(decision(106.0, (A100,), "e0000000"), job(4), None)
    claims.appeared(DecisionId("e0000000"))
    assert claims.unseen_by(snapshot(105.0)) == {A100: 4.0}


def test_many_submissions_between_two_snapshots_are_bounded() -> None:
    claims = Claims()
    submit(claims, 100.0, MAX_CLAIMS + 5, accepted=False)
    assert claims.unseen_by(snapshot(100.0)) == {A100: float(MAX_CLAIMS)}


def test_a_burst_is_one_sum_and_leaves_nothing_behind() -> None:
    claims = Claims()
    for number in range(3000):
        claims.add(decision(100.0, decision_id=f"burst{number:05d}"), job(2, (A100,)), None)
    for number in range(0, 3000, 2):
        claims.appeared(DecisionId(f"burst{number:05d}"))
        claims.appeared(DecisionId(f"burst{number:05d}"))
    claims.add(decision(100.0, decision_id="anarray1"), job(1, (A40,), array="1-9"), None)
    assert claims.unseen_by(snapshot(100.0)) == {A100: 6000.0, A40: math.inf}
    assert len(claims._held) == 3, "by user, partition and whether they have appeared"
    assert claims.unseen_by(snapshot(200.0)) == {}
    assert (claims._held, claims._by_id) == ({}, {})
