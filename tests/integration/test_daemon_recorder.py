"""The recorder on a real SQLite file."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from store_samples import make_gpu, record_decision

from slurm_energy.config import ClusterConfig, Config, DaemonConfig, StoreConfig
from slurm_energy.daemon.ipc.frames import QueryRequest
from slurm_energy.daemon.recorder.entries import (
    DecisionEntryLine,
    EntryLine,
    JobsEntryLine,
    ReportsEntryLine,
    decode_entry,
    encode_entry,
)
from slurm_energy.daemon.recorder.journal import JournalReader, JournalWriter
from slurm_energy.daemon.recorder.process import RecorderLoop, prepare_schema
from slurm_energy.daemon.recorder.queries import answer_query
from slurm_energy.daemon.recorder.recorder import BATCH_LINES, REJECTED_NAME, ChangedJobs, Condition, Recorder
from slurm_energy.daemon.recorder.unreported import REASON, UnreportedJobs
from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import ClusterName, DecisionId, JobId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyMode, GpuDemand, JobRequest
from slurm_energy.errors import DaemonUnavailable, PermissionRefused, SchemaVersionError, StoreError
from slurm_energy.store.decisions import recent_decisions
from slurm_energy.store.energy import stored_reports
from slurm_energy.store.jobs import get_job
from slurm_energy.store.reports import job_energy
from slurm_energy.store.schema import finish_sums
from slurm_energy.store.session import Engine, open_engine, run_in_transaction, store_session
from slurm_energy.wire.messages import Query

LAB = ClusterName("lab")
DECISION = EnergyDecision(
    decision_id=DecisionId("0123456789abcdef"),
    policy="oracle",
    policy_version="1",
    mode=EnergyMode.BALANCED,
    decided_at_seconds=990.0,
)
REQUEST = JobRequest(user_id=1000, user_name="alice", name="x\n$(id)\x1b[31m", gpus=(GpuDemand(count=2),))
JOB = JobState(
    job_id=JobId(7),
    user_name="alice",
    user_id=1000,
    name="train",
    state="COMPLETED",
    partitions=(PartitionName("a100"),),
    submitted_at_seconds=1000.0,
    started_at_seconds=1100.0,
    ended_at_seconds=1700.0,
    nodes="n[1-2]",
    node_count=2,
    gpu_count=2,
    admin_comment="energy:0123456789abcdef",
)


def report(**changes: object) -> NodeReport:
    made = NodeReport(
        cluster=LAB,
        job_id=JobId(7),
        restart_count=0,
        node=NodeName("n1"),
        user_id=1000,
        partition="a100",
        decision_id=DecisionId("0123456789abcdef"),
        started_at_seconds=1100.5,
        ended_at_seconds=1699.0,
        time_scale=1.0,
        gpus=(make_gpu(),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # each test gives fields of the right type


def reports(*items: NodeReport) -> ReportsEntryLine:
    return ReportsEntryLine(received_at_seconds=1701.0, reports=items)


def jobs(*items: JobState) -> JobsEntryLine:
    return JobsEntryLine(seen_at_seconds=1702.0, jobs=items)


class Setting:
    """A journal, a database and a recorder between them."""

    def __init__(self, directory: Path) -> None:
        self.config = Config(
            cluster=ClusterConfig(name="lab"),
            daemon=DaemonConfig(state_directory=str(directory)),
            store=StoreConfig(url=f"sqlite:///{directory}/e.sqlite", busy_timeout_seconds=0.1),
        )
        self.journal = directory / "journal"
        self.writer = JournalWriter(self.journal, "daemon")
        self.engine: Engine = open_engine(self.config.store)
        self.recorder = self.new_recorder()

    def new_recorder(self) -> Recorder:
        return Recorder(self.config, self.journal, ("daemon", "jobs"))

    def write(self, *entries: EntryLine | bytes) -> None:
        lines = [entry if isinstance(entry, bytes) else encode_entry(entry) for entry in entries]
        self.writer.append(lines, durable=True)

    def joules(self) -> list[float | None]:
        with store_session(self.engine, read_only=True) as session:
            return [job.gpu.joules for job in job_energy(session, LAB, JobId(7))]


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    prepare_schema(made.engine)
    yield made
    made.engine.dispose()


@pytest.mark.parametrize(
    "entry",
    [DecisionEntryLine(decision=DECISION, job=REQUEST), reports(report()), jobs(JOB)],
    ids=lambda e: type(e).__name__,
)
def test_an_entry_comes_out_of_the_journal_as_it_went_in(entry: EntryLine) -> None:
    line = encode_entry(entry)
    assert b"\n" not in line
    assert decode_entry(line) == entry


def test_decision_job_and_report_are_stored_and_joined(setting: Setting) -> None:
    setting.write(DecisionEntryLine(decision=DECISION, job=REQUEST), jobs(JOB), reports(report()))
    assert setting.recorder.step(setting.engine) == 3
    with store_session(setting.engine, read_only=True) as session:
        (energy,) = job_energy(session, LAB, JobId(7))
        (decided,) = recent_decisions(session, LAB)
    assert (energy.gpu.joules, energy.decision_id, energy.submit_time_known) == (20_000.25, "0123456789abcdef", True)
    assert decided.asked == REQUEST


def test_a_user_whom_no_snapshot_has_named_is_recorded_with_the_login_name(setting: Setting) -> None:
    unnamed = replace(REQUEST, user_id=0, user_name=None)
    setting.write(DecisionEntryLine(decision=DECISION, job=unnamed))
    setting.recorder.step(setting.engine)
    with store_session(setting.engine, read_only=True) as session:
        (decided,) = recent_decisions(session, LAB)
    assert decided.asked == replace(unnamed, user_name="root")


def test_a_decision_that_was_recorded_without_a_name_is_told_with_it(setting: Setting) -> None:
    unnamed = replace(REQUEST, user_id=0, user_name=None)
    run_in_transaction(setting.engine, lambda session: record_decision(session, DECISION, unnamed, LAB))
    request = QueryRequest(number=1, query=Query(subject="decisions"), only_user_id=None)
    reply = answer_query(setting.engine, setting.config, request)
    (told,) = json.loads(reply.fields["json"])["record"]
    assert told["asked"]["user_name"] == "root"


@pytest.mark.parametrize("subject", ["explain", "report-job"])
def test_a_coordinator_asks_by_number_about_jobs_of_his_accounts_alone(
    setting: Setting, subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sacctmgr"
    program.write_text('#!/bin/sh\necho "coordinator|physics"\n')
    program.chmod(0o755)
    names = {1001: "coordinator", 1002: "other"}
    monkeypatch.setattr("slurm_energy.daemon.recorder.queries.login_name", names.get)
    config = replace(
        setting.config, cluster=ClusterConfig(name="lab", slurm_bin_directory=str(tmp_path), accounting=True)
    )
    others = (replace(JOB, job_id=JobId(8), account="history"), replace(JOB, job_id=JobId(9), account=None))
    setting.write(jobs(replace(JOB, account="physics"), *others))
    setting.recorder.step(setting.engine)

    def ask(user_id: int, job_id: int, asked: Config = config) -> str:
        query = Query(subject=subject, job_id=job_id)
        reply = answer_query(setting.engine, asked, QueryRequest(number=1, query=query, only_user_id=user_id))
        return reply.fields["json"]

    assert '"account":"physics"' in ask(1001, 7).replace(" ", "")
    no_accounting = replace(config, cluster=replace(config.cluster, accounting=False))
    for user_id, job_id, asked in ((1001, 8, config), (1001, 9, config), (1002, 7, config), (1001, 7, no_accounting)):
        with pytest.raises(PermissionRefused, match=f"job {job_id} is not known here, or is another user's"):
            ask(user_id, job_id, asked)


def test_reading_the_same_journal_twice_changes_nothing(setting: Setting) -> None:
    setting.write(DecisionEntryLine(decision=DECISION, job=REQUEST), jobs(JOB), reports(report()), reports(report()))
    setting.recorder.step(setting.engine)
    (setting.journal / "daemon.position").unlink()
    assert setting.new_recorder().step(setting.engine) == 4
    assert setting.joules() == [20_000.25]


def test_a_report_that_comes_before_its_job_is_stored_at_once_and_moves_to_it(setting: Setting) -> None:
    setting.write(reports(report()))
    setting.recorder.step(setting.engine)
    with store_session(setting.engine, read_only=True) as session:
        (before,) = job_energy(session, LAB, JobId(7))
    assert (before.submit_time_known, before.gpu.joules) == (False, 20_000.25)
    setting.write(jobs(JOB))
    setting.recorder.step(setting.engine)
    with store_session(setting.engine, read_only=True) as session:
        (after,) = job_energy(session, LAB, JobId(7))
    assert (after.submit_time_known, after.submitted_at_seconds, after.gpu.joules) == (True, 1000.0, 20_000.25)


def test_a_job_number_used_again_gets_its_own_energy(setting: Setting) -> None:
    again = replace(JOB, submitted_at_seconds=900_000.0, started_at_seconds=900_100.0, ended_at_seconds=900_700.0)
    setting.write(jobs(JOB), reports(report()), jobs(again))
    setting.write(reports(report(started_at_seconds=900_100.2, ended_at_seconds=900_699.0)))
    setting.recorder.step(setting.engine)
    assert setting.joules() == [20_000.25, 20_000.25]


def test_while_the_database_is_locked_nothing_is_lost(setting: Setting) -> None:
    setting.write(jobs(JOB), reports(report()))
    other = open_engine(setting.config.store)
    with other.connect() as holder:
        holder.exec_driver_sql("SELECT 1")  # begins, and so holds the write lock
        with pytest.raises(StoreError, match="locked"):
            setting.recorder.step(setting.engine)
        holder.rollback()
    other.dispose()
    assert setting.recorder.step(setting.engine) == 2
    assert setting.joules() == [20_000.25]


def test_a_database_newer_than_the_code_keeps_the_journal(setting: Setting) -> None:
    setting.write(jobs(JOB))
    with setting.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaVersionError, match="newer"):
        prepare_schema(setting.engine)
    assert len(JournalReader(setting.journal, "daemon").read(10)) == 1


def test_an_upgrade_that_was_stopped_is_finished_before_questions_are_answered(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.write(jobs(JOB), reports(report()))
    setting.recorder.step(setting.engine)
    with setting.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE node_energy SET gpu_readings = NULL, gpu_joules = NULL")
    assert setting.joules() == [None]
    condition, seen = Condition(), []

    def finish(engine: Engine) -> int:
        seen.append(condition.problem)
        with pytest.raises(DaemonUnavailable):
            condition.wait(0.0)
        return finish_sums(engine)

    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("slurm_energy.daemon.recorder.process.finish_sums", finish)
    monkeypatch.setattr(Recorder, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        RecorderLoop(setting.config, ChangedJobs(), condition).run(setting.engine)
    condition.wait(0.0)
    assert seen == ["sums of an older release's reports are being made"]
    assert setting.joules() == [20_000.25]


def test_a_step_that_took_all_it_takes_says_that_more_may_wait(setting: Setting) -> None:
    ids = [DecisionId(f"{number:016d}") for number in range(BATCH_LINES + 3)]
    setting.write(*(DecisionEntryLine(decision=replace(DECISION, decision_id=name), job=REQUEST) for name in ids))
    steps = [(setting.recorder.step(setting.engine), setting.recorder.has_more) for _ in range(3)]
    assert steps == [(BATCH_LINES, True), (3, False), (0, False)]
    with store_session(setting.engine, read_only=True) as session:
        assert len(recent_decisions(session, LAB, limit=1000)) == BATCH_LINES + 3


def test_a_damaged_line_is_set_aside_and_the_rest_is_stored(setting: Setting) -> None:
    setting.write(b'{"v":1,"kind":"jobs","jobs":', jobs(JOB), b'{"v":9,"kind":"jobs"}', b"\xff\x00", reports(report()))
    assert setting.recorder.step(setting.engine) == 5
    assert setting.joules() == [20_000.25]
    assert len((setting.journal / REJECTED_NAME).read_bytes().splitlines()) == 3


def test_an_entry_no_database_takes_is_set_aside_and_the_rest_of_its_batch_is_stored(setting: Setting) -> None:
    twice = json.loads(encode_entry(reports(report())))
    twice["reports"][0]["gpus"] *= 2  # the same GPU twice: a report that the door would have refused
    setting.write(jobs(JOB), json.dumps(twice).encode(), reports(report()))
    assert setting.recorder.step(setting.engine) == 3
    assert setting.joules() == [20_000.25]
    assert len((setting.journal / REJECTED_NAME).read_bytes().splitlines()) == 1


def test_a_job_that_vanished_keeps_what_is_known(setting: Setting) -> None:
    running = replace(JOB, state="RUNNING", ended_at_seconds=None)
    vanished = JobsEntryLine(seen_at_seconds=2000.0, jobs=(), vanished=(replace(running, state="VANISHED"),))
    setting.write(jobs(running), vanished)
    setting.recorder.step(setting.engine)
    with store_session(setting.engine, read_only=True) as session:
        stored = get_job(session, LAB, JobId(7))
    assert stored is not None
    assert (stored.state, stored.started_at_seconds, stored.ended_at_seconds) == ("VANISHED", 1100.0, None)


def test_nodes_that_never_report_get_a_row_with_a_reason_and_a_late_report_replaces_it(setting: Setting) -> None:
    setting.write(jobs(JOB), reports(report()))
    setting.recorder.step(setting.engine)
    unreported = UnreportedJobs(LAB, 1.0)

    def close(now_seconds: float) -> int:
        return run_in_transaction(setting.engine, lambda session: unreported.close(session, now_seconds))

    assert close(1700.0 + 800.0) == 0
    assert close(1700.0 + 1000.0) == 1
    assert close(1700.0 + 1100.0) == 0
    with store_session(setting.engine, read_only=True) as session:
        first, second = stored_reports(session, LAB, JobId(7))
    assert (first.node, second.node, second.gpus) == ("n1", "n2", ())
    assert second.host is not None
    assert (second.host.joules, second.host.reason) == (None, REASON)
    setting.write(reports(report(node=NodeName("n2"), gpus=(make_gpu(1),))))
    setting.recorder.step(setting.engine)
    assert setting.joules() == [40_000.5]


def test_a_lost_report_of_an_earlier_attempt_is_counted_as_unknown(setting: Setting) -> None:
    requeued = replace(JOB, state="COMPLETED", restart_count=1, started_at_seconds=1800.0, ended_at_seconds=2400.0)
    setting.write(jobs(JOB), jobs(requeued))
    setting.write(
        reports(
            *(
                report(
                    restart_count=1,
                    node=NodeName(name),
                    started_at_seconds=1800.0,
                    ended_at_seconds=2400.0,
                    gpus=(make_gpu(coverage_seconds=600.0),),
                )
                for name in ("n1", "n2")
            )
        )
    )
    setting.recorder.step(setting.engine)
    unreported = UnreportedJobs(LAB, 1.0)
    assert run_in_transaction(setting.engine, lambda session: unreported.close(session, 2400.0 + 1000.0)) == 2
    with store_session(setting.engine, read_only=True) as session:
        (job,) = job_energy(session, LAB, JobId(7))
        stored = stored_reports(session, LAB, JobId(7))
    assert [(one.restart_count, one.node, len(one.gpus)) for one in stored] == [
        (0, "n1", 0),
        (0, "n2", 0),
        (1, "n1", 1),
        (1, "n2", 1),
    ]
    assert (job.gpu.readings, job.gpu.unknown_readings) == (4, 2)
    assert job.gpu.coverage_share == pytest.approx(0.5)
