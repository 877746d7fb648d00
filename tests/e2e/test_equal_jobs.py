"""Equal jobs in a burst on a real slurmctld: each has its own decision and record, though few were asked about."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from energy_lab import story, until
from lab_fixtures import StartLab

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import show_job, wait_for

pytestmark = pytest.mark.lab

EQUAL = 24
_BURST = """
import json, subprocess, sys, time
runs, argv = int(sys.argv[1]), json.loads(sys.argv[2])
for _ in range(runs):
    done = subprocess.run(argv, capture_output=True, text=True)
    print(json.dumps([done.returncode, done.stdout.strip(), done.stderr]), flush=True)
"""
_LEAVE_ENTRY = '#!/bin/sh\necho "$SPANK_ENERGY_DECISION" > "{folder}/$SLURM_JOB_ID"\nexit 0\n'
_EQUAL = ["-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null"]


@pytest.fixture
def small(new_lab: StartLab) -> Lab:
    """A lab whose prolog leaves each job's decision entry in a folder."""
    lab: Lab = new_lab(energy=True)
    folder = lab.directory / "entries"
    folder.mkdir()
    script = lab.layout.hooks / "prolog.d" / "90-entry.sh"
    script.write_text(_LEAVE_ENTRY.format(folder=folder))
    script.chmod(0o755)
    return lab


def burst(lab: Lab, runs: int, arguments: list[str]) -> list[int]:
    """Submit equal jobs one after the other from inside; all of them are accepted."""
    argv = ["sbatch", "--parsable", *arguments, "--wrap", "true"]
    done = lab.run(["python3", "-c", _BURST, str(runs), json.dumps(argv)], user="alice", check=True, timeout=120)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == runs
    assert all(code == 0 and not error for code, _job, error in said), said
    return [int(job) for _code, job, _error in said]


def counters(lab: Lab) -> dict[str, int]:
    told: dict[str, Any] = json.loads(lab.run(["slurm-energy", "status", "--json"], check=True).stdout)
    return dict(told["daemon"]["counters"])


def comment(lab: Lab, job: int) -> str:
    return show_job(lab, job).get("AdminComment", "")


def recorded_clocks(lab: Lab, job: int) -> dict[str, int]:
    """Return the clocks in the record of a job's decision, once it is in the database under the job's own id."""
    record = until(f"decision of job {job}", lambda: story(lab, job))
    decision = until(f"decision of job {job}", lambda: getattr(story(lab, job), "decision", None))
    assert record.job.job_id == job
    return {str(clock.gpu_type): clock.sm_clock_mhz for clock in decision.clocks}


def test_each_of_many_equal_jobs_has_a_decision_a_clock_and_a_record_of_its_own(small: Lab) -> None:
    burst(small, 1, ["--hold", *_EQUAL, "-J", "first"])  # the daemon is awake
    before = counters(small)
    jobs = burst(small, EQUAL, [*_EQUAL, "-J", "equal"])
    (other,) = burst(small, 1, [*_EQUAL, "-J", "another"])
    for job in (*jobs, other):
        wait_for(small, job, {"COMPLETED"}, timeout=300)
    asked_for = [job for job in (*jobs, other) if comment(small, job)]
    assert len(asked_for) >= EQUAL // 2, "a busy machine may miss some deadlines, not so many"
    comments = {job: comment(small, job) for job in asked_for}
    assert len(set(comments.values())) == len(asked_for)
    entries = {
        job: DecisionEntry.decode((small.directory / "entries" / str(job)).read_text().strip()) for job in asked_for
    }
    assert {job: f"energy:{entry.decision_id}" for job, entry in entries.items()} == comments
    clocks = {tuple(sorted(entry.clocks_mhz.items())) for entry in entries.values()}
    assert len(clocks) == 1
    for job in asked_for:
        assert recorded_clocks(small, job) == dict(next(iter(clocks)))
    after = counters(small)
    told = after.get("decisions reused", 0) - before.get("decisions reused", 0)
    asked = after["request decide"] - before["request decide"]
    assert after["decisions"] - before["decisions"] == told + asked
    assert told + asked >= len(asked_for)
    assert told > 0


def test_a_daemon_that_is_killed_in_a_burst_stops_no_submission_and_decides_after_its_start(small: Lab) -> None:
    held = ["--hold", *_EQUAL, "-J", "equal"]
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(burst, small, 60, held)
        until("some decisions", lambda: counters(small)["decisions"] >= 5)
        small.kill_daemon()
        during = submitting.result()
    small.stop_daemon()
    without = burst(small, 6, held)
    assert not any(comment(small, job) for job in without), "nothing may be given of a daemon that has gone"
    small.start_daemon()
    time.sleep(1.2)  # the circuit breaker
    again = until("decided job", lambda: [job for job in burst(small, 3, held) if comment(small, job)])
    ids = [comment(small, job) for job in (*during, *again) if comment(small, job)]
    assert len(set(ids)) == len(ids) >= 5
    assert recorded_clocks(small, again[-1])
