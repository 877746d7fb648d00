import random
from math import inf, log

import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.twin.workloads.registry import shared_stream_source


def test_draws_come_in_the_published_order() -> None:
    """Gap of each ingress; then size, route, next gap for every arrival, all from one stream."""
    stream = random.Random(123)
    arrivals = sorted((stream.expovariate(0.02), ingress) for ingress in range(8))
    expected = []
    for _ in range(500):
        time, ingress = arrivals.pop(0)
        size = max(0.1, stream.lognormvariate(log(50_000), 0.4))
        expected.append((time, ingress, size, stream.choice(range(8))))
        arrivals = sorted([*arrivals, (time + stream.expovariate(0.02), ingress)])

    source = shared_stream_source({}, 123)
    found = []
    for _ in range(500):
        time = source.next_time()
        job = source.take()
        place = source.random.choice(range(8))
        source.after_route()
        assert time == job.submitted_seconds
        found.append((time, job.ingress, job.true_units, place))
    assert found == expected


def test_policy_that_draws_more_gets_other_jobs() -> None:
    sizes = []
    for draws in (0, 1):
        source = shared_stream_source({}, 1)
        source.take()
        for _ in range(draws):
            source.random.random()
        source.after_route()
        sizes.append(source.take().true_units)
    assert sizes[0] != sizes[1]


def test_source_ends_with_its_hours() -> None:
    source = shared_stream_source({"hours": 1.0, "ingresses": 2}, 7)
    numbers = []
    while source.next_time() < inf:
        assert source.next_time() <= 3600.0
        numbers.append(source.take().job_id)
        source.after_route()
    assert numbers == list(range(1, len(numbers) + 1))
    assert 90 < len(numbers) < 200
    with pytest.raises(RuntimeError, match="no next job"):
        source.take()


def test_calls_out_of_order_are_refused() -> None:
    source = shared_stream_source({}, 7)
    with pytest.raises(RuntimeError, match="no job that waits for its routing"):
        source.after_route()
    source.take()
    with pytest.raises(RuntimeError, match="has not been routed"):
        source.take()


@pytest.mark.parametrize("settings", [{"rate_per_second": 0}, {"kinds": "a,b"}, {"gpu_mix": "1:1"}, {"rate": 1}])
def test_settings_that_the_stream_cannot_do_are_refused(settings: dict[str, str | int]) -> None:
    with pytest.raises(ConfigError):
        shared_stream_source(settings, 1)
