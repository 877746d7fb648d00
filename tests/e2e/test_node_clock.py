"""A node whose wall clock is wrong, on a real slurmctld: one row for each job, with the times that Slurm knows."""

import os
import time
from pathlib import Path

import pytest
from energy_lab import await_reports, drained, submit_decided, until, workload
from lab_fixtures import StartLab

from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.domain.report import JobEnergyRecord
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import wait_for
from slurm_energy.store.reports import job_energy
from slurm_energy.store.session import open_engine, store_session

pytestmark = pytest.mark.lab

HOOK = """
import time
real = time.time
offset = float(open("{offset}").read())
time.time = lambda: max(0.0, real() + offset)
from slurm_energy.node.main import main
main()
"""


OLD = -1_000_000_000


def set_clock(lab: Lab, offset_seconds: float) -> None:
    """Let prologs and epilogs from now on see a wall clock that is so much ahead."""
    folder = lab.directory / "clock"
    folder.mkdir(exist_ok=True)
    (folder / "offset").write_text(str(offset_seconds))
    program = folder / "hook.py"
    program.write_text(HOOK.format(offset=folder / "offset"))
    for script in [*(lab.layout.hooks / "prolog.d").iterdir(), *(lab.layout.hooks / "epilog.d").iterdir()]:
        text = script.read_text()
        assert '-I -S -c "$START"' in text or str(program) in text
        script.write_text(text.replace('-I -S -c "$START"', f"-I {program}"))


def rows(lab: Lab, job_id: int) -> tuple[JobEnergyRecord, ...]:
    engine = open_engine(StoreConfig(url=f"sqlite:///{Path(lab.layout.database)}"))
    try:
        with store_session(engine, read_only=True) as session:
            return job_energy(session, ClusterName(lab.spec.cluster_name), JobId(job_id))
    finally:
        engine.dispose()


def test_each_job_of_a_node_with_a_wrong_clock_has_one_row_with_slurms_times(new_lab: StartLab) -> None:
    lab = new_lab(energy=True)
    for conf in lab.layout.etc.glob("*.conf"):
        os.utime(conf, (OLD, OLD))  # written long before, by any of the clocks: else it may be newer than slurmd
    jobs = {}
    for offset_seconds in (-200.0, 3600.0, -time.time()):
        set_clock(lab, offset_seconds)
        jobs[offset_seconds] = submit_decided(lab, ["-p", "a100", "--gres=gpu:1", "-t", "5"], wrap=workload(60))
        wait_for(lab, jobs[offset_seconds], {"COMPLETED"})
    for offset_seconds, job_id in jobs.items():
        (report,) = await_reports(lab, job_id)
        assert abs(report.started_at_seconds - max(0.0, time.time() + offset_seconds)) < 600.0, (
            "the clock was not wrong"
        )

        def settled(job_id: int = job_id) -> JobEnergyRecord | None:
            found = rows(lab, job_id)
            assert len(found) == 1
            return found[0] if found[0].state == "COMPLETED" else None

        job = until("the end of the job", settled)
        assert job.submit_time_known
        assert job.gpu.joules is not None
        assert job.wait_seconds is not None and job.wait_seconds < 120.0
        assert job.run_seconds is not None and job.run_seconds < 300.0
    assert drained(lab) == {}
