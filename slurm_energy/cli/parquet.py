"""Rows of the database as a Parquet file."""

from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.domain.ids import ClusterName
from slurm_energy.errors import StoreError
from slurm_energy.resources import install_command
from slurm_energy.store.export import COLUMNS, exported_rows

if TYPE_CHECKING:
    from slurm_energy.store.session import Engine


def write_parquet(
    engine: "Engine", cluster: ClusterName, file: Path, since_seconds: float, until_seconds: float
) -> int:
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
