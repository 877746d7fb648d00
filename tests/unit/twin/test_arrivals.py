"""Sources of jobs tell the time of the next one in two ways, which agree."""

from math import inf

import pytest
from small_worlds import make_job

from slurm_energy.twin.engine.events import Arrivals, WorkloadArrivals
from slurm_energy.twin.workloads.registry import shared_stream_source


@pytest.mark.parametrize(
    "arrivals",
    [
        WorkloadArrivals([make_job(number, 2.0 * (number // 2)) for number in range(9)]),
        WorkloadArrivals([]),
        shared_stream_source({"hours": 0.5}, 3),
    ],
)
def test_time_after_routing_is_that_of_the_next_job(arrivals: Arrivals) -> None:
    before, due = 0.0, arrivals.next_time()
    while due < inf:
        assert before <= due == arrivals.next_time() == arrivals.take().submitted_seconds
        before, due = due, arrivals.after_route()
    assert arrivals.next_time() == inf
