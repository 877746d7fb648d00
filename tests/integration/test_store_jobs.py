"""Jobs, attempts, submit times, decisions, journal and history on every database."""

import sqlite3
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text
from store_samples import (
    A100,
    CLUSTER,
    DECISION,
    HOSTILE_NAME,
    SUBMITTED,
    decision_record,
    make_decision,
    make_gpu,
    make_key,
    make_report,
    make_request,
    make_state,
    pending,
    record_decision,
)

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import ChangeOutcome, DecisionChange, Reason
from slurm_energy.domain.energy import NodeReport, QualityFlag
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, JobId, PartitionName
from slurm_energy.errors import StoreError
from slurm_energy.store.decisions import get_decision, recent_decisions, record_change, record_decisions
from slurm_energy.store.energy import record_report, stored_reports
from slurm_energy.store.job_rows import Arrival, KnownJobs, SubmitTime, submit_time_of
from slurm_energy.store.jobs import get_job, job_owner, upsert_jobs
from slurm_energy.store.past_runs import all_recent_runtimes
from slurm_energy.store.reports import job_energy
from slurm_energy.store.session import refuses_values, run_in_transaction, store_session

pytest_plugins = ["database_fixtures"]


def upsert(engine: Engine, *states: JobState) -> None:
    run_in_transaction(engine, lambda session: upsert_jobs(session, CLUSTER, states))


def report_as_the_recorder_does(engine: Engine, report: NodeReport, arrival: Arrival = Arrival()) -> None:  # noqa: B008  # frozen
    """Resolve the submit time, then store under it."""
    with store_session(engine) as session:
        when = submit_time_of(session, report, arrival)
        key = make_key(report.job_id, when.seconds, report.restart_count)
        record_report(session, report, key, submit_time_known=when.known, arrival=arrival)


