"""Records for people, from the daemon or, where it is away or another database is named, from the database itself.

SQL is imported only when the database is read; nothing is written to it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slurm_energy.cli.daemon_line import asked
from slurm_energy.cli.site import controller_hosts, is_this_host, read_slurm_conf, slurm_conf_path
from slurm_energy.config import Config, StoreConfig
from slurm_energy.domain.bounds_report import OpenReport, SlowdownReport
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.domain.report import DecisionRecord, EnergyReport, ExplainRecord, decode_record, report_kind
from slurm_energy.errors import DaemonUnavailable, SlurmEnergyError, StoreError, WireError
from slurm_energy.wire.codec import Message

if TYPE_CHECKING:
    from slurm_energy.store.session import Session
    from slurm_energy.store.summaries import JobFilter

QUERY_SECONDS = 35.0
"""A little over what the daemon gives its database."""
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs are meant; None leaves a condition out."""

    job_id: int | None = None
    user_name: str | None = None
    partition: str | None = None
    since_seconds: float | None = None
    until_seconds: float | None = None
    limit: int | None = None
    account: str | None = None
    qos: str | None = None
    name: str | None = None
    node: str | None = None
    also: tuple[str, ...] = ()
    """Further dimensions of a report's rows."""
    bounds_seconds: tuple[float, ...] = ()
    """Where each period of a report begins, and where the last one ends."""

    def fields(self, subject: str) -> dict[str, str]:
        """Return the fields of a `query`."""
        found = {
            "what": subject,
            "job": self.job_id,
            "user": self.user_name,
            "partition": self.partition,
            "since": None if self.since_seconds is None else f"{self.since_seconds:.3f}",
            "until": None if self.until_seconds is None else f"{self.until_seconds:.3f}",
            "limit": self.limit,
            "account": self.account,
            "qos": self.qos,
            "name": self.name,
            "node": self.node,
            "also": ",".join(self.also) or None,
            "bounds": ",".join(f"{bound:.3f}" for bound in self.bounds_seconds) or None,
        }
        return {key: str(value) for key, value in found.items() if value is not None}


def sqlite_path(url: str) -> Path | None:
    """Return the file of an SQLite URL, None for another database."""
    scheme, _, rest = url.partition(":///")
    return Path(rest.partition("?")[0]) if scheme.partition("+")[0] == "sqlite" and rest else None


def energy_report(config: Config, subject: str, where: Filter, database: str | None) -> EnergyReport:
    """Return a report of `report-` and a kind of `domain.report`.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, or the daemon refuses.
    """

    def read(session: "Session") -> EnergyReport:
        from slurm_energy.energy_model.facility import site_facility  # noqa: PLC0415  # beside SQL
        from slurm_energy.store.reports import report_groups, report_jobs  # noqa: PLC0415  # SQL

        chosen = _job_filter(config, where)
        kind, facility = report_kind(subject.removeprefix("report-")), site_facility(config.facility)
        if kind == "job":
            return report_jobs(session, chosen, facility=facility)
        return report_groups(
            session,
            chosen,
            kind,
            also=tuple(report_kind(word) for word in where.also),
            periods=tuple(pairwise(where.bounds_seconds)),
            facility=facility,
        )

    return _asked_or_read(config, EnergyReport, where.fields(subject), database, read)


def _job_filter(config: Config, where: Filter) -> "JobFilter":
    from slurm_energy.store.summaries import JobFilter  # noqa: PLC0415  # SQL

    return JobFilter(
        cluster=ClusterName(config.cluster.name),
        job_id=None if where.job_id is None else JobId(where.job_id),
        user_name=where.user_name,
        account=where.account,
        qos=where.qos,
        name=where.name,
        partition=where.partition,
        node=where.node,
        since_seconds=where.since_seconds,
        until_seconds=where.until_seconds,
    )


def slowdown_report(config: Config, where: Filter, database: str | None) -> SlowdownReport:
    """Return how much longer jobs ran than where Slurm would have started them.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, or the daemon refuses.
    """

    def read(session: "Session") -> SlowdownReport:
        from slurm_energy.store.bounds import report_slowdown  # noqa: PLC0415  # SQL

        return report_slowdown(session, _job_filter(config, where))

    return _asked_or_read(config, SlowdownReport, where.fields("report-slowdown"), database, read)


def open_report(config: Config, where: Filter, database: str | None) -> OpenReport:
    """Return what jobs that named a partition left unused.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, or the daemon refuses.
    """

    def read(session: "Session") -> OpenReport:
        from slurm_energy.store.bounds import report_open  # noqa: PLC0415  # SQL

        return report_open(session, _job_filter(config, where))

    return _asked_or_read(config, OpenReport, where.fields("report-open"), database, read)


