"""People's questions, answered from the database; without privilege only about own jobs and those of own accounts."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.frames import QueryRequest
from slurm_energy.daemon.recorder.entries import STREAMS
from slurm_energy.daemon.recorder.journal import journal_directory, waiting_bytes
from slurm_energy.daemon.recorder.recorder import login_name, with_login_name
from slurm_energy.domain.ids import ClusterName, JobId, parse_job_id
from slurm_energy.domain.report import REPORT_KINDS, encode_record, report_kind
from slurm_energy.energy_model.facility import site_facility
from slurm_energy.errors import PermissionRefused, StoreError, ValueRangeError
from slurm_energy.slurm.coordinators import Coordinators
from slurm_energy.slurm.json_client import CommandSettings
from slurm_energy.store.bounds import report_open, report_slowdown
from slurm_energy.store.decisions import DEFAULT_DECISIONS, recent_decisions
from slurm_energy.store.explain import explain
from slurm_energy.store.jobs import job_owner
from slurm_energy.store.reports import report_groups, report_jobs
from slurm_energy.store.schema import database_revision
from slurm_energy.store.session import Engine, Session, database_name, store_session
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.sums import energy_totals, running_gpus
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import Query, json_reply

STATEMENT_SECONDS = 28.0
"""A caller waits 30 s for an answer, and other questions wait behind it."""

_coordinators: dict[CommandSettings, Coordinators] = {}
"""Of the one installation that this process serves; kept since sacctmgr is slow."""


def answer_query(engine: Engine, config: Config, request: QueryRequest) -> Message:
    """Return the reply to one query.

    Raises:
        PermissionRefused: the job is unknown, or another user's.
        StoreError: the database failed.
        ValueRangeError: a filter is missing or out of bounds.
    """
    query = request.query
    with store_session(engine, read_only=True, limit_seconds=STATEMENT_SECONDS) as session:
        text = _ANSWERS[query.subject](session, config, request)
    return Message("ok", {"json": text})


def answer_status(engine: Engine, config: Config, problem: str) -> Message:
    """Return the reply to a question for the database's state; `problem` is why nothing is recorded, or empty."""
    try:
        revision = database_revision(engine)
    except StoreError as error:
        revision, problem = None, problem or str(error)
    document = {
        "database": database_name(engine),
        "revision": revision,
        "problem": problem or None,
        "journal_waiting_bytes": waiting_bytes(journal_directory(config), STREAMS),
    }
    return json_reply(document)


def _explain(session: Session, config: Config, request: QueryRequest) -> str:
    job_id = _own_job(session, config, request)
    record = explain(session, _cluster(config, request.query), job_id)
    if record is None:
        raise PermissionRefused(_unknown(job_id))
    return encode_record(record)


def _report_job(session: Session, config: Config, request: QueryRequest) -> str:
    if request.query.job_id is not None:
        _own_job(session, config, request)
    return encode_record(report_jobs(session, _filter(config, request), facility=site_facility(config.facility)))


def _report_groups(session: Session, config: Config, request: QueryRequest) -> str:
    query = request.query
    report = report_groups(
        session,
        _filter(config, request),
        report_kind(query.subject.removeprefix("report-")),
        also=tuple(report_kind(word) for word in query.also),
        periods=tuple(pairwise(query.bounds_seconds)),
        facility=site_facility(config.facility),
    )
    return encode_record(report)


def _report_slowdown(session: Session, config: Config, request: QueryRequest) -> str:
    return encode_record(report_slowdown(session, _filter(config, request)))


def _report_open(session: Session, config: Config, request: QueryRequest) -> str:
    return encode_record(report_open(session, _filter(config, request)))


def _decisions(session: Session, config: Config, request: QueryRequest) -> str:
    query = request.query
    records = recent_decisions(
        session,
        _cluster(config, query),
        user_id=request.only_user_id,
        user_name=query.user_name,
        job_id=query.job_id,
        partition=query.partition,
        since_seconds=query.since_seconds,
        until_seconds=query.until_seconds,
        limit=query.limit or DEFAULT_DECISIONS,
    )
    # Decisions that an older release recorded may have no name.
    return encode_record(tuple(replace(record, asked=with_login_name(record.asked)) for record in records))


def _metrics(session: Session, config: Config, request: QueryRequest) -> str:
    cluster = _cluster(config, request.query)
    document = {"energy": energy_totals(session, cluster), "running_gpus": running_gpus(session, cluster)}
    return json.dumps(document)


def _own_job(session: Session, config: Config, request: QueryRequest) -> JobId:
    """Return the job asked about, if the caller may see it: his own, or one of an account that he coordinates.

    Other users do not learn that it exists.
    """
    if request.query.job_id is None:
        raise ValueRangeError(f"query {request.query.subject} needs job=NUMBER")
    job_id = parse_job_id(request.query.job_id)
    if request.only_user_id is not None:
        owner, account = job_owner(session, _cluster(config, request.query), job_id)
        is_own = owner == request.only_user_id
        if not is_own and (account is None or account not in _coordinated(config, request.only_user_id)):
            raise PermissionRefused(_unknown(job_id))
    return job_id


def _unknown(job_id: JobId) -> str:
    return f"job {job_id} is not known here, or is another user's"


def _filter(config: Config, request: QueryRequest) -> JobFilter:
    query = request.query
    return JobFilter(
        cluster=_cluster(config, query),
        job_id=None if query.job_id is None else parse_job_id(query.job_id),
        user_id=request.only_user_id,
        coordinated_accounts=_coordinated(config, request.only_user_id),
        user_name=query.user_name,
        account=query.account,
        qos=query.qos,
        name=query.name,
        partition=query.partition,
        node=query.node,
        since_seconds=query.since_seconds,
        until_seconds=query.until_seconds,
    )


def _coordinated(config: Config, user_id: int | None) -> tuple[str, ...]:
    """Return the accounts whose jobs a user without privilege sees beside his own."""
    name = None if user_id is None else login_name(user_id)
    return () if name is None or not config.cluster.accounting else _coordinators_of(config).coordinated_by(name)


def _coordinators_of(config: Config) -> Coordinators:
    settings = CommandSettings.of(config)
    return _coordinators.setdefault(settings, Coordinators(settings))


def _cluster(config: Config, query: Query) -> ClusterName:
    return ClusterName(query.cluster or config.cluster.name)


_ANSWERS: dict[str, Callable[[Session, Config, QueryRequest], str]] = {
    "explain": _explain,
    "report-job": _report_job,
    **{f"report-{kind}": _report_groups for kind in REPORT_KINDS if kind != "job"},
    "report-slowdown": _report_slowdown,
    "report-open": _report_open,
    "decisions": _decisions,
    "metrics": _metrics,
}
