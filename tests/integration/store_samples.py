"""Whole values for the store's tests; each builder takes what the test is about."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import ClockChoice, EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.energy import (
    EnergyScope,
    EnergySource,
    GpuEnergy,
    HostEnergy,
    JobKey,
    NodeReport,
    QualityFlag,
)
from slurm_energy.domain.ids import (
    ClusterName,
    DecisionId,
    GpuTypeName,
    GpuUuid,
    JobId,
    NodeName,
    PartitionName,
)
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.domain.report import DecisionRecord, ReasonRecord, reason_sentence
from slurm_energy.store.decisions import record_decisions

CLUSTER = ClusterName("lab")
A100 = GpuTypeName("a100-sxm4-80gb")
SUBMITTED = 1_790_000_000.0
DECISION = DecisionId("d0000001")
HOSTILE_NAME = "x; rm -rf /\n'\"`$(id)\x1b[31m<script>alert(1)</script>\x00\u202e\U0001f525 ä \udcff"


def make_gpu(number: int = 0, **changes: Any) -> GpuEnergy:
    values: dict[str, Any] = {
        "gpu_uuid": GpuUuid(f"GPU-{number:08d}"),
        "gpu_name": "NVIDIA A100-SXM4-80GB",
        "gpu_type": A100,
        "joules": 20_000.25,
        "reason": None,
        "source": EnergySource.COUNTER,
        "scope": EnergyScope.GPU,
        "coverage_seconds": 100.0,
        "counter_joules": 20_000.25,
        "polled_joules": 19_500.5,
        "asked_clock_mhz": 1275,
        "applied_clock_mhz": 1275,
        "observed_clock_mhz": 1270.5,
        "default_clock_mhz": 1410,
        "utilisation": 0.93,
    }
    return GpuEnergy(**{**values, **changes})


def unknown_gpu(number: int = 0, reason: str = "energy counter not supported") -> GpuEnergy:
    return make_gpu(
        number,
        joules=None,
        reason=reason,
        source=EnergySource.NONE,
        coverage_seconds=0.0,
        counter_joules=None,
        polled_joules=None,
        flags=(QualityFlag.COUNTER_UNSUPPORTED,),
    )


def truncated_gpu(number: int = 0, coverage_seconds: float = 40.0) -> GpuEnergy:
    joules = coverage_seconds * 200.0
    return make_gpu(
        number,
        joules=joules,
        counter_joules=joules,
        polled_joules=None,
        coverage_seconds=coverage_seconds,
        flags=(QualityFlag.TRUNCATED,),
    )


def make_report(*gpus: GpuEnergy, job_id: int = 77, node: str = "gpu001", **changes: Any) -> NodeReport:
    values: dict[str, Any] = {
        "cluster": CLUSTER,
        "job_id": JobId(job_id),
        "restart_count": 0,
        "node": NodeName(node),
        "user_id": 1000,
        "partition": "a100",
        "decision_id": DECISION,
        "started_at_seconds": SUBMITTED + 50.123456,
        "ended_at_seconds": SUBMITTED + 150.654321,
        "time_scale": 1.0,
        "gpus": gpus or (make_gpu(),),
        "host": HostEnergy(joules=5_000.5, reason=None, coverage_seconds=100.0),
        "exit_code": 0,
        "events": ("clock locked",),
    }
    return NodeReport(**{**values, **changes})


def make_key(job_id: int = 77, submitted: float = SUBMITTED, restart_count: int = 0) -> JobKey:
    return JobKey(cluster=CLUSTER, job_id=JobId(job_id), submitted_at_seconds=submitted, restart_count=restart_count)


def make_state(job_id: int = 77, **changes: Any) -> JobState:
    values: dict[str, Any] = {
        "job_id": JobId(job_id),
        "user_name": "ada",
        "user_id": 1000,
        "name": "train",
        "state": "COMPLETED",
        "partitions": (PartitionName("a100"),),
        "submitted_at_seconds": SUBMITTED,
        "started_at_seconds": SUBMITTED + 50.0,
        "ended_at_seconds": SUBMITTED + 150.0,
        "account": "physics",
        "qos": "normal",
        "time_limit_minutes": 60.0,
        "nodes": "gpu001",
        "node_count": 1,
        "gpu_count": 1,
        "cpus": 8,
        "priority": 100,
        "exit_code": 0,
        "admin_comment": f"energy:{DECISION}",
    }
    return JobState(**{**values, **changes})


def pending(state: JobState) -> JobState:
    return replace(state, state="PENDING", started_at_seconds=None, ended_at_seconds=None, nodes="", exit_code=None)


def make_request(**changes: Any) -> JobRequest:
    values: dict[str, Any] = {
        "user_id": 1000,
        "user_name": "ada",
        "name": "train",
        "partitions": (PartitionName("a100"), PartitionName("a40")),
        "time_limit_minutes": 60.0,
        "gpus": (GpuDemand(count=1, slurm_type="a100"),),
        "options": EnergyOptions(mode=EnergyMode.BALANCED, max_slowdown=0.05),
        "submitted_at_seconds": SUBMITTED,
    }
    return JobRequest(**{**values, **changes})


def make_decision(decision_id: str = DECISION, **changes: Any) -> EnergyDecision:
    values: dict[str, Any] = {
        "decision_id": DecisionId(decision_id),
        "policy": "oracle",
        "policy_version": "1",
        "mode": EnergyMode.BALANCED,
        "decided_at_seconds": SUBMITTED + 0.000001,
        "partitions": (PartitionName("a100"),),
        "clocks": (
            ClockChoice(
                gpu_type=A100,
                sm_clock_mhz=1275,
                default_clock_mhz=1410,
                predicted_slowdown=0.05,
                predicted_energy_change=-0.2,
                power_limit_watts=500.0,
            ),
        ),
        "prefer": "nvlink",
        "reasons": (Reason.POLICY, Reason.SLOWDOWN_BOUND),
        "notes": ("a100 at 1275 of 1410 MHz",),
        "estimate": RuntimeEstimate(seconds=95.0, upper_seconds=120.0, source="history", gpu_type=A100),
        "snapshot_age_seconds": 1.25,
        "message": "a100 at 1275 of 1410 MHz: about 20 % less energy, 5 % longer; opt out with --energy=off",
    }
    return EnergyDecision(**{**values, **changes})


def decision_record(decision: EnergyDecision, request: JobRequest) -> DecisionRecord:
    """Return a decision as people are to read it."""
    return DecisionRecord(
        decision_id=decision.decision_id,
        cluster=CLUSTER,
        policy=decision.policy,
        policy_version=decision.policy_version,
        mode=decision.mode,
        decided_at_seconds=decision.decided_at_seconds,
        asked=request,
        partitions=decision.partitions,
        clocks=decision.clocks,
        reasons=tuple(ReasonRecord(code=str(code), sentence=reason_sentence(code)) for code in decision.reasons),
        notes=decision.notes,
        estimate=decision.estimate,
        snapshot_age_seconds=decision.snapshot_age_seconds,
        message=decision.message,
        prefer=decision.prefer,
    )


def record_decision(
    session: Session,
    decision: EnergyDecision,
    request: JobRequest,
    cluster: ClusterName,
    settings: Mapping[str, Any] | None = None,
) -> bool:
    """Store one decision; return whether it was new."""
    return record_decisions(session, [(decision, request)], cluster, settings) == 1