def explanation(config: Config, job_id: int, database: str | None) -> ExplainRecord:
    """Return everything that is recorded of a job.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, the daemon refuses, or the job is not known.
    """
    cluster = ClusterName(config.cluster.name)

    def read(session: "Session") -> ExplainRecord:
        from slurm_energy.store.explain import explain  # noqa: PLC0415  # SQL

        record = explain(session, cluster, JobId(job_id))
        if record is None:
            raise StoreError(f"job {job_id} of cluster {cluster} is not in the database")
        return record

    return _asked_or_read(config, ExplainRecord, Filter(job_id=job_id).fields("explain"), database, read)


def recent_decisions(config: Config, where: Filter, database: str | None) -> tuple[DecisionRecord, ...]:
    """Return the latest decisions, newest first.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, or the daemon refuses.
    """

    def read(session: "Session") -> tuple[DecisionRecord, ...]:
        from slurm_energy.store.decisions import DEFAULT_DECISIONS  # noqa: PLC0415  # SQL
        from slurm_energy.store.decisions import recent_decisions as stored  # noqa: PLC0415  # SQL

        return stored(
            session,
            ClusterName(config.cluster.name),
            user_name=where.user_name,
            job_id=where.job_id,
            partition=where.partition,
            since_seconds=where.since_seconds,
            until_seconds=where.until_seconds,
            limit=where.limit or DEFAULT_DECISIONS,
        )

    return _asked_or_read(config, tuple[DecisionRecord, ...], where.fields("decisions"), database, read)


def _asked_or_read(
    config: Config,
    kind: type[_Record],
    fields: dict[str, str],
    database: str | None,
    read: Callable[["Session"], _Record],
) -> _Record:
    """Return what the daemon answers, or what `read` finds in the database."""
    if database is None:
        try:
            return from_daemon(config, kind, fields)
        except DaemonUnavailable as error:
            database = readable_database(config, error)
    return read_database(StoreConfig(url=database, busy_timeout_seconds=config.store.busy_timeout_seconds), read)


def from_daemon(config: Config, kind: type[_Record], fields: dict[str, str]) -> _Record:
    """Return the record that the daemon sends.

    Raises:
        SlurmEnergyError: no answer, a refusal, or an answer that is no such record.
    """
    reply = asked(
        config.daemon.socket_path, Message("query", {**fields, "cluster": config.cluster.name}), QUERY_SECONDS
    )
    try:
        return decode_record(kind, reply.fields.get("json", ""))
    except ValueError as error:
        raise WireError(f"the daemon's answer cannot be read: {error}") from error


def readable_database(config: Config, error: DaemonUnavailable) -> str:
    """Return the database's URL if it is a file that this user may read.

    Raises:
        SlurmEnergyError: it is not; with what the daemon's client said, and where the command can be run.
    """
    path = sqlite_path(config.store.url)
    if path is not None:
        try:
            with path.open("rb"):
                return config.store.url
        except FileNotFoundError:
            pass
        except OSError as closed:
            raise SlurmEnergyError(
                f"{error} Its database {path} is not open to this user either ({closed.strerror}): start "
                "slurm-energyd, or name another: --database URL"
            ) from error
    where = where_to_run(config)
    if where:
        raise SlurmEnergyError(f"{where}, or name the database: --database URL") from error
    raise SlurmEnergyError(f"{error} Without it, name the database: --database URL") from error


def where_to_run(config: Config) -> str:
    """Return what a person on another host than the controller should do; empty on the controller."""
    controllers = controller_hosts(read_slurm_conf(slurm_conf_path(config, os.environ)))
    if not controllers or any(map(is_this_host, controllers)):
        return ""
    return f"slurm-energyd runs on the controller ({', '.join(controllers)}), not on this host: run this command there"


def read_database(store: StoreConfig, work: Callable[["Session"], _Record]) -> _Record:
    """Return `work(session)` on a database that has this code's schema; it may only read.

    Raises:
        StoreError: missing, not reachable, or of another version.
    """
    from slurm_energy.store.schema import check_version  # noqa: PLC0415  # SQL
    from slurm_energy.store.session import open_engine, store_session  # noqa: PLC0415  # SQL

    path = sqlite_path(store.url)
    if path is not None and not path.is_file():
        raise StoreError(f"database file {path} does not exist")
    engine = open_engine(store)
    try:
        check_version(engine)
        with store_session(engine, read_only=True) as session:
            return work(session)
    finally:
        engine.dispose()
