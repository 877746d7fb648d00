"""GPU types of digits, which are so easily taken for counts, on a real slurmctld."""

import pytest
from energy_lab import await_reports, story, submit_decided, until, workload
from lab_fixtures import LOW_CLOCKS, StartLab

from slurm_energy.domain.job import GpuDemand
from slurm_energy.lab.cluster import PartitionSpec
from slurm_energy.lab.jobs import show_job, wait_for

pytestmark = pytest.mark.lab
GAMING = PartitionSpec(name="gaming", nodes=1, gpus_per_node=4, gpu_type="3090")


def test_jobs_and_nodes_of_a_gpu_type_of_digits_are_seen_whole(new_lab: StartLab) -> None:
    lab = new_lab(
        partitions=(GAMING,), energy=True, settings={"guard": {"min_energy_saving": 0.01}, "policy": LOW_CLOCKS}
    )
    until("a database", lab.layout.database.exists)
    until("a snapshot", lambda: (lab.status().daemon or {}).get("snapshot_age_seconds"))
    for asked in (["--gres=gpu:3090:2"], ["--gpus=3090:2"], ["--gpus-per-node=3090:2"], ["--gpus-per-task=3090:2"]):
        job = submit_decided(lab, [*asked, "-n", "1", "-t", "5", "-o", "/dev/null"], wrap=workload(30))
        record = until("decision", lambda job=job: story(lab, job))  # type: ignore[misc]  # bound at once
        assert record.decision is not None
        assert record.decision.asked.gpus == (GpuDemand(count=2, slurm_type="3090"),)
        assert [clock.gpu_type for clock in record.decision.clocks] == ["a40"]
        wait_for(lab, job, {"COMPLETED"})
        assert "gres/gpu:3090=2" in show_job(lab, job).get("TRES", "") or "gpu:3090:2" in str(show_job(lab, job))
        assert len(await_reports(lab, job)[0].gpus) == 2
        assert until("job row", lambda job=job: story(lab, job)).job.gpu_count == 2  # type: ignore[misc]
    doctor = lab.run(["slurm-energy", "doctor", "--role", "controller"]).stdout
    assert "skipped" not in doctor