def counts(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {
            table: int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
            for table in ("job", "job_attempt", "node_energy", "gpu_energy", "decision", "policy")
        }


def test_job_comes_back_as_slurm_told_it(engine: Engine) -> None:
    state = make_state(array_job_id=JobId(70), array_task="7", suspended_seconds=3.5, energy_joules=12.5)
    upsert(engine, state)
    with store_session(engine, read_only=True) as session:
        assert get_job(session, CLUSTER, JobId(77)) == state
        assert get_job(session, ClusterName("other"), JobId(77)) is None
        assert job_owner(session, CLUSTER, JobId(77)) == (1000, "physics")
        assert job_owner(session, CLUSTER, JobId(78)) == (None, None)


def test_largest_job_id_and_flags_of_slurm_fit(engine: Engine) -> None:
    state = make_state(0xFFFFFFFF, priority=0xFFFFFFFE, exit_code=0xFFFFFFFF, user_id=0xFFFFFFFE, cpus=0xFFFFFFFF)
    upsert(engine, state)
    with store_session(engine, read_only=True) as session:
        assert get_job(session, CLUSTER, JobId(0xFFFFFFFF)) == state


def test_thousand_jobs_twice_make_a_thousand_rows(engine: Engine) -> None:
    states = [make_state(number, submitted_at_seconds=SUBMITTED + number) for number in range(1, 1001)]
    upsert(engine, *map(pending, states))
    upsert(engine, *states)
    assert (counts(engine)["job"], counts(engine)["job_attempt"]) == (1000, 1000)
    with store_session(engine, read_only=True) as session:
        assert get_job(session, CLUSTER, JobId(1000)) == states[-1]


@pytest.mark.parametrize("empty_engine", ["sqlite"], indirect=True)
def test_many_numbers_are_looked_for_with_an_sqlite_that_takes_few(own_engine: Engine) -> None:
    upsert(own_engine, make_state(1), make_state(1200))
    for job_id in (1, 1200):
        report_as_the_recorder_does(own_engine, make_report(job_id=job_id))
    with store_session(own_engine) as session:
        driver = session.connection().connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        known = KnownJobs.load(session, CLUSTER, [JobId(number) for number in range(1, 1201)], with_reports=True)
        assert sorted(known.jobs) == [1, 1200]
        assert len(known.attempts) == len(known.reports) == 2


def test_end_that_slurm_foretells_for_a_running_job_is_not_an_end(engine: Engine) -> None:
    upsert(engine, make_state(state="RUNNING"))
    with store_session(engine, read_only=True) as session:
        job = get_job(session, CLUSTER, JobId(77))
        assert job is not None and job.ended_at_seconds is None


def test_late_news_do_not_turn_an_ended_job_back(engine: Engine) -> None:
    upsert(engine, make_state())
    upsert(engine, make_state(state="RUNNING", ended_at_seconds=None))
    with store_session(engine, read_only=True) as session:
        assert get_job(session, CLUSTER, JobId(77)) == make_state()


def test_what_slurm_no_longer_says_stays(engine: Engine) -> None:
    upsert(engine, make_state())
    upsert(engine, make_state(account=None, nodes="", node_count=0, gpu_count=None, admin_comment="", exit_code=None))
    with store_session(engine, read_only=True) as session:
        assert get_job(session, CLUSTER, JobId(77)) == make_state()


def test_requeued_job_with_its_new_submit_time_is_one_job_with_two_attempts(engine: Engine) -> None:
    first = make_state(state="NODE_FAIL")
    again = make_state(
        restart_count=1,
        submitted_at_seconds=SUBMITTED + 150.0,
        started_at_seconds=SUBMITTED + 200.0,
        ended_at_seconds=SUBMITTED + 260.0,
    )
    upsert(engine, replace(first, state="RUNNING", ended_at_seconds=None))
    report_as_the_recorder_does(engine, make_report())
    upsert(engine, pending(again))
    upsert(engine, again)
    later = make_report(started_at_seconds=SUBMITTED + 200.5, ended_at_seconds=SUBMITTED + 260.0, restart_count=1)
    report_as_the_recorder_does(engine, later)
    upsert(engine, first)  # accounting tells of the first attempt last
    assert counts(engine) | {"decision": 0, "policy": 0} == {
        "job": 1, "job_attempt": 2, "node_energy": 2, "gpu_energy": 2, "decision": 0, "policy": 0
    }  # fmt: skip
    with store_session(engine, read_only=True) as session:
        (job,) = job_energy(session, CLUSTER, JobId(77))
    assert (job.attempts, job.state, job.gpu.joules) == (2, "COMPLETED", 2 * 20_000.25)
    assert (job.wait_seconds, job.run_seconds) == (50.0, 160.0)


def test_accounting_without_restart_counts_finds_the_attempt_by_its_submit_time(engine: Engine) -> None:
    again = make_state(restart_count=1, submitted_at_seconds=SUBMITTED + 150.0)
    upsert(engine, make_state(state="RUNNING"))
    upsert(engine, replace(again, state="RUNNING"))
    upsert(engine, replace(again, restart_count=0, state="FAILED"))
    assert counts(engine)["job"] == 1
    with store_session(engine, read_only=True) as session:
        job = get_job(session, CLUSTER, JobId(77))
    assert job is not None and (job.state, job.restart_count) == ("FAILED", 1)


def test_job_id_used_again_is_another_job(engine: Engine) -> None:
    upsert(engine, make_state())
    upsert(engine, make_state(submitted_at_seconds=SUBMITTED + 1e6, user_id=1001, user_name="bob"))
    assert counts(engine)["job"] == 2


def test_submit_time_is_the_youngest_job_running_then(engine: Engine) -> None:
    upsert(engine, make_state())
    upsert(
        engine, make_state(state="RUNNING", submitted_at_seconds=SUBMITTED + 1e6, started_at_seconds=SUBMITTED + 2e6)
    )
    with store_session(engine, read_only=True) as session:

        def resolve(start: float, restart: int = 0) -> SubmitTime:
            report = make_report(started_at_seconds=start, restart_count=restart, decision_id=None, user_id=None)
            return submit_time_of(session, report, Arrival())

        assert resolve(SUBMITTED + 50) == SubmitTime(seconds=SUBMITTED, known=True)
        assert resolve(SUBMITTED - 100) == SubmitTime(seconds=SUBMITTED, known=True)  # the node's clock is late
        assert resolve(SUBMITTED + 2e6) == SubmitTime(seconds=SUBMITTED + 1e6, known=True)
        # Between the two: no job of this number ran, unless it is a restart.
        assert resolve(SUBMITTED + 5e5) == SubmitTime(seconds=SUBMITTED + 5e5, known=False)
        assert resolve(SUBMITTED + 5e5, 1) == SubmitTime(seconds=SUBMITTED, known=True)


@pytest.mark.parametrize(
    "skew", [-200.0, 86_400.0, *(pytest.param(skew, marks=pytest.mark.long) for skew in (200.0, -3600.0, -SUBMITTED))]
)
@pytest.mark.parametrize("slurm_first", [True, False])
@pytest.mark.parametrize("knows", ["decision", "age", "nothing"])
def test_a_nodes_clock_makes_no_second_row_of_a_job(engine: Engine, skew: float, slurm_first: bool, knows: str) -> None:
    """From 1970 to tomorrow; a node of this release tells the age, one of an older release and undecided nothing."""
    state = make_state(admin_comment=f"energy:{DECISION}" if knows == "decision" else "")
    arrival = Arrival(clock_offset_seconds=-skew if knows == "age" else None, received_at_seconds=SUBMITTED + 160.0)
    report = make_report(
        decision_id=DECISION if knows == "decision" else None,
        started_at_seconds=max(0.0, SUBMITTED + 50.0 + skew),
        ended_at_seconds=max(100.0, SUBMITTED + 150.0 + skew),
    )
    upsert(engine, pending(state))
    if slurm_first:
        upsert(engine, state)
    report_as_the_recorder_does(engine, report, arrival)
    if not slurm_first:
        upsert(engine, state)
    report_as_the_recorder_does(engine, report, arrival)  # the acknowledgement was lost
    upsert(engine, state)
    assert counts(engine)["job"] == 1
    with store_session(engine, read_only=True) as session:
        (job,) = job_energy(session, CLUSTER, JobId(77))
    assert (job.gpu.joules, job.wait_seconds, job.run_seconds) == (20_000.25, 50.0, 100.0)


def test_a_report_of_a_wrong_clock_that_overtakes_slurms_word_has_its_own_times(engine: Engine) -> None:
    arrival = Arrival(clock_offset_seconds=200.0, received_at_seconds=SUBMITTED + 160.0)
    for node in ("gpu001", "gpu002"):
        report = make_report(
            node=node, decision_id=None, started_at_seconds=SUBMITTED - 150.0, ended_at_seconds=SUBMITTED - 50.0
        )
        report_as_the_recorder_does(engine, report, arrival)
    with store_session(engine, read_only=True) as session:
        (job,) = job_energy(session, CLUSTER, JobId(77))
    assert (job.started_at_seconds, job.ended_at_seconds) == (SUBMITTED + 50.0, SUBMITTED + 150.0)
    upsert(engine, make_state(nodes="gpu[001-002]", node_count=2))
    with store_session(engine, read_only=True) as session:
        (job,) = job_energy(session, CLUSTER, JobId(77))
    assert (job.submit_time_known, job.gpu.joules) == (True, 40_000.5)


def test_a_job_number_used_again_is_told_apart_by_decision_or_age_whatever_the_nodes_clock(engine: Engine) -> None:
    """The reset's job 77 is of the same user and on the same node, and its report overtakes Slurm's word."""
    later = SUBMITTED + 5000.0
    upsert(engine, make_state())
    age = Arrival(clock_offset_seconds=4950.0, received_at_seconds=later + 160.0)
    second = make_report(decision_id=None, started_at_seconds=SUBMITTED + 100.0, ended_at_seconds=SUBMITTED + 200.0)
    report_as_the_recorder_does(engine, second, age)
    assert counts(engine)["job"] == 2
    first = make_report(started_at_seconds=later + 50.0, ended_at_seconds=later + 150.0)
    report_as_the_recorder_does(engine, first, Arrival(received_at_seconds=later + 200.0))
    upsert(
        engine,
        make_state(
            submitted_at_seconds=later,
            started_at_seconds=later + 50.0,
            ended_at_seconds=later + 150.0,
            admin_comment="",
        ),
    )
    with store_session(engine, read_only=True) as session:
        jobs = job_energy(session, CLUSTER, JobId(77))
        found = {
            job.submitted_at_seconds: stored_reports(session, CLUSTER, JobId(77), job.submitted_at_seconds)
            for job in jobs
        }
    assert [report.started_at_seconds for report in found[SUBMITTED]] == [later + 50.0]
    assert [report.started_at_seconds for report in found[later]] == [SUBMITTED + 100.0]


def test_what_a_job_lacks_is_not_taken_from_another_user_node_attempt_or_week(engine: Engine) -> None:
    upsert(engine, make_state(admin_comment=""))
    received = SUBMITTED + 160.0
    wrong_clock: dict[str, Any] = {"decision_id": None, "started_at_seconds": 100.0, "ended_at_seconds": 200.0}
    others = [
        (make_report(**wrong_clock, user_id=1001), received),
        (make_report(**wrong_clock, node="gpu002"), received),
        (make_report(**wrong_clock, restart_count=1), received),
        (make_report(**wrong_clock | {"ended_at_seconds": 900.0}), received),
        (make_report(**wrong_clock), SUBMITTED + 30 * 86_400.0),
        (make_report(**wrong_clock | {"decision_id": "d0000009"}), SUBMITTED - 200.0),
    ]
    with store_session(engine, read_only=True) as session:
        for report, at in others:
            assert not submit_time_of(session, report, Arrival(received_at_seconds=at)).known
        own = submit_time_of(session, make_report(**wrong_clock), Arrival(received_at_seconds=received))
    assert own == SubmitTime(seconds=SUBMITTED, known=True)


def test_report_that_overtakes_slurms_word_moves_to_the_job_once_it_is_known(engine: Engine) -> None:
    for node, skew in (("gpu001", 0.0), ("gpu002", 0.4)):
        report_as_the_recorder_does(
            engine, make_report(make_gpu(), node=node, started_at_seconds=SUBMITTED + 50.25 + skew)
        )
    with store_session(engine, read_only=True) as session:
        (job,) = job_energy(session, CLUSTER, JobId(77))
        assert not job.submit_time_known and QualityFlag.SUBMIT_TIME_UNKNOWN in job.flags and job.wait_seconds is None
    upsert(engine, make_state())
    report_as_the_recorder_does(engine, make_report(node="gpu001", started_at_seconds=SUBMITTED + 50.25))
    with store_session(engine, read_only=True) as session:
        (job,) = job_energy(session, CLUSTER, JobId(77))
        assert [report.node for report in stored_reports(session, CLUSTER, JobId(77))] == ["gpu001", "gpu002"]
    assert job.submit_time_known and job.flags == () and job.gpu.joules == 40_000.5
    assert (job.wait_seconds, job.run_seconds, job.attempts) == (50.0, 100.0, 1)


def test_hostile_job_name_is_kept_and_found_again(engine: Engine) -> None:
    long_name = HOSTILE_NAME + "x" * 1_048_576
    upsert(engine, make_state(1, name=HOSTILE_NAME), make_state(2, name=long_name), make_state(3, name=long_name + "y"))
    with store_session(engine, read_only=True) as session:
        job = get_job(session, CLUSTER, JobId(1))
        assert job is not None
        assert job.name == HOSTILE_NAME.replace("\x00", "\\x00").replace("\udcff", "\\xff")
        names = [sample.name for sample in all_recent_runtimes(session, CLUSTER, SUBMITTED)]
    assert len(set(names)) == len(names) == 3 and job.name in names


@pytest.mark.parametrize("comment", ["energy:d0000001", "site text; energy:d0000001", "energy:d0000001,other"])
def test_decision_is_found_in_the_admin_comment(engine: Engine, comment: str) -> None:
    upsert(engine, make_state(admin_comment=comment))
    with store_session(engine, read_only=True) as session:
        assert job_energy(session, CLUSTER, JobId(77))[0].decision_id == DECISION


@pytest.mark.parametrize(
    "comment", ["", "energy:", "energy:SHOUT", "noenergy:d0000001", "energy:d1", "energy:" + "a" * 40]
)
def test_other_admin_comments_name_no_decision(engine: Engine, comment: str) -> None:
    upsert(engine, make_state(admin_comment=comment))
    with store_session(engine, read_only=True) as session:
        assert job_energy(session, CLUSTER, JobId(77))[0].decision_id is None


def test_decision_comes_back_whole_with_its_hostile_request(engine: Engine) -> None:
    request = make_request(name=HOSTILE_NAME, features="a\x00b", array="1-50")
    decision = make_decision(reasons=tuple(Reason), notes=(HOSTILE_NAME, "second"))
    with store_session(engine) as session:
        assert record_decision(session, decision, request, CLUSTER, {"max_slowdown": 0.05})
    with store_session(engine, read_only=True) as session:
        assert get_decision(session, DECISION) == decision_record(decision, request)
        assert get_decision(session, "d9999999") is None


def test_decision_recorded_twice_is_kept_as_it_was_first(engine: Engine) -> None:
    with store_session(engine) as session:
        assert record_decision(session, make_decision(), make_request(), CLUSTER)
        assert not record_decision(session, make_decision(message="other", clocks=()), make_request(), CLUSTER)
    with store_session(engine) as session:
        assert not record_decision(session, make_decision(message="other", clocks=()), make_request(), CLUSTER)
        assert get_decision(session, DECISION) == decision_record(make_decision(), make_request())


def test_many_decisions_are_recorded_at_once_each_id_as_it_came_first(engine: Engine) -> None:
    ids = [DecisionId(f"d{number:07d}") for number in range(1201)]
    with store_session(engine) as session:
        record_decision(session, make_decision(decision_id=ids[3], message="before"), make_request(), CLUSTER)
    decided = [(make_decision(decision_id=name), make_request(name=name)) for name in ids]
    again = make_decision(decision_id=ids[5], message="again", clocks=())
    with store_session(engine) as session:
        assert record_decisions(session, [*decided, (again, make_request())], CLUSTER) == 1200
    with store_session(engine, read_only=True) as session:
        for number in (0, 5, 499, 500, 1200):
            assert get_decision(session, ids[number]) == decision_record(*decided[number])
        known = get_decision(session, ids[3])
        assert known is not None
        assert known.message == "before"
        assert len(recent_decisions(session, CLUSTER, limit=5000)) == 1201


def test_megabyte_of_text_in_a_request_is_bounded_with_a_mark(engine: Engine) -> None:
    with store_session(engine) as session:
        record_decision(session, make_decision(), make_request(name="n" * 1_048_576, features="f" * 5000), CLUSTER)
        found = get_decision(session, DECISION)
    assert found is not None and len(found.asked.name) == 4096
    assert "…[cut from 1048576 characters, sha256 " in found.asked.name
    assert "…[cut from 5000 characters" in str(found.asked.features)


def test_each_policy_version_and_setting_is_one_row(engine: Engine) -> None:
    with store_session(engine) as session:
        for number, (version, settings) in enumerate(
            [("1", {"a": 1}), ("1", {"a": 1}), ("1", {"a": 2}), ("2", {"a": 1})]
        ):
            decision = make_decision(f"d000000{number}", policy_version=version)
            record_decision(session, decision, make_request(), CLUSTER, settings)
    assert counts(engine)["policy"] == 3
    with engine.connect() as connection:
        assert (
            connection.execute(text("SELECT min(first_used_at_seconds) FROM policy")).scalar_one() == SUBMITTED + 1e-6
        )


def test_recent_decisions_are_newest_first_within_their_bounds(engine: Engine) -> None:
    with store_session(engine) as session:
        for number in range(4):
            decision = make_decision(f"d000000{number}", decided_at_seconds=SUBMITTED + number)
            record_decision(session, decision, make_request(user_id=1000 + number % 2), CLUSTER)

        def ids(**bounds: float) -> list[str]:
            return [found.decision_id[-1] for found in recent_decisions(session, CLUSTER, **bounds)]  # type: ignore[arg-type]  # ints among floats

        assert ids() == ["3", "2", "1", "0"]
        assert ids(user_id=1001) == ["3", "1"]
        assert ids(since_seconds=SUBMITTED + 1, until_seconds=SUBMITTED + 3) == ["2", "1"]
        assert ids(limit=1) == ["3"]


def test_a_failed_transaction_leaves_nothing_behind(engine: Engine) -> None:
    decision = make_decision()
    with pytest.raises(StoreError), store_session(engine) as session:
        record_decision(session, decision, make_request(), CLUSTER)
        session.execute(text("SELECT no_such_column FROM job"))
    with store_session(engine, read_only=True) as session:
        assert get_decision(session, decision.decision_id) is None


def test_a_read_only_session_leaves_nothing_behind(engine: Engine) -> None:
    decision = make_decision()
    with store_session(engine, read_only=True) as session:
        record_decision(session, decision, make_request(), CLUSTER)
    with store_session(engine) as session:
        assert get_decision(session, decision.decision_id) is None


def test_history_gives_seconds_at_the_default_clock(engine: Engine) -> None:
    with store_session(engine) as session:
        record_decision(session, make_decision(), make_request(), CLUSTER)
    upsert(
        engine, make_state(1), make_state(2, admin_comment=""), make_state(3, state="FAILED"), make_state(4, user_id=7)
    )
    for job_id in (1, 2):
        report_as_the_recorder_does(engine, make_report(job_id=job_id, decision_id=None))
    with store_session(engine, read_only=True) as session:
        everybody = list(all_recent_runtimes(session, CLUSTER, SUBMITTED))
        none = list(all_recent_runtimes(session, CLUSTER, SUBMITTED + 151.0))
        one_each = list(all_recent_runtimes(session, CLUSTER, SUBMITTED, limit_per_name=1))
    assert {sample.gpu_type for sample in everybody if sample.user_id == 1000} == {A100}
    assert {sample.gpu_type for sample in everybody if sample.user_id == 7} == {None}
    assert sorted(
        (sample.run_seconds, round(sample.default_clock_seconds, 6)) for sample in everybody if sample.user_id == 1000
    ) == [
        (100.0, round(100.0 / 1.05, 6)),
        (100.0, 100.0),
    ]
    assert sorted(sample.user_id for sample in everybody) == [7, 1000, 1000]
    assert none == []
    assert [sample.user_id for sample in one_each] == [7, 1000]


def test_not_finite_number_is_refused_as_a_fault_of_the_value(engine: Engine) -> None:
    with pytest.raises(StoreError, match="inf is not a finite number") as caught:
        upsert(engine, make_state(time_limit_minutes=float("inf")))
    assert refuses_values(caught.value)


def test_refused_row_is_told_from_a_failing_database(engine: Engine) -> None:
    with pytest.raises(StoreError) as refused, store_session(engine) as session:
        session.execute(text("INSERT INTO job_attempt (job_row_id, restart_count, suspended_seconds) VALUES (9, 0, 0)"))
    with pytest.raises(StoreError) as failing, store_session(engine) as session:
        session.execute(text("SELECT 1 FROM no_such_table"))
    assert refuses_values(refused.value)
    assert not refuses_values(failing.value)


@pytest.mark.parametrize(
    ("types", "expected"),
    [((A100, A100), A100), ((A100, GpuTypeName("a40")), None), ((A100, None), None), ((None, None), None)],
    ids=str,
)
def test_history_tells_the_type_of_a_run_where_it_had_one(
    engine: Engine, types: tuple[GpuTypeName | None, ...], expected: GpuTypeName | None
) -> None:
    upsert(engine, make_state(gpu_count=2))
    gpus = [make_gpu(number, gpu_type=gpu_type) for number, gpu_type in enumerate(types)]
    report_as_the_recorder_does(engine, make_report(*gpus))
    with store_session(engine, read_only=True) as session:
        (sample,) = all_recent_runtimes(session, CLUSTER, SUBMITTED)
    assert sample.gpu_type == expected


def test_what_was_decided_again_is_kept_in_order_and_its_clocks_are_those_in_force(engine: Engine) -> None:
    decision = make_decision()
    (clock,) = decision.clocks
    outcomes: tuple[tuple[int, ChangeOutcome], ...] = ((1, "changed"), (2, "refused"), (3, "clock"))
    changes = [
        DecisionChange(
            decision_id=decision.decision_id,
            number=number,
            decided_at_seconds=SUBMITTED + number,
            outcome=outcome,
            partitions=(PartitionName("a40"), PartitionName("a100")),
            gpus=2,
            clocks=(replace(clock, sm_clock_mhz=1200 + number),),
            note="while it waited",
        )
        for number, outcome in outcomes
    ]
    run_in_transaction(engine, lambda session: record_decision(session, decision, make_request(), CLUSTER))
    for change in (*changes, changes[0]):
        run_in_transaction(engine, lambda session, change=change: record_change(session, change))  # type: ignore[misc]
    with store_session(engine, read_only=True) as session:
        record = get_decision(session, decision.decision_id)
    assert record is not None
    assert list(record.changes) == changes
    assert [one.sm_clock_mhz for one in record.clocks] == [1203]


def test_a_change_of_an_unknown_decision_is_left_out(engine: Engine) -> None:
    change = DecisionChange(
        decision_id=DecisionId("dffffff1"), number=1, decided_at_seconds=SUBMITTED, outcome="clock", note="none"
    )
    stored: list[bool] = []
    run_in_transaction(engine, lambda session: stored.append(record_change(session, change)))
    assert stored == [False]
