"""Sums that are kept up with the reports equal them, and what is asked of one job does not read the others."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, func, select, update
from store_samples import CLUSTER, SUBMITTED, make_gpu, make_key, make_report, make_state, truncated_gpu, unknown_gpu

from slurm_energy.config import StoreConfig
from slurm_energy.daemon.recorder.unreported import UnreportedJobs
from slurm_energy.domain.ids import JobId
from slurm_energy.store.energy import record_report, record_reports
from slurm_energy.store.explain import explain
from slurm_energy.store.job_rows import Arrival
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.reports import job_energy, report_groups
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import open_engine, store_session
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.sums import energy_totals, running_gpus
from slurm_energy.store.tables import JobRow, NodeEnergyRow
from slurm_energy.store.upkeep import optimize, prune

pytest_plugins = ["database_fixtures"]
READINGS = {
    "whole": make_gpu(),
    "short": truncated_gpu(coverage_seconds=20.0),
    "longer": truncated_gpu(coverage_seconds=60.0),
    "unknown": unknown_gpu(),
}
REPORTS = st.tuples(st.integers(1, 4), st.sampled_from(["gpu001", "gpu002"]), st.sampled_from(sorted(READINGS)))


def totals(engine: Engine) -> dict[str, dict[str, float]]:
    with store_session(engine, read_only=True) as session:
        return energy_totals(session, CLUSTER)


def fill(engine: Engine, reports: list[tuple[int, str, str]]) -> None:
    for job_id, node, reading in reports:
        with store_session(engine) as session:
            report = make_report(READINGS[reading], job_id=job_id, node=node, partition=f"p{job_id % 2}")
            record_report(session, report, make_key(job_id))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REPORTS, max_size=8))
def test_totals_are_those_of_the_rows_in_whatever_order_and_number_reports_come(
    tmp_path_factory: pytest.TempPathFactory, reports: list[tuple[int, str, str]]
) -> None:
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path_factory.mktemp('totals')}/x.sqlite"))
    upgrade(engine)
    fill(engine, reports)
    row = NodeEnergyRow
    with store_session(engine, read_only=True) as session:
        rows = session.execute(
            select(row.partition, func.sum(row.gpu_joules), func.sum(row.gpu_readings)).group_by(row.partition)
        ).all()
    found = totals(engine)
    engine.dispose()
    assert set(found) == {name for name, _, _ in rows}
    for name, joules, readings in rows:
        sums = found[name or ""]
        assert sums["gpu_joules"] == pytest.approx(joules or 0.0)
        assert sums["readings"] == readings


def test_a_total_does_not_fall_when_rows_are_pruned_or_a_reading_shrinks(own_engine: Engine) -> None:
    fill(own_engine, [(1, "gpu001", "whole"), (2, "gpu001", "whole")])
    before = totals(own_engine)
    assert before["p1"]["gpu_joules"] == pytest.approx(20_000.25)
    with store_session(own_engine) as session:
        session.execute(update(NodeEnergyRow).values(gpu_joules=30_000.0))  # as if a correction went down
        upsert_jobs(session, CLUSTER, (make_state(1), make_state(2)))
    assert totals(own_engine) == before
    assert prune(own_engine, CLUSTER, SUBMITTED + 1e6) > 0
    assert totals(own_engine) == before


def test_running_gpus_are_told_apart_by_the_decided_clock(own_engine: Engine) -> None:
    with store_session(own_engine) as session:
        running: dict[str, Any] = {"state": "RUNNING", "ended_at_seconds": None, "gpu_count": 4, "admin_comment": ""}
        upsert_jobs(session, CLUSTER, (make_state(1, **running), make_state(2)))
        assert running_gpus(session, CLUSTER) == {"a100": {"default": 4, "lowered": 0}}


def test_a_report_is_found_by_the_account_that_slurm_names_later(own_engine: Engine) -> None:
    fill(own_engine, [(1, "gpu001", "whole")])
    month = JobFilter(cluster=CLUSTER, account="physics", since_seconds=SUBMITTED, until_seconds=SUBMITTED + 1e6)
    with store_session(own_engine) as session:
        assert report_groups(session, month, "account").total.jobs == 0
        upsert_jobs(session, CLUSTER, (make_state(1),))
        assert report_groups(session, month, "account").total.gpu.joules == pytest.approx(20_000.25)
        own = JobFilter(cluster=CLUSTER, user_id=1000, since_seconds=SUBMITTED, until_seconds=SUBMITTED + 1e6)
        assert report_groups(session, own, "user").total.jobs == 1


def test_one_job_and_its_explanation_read_no_other_jobs_reports(tmp_path: Path) -> None:
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/x.sqlite"))
    upgrade(engine)
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, tuple(make_state(number, admin_comment="") for number in range(1, 41)))
        for number in range(1, 41):
            record_report(session, make_report(job_id=number), make_key(number))
        session.execute(update(JobRow).values(decision_id=None))
    optimize(engine)
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *seen: statements.append((seen[2], seen[3])))
    with store_session(engine, read_only=True) as session:
        assert job_energy(session, CLUSTER, JobId(7))[0].gpu.joules is not None
        assert explain(session, CLUSTER, JobId(7)) is not None
    plans = []
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        for statement, values in [one for one in statements if one[0].startswith("SELECT")]:
            plans += [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    engine.dispose()
    assert any("node_energy" in step for step in plans)
    assert not [step for step in plans if "counted_at_seconds" in step or step.startswith("SCAN node_energy")]


def test_reports_whose_sums_are_made_together_come_to_the_same(own_engine: Engine) -> None:
    with store_session(own_engine) as session:
        upsert_jobs(session, CLUSTER, (make_state(1), make_state(2)))
        first = make_report(job_id=1)
        better = make_report(make_gpu(joules=21_000.0), job_id=2)
        arrived = (first, make_report(truncated_gpu(), job_id=2), first, better)
        record_reports(session, [(report, Arrival(clock_offset_seconds=0.0)) for report in arrived])
        assert session.scalar(select(func.count()).where(NodeEnergyRow.gpu_readings.is_(None))) == 0
    with store_session(own_engine, read_only=True) as session:
        total = report_groups(session, JobFilter(cluster=CLUSTER), "cluster").total
        assert total.gpu.joules == pytest.approx(20_000.25 + 21_000.0)
        assert energy_totals(session, CLUSTER)["a100"]["gpu_joules"] == pytest.approx(41_000.25)


def test_reports_that_overtake_slurms_word_are_counted_once(own_engine: Engine) -> None:
    """The third one's row is stored under the job too: its better figures stay there, and are in the totals already."""
    arrival = Arrival(clock_offset_seconds=0.0, received_at_seconds=SUBMITTED + 160.0)
    two = [
        make_report(READINGS["whole"], node="gpu001"),
        make_report(READINGS["unknown"], node="gpu002"),
    ]
    with store_session(own_engine) as session:
        record_reports(session, [(report, arrival) for report in two])
    before = totals(own_engine)
    assert before["a100"] == {"gpu_joules": pytest.approx(20_000.25), "readings": 2, "unknown_readings": 1}
    whole = {"nodes": "gpu[001-003]", "node_count": 3, "gpu_count": 3}
    with store_session(own_engine) as session:
        upsert_jobs(session, CLUSTER, (make_state(77, **whole),))
    assert totals(own_engine) == before
    with store_session(own_engine) as session:
        record_report(session, make_report(READINGS["short"], node="gpu003"), make_key(77))
    shorter = totals(own_engine)["a100"]["gpu_joules"]
    with store_session(own_engine) as session:
        stand_in = make_key(77, SUBMITTED + 50.0)
        record_report(session, make_report(READINGS["longer"], node="gpu003"), stand_in, submit_time_known=False)
    longer = totals(own_engine)
    assert longer["a100"]["gpu_joules"] > shorter
    with store_session(own_engine) as session:
        upsert_jobs(session, CLUSTER, (make_state(77, **whole),))
        assert session.scalar(select(func.count()).select_from(JobRow)) == 1
        assert session.scalar(select(func.count()).select_from(NodeEnergyRow)) == 3
    assert totals(own_engine) == longer


