"""The tables, and the insert that leaves present keys alone.

Names are singular, units are in the names, times are Unix seconds in UTC.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKey,
    Index,
    Insert,
    Integer,
    MetaData,
    SmallInteger,
    String,
    UniqueConstraint,
    inspect,
)
from sqlalchemy.dialects.mysql import insert as mariadb_insert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from slurm_energy.store.types import BoundedText, FiniteDouble, JsonText, LongText, UnixSeconds

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
TABLE_OPTIONS = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    # Keys differ by case and by trailing blanks, as they do on SQLite and PostgreSQL.
    "mariadb_collate": "utf8mb4_nopad_bin",
}

UUID_LENGTH = 128
NODE_LENGTH = 255
NOT_ROLLED_UP = 0
IN_NO_HOUR = -1
RowId = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers rows by itself only under INTEGER


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class PolicyRow(Base):
    """A policy with its version and settings, as it was used."""

    __tablename__ = "policy"
    __table_args__ = (UniqueConstraint("name", "version", "settings_digest"), TABLE_OPTIONS)

    row_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    name: Mapped[str] = mapped_column(BoundedText(64))
    version: Mapped[str] = mapped_column(BoundedText(128))
    settings_digest: Mapped[str] = mapped_column(String(64))
    settings: Mapped[dict[str, Any]] = mapped_column(JsonText)
    first_used_at_seconds: Mapped[float] = mapped_column(UnixSeconds)


class DecisionRow(Base):
    """What was asked and decided for one submission; written once."""

    __tablename__ = "decision"
    __table_args__ = (
        Index(None, "cluster", "decided_at_seconds"),
        Index(None, "cluster", "user_id", "decided_at_seconds"),
        TABLE_OPTIONS,
    )

    decision_id: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    cluster: Mapped[str] = mapped_column(BoundedText(64))
    policy_row_id: Mapped[int] = mapped_column(ForeignKey("policy.row_id"))
    mode: Mapped[str] = mapped_column(String(16))
    decided_at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    user_id: Mapped[int] = mapped_column(BigInteger)
    user_name: Mapped[str | None] = mapped_column(BoundedText(255))
    job_name: Mapped[str] = mapped_column(BoundedText(512))
    request: Mapped[dict[str, Any]] = mapped_column(JsonText)
    partitions: Mapped[list[str] | None] = mapped_column(JsonText)
    prefer: Mapped[str | None] = mapped_column(BoundedText(64))
    """Node feature whose nodes were to be used first."""
    gpus: Mapped[int | None] = mapped_column(Integer)
    """GPUs of the whole job that were chosen; NULL where there was no choice. What was asked for is in `request`."""
    reasons: Mapped[str] = mapped_column(BoundedText(1024))
    notes: Mapped[list[str]] = mapped_column(JsonText)
    details: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    """What the policy said of its answer: costs by option, a network's factors, attention and preference."""
    estimate_seconds: Mapped[float | None] = mapped_column(FiniteDouble)
    estimate_upper_seconds: Mapped[float | None] = mapped_column(FiniteDouble)
    estimate_source: Mapped[str | None] = mapped_column(BoundedText(64))
    estimate_runs: Mapped[int | None] = mapped_column(Integer)
    """Ended runs behind it; NULL in rows of older releases."""
    script_key: Mapped[str | None] = mapped_column(String(16))
    """What the scripts of jobs with the same work share; NULL where none was read, or it tells nothing of the work. The
    features themselves are in `request`."""
    estimate_gpu_type: Mapped[str | None] = mapped_column(BoundedText(64))
    """GPU type on which the job is expected to take so long; NULL where runs of several types went into it."""
    snapshot_age_seconds: Mapped[float | None] = mapped_column(FiniteDouble)
    opens: Mapped[bool | None] = mapped_column(Boolean)
    """Whether the partition that the user named was a preference; NULL in rows of older releases."""
    open_offer: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    """What the job could have had outside the partition that its user named; NULL where that was nothing."""
    slowdown: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    """What the job's slowdown is held against: its bounds, and how much longer it was to take on each GPU type."""
    message: Mapped[str] = mapped_column(LongText)

    policy: Mapped[PolicyRow] = relationship(lazy="joined", innerjoin=True)
    clocks: Mapped[list["DecisionClockRow"]] = relationship(lazy="selectin", order_by="DecisionClockRow.gpu_type")


