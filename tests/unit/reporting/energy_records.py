"""Records of jobs and their energy, and how they are printed."""

import io
from typing import Any

from rich.console import Console

from slurm_energy.domain.ids import ClusterName, GpuTypeName, JobId, PartitionName
from slurm_energy.domain.report import (
    EnergyReport,
    EnergySum,
    GroupEnergyRecord,
    JobEnergyRecord,
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
