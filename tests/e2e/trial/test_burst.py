"""Two thousand submissions in a burst: each is accepted, and the daemon goes on deciding."""

import json

import pytest
from energy_lab import submit_decided, until
from lab_fixtures import StartLab

from slurm_energy.lab.jobs import show_job

pytestmark = pytest.mark.lab

SUBMISSIONS = 2000
AT_ONCE = 16

_BURST = """
import json, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
argv = ["sbatch", "--parsable", "--hold", "-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null", "--wrap", "true"]
def submit(_number):
    done = subprocess.run(argv, capture_output=True, text=True)
    return done.returncode, done.stdout.strip(), done.stderr.strip()
with ThreadPoolExecutor(int(sys.argv[2])) as threads:
    print(json.dumps(list(threads.map(submit, range(int(sys.argv[1]))))))
"""


def test_every_job_of_a_burst_is_accepted_and_the_daemon_decides_the_next_one(new_lab: StartLab) -> None:
    lab = new_lab(energy=True)  # of its own: a queue that long is read again and again until Slurm forgets it
    done = lab.run(
        ["python3", "-c", _BURST, str(SUBMISSIONS), str(AT_ONCE)], user="alice", check=True, timeout=240
    ).stdout
    answers = json.loads(done)
    try:
        assert [answer for answer in answers if answer[0] != 0] == []
        assert len({number for _, number, _ in answers}) == SUBMISSIONS
        queued = lab.run(["squeue", "-h", "-u", "alice", "-t", "PD", "-o", "%i"], check=True).stdout.split()
        assert {number for _, number, _ in answers} <= set(queued)
    finally:
        lab.run(["scancel", "-u", "alice", "-t", "PENDING"], timeout=120)
    until("empty queue", lambda: not lab.run(["squeue", "-h", "-u", "alice", "-t", "PD"], check=True).stdout)
    next_job = submit_decided(lab, ["--hold", "-p", "a100", "--gres=gpu:1", "-t", "5"], wrap="true")
    assert show_job(lab, next_job)["AdminComment"].startswith("energy:")
    lab.run(["scancel", str(next_job)])
