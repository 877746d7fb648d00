"""Figures of a run, against values worked out by hand."""

import numpy as np
import pytest
from arena_samples import make_outcome
from small_worlds import make_device, make_job, make_load, make_pool, make_world, run_jobs, steps_of

from research.results.measuring import wide_job_figures
from slurm_energy.twin.world.device_model import Scaling

COUNTS = ((1, 2), (4,), (1,))


def test_wide_jobs_are_those_that_may_use_several_devices_and_were_completed() -> None:
    jobs = [make_job(number, gpus=counts) for number, counts in enumerate(COUNTS)]
    ended = np.array([3_610.0, 7_200.0, 10_880.0])  # submitted at 10, 0 and 80 s
    done = make_outcome(state=["COMPLETED"] * 3, ended_seconds=ended)
    assert wide_job_figures(done, jobs) == {"hours_per_wide_job": 1.5}
    timeout = make_outcome(state=["COMPLETED", "TIMEOUT", "COMPLETED"], ended_seconds=ended)
    assert wide_job_figures(timeout, jobs) == {"hours_per_wide_job": 1.0}
    after_warm_up = make_outcome(state=["COMPLETED"] * 3, ended_seconds=ended, counted_from_seconds=5.0)
    assert wide_job_figures(after_warm_up, jobs) == {"hours_per_wide_job": 1.0}


def test_where_no_wide_job_was_completed_nothing_is_told() -> None:
    assert wide_job_figures(make_outcome(), [make_job(number) for number in range(3)]) == {}
    assert wide_job_figures(make_outcome(state=["PENDING"] * 3), [make_job(n, gpus=2) for n in range(3)]) == {}


@pytest.mark.parametrize(("share", "seconds"), [(1.0, 32.5), (0.25, 92.5)])
def test_jobs_over_several_nodes_take_longer_over_slow_links_and_the_longest_job_need_not_see_it(
    share: float, seconds: float
) -> None:
    """One unit on 8 devices takes 1/8 s and 0.2 s of traffic; with a quarter of the bandwidth that is 0.8 s."""
    load = make_load(scaling=Scaling(traffic_gigabytes_per_unit=0.5))
    pool = make_pool(nodes=2, link_gigabytes_per_second=10.0)
    world = make_world(pool, devices=[make_device(loads={"training": load})], congestion=steps_of(share, every=1.0))
    jobs = [make_job(1, units=100.0, gpus=8), make_job(2, submitted=200.0, units=5_000.0)]
    outcome = run_jobs(world, jobs)
    assert wide_job_figures(outcome, jobs) == {"hours_per_wide_job": pytest.approx(seconds / 3600.0)}
    assert outcome.ended_seconds.max() == 5_200.0
