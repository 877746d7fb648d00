"""What `status` says of a bound that is held in the mean: what was measured, and what was only predicted."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_energy.config import Config
from slurm_energy.daemon.inquiries import _mean_slowdown
from slurm_energy.estimation.decided_runs import DecidedRun, used_bound
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.estimation.site_clocks import SiteClocks

RUN = DecidedRun(user=1, gpu_seconds=3600.0, ended_at_seconds=0.0, slowdown=0.03, is_slowed=True)


def status(runs: list[DecidedRun]) -> dict[str, Any]:
    history = JobHistory(site_clocks=SiteClocks(used=used_bound(runs)))
    found = _mean_slowdown(cast(Any, SimpleNamespace(history=history, config=Config())))
    assert found is not None
    return found


def test_predictions_are_not_shown_as_measured() -> None:
    found = status([RUN] * 200)
    assert found["used_percent"] == pytest.approx(3.0) and found["used_is"] == "mostly predicted"
    assert found["measured_percent"] is None and (found["used_jobs"], found["measured_jobs"]) == (200, 0)


def test_what_jobs_measured_of_themselves_is_shown_beside_it() -> None:
    measured = replace(RUN, slowdown=0.09, is_measured=True)
    found = status([*[RUN] * 50, *[measured] * 150])
    assert found["used_percent"] == pytest.approx(7.5) and found["measured_percent"] == pytest.approx(9.0)
    assert found["used_is"] == "mostly measured" and found["measured_jobs"] == 150
