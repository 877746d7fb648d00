"""Records of jobs and their energy, and how they are printed."""

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from slurm_energy.domain.decision import AnswerDetails, ClockChoice, RuntimeEstimate
from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.domain.report import (
    ComparisonRecord,
    DecisionRecord,
    EnergyReport,
    EnergySum,
    ExplainRecord,
    GpuOutcomeRecord,
    GroupEnergyRecord,
    JobEnergyRecord,
    ReasonRecord,
)

A100 = GpuTypeName("a100-sxm4-80gb")
HOSTILE = "=x\n[red]\x1b[31m<script>alert('1')</script>\u202e$(id)"
KNOWN = EnergySum(joules=12_345.0, readings=2, coverage_share=0.985, error_share=0.01)
NO_READING = EnergySum(joules=None)


def make_job(**changes: Any) -> JobEnergyRecord:
    values: dict[str, Any] = {
        "cluster": ClusterName("lab"),
        "job_id": JobId(77),
        "submitted_at_seconds": 1_790_000_000.0,
        "submit_time_known": True,
        "gpu": KNOWN,
        "host": NO_READING,
        "attempts": 1,
        "name": "train",
        "user_id": 1000,
        "user_name": "ada",
        "partition": PartitionName("a100"),
        "state": "COMPLETED",
        "wait_seconds": 50.0,
        "run_seconds": 725.0,
        "saving_joules": 1500.0,
    }
    return JobEnergyRecord(**{**values, **changes})


def make_report(*jobs: JobEnergyRecord, **changes: Any) -> EnergyReport:
    gpu = EnergySum(joules=12_345.0, readings=3, unknown_readings=1, coverage_share=0.6)
    total = GroupEnergyRecord(
        group="total", jobs=len(jobs), jobs_without_energy=1, gpu=gpu, host=NO_READING, saving_joules=1500.0
    )
    return EnergyReport(**{"kind": "job", "cluster": ClusterName("lab"), "total": total, "jobs": jobs, **changes})


def make_groups() -> EnergyReport:
    groups = tuple(
        GroupEnergyRecord(group=name, jobs=2, jobs_without_energy=0, gpu=KNOWN, host=NO_READING, mean_wait_seconds=5.0)
        for name in ("ada", HOSTILE)
    )
    return make_report(kind="user", groups=groups)


def printed(render: Any, record: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    render(record, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


ENDED = 1_790_001_000.0
MEASURED = EnergySum(
    joules=12_345.0,
    readings=2,
    coverage_share=0.985,
    error_share=0.0514,
    timing_error_share=0.0014,
    calibration_error_share=0.05,
)


def make_story() -> ExplainRecord:
    decision = DecisionRecord(
        decision_id=DecisionId("d0000001"),
        cluster=ClusterName("lab"),
        policy="oracle",
        policy_version="1",
        mode=EnergyMode.BALANCED,
        decided_at_seconds=1_790_000_000.0,
        asked=JobRequest(
            user_id=1000,
            gpus=(GpuDemand(count=2, slurm_type="a100"),),
            time_limit_minutes=90.0,
            options=EnergyOptions(mode=EnergyMode.BALANCED, max_slowdown=0.05),
        ),
        partitions=(PartitionName("a100"),),
        clocks=(
            ClockChoice(
                gpu_type=A100,
                sm_clock_mhz=1275,
                default_clock_mhz=1410,
                predicted_slowdown=0.05,
                predicted_energy_change=-0.13,
                power_limit_watts=400.0,
            ),
        ),
        reasons=(ReasonRecord(code="POLICY", sentence="The policy chose this setting."),),
        notes=("a note", "attention: 41 % on the queue of a100"),
        details=AnswerDetails(attention={"queue": 0.41, "energy": 0.2}),
        estimate=RuntimeEstimate(seconds=600.0, upper_seconds=900.0, source="history"),
        snapshot_age_seconds=1.25,
        message="",
        prefer="nvlink",
    )
    gpu = GpuOutcomeRecord(
        node=NodeName("gpu001"),
        restart_count=0,
        gpu_uuid=GpuUuid("GPU-1"),
        gpu_name="NVIDIA A100-SXM4-80GB",
        gpu_type=A100,
        asked_clock_mhz=1275,
        applied_clock_mhz=1275,
        observed_clock_mhz=1270.4,
        default_clock_mhz=1410,
        joules=12_345.0,
        reason=None,
        source=EnergySource.COUNTER,
        scope=EnergyScope.GPU,
        coverage_seconds=20.0,
        error_share=0.01,
        utilisation=0.9,
    )
    lost = replace(
        gpu, gpu_uuid=GpuUuid("GPU-2"), joules=None, reason="no end reading", flags=(QualityFlag.INCOMPLETE,)
    )
    comparisons = (
        ComparisonRecord(quantity="SM clock", unit="MHz", predicted=1275.0, actual=1270.4, basis="mean of samples"),
        ComparisonRecord(quantity="run time", unit="s", predicted=630.0, actual=None, basis="still runs"),
        ComparisonRecord(quantity="GPU energy", unit="share", predicted=-0.13, actual=-0.12, basis="against 3 runs"),
    )
    return ExplainRecord(
        job=make_job(name=HOSTILE),
        decision=decision,
        gpus=(gpu, lost),
        comparisons=comparisons,
        events=("gpu001: \x1b[2J cleared",),
    )