class DecisionClockRow(Base):
    """The clock decided for one GPU type, with what was predicted of it."""

    __tablename__ = "decision_clock"
    __table_args__ = (
        CheckConstraint("sm_clock_mhz > 0 AND default_clock_mhz > 0", name="clocks_positive"),
        TABLE_OPTIONS,
    )

    decision_id: Mapped[str] = mapped_column(ForeignKey("decision.decision_id", ondelete="CASCADE"), primary_key=True)
    gpu_type: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    sm_clock_mhz: Mapped[int] = mapped_column(Integer)
    default_clock_mhz: Mapped[int] = mapped_column(Integer)
    predicted_slowdown: Mapped[float] = mapped_column(FiniteDouble)
    predicted_energy_change: Mapped[float] = mapped_column(FiniteDouble)
    power_limit_watts: Mapped[float | None] = mapped_column(FiniteDouble)
    """Limit of the boards that both predictions assume."""
    is_assumed: Mapped[bool | None] = mapped_column(Boolean)
    """Whether both were taken over from another GPU type; NULL in rows of older releases."""
    known_runs: Mapped[int | None] = mapped_column(Integer)
    """Runs of the job's name that measured both; 0: they are those of other programs. NULL in older rows."""


class DecisionChangeRow(Base):
    """What was decided again while the job waited; the clocks in force are those of `decision_clock`."""

    __tablename__ = "decision_change"
    __table_args__ = (TABLE_OPTIONS,)

    decision_id: Mapped[str] = mapped_column(ForeignKey("decision.decision_id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    decided_at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    outcome: Mapped[str] = mapped_column(String(16))
    """`clock`: its clocks alone; `changed`: in Slurm; `refused`: by Slurm, the job is as it was."""
    partitions: Mapped[list[str]] = mapped_column(JsonText)
    gpus: Mapped[int | None] = mapped_column(Integer)
    clocks: Mapped[list[dict[str, Any]]] = mapped_column(JsonText)
    note: Mapped[str] = mapped_column(BoundedText(255))


class JobRow(Base):
    """A job of Slurm; `decision_id` is no foreign key, since a job's report may overtake its decision."""

    __tablename__ = "job"
    __table_args__ = (
        UniqueConstraint("cluster", "job_id", "submitted_at_seconds"),
        Index(None, "cluster", "user_id", "name"),
        Index(None, "cluster", "array_job_id"),
        Index(None, "cluster", "het_job_id"),
        Index(None, "cluster", "ended_at_seconds"),
        Index(None, "cluster", "rollup_hour", "counted_until_seconds"),
        Index(None, "decision_id"),
        TABLE_OPTIONS,
    )

    row_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    cluster: Mapped[str] = mapped_column(BoundedText(64))
    job_id: Mapped[int] = mapped_column(BigInteger)
    submitted_at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    submit_time_known: Mapped[bool] = mapped_column(Boolean)
    """False while the start seen by a node stands in for the submit time."""
    user_id: Mapped[int | None] = mapped_column(BigInteger)
    user_name: Mapped[str | None] = mapped_column(BoundedText(255))
    name: Mapped[str | None] = mapped_column(BoundedText(512))
    account: Mapped[str | None] = mapped_column(BoundedText(255))
    qos: Mapped[str | None] = mapped_column(BoundedText(255))
    partition: Mapped[str | None] = mapped_column(BoundedText(255))
    """Where it runs or ran; the first of its list while it waits."""
    partitions: Mapped[list[str] | None] = mapped_column(JsonText)
    array_job_id: Mapped[int | None] = mapped_column(BigInteger)
    array_task: Mapped[str | None] = mapped_column(BoundedText(255))
    het_job_id: Mapped[int | None] = mapped_column(BigInteger)
    state: Mapped[str | None] = mapped_column(BoundedText(64))
    started_at_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    ended_at_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    restart_count: Mapped[int] = mapped_column(Integer)
    suspended_seconds: Mapped[float] = mapped_column(FiniteDouble)
    time_limit_minutes: Mapped[float | None] = mapped_column(FiniteDouble)
    nodes: Mapped[str | None] = mapped_column(LongText)
    node_count: Mapped[int | None] = mapped_column(BigInteger)
    gpu_count: Mapped[int | None] = mapped_column(BigInteger)
    cpus: Mapped[int | None] = mapped_column(BigInteger)
    priority: Mapped[int | None] = mapped_column(BigInteger)
    exit_code: Mapped[int | None] = mapped_column(BigInteger)
    decision_id: Mapped[str | None] = mapped_column(BoundedText(64))
    slurm_energy_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    """Slurm's own figure, kept beside ours and never added to it."""
    rollup_hour: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Start of the hour whose roll-up has all of the job's energy; 0: none yet, -1: the job is in no single hour."""
    counted_until_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    """Latest moment at which something of the job is counted; known once `rollup_hour` is not 0."""


class JobAttemptRow(Base):
    """One run of a job: a requeued job has several."""

    __tablename__ = "job_attempt"
    __table_args__ = (Index(None, "ended_at_seconds"), TABLE_OPTIONS)

    job_row_id: Mapped[int] = mapped_column(ForeignKey("job.row_id", ondelete="CASCADE"), primary_key=True)
    restart_count: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    submitted_at_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    """Slurm's submit time of this attempt: a requeue gets a new one, under which sacct knows it."""
    state: Mapped[str | None] = mapped_column(BoundedText(64))
    partition: Mapped[str | None] = mapped_column(BoundedText(255))
    nodes: Mapped[str | None] = mapped_column(LongText)
    started_at_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    ended_at_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    suspended_seconds: Mapped[float] = mapped_column(FiniteDouble)
    exit_code: Mapped[int | None] = mapped_column(BigInteger)


class NodeEnergyRow(Base):
    """What one node reported of one attempt, with the energy of its processors."""

    __tablename__ = "node_energy"
    __table_args__ = (
        UniqueConstraint("job_row_id", "restart_count", "node"),
        CheckConstraint("(host_joules IS NULL) <> (host_reason IS NULL)", name="host_joules_or_reason"),
        CheckConstraint("host_joules >= 0", name="host_joules_not_negative"),
        CheckConstraint("host_coverage_seconds >= 0", name="host_coverage_not_negative"),
        Index(None, "cluster", "counted_at_seconds"),
        Index(None, "cluster", "job_account", "counted_at_seconds"),
        Index(None, "cluster", "job_user_id", "counted_at_seconds"),
        TABLE_OPTIONS,
    )

    row_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    job_row_id: Mapped[int] = mapped_column(ForeignKey("job.row_id", ondelete="CASCADE"))
    restart_count: Mapped[int] = mapped_column(Integer)
    node: Mapped[str] = mapped_column(BoundedText(NODE_LENGTH))
    quality: Mapped[int] = mapped_column(SmallInteger)
    """Rank that decides which of two reports stays; see `store.energy.Quality`."""
    user_id: Mapped[int | None] = mapped_column(BigInteger)
    partition: Mapped[str | None] = mapped_column(BoundedText(255))
    decision_id: Mapped[str | None] = mapped_column(BoundedText(64))
    started_at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    ended_at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    clock_offset_seconds: Mapped[float | None] = mapped_column(FiniteDouble)
    """What the node's two times lack of the daemon's clock; NULL where the node did not say how long ago they were."""
    time_scale: Mapped[float] = mapped_column(FiniteDouble)
    host_measured: Mapped[bool] = mapped_column(Boolean)
    """False when the report had nothing of the processors."""
    host_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    host_reason: Mapped[str | None] = mapped_column(BoundedText(255))
    host_coverage_seconds: Mapped[float] = mapped_column(FiniteDouble)
    host_flags: Mapped[str] = mapped_column(BoundedText(512))
    exit_code: Mapped[int | None] = mapped_column(BigInteger)
    events: Mapped[list[str]] = mapped_column(JsonText)
    received_at_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    counted_at_seconds: Mapped[float | None] = mapped_column(UnixSeconds)
    """End on the node by the daemon's clock: the period in which reports count all of the row's energy."""
    host_node_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    """Of all processors of the node while the job ran, undivided; `host_joules` is an equal part for each job that the
    node knew."""
    host_share: Mapped[float | None] = mapped_column(FiniteDouble)
    """The job's part of `host_node_joules`, by its CPUs and the node's size when the attempt was over; NULL while it is
    not, or where one of them is not known."""
    host_meter_id: Mapped[str | None] = mapped_column(BoundedText(64))
    """Which count of the node's host energy the next two are readings of; NULL where the node keeps none."""
    host_meter_start_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    host_meter_end_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    cluster: Mapped[str | None] = mapped_column(BoundedText(64))
    """The job's, as the next two are, so that the period of a cluster, an account or a user is found without jobs."""
    job_account: Mapped[str | None] = mapped_column(BoundedText(255))
    job_user_id: Mapped[int | None] = mapped_column(BigInteger)
    gpu_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    """From here on: sums over the row's GPUs as `store.sums` makes them, so that reports need not read each GPU."""
    gpu_readings: Mapped[int | None] = mapped_column(Integer)
    gpu_unknown_readings: Mapped[int | None] = mapped_column(Integer)
    gpu_covered_seconds: Mapped[float | None] = mapped_column(FiniteDouble)
    gpu_window_seconds: Mapped[float | None] = mapped_column(FiniteDouble)
    gpu_timing_squares: Mapped[float | None] = mapped_column(FiniteDouble)
    """Of the timing's error bounds, in J x J."""
    gpu_unbounded: Mapped[int | None] = mapped_column(Integer)
    """Known readings whose error has no bound."""
    saving_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    saving_low_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    saving_high_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    idle_gpu_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    used_seconds: Mapped[float | None] = mapped_column(FiniteDouble)
    """Device seconds in which the GPUs worked, of `watched_seconds`."""
    watched_seconds: Mapped[float | None] = mapped_column(FiniteDouble)

    gpus: Mapped[list["GpuEnergyRow"]] = relationship(lazy="selectin", order_by="GpuEnergyRow.gpu_uuid")
    trials: Mapped[list["ClockTrialRow"]] = relationship(
        lazy="selectin", order_by="ClockTrialRow.number", cascade="all, delete-orphan"
    )


class GpuEnergyRow(Base):
    """Energy of one GPU during one attempt on one node; unknown is NULL with a reason, never 0."""

    __tablename__ = "gpu_energy"
    __table_args__ = (
        UniqueConstraint("node_energy_row_id", "gpu_uuid"),
        CheckConstraint("(joules IS NULL) <> (reason IS NULL)", name="joules_or_reason"),
        CheckConstraint("joules >= 0", name="joules_not_negative"),
        CheckConstraint("coverage_seconds >= 0", name="coverage_not_negative"),
        CheckConstraint("counter_joules >= 0 AND polled_joules >= 0", name="readings_not_negative"),
        CheckConstraint("utilisation BETWEEN 0 AND 1", name="utilisation_is_share"),
        TABLE_OPTIONS,
    )

    row_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    node_energy_row_id: Mapped[int] = mapped_column(ForeignKey("node_energy.row_id", ondelete="CASCADE"))
    gpu_uuid: Mapped[str] = mapped_column(BoundedText(UUID_LENGTH))
    quality: Mapped[int] = mapped_column(SmallInteger)
    gpu_name: Mapped[str] = mapped_column(BoundedText(255))
    gpu_type: Mapped[str | None] = mapped_column(BoundedText(64))
    joules: Mapped[float | None] = mapped_column(FiniteDouble)
    reason: Mapped[str | None] = mapped_column(BoundedText(255))
    source: Mapped[str] = mapped_column(String(16))
    scope: Mapped[str] = mapped_column(String(32))
    coverage_seconds: Mapped[float] = mapped_column(FiniteDouble)
    flags: Mapped[str] = mapped_column(BoundedText(512))
    """Quality flags between commas: `,truncated,mig,`; empty for none."""
    counter_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    polled_joules: Mapped[float | None] = mapped_column(FiniteDouble)
    asked_clock_mhz: Mapped[int | None] = mapped_column(Integer)
    applied_clock_mhz: Mapped[int | None] = mapped_column(Integer)
    observed_clock_mhz: Mapped[float | None] = mapped_column(FiniteDouble)
    default_clock_mhz: Mapped[int | None] = mapped_column(Integer)
    utilisation: Mapped[float | None] = mapped_column(FiniteDouble)


class NodeSizeRow(Base):
    """How large a node is by Slurm's own count: what a job's part of the host's energy is taken from."""

    __tablename__ = "node_size"
    __table_args__ = (TABLE_OPTIONS,)

    cluster: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    node: Mapped[str] = mapped_column(BoundedText(255), primary_key=True)
    cpus: Mapped[int] = mapped_column(BigInteger, autoincrement=False)
    gpus: Mapped[int] = mapped_column(BigInteger, autoincrement=False)
    seen_at_seconds: Mapped[float] = mapped_column(UnixSeconds)


class EnergyTotalRow(Base):
    """Sums over all reports that were ever stored, by partition: they never fall, also when rows are pruned."""

    __tablename__ = "energy_total"
    __table_args__ = (TABLE_OPTIONS,)

    cluster: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    partition: Mapped[str] = mapped_column(BoundedText(255), primary_key=True)
    """Empty where it is not known."""
    gpu_joules: Mapped[float] = mapped_column(FiniteDouble)
    readings: Mapped[int] = mapped_column(BigInteger)
    unknown_readings: Mapped[int] = mapped_column(BigInteger)


class ClockTrialRow(Base):
    """A lower clock that was tried while a job ran, beside its default clock."""

    __tablename__ = "clock_trial"
    __table_args__ = (
        CheckConstraint("sm_clock_mhz > 0 AND default_clock_mhz > 0", name="clocks_positive"),
        CheckConstraint("(slowdown IS NULL) = (error IS NULL)", name="slowdown_with_error"),
        TABLE_OPTIONS,
    )

    node_energy_row_id: Mapped[int] = mapped_column(
        ForeignKey("node_energy.row_id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    """Of the trials of one job on one node, from 0 on."""
    gpu_type: Mapped[str] = mapped_column(BoundedText(64))
    sm_clock_mhz: Mapped[int] = mapped_column(Integer)
    default_clock_mhz: Mapped[int] = mapped_column(Integer)
    at_seconds: Mapped[float] = mapped_column(FiniteDouble)
    """Elapsed time of the job."""
    watts: Mapped[float] = mapped_column(FiniteDouble)
    """Mean power of one GPU at this clock."""
    default_watts: Mapped[float] = mapped_column(FiniteDouble)
    slowdown: Mapped[float | None] = mapped_column(FiniteDouble)
    """Against the default clock; NULL where it is not known."""
    error: Mapped[float | None] = mapped_column(FiniteDouble)
    """Standard error of it."""
    kept: Mapped[bool] = mapped_column(Boolean)
    """Whether the job continued at this clock."""
    source: Mapped[str] = mapped_column(String(16))
    """`power`, `progress`, or empty where nothing was answered."""
    reason: Mapped[str] = mapped_column(BoundedText(255))
    """Why the slowdown is not known."""


class JournalPositionRow(Base):
    """How far one stream of a daemon's journal is stored; a database that was restored has it of then."""

    __tablename__ = "journal_position"
    __table_args__ = (TABLE_OPTIONS,)

    journal_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Made once for the daemon's state directory."""
    stream: Mapped[str] = mapped_column(String(32), primary_key=True)
    segment: Mapped[int] = mapped_column(BigInteger, autoincrement=False)
    byte_offset: Mapped[int] = mapped_column(BigInteger)


def insert_if_absent(session: Session, kind: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows whose key no other row has; safe while other sessions insert the same."""
    if rows:
        session.execute(_insert_statement(session, kind), [dict(row) for row in rows])


def _insert_statement(session: Session, kind: type[Base]) -> Insert:
    match session.get_bind().dialect.name:
        case "sqlite":
            return sqlite_insert(kind).on_conflict_do_nothing()
        case "postgresql":
            return postgresql_insert(kind).on_conflict_do_nothing()
        case _:
            # INSERT IGNORE would also swallow a value that does not fit.
            key = inspect(kind).primary_key[0]
            return mariadb_insert(kind).on_duplicate_key_update({key.name: key})
