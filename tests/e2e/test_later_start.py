"""A job whose user lets it wait begins at the hour of the lowest price under a real slurmctld; all others as always."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from energy_lab import on_terminal, story, submit_decided, until

from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import show_jobs, wait_for
from slurm_energy.lab.layout import labs_root

pytestmark = pytest.mark.lab
HOUR = 3600.0


def test_a_job_that_may_wait_begins_when_energy_is_cheap_and_no_other_job_waits(new_lab: Callable[..., Lab]) -> None:
    name = f"later-{os.getpid()}"
    tariff = labs_root() / name / "etc" / "tariff.csv"
    lab = new_lab(name=name, energy=True, settings={"facility": {"later_starts": "price", "tariff_file": str(tariff)}})
    now = time.time()
    rows = [
        f"{datetime.fromtimestamp(now + at * HOUR, UTC).isoformat()},{price}"
        for at, price in ((-1, 0.30), (2, 0.10), (3, 0.30), (9, 0.30))
    ]
    tariff.write_text("\n".join(["starts_at,EUR_per_kwh", *rows]) + "\n")
    tariff.chmod(0o644)
    lab.stop_daemon()
    lab.start_daemon()  # it reads the file when it begins

    allowed = ["--gres=gpu:1", "-t", "30", "--energy-start-before=now+4hours"]
    waiting = submit_decided(lab, allowed, wrap="true")
    shown = show_jobs(lab, waiting)[0]
    assert shown["JobState"] == "PENDING"
    begins = time.mktime(time.strptime(shown["EligibleTime"], "%Y-%m-%dT%H:%M:%S"))
    assert 1.9 <= (begins - now) / HOUR <= 3.0
    explained = until("the decision", lambda: story(lab, waiting))
    assert explained.decision is not None
    assert any("begins no sooner than" in note and "67 % less cost" in note for note in explained.decision.notes)

    plain = submit_decided(lab, ["--gres=gpu:1", "-t", "30"], wrap="true")
    too_soon = submit_decided(lab, ["--gres=gpu:1", "-t", "30", "--energy-start-before=now+10minutes"], wrap="true")
    own = submit_decided(lab, [*allowed, "--begin=now"], wrap="true")
    for job in (plain, too_soon, own):
        wait_for(lab, job, {"COMPLETED"}, timeout=60)

    previewed = on_terminal(lab, ["energy-sbatch", "--energy-dry-run", *allowed, "--wrap=true"])
    assert "  start:         not before 20" in previewed.stdout
    lab.run(["scontrol", "update", f"JobId={waiting}", "StartTime=now"], user="alice", check=True)
    wait_for(lab, waiting, {"COMPLETED"}, timeout=60)
