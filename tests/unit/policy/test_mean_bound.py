"""What stays promised to a job where the site's bound is held in the mean over jobs."""

from dataclasses import replace
from typing import Any

import pytest
from guard_questions import clocks, decide
from policy_factory import A100, NOW, make_config, make_job, make_node, make_partition, make_snapshot

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.estimation.run_time import EndedRun
from slurm_energy.estimation.site_clocks import EndedJobs, SiteClocks, site_clocks

HOUR = 3600.0
LIMITS = BoardLimits(site_watts={A100: 500.0})
STEADY = LearnedClock(
    sm_clock_mhz=990,
    default_clock_mhz=1410,
    slowdown=0.0,
    error=0.003,
    energy_change=-0.25,
    runs=3,
)
"""Of a program that does not slow down at all."""


def mean_site() -> Config:
    return make_config(slowdown_bound="mean", clock_trials="on")


def one_partition() -> ClusterSnapshot:
    return make_snapshot(make_node("a100-1", "a100", "a100"), partitions=(make_partition("a100", is_default=True),))


def steady_site(**changes: Any) -> SiteClocks:
    """Return what a site knows where clocks were tried in programs of several users that do not slow down."""
    learned = [(f"user{number % 5}", f"name{number}", {A100: STEADY}) for number in range(50)]
    ended = [EndedRun(user=2, name="x", seconds=0.5 * HOUR, limit_seconds=HOUR) for _ in range(400)]
    return replace(site_clocks(learned, [], (0.05, 0.2), LIMITS, 0.0, EndedJobs(timed=ended)), **changes)


@pytest.mark.parametrize(("limit_minutes", "most"), [(183.0, 0.001), (185.0, 0.008), (1440.0, 0.1)])
def test_a_known_run_time_near_the_limit_wins_over_the_room_that_other_jobs_leave(
    limit_minutes: float, most: float
) -> None:
    three_hours = RuntimeEstimate(seconds=2.97 * HOUR, upper_seconds=3.03 * HOUR, source="history", runs=20)
    job = make_job(time_limit_minutes=limit_minutes)
    found = decide(job, config=mean_site(), snapshot=one_partition(), runtime=three_hours, site_clocks=steady_site())
    assert max((one.predicted_slowdown for one in found.clocks), default=0.0) <= most
    assert (Reason.TIME_LIMIT in found.reasons) == (limit_minutes < 200.0)


def test_a_job_without_runs_of_its_name_has_the_room_that_other_jobs_leave() -> None:
    other = RuntimeEstimate(seconds=1.0 * HOUR, upper_seconds=3.0 * HOUR, source="site", runs=20)
    job = make_job(time_limit_minutes=185.0)
    assert clocks(decide(job, config=mean_site(), snapshot=one_partition(), runtime=other, site_clocks=steady_site()))


def test_a_deadline_is_held_against_the_slowest_program_whatever_other_programs_did() -> None:
    hour = RuntimeEstimate(seconds=0.9 * HOUR, upper_seconds=HOUR, source="site", runs=20)
    job = make_job(deadline_seconds=NOW + 1.08 * HOUR)
    asked: dict[str, Any] = {"config": mean_site(), "snapshot": one_partition(), "runtime": hour}
    held = decide(job, site_clocks=steady_site(), **asked)
    assert all(1410 / one.sm_clock_mhz <= 1.08 for one in held.clocks)
    assert Reason.DEADLINE in held.reasons
    assert clocks(decide(make_job(), site_clocks=steady_site(), **asked))[A100] < 1200
    # Clocks that were tried in runs of its own name are of this program.
    own = decide(job, site_clocks=steady_site(), learned_clocks={A100: STEADY}, **asked)
    assert clocks(own)[A100] < 1200
