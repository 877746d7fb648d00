"""Host energy in no job: parts of jobs and the rest are the node's count, in any period, order and repetition."""

import random
from itertools import pairwise

import pytest
from sqlalchemy import Engine
from store_samples import CLUSTER, SUBMITTED, make_key, make_report, make_state

from slurm_energy.domain.cluster import NodeSize
from slurm_energy.domain.energy import HostEnergy, NodeReport
from slurm_energy.domain.ids import NodeName
from slurm_energy.domain.report import EnergyReport
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.nodes import record_node_sizes
from slurm_energy.store.reports import report_groups
from slurm_energy.store.session import store_session
from slurm_energy.store.summaries import JobFilter

pytest_plugins = ["database_fixtures"]
WATTS = 100.0
JOBS = {1: (0.0, 1000.0, 16), 2: (500.0, 1500.0, 32), 3: (3000.0, 4000.0, 64)}
"""Start and end in seconds, and CPUs of 64; the host draws 100 W throughout. Job 2 has no GPU."""


def report_of(job_id: int) -> NodeReport:
    start, end, _ = JOBS[job_id]
    host = HostEnergy(
        joules=1.0,
        reason=None,
        coverage_seconds=end - start,
        node_joules=WATTS * (end - start),
        meter_id="boot@1.000",
        meter_start_joules=WATTS * start,
        meter_end_joules=WATTS * end,
    )
    report = make_report(
        job_id=job_id, started_at_seconds=SUBMITTED + start, ended_at_seconds=SUBMITTED + end, host=host
    )
    if job_id != 2:
        return report
    return NodeReport(**{name: getattr(report, name) for name in NodeReport.__dataclass_fields__} | {"gpus": ()})


def fill(engine: Engine, order: list[int]) -> None:
    with store_session(engine) as session:
        size = NodeSize(name=NodeName("gpu001"), cpus=64, gpus=8)
        record_node_sizes(session, CLUSTER, [size], SUBMITTED)
        states = tuple(
            make_state(
                number,
                cpus=cpus,
                gpu_count=0 if number == 2 else 1,
                started_at_seconds=SUBMITTED + start,
                ended_at_seconds=SUBMITTED + end,
            )
            for number, (start, end, cpus) in JOBS.items()
        )
        upsert_jobs(session, CLUSTER, states)
    for job_id in order:
        with store_session(engine) as session:
            record_report(session, report_of(job_id), make_key(job_id))


def nodes(
    engine: Engine, since: float | None = None, until: float | None = None, **periods: list[float]
) -> EnergyReport:
    moments = [None if value is None else SUBMITTED + value for value in (since, until)]
    edges = [SUBMITTED + value for value in periods.get("edges", [])]
    with store_session(engine, read_only=True) as session:
        return report_groups(
            session,
            JobFilter(cluster=CLUSTER, since_seconds=moments[0], until_seconds=moments[1]),
            "node",
            periods=tuple(pairwise(edges)),
        )


def test_parts_of_jobs_with_and_without_gpus_and_the_rest_are_the_nodes_count(own_engine: Engine) -> None:
    fill(own_engine, [1, 2, 3])
    report = nodes(own_engine)
    (row,) = report.groups
    assert row.host.joules == pytest.approx(25_000.0 + 50_000.0 + 100_000.0)
    assert row.host.joules is not None
    assert row.host_in_no_job_joules == report.total.host_in_no_job_joules
    assert (row.gpu.readings, row.gpu.unknown_readings) == (2, 0)
    assert (row.host.joules or 0.0) + (row.host_in_no_job_joules or 0.0) == pytest.approx(WATTS * 4000.0)


@pytest.mark.parametrize("edges", [[0.0, 5000.0], [0.0, 1200.0, 5000.0], [0.0, 700.0, 1500.5, 2000.0, 3500.0, 5000.0]])
def test_splitting_the_time_changes_nothing(own_engine: Engine, edges: list[float]) -> None:
    fill(own_engine, [1, 2, 3])
    whole = nodes(own_engine).total
    split = nodes(own_engine, edges[0], edges[-1], edges=edges)
    assert split.total.host_in_no_job_joules == pytest.approx(whole.host_in_no_job_joules)
    found = [nodes(own_engine, since, until).total.host_in_no_job_joules for since, until in pairwise(edges)]
    assert sum(joules or 0.0 for joules in found) == pytest.approx(whole.host_in_no_job_joules)


def test_any_order_and_repetition_of_reports_gives_the_same_rest(own_engine: Engine) -> None:
    order = [1, 2, 3, 1, 3, 2]
    random.Random(4).shuffle(order)
    fill(own_engine, order)
    assert nodes(own_engine).total.host_in_no_job_joules == pytest.approx(400_000.0 - 175_000.0)


def test_a_report_of_one_users_jobs_does_not_call_the_others_part_idle(own_engine: Engine) -> None:
    fill(own_engine, [1, 2, 3])
    with store_session(own_engine, read_only=True) as session:
        report = report_groups(session, JobFilter(cluster=CLUSTER, account="physics"), "node")
    assert report.total.host_in_no_job_joules is None


def test_nodes_of_an_older_release_have_no_rest(own_engine: Engine) -> None:
    with store_session(own_engine) as session:
        record_report(session, make_report(), make_key())
    assert nodes(own_engine).total.host_in_no_job_joules is None
