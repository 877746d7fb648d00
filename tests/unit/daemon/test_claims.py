"""A burst of jobs must not be sent to the same idle GPUs."""

import math
from dataclasses import replace

import pytest

from slurm_energy.daemon.claims import SLACK_SECONDS, Claims
from slurm_energy.domain.cluster import ClusterSnapshot, PartitionState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import ClusterName, DecisionId, PartitionName
from slurm_energy.domain.job import EnergyMode, GpuDemand, JobRequest

A100, A40 = PartitionName("a100"), PartitionName("a40")


def snapshot(taken_at: float) -> ClusterSnapshot:
    default = PartitionState(name=A40, is_default=True, up=True)
    return ClusterSnapshot(cluster=ClusterName("c"), taken_at_seconds=taken_at, partitions=(default,))


def decision(at: float, partitions: tuple[PartitionName, ...] | None = None) -> EnergyDecision:
    return EnergyDecision(
        decision_id=DecisionId("abcdefgh"),
        policy="oracle",
        policy_version="1",
        mode=EnergyMode.BALANCED,
        decided_at_seconds=at,
        partitions=partitions,
    )


def job(gpus: int, partitions: tuple[PartitionName, ...] = (), array: str | None = None) -> JobRequest:
    demands = (GpuDemand(count=gpus),) if gpus else ()
    return JobRequest(user_id=1, partitions=partitions, gpus=demands, array=array)


def test_jobs_decided_since_the_snapshot_count_where_they_may_start() -> None:
    claims = Claims()
    claims.add(decision(100.0, (A100,)), job(2, (A100, A40)), snapshot(99.0))
    claims.add(decision(100.1), job(4, (A100, A40)), snapshot(99.0))
    claims.add(decision(100.2), job(1), snapshot(99.0))
    assert claims.not_in(snapshot(99.0)) == {A100: 6.0, A40: 5.0}


def test_a_snapshot_taken_well_after_a_decision_shows_its_job_itself() -> None:
    claims = Claims()
    claims.add(decision(100.0), job(2, (A100,)), None)
    assert claims.not_in(snapshot(100.0 + SLACK_SECONDS)) == {A100: 2.0}
    assert claims.not_in(snapshot(100.1 + SLACK_SECONDS)) == {}


def test_an_array_claims_without_bound_and_a_job_without_gpus_nothing() -> None:
    claims = Claims()
    claims.add(decision(100.0), job(1, (A100,), array="1-1000"), None)
    claims.add(decision(100.0), job(0, (A40,)), None)
    assert claims.not_in(snapshot(100.0)) == {A100: math.inf}


def test_a_job_that_does_not_start_now_claims_nothing() -> None:
    claims = Claims()
    for _ in range(60):
        claims.add(decision(100.0), replace(job(4, (A100,)), starts_later=True), None)
    assert claims.not_in(snapshot(100.0)) == {}


@pytest.mark.parametrize("known", [None, ClusterSnapshot(cluster=ClusterName("c"), taken_at_seconds=1.0)])
def test_a_job_for_an_unknown_default_partition_claims_nothing(known: ClusterSnapshot | None) -> None:
    claims = Claims()
    claims.add(decision(100.0), job(1), known)
    assert claims.not_in(known) == {}
