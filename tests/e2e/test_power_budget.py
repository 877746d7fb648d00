"""A power budget under a real slurmctld: running clocks give way to it, come back with it, and nothing is lost.

The power is that of the simulated boards, whose curves no part of the product reads.
"""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from energy_lab import await_reports, drained, locked_clocks, submit_decided, until, workload

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import wait_for
from slurm_energy.lab.layout import labs_root

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

PARTITIONS = (PartitionSpec(name="a100", nodes=2, gpus_per_node=2),)
LEASE_SECONDS = 15.0


def set_budget(lab: Lab, watts: float) -> None:
    path = lab.layout.etc / "budget.csv"
    now = datetime.fromtimestamp(time.time() - 60.0, UTC).isoformat()
    new = path.with_suffix(".new")
    new.write_text(f"starts_at,watts\n{now},{watts:.1f}\n")
    new.chmod(0o644)
    new.replace(path)


def drawn(lab: Lab) -> float:
    """Return what all boards draw together."""
    total = 0.0
    for node in lab.spec.node_names:
        with lab.gpu_state(node) as state:
            total += sum(gpu.reading().power_watts for gpu in state.gpus)
    return total


def test_clocks_of_running_jobs_follow_a_budget_and_no_job_is_lost(new_lab: Callable[..., Lab]) -> None:
    name = f"budget-{os.getpid()}"
    series = labs_root() / name / "etc" / "budget.csv"
    lab = new_lab(
        name=name,
        partitions=PARTITIONS,
        energy=True,
        settings={
            "node": {"follow_power_budget": True, "sample_interval_seconds": 0.5},
            "power": {"budget_series": str(series), "ask_seconds": 2.0, "lease_seconds": LEASE_SECONDS},
        },
        time_scale=6.0,
    )
    set_budget(lab, 1e6)
    jobs = [
        submit_decided(lab, ["-J", f"work{at}", "--gres=gpu:1", "-t", "600"], wrap=workload(3000.0, profile))
        for at, profile in enumerate(("training", "training", "training", "training"))
    ]
    refused = submit_decided(lab, ["--energy=off", "--hold", "--gres=gpu:1"], wrap="true")
    lab.run(["scancel", str(refused)], check=True)
    full = until("four jobs at work", lambda: drawn(lab) if drawn(lab) > 4 * 200.0 else None)
    before = locked_clocks(lab)

    half = full / 2.0
    set_budget(lab, half)
    until("half of the power", lambda: drawn(lab) <= 1.03 * half, 150.0)
    assert len(locked_clocks(lab)) == 4
    shown = lab.run(["slurm-energy", "status"], check=True).stdout
    assert "power budget" in shown and "4 of 4 jobs" in shown

    lab.stop_daemon()
    until("the jobs' own clocks", lambda: locked_clocks(lab) == before, 120.0)
    lab.start_daemon()
    until("half of the power again", lambda: drawn(lab) <= 1.03 * half, 150.0)

    set_budget(lab, 1e6)
    until("the jobs' own clocks again", lambda: locked_clocks(lab) == before, 150.0)
    for job in jobs:
        wait_for(lab, job, {"RUNNING"}, timeout=5)
        lab.run(["scancel", str(job)], check=True)
    for job in jobs:
        report = await_reports(lab, job)[0]
        assert QualityFlag.POWER_BUDGET in report.gpus[0].flags
        assert any(event.startswith("power budget: ") for event in report.events)
    assert locked_clocks(lab) == {}
    assert drained(lab) == {}