def test_a_large_job_is_adopted_and_closed_in_time_that_grows_with_it(tmp_path: Path) -> None:
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/x.sqlite"))
    upgrade(engine)
    arrival = Arrival(clock_offset_seconds=0.0, received_at_seconds=SUBMITTED + 160.0)
    loaded: list[Any] = []

    def note(row: NodeEnergyRow, *_other: Any) -> None:
        loaded.append(row.row_id)

    event.listen(NodeEnergyRow, "load", note)
    event.listen(NodeEnergyRow, "refresh", note)
    with store_session(engine) as session:
        record_reports(session, [(make_report(node=f"n{node}"), arrival) for node in range(60)])
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, (make_state(77, nodes="n[0-99]", node_count=100, gpu_count=100),))
    assert len(loaded) < 60 * 5
    loaded.clear()
    with store_session(engine) as session:
        assert UnreportedJobs(CLUSTER, 1.0).close(session, SUBMITTED + 4000.0) == 40
    assert len(loaded) < 100 * 5
    event.remove(NodeEnergyRow, "load", note)
    event.remove(NodeEnergyRow, "refresh", note)
    with store_session(engine, read_only=True) as session:
        assert job_energy(session, CLUSTER, JobId(77))[0].gpu.readings == 100
    engine.dispose()
