"""Every reading of a GPU with its job, in batches and as a Parquet file, for programs that read files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, select

from slurm_energy.domain.ids import ClusterName
from slurm_energy.errors import StoreError
from slurm_energy.resources import install_command
from slurm_energy.store.nodes import size_of_report
from slurm_energy.store.session import store_session
from slurm_energy.store.summaries import host_joules, partition_of_report
from slurm_energy.store.tables import GpuEnergyRow, JobRow, NodeEnergyRow, NodeSizeRow

ROWS_AT_ONCE = 20_000
_JOB = ("job_id", "array_job_id", "array_task", "user_id", "user_name", "account", "qos", "name", "state")
_GPU = (
    "gpu_uuid", "gpu_name", "gpu_type", "joules", "reason", "source", "scope", "coverage_seconds", "flags",
    "applied_clock_mhz", "observed_clock_mhz", "default_clock_mhz", "utilisation",
)  # fmt: skip
COLUMNS: dict[str, type] = {
    "job_id": int, "array_job_id": int, "array_task": str, "user_id": int, "user_name": str, "account": str,
    "qos": str, "name": str, "state": str, "partition": str, "node": str, "restart_count": int,
    "started_at_seconds": float, "ended_at_seconds": float, "counted_at_seconds": float, "gpu_uuid": str,
    "gpu_name": str, "gpu_type": str, "joules": float, "reason": str, "source": str, "scope": str,
    "coverage_seconds": float, "flags": str, "applied_clock_mhz": int, "observed_clock_mhz": float,
    "default_clock_mhz": int, "utilisation": float, "host_joules": float,
}  # fmt: skip
"""Name and type of each; units are in the names. A row without `gpu_uuid` is of a node that reported no GPU."""


def exported_rows(
    engine: Engine, cluster: ClusterName, since_seconds: float, until_seconds: float
) -> Iterator[list[dict[str, Any]]]:
    """Yield the readings that are counted in a period, as `COLUMNS` has them, by the time at which they are counted.

    Each batch is a transaction of its own, so that an export of years holds up nothing. `host_joules` is the job's part
    of its node, in the first of the node's rows alone: all columns of joules add up.
    """
    row = NodeEnergyRow
    after = (since_seconds, -1)
    while True:
        page = (
            select(row.row_id, row.counted_at_seconds)
            .where(row.cluster == cluster, row.counted_at_seconds >= after[0], row.counted_at_seconds < until_seconds)
            .where((row.counted_at_seconds > after[0]) | (row.row_id > after[1]))
            .order_by(row.counted_at_seconds, row.row_id)
            .limit(ROWS_AT_ONCE)
        )
        with store_session(engine, read_only=True) as session:
            found = session.execute(page).all()
            if not found:
                return
            numbers = page.with_only_columns(row.row_id).subquery("page")
            query = (
                select(
                    row.row_id,
                    *(getattr(JobRow, name) for name in _JOB),
                    partition_of_report().label("partition"),
                    row.node,
                    row.restart_count,
                    row.started_at_seconds,
                    row.ended_at_seconds,
                    row.counted_at_seconds,
                    *(getattr(GpuEnergyRow, name) for name in _GPU),
                    host_joules().label("host_joules"),
                )
                .select_from(row)
                .join(numbers, numbers.c.row_id == row.row_id)
                .join(JobRow, JobRow.row_id == row.job_row_id)
                .outerjoin(NodeSizeRow, size_of_report())
                .outerjoin(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == row.row_id)
                .order_by(row.counted_at_seconds, row.row_id, func.coalesce(GpuEnergyRow.gpu_uuid, ""))
            )
            rows = [dict(one._mapping) for one in session.execute(query)]
        yield list(_with_one_host(rows))
        after = (found[-1].counted_at_seconds, found[-1].row_id)


def _with_one_host(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    last = None
    for row in rows:
        number = row.pop("row_id")
        if number == last:
            row["host_joules"] = None
        last = number
        yield row


def write_parquet(engine: Engine, cluster: ClusterName, file: Path, since_seconds: float, until_seconds: float) -> int:
    """Write what is counted in a period into a new file and return how many rows that are.

    Raises:
        StoreError: the file exists or cannot be written, the library is not installed, or the database failed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415  # an extra
        import pyarrow.parquet as pq  # noqa: PLC0415  # the same
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is missing: {install_command('parquet')}") from error
    if file.exists():
        raise StoreError(f"{file} exists: name a file that does not")
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    part, rows = file.with_name(f"{file.name}.part"), 0
    try:
        with pq.ParquetWriter(part, schema, compression="zstd") as writer:
            for batch in exported_rows(engine, cluster, since_seconds, until_seconds):
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                rows += len(batch)
        part.rename(file)
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return rows
