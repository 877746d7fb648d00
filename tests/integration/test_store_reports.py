"""Reports and explanations: sums add up, unknown is counted and never taken for zero."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from sqlalchemy import Engine
from store_samples import (
    A100,
    CLUSTER,
    DECISION,
    SUBMITTED,
    make_decision,
    make_gpu,
    make_key,
    make_report,
    make_request,
    make_state,
    pending,
    record_decision,
    truncated_gpu,
    unknown_gpu,
)

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.energy import (
    EnergyScope,
    EnergySource,
    HostEnergy,
    NodeReport,
    QualityFlag,
    relative_error,
)
from slurm_energy.domain.ids import ClusterName, GpuTypeName, JobId, NodeName, PartitionName
from slurm_energy.domain.report import ComparisonRecord, EnergyReport, EnergySum, decode_record, encode_record
from slurm_energy.reporting.energy_table import job_energy_text
from slurm_energy.store.decisions import recent_decisions
from slurm_energy.store.energy import record_report
from slurm_energy.store.explain import explain
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.reports import job_energy, report_jobs, report_partitions, report_users
from slurm_energy.store.session import store_session
from slurm_energy.store.summaries import JobFilter

pytest_plugins = ["database_fixtures"]
EVERYTHING = JobFilter(cluster=CLUSTER)
NO_HOST = HostEnergy(joules=None, reason="no RAPL", coverage_seconds=0.0)
AT_WORK = 20_000.25 - 0.07 * 100.0 * 60.0
"""Of a reading: at 93 % of its 100 s, less the idle power of an A100 in the rest."""


def fill(engine: Engine, *states: JobState, reports: tuple[NodeReport, ...] = (), decide: bool = False) -> None:
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, states)
        for report in reports:
            record_report(session, report, make_key(report.job_id, restart_count=report.restart_count))
        if decide:
            record_decision(session, make_decision(), make_request(), CLUSTER)


def jobs_report(engine: Engine, where: JobFilter = EVERYTHING) -> EnergyReport:
    with store_session(engine, read_only=True) as session:
        return report_jobs(session, where)


def test_report_of_an_empty_database_is_empty(engine: Engine) -> None:
    with store_session(engine, read_only=True) as session:
        for report in (report_jobs, report_users, report_partitions):
            found = report(session, EVERYTHING)
            assert (found.jobs, found.groups, found.total.jobs) == ((), (), 0)
            assert found.total.gpu.joules is None


def test_job_row_tells_energy_wait_run_and_coverage(engine: Engine) -> None:
    fill(engine, make_state(gpu_count=2), reports=(make_report(make_gpu(0), make_gpu(1)),), decide=True)
    (job,) = jobs_report(engine).jobs
    window = (SUBMITTED + 150.654321) - (SUBMITTED + 50.123456)
    assert job.gpu.joules == 40_000.5
    assert (job.gpu.readings, job.gpu.unknown_readings) == (2, 0)
    assert job.gpu.coverage_share == pytest.approx(100.0 / window)
    assert job.gpu.timing_error_share == pytest.approx(0.002 / 2**0.5)  # two readings, independent of each other
    assert job.gpu.calibration_error_share == 0.05
    assert job.gpu.error_share == pytest.approx(0.05 + 0.002 / 2**0.5)
    assert job.host == EnergySum(joules=5000.5, readings=1, coverage_share=job.gpu.coverage_share)
    assert (job.wait_seconds, job.run_seconds, job.attempts) == (50.0, 100.0, 1)
    assert job.saving_joules == pytest.approx(2.0 * AT_WORK * 0.2 / 0.8)
    assert (job.user_name, job.partition, job.state, job.decision_id) == ("ada", "a100", "COMPLETED", DECISION)
    assert job.flags == () and job.unknown_reasons == ()


def test_unknown_readings_are_counted_and_left_out_of_the_sum(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(make_gpu(0), unknown_gpu(1), host=NO_HOST),))
    (job,) = jobs_report(engine).jobs
    assert (job.gpu.joules, job.gpu.readings, job.gpu.unknown_readings) == (20_000.25, 2, 1)
    assert job.gpu.coverage_share is not None and 0.49 < job.gpu.coverage_share < 0.5
    assert job.host == EnergySum(joules=None, readings=1, unknown_readings=1, coverage_share=0.0)
    assert job.unknown_reasons == ("energy counter not supported", "no RAPL")
    assert QualityFlag.COUNTER_UNSUPPORTED in job.flags


def test_a_node_that_told_of_no_gpu_is_an_unknown_reading_and_lowers_the_coverage(engine: Engine) -> None:
    told = make_report(make_gpu())
    silent = replace(told, node=NodeName("n2"), gpus=())
    fill(engine, make_state(node_count=2, gpu_count=2), reports=(told, silent))
    (job,) = jobs_report(engine).jobs
    assert (job.gpu.readings, job.gpu.unknown_readings) == (2, 1)
    assert job.gpu.joules == pytest.approx(20_000.25)
    assert job.gpu.coverage_share is not None and job.gpu.coverage_share <= 0.5


def test_a_lock_that_the_driver_ignored_saved_nothing(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(make_gpu(observed_clock_mhz=1410.0)),), decide=True)
    (job,) = jobs_report(engine).jobs
    assert job.gpu.joules is not None
    assert job.saving_joules is None


def test_job_of_which_nothing_is_known_has_no_joules(engine: Engine) -> None:
    fill(engine, make_state(1), make_state(2), reports=(make_report(unknown_gpu(), job_id=1, host=None),))
    report = jobs_report(engine)
    assert [job.gpu.joules for job in report.jobs] == [None, None]
    assert [(job.gpu.readings, job.gpu.unknown_readings) for job in report.jobs] == [(0, 0), (1, 1)]
    assert (report.total.jobs, report.total.jobs_without_energy) == (2, 2)
    assert report.total.gpu.joules is None and report.total.host.joules is None


def test_jobs_without_gpus_or_still_running_are_not_missing(engine: Engine) -> None:
    fill(
        engine,
        make_state(1, gpu_count=0),
        make_state(2, state="RUNNING"),
        pending(make_state(3)),
        make_state(4, state="CANCELLED", started_at_seconds=SUBMITTED + 9, ended_at_seconds=SUBMITTED + 9),
    )
    assert jobs_report(engine).total.jobs_without_energy == 0


def test_host_energy_of_a_job_without_gpus_is_not_awaited(engine: Engine) -> None:
    ended = SUBMITTED + 150.0
    fill(
        engine,
        make_state(1, gpu_count=0),
        make_state(2, gpu_count=0, nodes="cpu[001-002]", node_count=2),
        make_state(3),
        make_state(4, gpu_count=2, nodes="gpu[001-002]", node_count=2),
        make_state(5, gpu_count=2, nodes="gpu[001-002]", node_count=2),
        make_state(6, gpu_count=None),
        make_state(7),
        reports=(make_report(job_id=3), make_report(job_id=4), make_report(job_id=7, host=NO_HOST)),
    )
    report = jobs_report(engine)
    words = {job.job_id: job_energy_text(job, job.host, ended + 60.0) for job in report.jobs}
    assert words == {
        1: "not measured: no GPU",
        2: "not measured: no GPU",
        3: "5.00 kJ",
        4: "5.00 kJ + 1 of 2 unknown",
        5: "report on its way",
        6: "report on its way",
        7: "unknown",
    }
    assert {job.job_id: job.missing_nodes for job in report.jobs if job.missing_nodes} == {4: 1}
    later = {job.job_id: job_energy_text(job, job.host, ended + 86_400.0) for job in report.jobs}
    assert later == words | {5: "no report", 6: "no report"}
    assert report.total.host.joules == 2 * 5000.5


def test_waiting_job_has_no_wait_and_no_run(engine: Engine) -> None:
    fill(engine, pending(make_state()))
    (job,) = jobs_report(engine).jobs
    assert (job.wait_seconds, job.run_seconds, job.attempts) == (None, None, 0)


def test_error_in_sql_is_the_documented_function(engine: Engine) -> None:
    sources = (EnergySource.COUNTER, EnergySource.POLLED, EnergySource.MODEL)
    cases = list(product(sources, EnergyScope, (0.0, 0.05, 20.0)))
    reports = tuple(
        make_report(make_gpu(joules=10.0, source=source, scope=scope, coverage_seconds=coverage), job_id=job_id)
        for job_id, (source, scope, coverage) in enumerate(cases, start=1)
    )
    fill(engine, *(make_state(report.job_id) for report in reports), reports=reports)
    found = [job.gpu.error_share for job in reversed(jobs_report(engine).jobs)]
    assert found == [None if (share := relative_error(*case)) is None else pytest.approx(share) for case in cases]
    assert {None, 1.0} < set(found)


def test_saving_counts_only_what_was_applied_to_the_end(engine: Engine) -> None:
    gpus = (
        make_gpu(0),
        make_gpu(1, applied_clock_mhz=None),
        make_gpu(2, applied_clock_mhz=1410),
        make_gpu(3, flags=(QualityFlag.RESCUED,)),
        make_gpu(4, gpu_type=None),
        unknown_gpu(5),
    )
    fill(engine, make_state(), reports=(make_report(*gpus),), decide=True)
    assert jobs_report(engine).jobs[0].saving_joules == pytest.approx(AT_WORK * 0.2 / 0.8)


def test_no_decision_means_no_saving_rather_than_zero(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(),))
    assert jobs_report(engine).jobs[0].saving_joules is None
    assert jobs_report(engine).total.saving_joules is None


def test_array_is_found_by_its_own_number_and_parts_by_theirs(engine: Engine) -> None:
    tasks = [make_state(number, array_job_id=JobId(100), array_task=str(number)) for number in range(100, 105)]
    fill(engine, *tasks, make_state(7), reports=tuple(make_report(job_id=number) for number in range(100, 105)))
    report = jobs_report(engine, JobFilter(cluster=CLUSTER, job_id=JobId(100)))
    assert [job.job_id for job in report.jobs] == [104, 103, 102, 101, 100]
    assert report.total.gpu.joules == pytest.approx(5 * 20_000.25)
    assert [job.job_id for job in jobs_report(engine, JobFilter(cluster=CLUSTER, job_id=JobId(102))).jobs] == [102]


def test_users_and_partitions_add_up_to_the_total(engine: Engine) -> None:
    states = [
        make_state(1),
        make_state(2, partitions=(PartitionName("a40"),)),
        make_state(3, user_name="bob", user_id=1001, started_at_seconds=SUBMITTED + 20.0),
        make_state(4, user_name="", user_id=1002, partitions=()),
    ]
    reports = (
        make_report(make_gpu(0), job_id=1),
        make_report(unknown_gpu(0), job_id=2, partition="a40"),
        make_report(make_gpu(0), make_gpu(1), job_id=3),
    )
    fill(engine, *states, reports=reports)
    with store_session(engine, read_only=True) as session:
        users, partitions = report_users(session, EVERYTHING), report_partitions(session, EVERYTHING)
    assert [(group.group, group.jobs, group.gpu.joules, group.jobs_without_energy) for group in users.groups] == [
        ("bob", 1, 40_000.5, 0),
        ("ada", 2, 20_000.25, 1),
        ("uid 1002", 1, None, 1),
    ]
    assert [(group.group, group.jobs, group.gpu.joules) for group in partitions.groups] == [
        ("a100", 2, 60_000.75),
        ("(unknown)", 1, None),
        ("a40", 1, None),
    ]
    for report in (users, partitions):
        assert (report.total.jobs, report.total.gpu.joules) == (4, 60_000.75)
        assert (report.total.gpu.readings, report.total.gpu.unknown_readings) == (4, 1)
        assert report.total.jobs_without_energy == 2
    assert users.groups[0].mean_wait_seconds == 20.0 and users.groups[0].mean_run_seconds == 130.0
    assert users.groups[1].mean_wait_seconds == 50.0


def test_each_job_is_in_exactly_one_period(engine: Engine) -> None:
    fill(engine, make_state(1), make_state(2, state="RUNNING"), pending(make_state(3)))
    cuts = [None, SUBMITTED, SUBMITTED + 50.0, SUBMITTED + 50.5, SUBMITTED + 150.0, SUBMITTED + 151.0, None]
    found = [
        [job.job_id for job in jobs_report(engine, JobFilter(cluster=CLUSTER, since_seconds=a, until_seconds=b)).jobs]
        for a, b in pairwise(cuts)
    ]
    assert found == [[], [3], [2], [], [1], []]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"user_id": 1001}, [2]),
        ({"user_name": "ada"}, [1]),
        ({"user_name": "ADA"}, []),
        ({"partition": "a40"}, [2]),
        ({"cluster": ClusterName("other")}, []),
        ({"user_name": "' OR 1=1 --"}, []),
    ],
)
def test_filters_choose_jobs(engine: Engine, where: dict[str, object], expected: list[int]) -> None:
    fill(engine, make_state(1), make_state(2, user_id=1001, user_name="bob", partitions=(PartitionName("a40"),)))
    report = jobs_report(engine, JobFilter(**{"cluster": CLUSTER, **where}))  # type: ignore[arg-type]  # mixed values
    assert [job.job_id for job in report.jobs] == expected


def test_rows_over_the_limit_are_counted_and_in_the_total(engine: Engine) -> None:
    fill(engine, *(make_state(number) for number in range(1, 6)), reports=(make_report(job_id=1),))
    with store_session(engine, read_only=True) as session:
        report = report_jobs(session, EVERYTHING, limit=2)
    assert ([job.job_id for job in report.jobs], report.rows_left_out, report.total.jobs) == ([5, 4], 3, 5)
    assert report.total.gpu.joules == 20_000.25


def test_coverage_never_passes_the_whole(engine: Engine) -> None:
    gpu = make_gpu(coverage_seconds=500.0)
    fill(engine, make_state(), reports=(make_report(gpu, ended_at_seconds=SUBMITTED),))
    assert jobs_report(engine).jobs[0].gpu.coverage_share is None
    fill(engine, make_state(2), reports=(make_report(gpu, job_id=2),))
    assert [job.gpu.coverage_share for job in jobs_report(engine).jobs] == [None, 1.0]


def test_time_scale_of_the_laboratory_is_in_the_coverage(engine: Engine) -> None:
    report = make_report(
        make_gpu(coverage_seconds=600.0),
        started_at_seconds=SUBMITTED,
        ended_at_seconds=SUBMITTED + 10.0,
        time_scale=60.0,
    )
    fill(engine, make_state(), reports=(report,))
    assert jobs_report(engine).jobs[0].gpu.coverage_share == 1.0


def test_explanation_tells_asked_decided_applied_and_observed(engine: Engine) -> None:
    report = make_report(make_gpu(0), truncated_gpu(1), events=("clock locked", "restored"))
    fill(engine, make_state(), reports=(report,), decide=True)
    with store_session(engine, read_only=True) as session:
        story = explain(session, CLUSTER, JobId(77))
        assert explain(session, CLUSTER, JobId(78)) is None
    assert story is not None and story.decision is not None
    assert story.decision.asked == make_request()
    assert [reason.sentence for reason in story.decision.reasons] == [
        "The policy chose this setting.",
        "The clock was kept high enough for the allowed slowdown.",
    ]
    assert [(gpu.asked_clock_mhz, gpu.applied_clock_mhz, gpu.observed_clock_mhz) for gpu in story.gpus] == [
        (1275, 1275, 1270.5)
    ] * 2
    assert story.gpus[0].error_share == pytest.approx(0.052)
    assert story.events == ("gpu001: clock locked", "gpu001: restored")
    clock, run, energy = story.comparisons
    assert (clock.quantity, clock.predicted, clock.actual) == (f"SM clock of {A100}", 1275.0, 1270.5)
    assert run.predicted == pytest.approx(95.0 * 1.05) and run.actual == 100.0
    assert (energy.predicted, energy.actual) == (-0.2, None)
    assert "no completed run of this name at the default clock" in energy.basis
    assert decode_record(type(story), encode_record(story)) == story


def test_explanation_compares_energy_with_earlier_runs_at_the_default_clock(engine: Engine) -> None:
    fill(
        engine,
        make_state(1, submitted_at_seconds=SUBMITTED - 500.0),
        make_state(2, submitted_at_seconds=SUBMITTED - 400.0),
        make_state(3, submitted_at_seconds=SUBMITTED - 300.0, name="other"),
    )
    with store_session(engine) as session:
        for job_id, joules in ((1, 24_000.0), (2, 26_000.0), (3, 9.0)):
            gpu = make_gpu(joules=joules, applied_clock_mhz=None)
            key = make_key(job_id, SUBMITTED - 600.0 + 100.0 * job_id)
            record_report(session, make_report(gpu, job_id=job_id), key)
    fill(engine, make_state(), reports=(make_report(),), decide=True)
    with store_session(engine, read_only=True) as session:
        story = explain(session, CLUSTER, JobId(77))
    assert story is not None
    energy = story.comparisons[-1]
    assert isinstance(energy, ComparisonRecord)
    assert energy.actual == pytest.approx(20_000.25 / 25_000.0 - 1.0)
    assert energy.basis.startswith("against 2 earlier completed runs of this name at the default clock")


def energy_comparison(engine: Engine) -> ComparisonRecord:
    with store_session(engine, read_only=True) as session:
        story = explain(session, CLUSTER, JobId(77))
    assert story is not None
    return story.comparisons[-1]


def test_explanation_compares_energy_only_with_runs_on_the_same_gpus(engine: Engine) -> None:
    h100 = GpuTypeName("h100-sxm5-80gb")
    boards = ((make_gpu(0, gpu_type=h100),), (make_gpu(0), make_gpu(1)), (make_gpu(0), make_gpu(1, gpu_type=h100)))
    for job_id, gpus in enumerate(boards, start=1):
        submitted = SUBMITTED - 600.0 + job_id
        fill(engine, make_state(job_id, submitted_at_seconds=submitted, gpu_count=len(gpus)))
        unslowed = [replace(gpu, applied_clock_mhz=None) for gpu in gpus]
        with store_session(engine) as session:
            record_report(session, make_report(*unslowed, job_id=job_id), make_key(job_id, submitted))
    fill(engine, make_state(), reports=(make_report(),), decide=True)
    energy = energy_comparison(engine)
    assert energy.actual is None and "no completed run of this name" in energy.basis


def test_explanation_compares_no_job_that_ran_twice_with_single_runs(engine: Engine) -> None:
    fill(engine, make_state(1, submitted_at_seconds=SUBMITTED - 500.0))
    with store_session(engine) as session:
        report = make_report(make_gpu(applied_clock_mhz=None), job_id=1)
        record_report(session, report, make_key(1, SUBMITTED - 500.0))
    fill(engine, make_state(state="NODE_FAIL"), reports=(make_report(),), decide=True)
    assert energy_comparison(engine).actual == pytest.approx(0.0)
    again = make_state(restart_count=1, started_at_seconds=SUBMITTED + 300.0, ended_at_seconds=SUBMITTED + 400.0)
    fill(engine, again)
    with store_session(engine) as session:
        record_report(session, make_report(restart_count=1), make_key(restart_count=1))
    energy = energy_comparison(engine)
    assert energy.actual is None and "the job ran 2 times" in energy.basis


def test_explanation_of_a_job_without_decision_has_its_energy(engine: Engine) -> None:
    fill(engine, make_state(admin_comment=""), reports=(make_report(decision_id=None),))
    with store_session(engine, read_only=True) as session:
        story = explain(session, CLUSTER, JobId(77))
    assert story is not None
    assert (story.decision, story.comparisons, story.job.gpu.joules) == (None, (), 20_000.25)


def test_explanation_of_a_decision_lost_on_the_way_still_names_it(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(),))
    with store_session(engine, read_only=True) as session:
        story = explain(session, CLUSTER, JobId(77))
    assert story is not None and story.decision is None and story.job.decision_id == DECISION


def test_reports_survive_their_wire_form(engine: Engine) -> None:
    fill(engine, make_state(), reports=(make_report(unknown_gpu(), truncated_gpu(1)),), decide=True)
    with store_session(engine, read_only=True) as session:
        for report in (report_jobs(session, EVERYTHING), report_users(session, EVERYTHING)):
            assert decode_record(EnergyReport, encode_record(report)) == report
        assert job_energy(session, CLUSTER, JobId(77)) == report_jobs(session, EVERYTHING).jobs


def test_decisions_name_the_jobs_that_carry_them_and_are_found_by_them(engine: Engine) -> None:
    of_array: dict[str, Any] = {
        "admin_comment": "energy:d0000002",
        "array_job_id": JobId(90),
        "partitions": (PartitionName("a40"),),
    }
    states = (
        make_state(77),
        *(make_state(90 + task, array_task=str(task), **of_array) for task in range(3)),
    )
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, states)
        for number, user in enumerate(("ada", "bob", "cy"), start=1):
            decision = make_decision(f"d000000{number}", decided_at_seconds=SUBMITTED + number)
            record_decision(session, decision, make_request(user_name=user), CLUSTER)

        def found(**where: Any) -> list[tuple[str, tuple[JobId, ...]]]:
            return [(one.decision_id[-1], one.job_ids) for one in recent_decisions(session, CLUSTER, **where)]

        assert found() == [("3", ()), ("2", (JobId(90),)), ("1", (JobId(77),))]  # Slurm refused the third
        assert found(job_id=77) == [("1", (JobId(77),))]
        assert found(job_id=90) == found(job_id=92) == found(partition="a40") == [("2", (JobId(90),))]
        assert [number for number, _ in found(user_name="cy")] == ["3"]
        assert found(job_id=12345) == found(partition="nosuch") == []
