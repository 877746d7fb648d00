"""The time of one decision on a large cluster."""

import statistics
import time

import pytest
from policy_factory import NOW, make_config, make_job, make_node, make_partition, make_snapshot, make_waiting_job
from processor_speed import slowness

from slurm_energy.policy.guard import Guard
from slurm_energy.policy.oracle import OraclePolicy

TYPES = ("a100", "a40", "v100")


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [(), TYPES], ids=["default partition", "list of three"])
def test_median_decision_on_256_nodes_and_10000_jobs_takes_under_a_millisecond(partitions: tuple[str, ...]) -> None:
    nodes = [make_node(f"n{i}", TYPES[i % 3], TYPES[i % 3], allocated=4 if i < 200 else 0) for i in range(256)]
    jobs = tuple(
        make_waiting_job(i + 1, TYPES[i % 3], 1, state="RUNNING" if i < 5000 else "PENDING") for i in range(10_000)
    )
    known = tuple(make_partition(name, is_default=name == "a100") for name in TYPES)
    snapshot = make_snapshot(*nodes, partitions=known, jobs=jobs)
    guard, policy, job = Guard(make_config(routing_open=True)), OraclePolicy(), make_job(partitions=partitions)
    medians = []
    for _ in range(5):
        seconds = []
        for _ in range(100):
            started = time.thread_time()
            decision = guard.decide(policy, job, snapshot, NOW)
            seconds.append(time.thread_time() - started)
        medians.append(statistics.median(seconds))
    print(f"guard and oracle, 256 nodes, 10000 jobs: median {1e6 * min(medians):.0f} us")
    assert decision.clocks
    # Of the processor, without coverage, and of one that is as fast as it is now.
    assert min(medians) < 1e-3 * slowness()
