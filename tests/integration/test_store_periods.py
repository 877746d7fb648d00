"""Energy is counted where and when an attempt used it, and only what a GPU at work could save is called saved."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from store_samples import (
    CLUSTER,
    SUBMITTED,
    make_decision,
    make_gpu,
    make_key,
    make_report,
    make_request,
    make_state,
    record_decision,
    unknown_gpu,
)

from slurm_energy.daemon.recorder.unreported import UnreportedJobs
from slurm_energy.domain.cluster import JobState, NodeSize
from slurm_energy.domain.energy import HostEnergy, NodeReport
from slurm_energy.domain.ids import GpuTypeName, JobId, NodeName, PartitionName
from slurm_energy.domain.report import EnergyReport, GroupEnergyRecord
from slurm_energy.energy_model.facility import Facility, StepSeries
from slurm_energy.store.energy import record_report, stored_reports
from slurm_energy.store.explain import explain
from slurm_energy.store.job_rows import Arrival, submit_time_of
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.nodes import record_node_sizes
from slurm_energy.store.reports import report_groups, report_jobs
from slurm_energy.store.session import run_in_transaction, store_session
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.tables import JobAttemptRow, JobRow, NodeEnergyRow

pytest_plugins = ["database_fixtures"]
EVERYTHING = JobFilter(cluster=CLUSTER)
MONTH = 30 * 86_400.0
V100 = GpuTypeName("v100")
JOULES = 20_000.25


def fill(engine: Engine, *states: JobState, reports: tuple[NodeReport, ...] = (), decide: bool = False) -> None:
    with store_session(engine) as session:
        if decide:
            record_decision(session, make_decision(), make_request(), CLUSTER)
        upsert_jobs(session, CLUSTER, states)
        for report in reports:
            record_report(session, report, make_key(report.job_id, restart_count=report.restart_count))


def groups(engine: Engine, kind: str, where: JobFilter = EVERYTHING, **changes: object) -> EnergyReport:
    with store_session(engine, read_only=True) as session:
        return report_groups(session, where, kind, **changes)  # type: ignore[arg-type]  # words of the tests


def jobs(engine: Engine, where: JobFilter = EVERYTHING) -> EnergyReport:
    with store_session(engine, read_only=True) as session:
        return report_jobs(session, where)


def by_label(report: EnergyReport) -> dict[str, GroupEnergyRecord]:
    return {group.group: group for group in report.groups}


def requeue_elsewhere(engine: Engine) -> None:
    """Run a job in one partition, and a month later, after a requeue, in another."""
    later = SUBMITTED + MONTH
    fill(engine, make_state(state="NODE_FAIL"), reports=(make_report(make_gpu(0)),))
    again = make_state(
        submitted_at_seconds=SUBMITTED,
        restart_count=1,
        partitions=(PartitionName("h100"),),
        started_at_seconds=later,
        ended_at_seconds=later + 100.0,
    )
    second = make_report(
        make_gpu(1, joules=5_000.0),
        restart_count=1,
        partition="h100",
        started_at_seconds=later,
        ended_at_seconds=later + 100.0,
    )
    fill(engine, again, reports=(second,))


def test_energy_of_each_attempt_is_in_the_partition_where_it_ran(engine: Engine) -> None:
    requeue_elsewhere(engine)
    found = by_label(groups(engine, "partition"))
    assert {label: group.gpu.joules for label, group in found.items()} == {"a100": JOULES, "h100": 5_000.0}
    assert [group.jobs for group in found.values()] == [1, 1]
    assert groups(engine, "partition").total.jobs == 1
    assert groups(engine, "partition", replace(EVERYTHING, partition="h100")).total.gpu.joules == 5_000.0


def test_a_period_that_is_over_stays_as_it_was_when_its_job_runs_again_later(engine: Engine) -> None:
    fill(engine, make_state(state="NODE_FAIL"), reports=(make_report(make_gpu(0)),))
    first = replace(EVERYTHING, since_seconds=SUBMITTED, until_seconds=SUBMITTED + MONTH)
    before = groups(engine, "user", first)
    requeue_elsewhere(engine)
    after = groups(engine, "user", first)
    assert after.groups[0].gpu == before.groups[0].gpu
    assert after.total.gpu.joules == JOULES
    second = replace(EVERYTHING, since_seconds=SUBMITTED + MONTH, until_seconds=SUBMITTED + 2 * MONTH)
    assert groups(engine, "user", second).total.gpu.joules == 5_000.0
    assert [job.gpu.joules for job in jobs(engine, first).jobs] == [JOULES]
    assert [job.gpu.joules for job in jobs(engine).jobs] == [JOULES + 5_000.0]


def test_periods_add_up_to_the_whole_wherever_they_are_cut(engine: Engine) -> None:
    requeue_elsewhere(engine)
    cuts = (SUBMITTED, SUBMITTED + 150.0, SUBMITTED + 151.0, SUBMITTED + MONTH, SUBMITTED + 2 * MONTH)
    whole = replace(EVERYTHING, since_seconds=cuts[0], until_seconds=cuts[-1])
    found = groups(engine, "account", whole, periods=tuple(pairwise(cuts)))
    assert [(group.since_seconds, group.gpu.joules) for group in found.groups] == [
        (cuts[1], JOULES),
        (cuts[3], 5_000.0),
    ]
    assert found.total.gpu.joules == groups(engine, "account", whole).total.gpu.joules == JOULES + 5_000.0


def test_waits_and_run_times_of_a_node_are_those_of_attempts_on_it(engine: Engine) -> None:
    elsewhere = make_state(2, started_at_seconds=SUBMITTED + 500.0, ended_at_seconds=SUBMITTED + 1_500.0)
    reports = (make_report(job_id=1), make_report(job_id=2, node="gpu002"))
    fill(engine, make_state(1), elsewhere, reports=reports)
    moved: dict[str, Any] = {
        "restart_count": 1,
        "started_at_seconds": SUBMITTED + 400.0,
        "ended_at_seconds": SUBMITTED + 440.0,
    }
    fill(engine, make_state(1, **moved), reports=(make_report(make_gpu(1), node="gpu002", **moved),))
    for kind in ("user", "node"):
        first = groups(engine, kind, replace(EVERYTHING, node="gpu001")).total
        assert (first.jobs, first.mean_wait_seconds, first.mean_run_seconds) == (1, 50.0, 100.0)
        second = groups(engine, kind, replace(EVERYTHING, node="gpu002")).total
        assert (second.jobs, second.mean_wait_seconds, second.mean_run_seconds) == (2, 500.0, (1_000.0 + 40.0) / 2)


@pytest.mark.parametrize("kind", ["user", "account", "qos", "name", "node", "partition", "cluster"])
def test_every_dimension_adds_up_to_the_same_total(engine: Engine, kind: str) -> None:
    states = [
        make_state(1),
        make_state(2, account="chemistry", qos="high", name="fold", user_name="bob", user_id=1001),
        make_state(3, account=None, qos=None, name="", user_name="", user_id=1002),
    ]
    nodes = ("n1", "n2", "n1")
    reports = tuple(
        make_report(make_gpu(0, joules=100.0 * job_id), job_id=job_id, node=node)
        for job_id, node in enumerate(nodes, start=1)
    )
    fill(engine, *states, reports=reports)
    found = groups(engine, kind)
    assert found.total.gpu.joules == pytest.approx(600.0)
    assert sum(group.gpu.joules or 0.0 for group in found.groups) == pytest.approx(600.0)
    assert sum(group.jobs for group in found.groups) == found.total.jobs == 3
    assert len(found.groups) == {"cluster": 1, "node": 2, "partition": 1}.get(kind, 3)


def test_idle_gpus_save_nothing(engine: Engine) -> None:
    asleep = [make_gpu(number, joules=6_100.0, utilisation=0.0) for number in range(3)]
    fill(engine, make_state(gpu_count=3), reports=(make_report(*asleep),), decide=True)
    (job,) = jobs(engine).jobs
    assert (job.saving_joules, job.use.saving_low_joules) == (None, None)
    assert job.use.utilisation == 0.0 and job.use.idle_gpu_joules == pytest.approx(3 * 6_000.0)


def test_a_gpu_at_idle_power_saves_nothing_although_no_sampler_watched_it(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(make_gpu(joules=6_500.0, utilisation=None)),), decide=True)
    assert jobs(engine).jobs[0].saving_joules is None


def test_only_the_time_at_work_saves(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(make_gpu(utilisation=0.5)),), decide=True)
    (job,) = jobs(engine).jobs
    at_work = JOULES - 0.5 * 100.0 * 60.0
    assert job.saving_joules == pytest.approx(at_work * 0.2 / 0.8)
    assert job.use.saving_low_joules == pytest.approx(at_work * 0.16 / 0.84)
    assert job.use.saving_high_joules == pytest.approx(at_work * 0.24 / 0.76)


def test_a_saving_is_unknown_where_nothing_says_whether_the_gpu_worked(engine: Engine) -> None:
    gpu = make_gpu(utilisation=None, gpu_type=V100)
    decision = make_decision(clocks=(replace(make_decision().clocks[0], gpu_type=V100),))
    with store_session(engine) as session:
        record_decision(session, decision, make_request(), CLUSTER)
    fill(engine, make_state(), reports=(make_report(gpu),))
    assert jobs(engine).jobs[0].saving_joules is None


def two_nodes(**changes: Any) -> JobState:
    values: dict[str, Any] = {"node_count": 2, "gpu_count": 4, "nodes": "gpu[001-002]", **changes}
    return make_state(**values)


def test_an_ended_job_of_which_one_of_two_nodes_has_reported_is_half_covered(engine: Engine) -> None:
    fill(engine, two_nodes(), reports=(make_report(make_gpu(0), make_gpu(1)),))
    (job,) = jobs(engine).jobs
    assert (job.missing_nodes, job.gpu.readings, job.gpu.unknown_readings) == (1, 4, 2)
    assert job.gpu.coverage_share == pytest.approx(0.5, abs=0.01)
    assert (job.host.readings, job.host.unknown_readings) == (2, 1)
    total = groups(engine, "user").total
    assert (total.gpu.readings, total.gpu.unknown_readings) == (4, 2)
    assert total.gpu.coverage_share == job.gpu.coverage_share
    fill(engine, reports=(make_report(make_gpu(2), make_gpu(3), node="gpu002"),))
    (whole,) = jobs(engine).jobs
    assert (whole.missing_nodes, whole.gpu.unknown_readings) == (0, 0)
    assert whole.gpu.coverage_share is not None and whole.gpu.coverage_share > 0.99


def test_a_running_job_lacks_no_report(engine: Engine) -> None:
    fill(engine, two_nodes(state="RUNNING", ended_at_seconds=None), reports=(make_report(make_gpu(0), make_gpu(1)),))
    assert jobs(engine).jobs[0].missing_nodes == 0


def test_host_coverage_is_of_wall_time_in_a_laboratory_that_runs_faster(engine: Engine) -> None:
    report = make_report(
        make_gpu(coverage_seconds=600.0),
        started_at_seconds=SUBMITTED,
        ended_at_seconds=SUBMITTED + 10.0,
        time_scale=60.0,
        host=HostEnergy(joules=500.0, reason=None, coverage_seconds=10.0),
    )
    fill(engine, make_state(), reports=(report,))
    (job,) = jobs(engine).jobs
    assert (job.host.coverage_share, job.gpu.coverage_share) == (1.0, 1.0)


def with_sizes(engine: Engine, *nodes: str) -> None:
    with store_session(engine) as session:
        record_node_sizes(
            session, CLUSTER, [NodeSize(name=NodeName(node), cpus=64, gpus=4) for node in nodes], SUBMITTED
        )


def host(joules: float, node_joules: float | None) -> HostEnergy:
    return HostEnergy(joules=joules, reason=None, coverage_seconds=100.0, node_joules=node_joules)


def test_a_job_gets_the_part_of_its_host_that_its_cores_are_of_the_node(engine: Engine) -> None:
    with_sizes(engine, "gpu001")
    large, small = make_state(1, cpus=48), make_state(2, cpus=8)
    cpu_only = make_state(3, cpus=4, gpu_count=0)
    reports = tuple(
        make_report(*gpus, job_id=job_id, host=host(3_000.0, 9_000.0))
        for job_id, gpus in ((1, (make_gpu(0),)), (2, (make_gpu(1),)))
    )
    alone = replace(make_report(job_id=3, host=host(3_000.0, 9_000.0)), gpus=())
    fill(engine, large, small, cpu_only, reports=(*reports, alone))
    found = {job.job_id: job.host.joules for job in jobs(engine).jobs}
    assert found == {1: 6_750.0, 2: 1_125.0, 3: 562.5}
    assert groups(engine, "node").total.host.joules == pytest.approx(sum(filter(None, found.values())))


def resize(engine: Engine, cpus: int) -> None:
    size = NodeSize(name=NodeName("gpu001"), cpus=cpus, gpus=4)
    with store_session(engine) as session:
        record_node_sizes(session, CLUSTER, [size], SUBMITTED + MONTH)


def host_joules(engine: Engine) -> dict[int, float | None]:
    return {job.job_id: job.host.joules for job in jobs(engine).jobs}


def test_a_jobs_part_of_its_host_stays_when_the_node_gets_another_size(engine: Engine) -> None:
    reports = tuple(make_report(job_id=number, host=host(3_000.0, 9_000.0)) for number in (1, 2, 3))
    running = make_state(2, state="RUNNING", ended_at_seconds=None, cpus=16)
    fill(engine, make_state(1), running, make_state(3), reports=reports[2:])
    with_sizes(engine, "gpu001")  # after the third job's report
    fill(engine, reports=reports[:2])
    fill(engine, make_state(2, cpus=32))  # only now it is known how many it had
    assert host_joules(engine) == {1: 1_125.0, 2: 4_500.0, 3: 1_125.0}
    resize(engine, 128)
    fill(engine, make_state(1), make_state(2, cpus=32))
    assert host_joules(engine) == {1: 1_125.0, 2: 4_500.0, 3: 1_125.0}


def test_an_attempts_part_of_its_host_stays_when_the_job_runs_again_with_other_cpus(engine: Engine) -> None:
    with_sizes(engine, "gpu001")
    first = make_report(host=host(3_000.0, 9_000.0))
    fill(engine, make_state(state="RUNNING", ended_at_seconds=None), reports=(first,))
    again: dict[str, Any] = {
        "restart_count": 1,
        "started_at_seconds": SUBMITTED + 300.0,
        "ended_at_seconds": SUBMITTED + 400.0,
    }
    fill(engine, make_state(cpus=64, **again))
    assert host_joules(engine) == {77: 1_125.0}
    second = make_report(make_gpu(1), host=host(3_000.0, 9_000.0), **again)
    fill(engine, reports=(second,))
    assert host_joules(engine) == {77: 1_125.0 + 9_000.0}


def test_a_job_without_gpus_has_no_gpu_reading_that_is_unknown(engine: Engine) -> None:
    fill(engine, make_state(gpu_count=0), reports=(replace(make_report(), gpus=()),))
    (job,) = jobs(engine).jobs
    assert (job.gpu.readings, job.gpu.unknown_readings, job.host.readings) == (0, 0, 1)
    assert groups(engine, "user").total.jobs_without_energy == 0


def test_an_equal_part_stands_where_the_node_is_not_known_or_of_an_older_release(engine: Engine) -> None:
    fill(engine, make_state(1), make_state(2), reports=(make_report(job_id=1, host=host(3_000.0, 9_000.0)),))
    with_sizes(engine, "gpu001")
    fill(engine, reports=(make_report(job_id=2, host=host(3_000.0, None)),))
    assert {job.job_id: job.host.joules for job in jobs(engine).jobs} == {1: 1_125.0, 2: 3_000.0}


def test_a_report_before_slurms_word_keeps_when_it_was_received(engine: Engine) -> None:
    report = make_report(decision_id=None)
    arrival = Arrival(clock_offset_seconds=0.0, received_at_seconds=SUBMITTED + 155.0)
    with store_session(engine) as session:
        stand_in = submit_time_of(session, report, arrival)
        key = make_key(submitted=stand_in.seconds)
        record_report(session, report, key, submit_time_known=stand_in.known, arrival=arrival)
    fill(engine, make_state(admin_comment=""))
    with store_session(engine, read_only=True) as session:
        assert stored_reports(session, CLUSTER, JobId(77)) == (report,)
        (row,) = session.query(NodeEnergyRow).all()
        assert row.received_at_seconds == SUBMITTED + 155.0
        assert row.counted_at_seconds == pytest.approx(report.ended_at_seconds)


def test_one_task_of_a_long_array_is_explained(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [make_state(100 + task, array_job_id=JobId(100), array_task=str(task)) for task in range(5)]
    fill(engine, *tasks)
    monkeypatch.setattr(report_jobs, "__defaults__", (3, Facility()))  # rows that are shown
    with store_session(engine, read_only=True) as session:
        for job_id in (100, 104):
            story = explain(session, CLUSTER, JobId(job_id))
            assert story is not None and story.job.job_id == job_id


@pytest.mark.slow
def test_jobs_are_closed_however_many_ended(own_engine: Engine) -> None:
    number = 10_001
    ids = range(1, number + 1)
    job = {
        "cluster": CLUSTER,
        "submit_time_known": True,
        "restart_count": 0,
        "suspended_seconds": 0.0,
        "state": "COMPLETED",
        "gpu_count": 1,
        "node_count": 1,
        "ended_at_seconds": SUBMITTED + 150.0,
    }
    attempt = {
        "restart_count": 0,
        "suspended_seconds": 0.0,
        "nodes": "gpu001",
        "started_at_seconds": SUBMITTED + 50.0,
        "ended_at_seconds": SUBMITTED + 150.0,
    }
    report = {
        "restart_count": 0,
        "node": "gpu001",
        "quality": 2,
        "started_at_seconds": SUBMITTED + 50.0,
        "ended_at_seconds": SUBMITTED + 150.0,
        "counted_at_seconds": SUBMITTED + 150.0,
        "time_scale": 1.0,
        "host_measured": False,
        "host_reason": "none",
        "host_coverage_seconds": 0.0,
        "host_flags": "",
        "events": [],
    }
    with store_session(own_engine) as session:
        # The one that nobody reported was submitted first: of a list that is cut it is the one that is missing.
        session.execute(
            insert(JobRow), [{**job, "row_id": n, "job_id": n, "submitted_at_seconds": SUBMITTED + n} for n in ids]
        )
        session.execute(insert(JobAttemptRow), [{**attempt, "job_row_id": n} for n in ids])
        session.execute(insert(NodeEnergyRow), [{**report, "job_row_id": n} for n in ids if n > 1])
    unreported = UnreportedJobs(CLUSTER, 1.0)
    now = SUBMITTED + 5_000.0
    assert run_in_transaction(own_engine, lambda session: unreported.close(session, now)) == 1


def test_money_and_co2_follow_their_steps_within_a_job(engine: Engine) -> None:
    begin = SUBMITTED + 50.0
    report = make_report(make_gpu(joules=36_000.0), started_at_seconds=begin, ended_at_seconds=begin + 100.0, host=None)
    fill(engine, make_state(), reports=(report,))
    facility = Facility(
        pue=1.5,
        price=StepSeries((begin - 1.0, begin + 25.0), (0.20, 0.40), begin + 1e6),
        currency="EUR",
        intensity=StepSeries((begin - 1.0, begin + 50.0, begin + 75.0), (100.0, 300.0, 500.0), begin + 1e6),
        sources=("contract",),
    )
    found = groups(engine, "account", facility=facility)
    (one,) = found.groups
    assert one.use.cost == pytest.approx(0.01 * 1.5 * (0.25 * 0.20 + 0.75 * 0.40))
    assert one.use.co2_grams == pytest.approx(0.01 * 1.5 * (0.5 * 100.0 + 0.25 * 300.0 + 0.25 * 500.0))
    assert found.total.use.cost == one.use.cost
    assert (found.facility.currency, found.facility.pue, found.facility.sources) == ("EUR", 1.5, ("contract",))


def test_energy_at_a_time_without_a_price_is_counted_and_not_free(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(host=None),))
    early = Facility(price=StepSeries((0.0, 10.0), (0.2, 0.3), 20.0), currency="EUR")
    (one,) = groups(engine, "user", facility=early).groups
    assert (one.use.cost, one.use.unpriced_joules) == (None, JOULES)


@pytest.mark.parametrize("steps", [StepSeries((-inf,), (0.2,), inf), StepSeries((0.0,), (0.2,), inf)])
def test_energy_that_is_not_known_has_no_cost_and_is_not_free(engine: Engine, steps: StepSeries) -> None:
    fill(engine, make_state(), make_state(2), reports=(make_report(unknown_gpu(), host=None),))
    facility = Facility(price=steps, currency="EUR", intensity=steps)
    with store_session(engine, read_only=True) as session:
        found = report_jobs(session, EVERYTHING, facility=facility)
    grouped = groups(engine, "user", facility=facility)
    uses = [row.use for row in found.jobs] + [row.use for row in (found.total, *grouped.groups, grouped.total)]
    assert [(use.cost, use.co2_grams, use.unpriced_joules) for use in uses] == [(None, None, 0.0)] * 5
    fill(engine, reports=(make_report(make_gpu(joules=0.0), host=None, job_id=2),))
    assert groups(engine, "user", facility=facility).total.use.cost == 0.0


def test_coordinators_see_their_accounts_beside_their_own_jobs(engine: Engine) -> None:
    states = [
        make_state(1),
        make_state(2, user_id=1001, user_name="bob", account="chemistry"),
        make_state(3, user_id=1002, user_name="cy", account="history"),
    ]
    fill(engine, *states, reports=tuple(make_report(job_id=number) for number in (1, 2, 3)))
    seen = replace(EVERYTHING, user_id=1000, coordinated_accounts=("chemistry",))
    assert {job.job_id for job in jobs(engine, seen).jobs} == {1, 2}
    assert set(by_label(groups(engine, "account", seen))) == {"physics", "chemistry"}
    assert groups(engine, "user", replace(EVERYTHING, user_id=1000)).total.jobs == 1
