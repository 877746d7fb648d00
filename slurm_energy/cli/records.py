"""Reports and explanations, from the daemon or straight from the database."""

from typing import TypeVar

from slurm_energy.cli.daemon_line import asked
from slurm_energy.cli.record_filter import Filter, sqlite_path
from slurm_energy.config import Config, StoreConfig
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.domain.report import DecisionRecord, EnergyReport, ExplainRecord, decode_record
from slurm_energy.errors import DaemonUnavailable, SlurmEnergyError, WireError
from slurm_energy.wire.codec import Message

QUERY_SECONDS = 35.0
"""A little over what the daemon gives its database."""
_Record = TypeVar("_Record")


def energy_report(config: Config, subject: str, where: Filter, database: str | None) -> EnergyReport:
    """Return a report of `report-job`, `report-user` or `report-partition`.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, or the daemon refuses.
    """
    if database is None:
        try:
            return from_daemon(config, EnergyReport, where.fields(subject))
        except DaemonUnavailable as error:
            database = readable_database(config, error)
    from slurm_energy.cli.database_records import report_from_database  # noqa: PLC0415  # SQL only when it is needed

    return report_from_database(_store(config, database), ClusterName(config.cluster.name), subject, where)


def explanation(config: Config, job_id: int, database: str | None) -> ExplainRecord:
    """Return a job's whole story.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, the daemon refuses, or the job is not known.
    """
    if database is None:
        try:
            return from_daemon(config, ExplainRecord, Filter(job_id=job_id).fields("explain"))
        except DaemonUnavailable as error:
            database = readable_database(config, error)
    from slurm_energy.cli.database_records import explain_from_database  # noqa: PLC0415  # SQL only when it is needed

    return explain_from_database(_store(config, database), ClusterName(config.cluster.name), JobId(job_id))


def decisions(config: Config, where: Filter, database: str | None) -> tuple[DecisionRecord, ...]:
    """Return the latest decisions, newest first.

    Raises:
        SlurmEnergyError: neither daemon nor database answer, or the daemon refuses.
    """
    if database is None:
        try:
            return from_daemon(config, tuple[DecisionRecord, ...], where.fields("decisions"))
        except DaemonUnavailable as error:
            database = readable_database(config, error)
    from slurm_energy.cli.database_records import decisions_from_database  # noqa: PLC0415  # SQL only when needed

    return decisions_from_database(_store(config, database), ClusterName(config.cluster.name), where)


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
    """Return the database's URL if it is a file that this user may read; else raise what the daemon said."""
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
    raise SlurmEnergyError(f"{error} Without it, name the database: --database URL") from error


def _store(config: Config, url: str) -> StoreConfig:
    return StoreConfig(url=url, busy_timeout_seconds=config.store.busy_timeout_seconds)
