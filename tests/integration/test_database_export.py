"""An export has every reading of its period once, and its joules are those of the report."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from store_samples import CLUSTER, SUBMITTED, make_gpu, make_key, make_report, make_state, unknown_gpu

import slurm_energy.store.export
from slurm_energy.config import StoreConfig
from slurm_energy.errors import StoreError
from slurm_energy.store.energy import record_report
from slurm_energy.store.export import COLUMNS, write_parquet
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.reports import report_groups
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import Engine, open_engine, store_session
from slurm_energy.store.summaries import JobFilter


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/e.sqlite"))
    upgrade(made)
    with store_session(made) as session:
        upsert_jobs(session, CLUSTER, tuple(make_state(number, gpu_count=2) for number in range(1, 8)))
        for number in range(1, 8):
            ended = SUBMITTED + 150.0 + number // 3
            report = make_report(make_gpu(0), unknown_gpu(1), job_id=number, ended_at_seconds=ended)
            record_report(session, report, make_key(number))
    return made


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_an_export_has_each_reading_once_in_batches_of_any_size(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(slurm_energy.store.export, "ROWS_AT_ONCE", at_once)
    assert write_parquet(engine, CLUSTER, tmp_path / "x.parquet", 0.0, SUBMITTED + 1e6) == 14
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == list(COLUMNS)
    assert sorted(zip(table["job_id"].to_pylist(), table["gpu_uuid"].to_pylist(), strict=True)) == [
        (number, f"GPU-{gpu:08d}") for number in range(1, 8) for gpu in range(2)
    ]
    with store_session(engine, read_only=True) as session:
        total = report_groups(session, JobFilter(cluster=CLUSTER), "cluster").total
    assert sum(filter(None, table["joules"].to_pylist())) == pytest.approx(total.gpu.joules)
    assert sum(filter(None, table["host_joules"].to_pylist())) == pytest.approx(total.host.joules)
    assert table["reason"].to_pylist().count("energy counter not supported") == 7


def test_two_periods_that_follow_each_other_have_every_reading_once(engine: Engine, tmp_path: Path) -> None:
    middle = SUBMITTED + 151.0
    first = write_parquet(engine, CLUSTER, tmp_path / "a.parquet", 0.0, middle)
    second = write_parquet(engine, CLUSTER, tmp_path / "b.parquet", middle, SUBMITTED + 1e6)
    assert (first, second) == (4, 10)


def test_an_export_writes_over_no_file(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("mine")
    with pytest.raises(StoreError, match="exists"):
        write_parquet(engine, CLUSTER, tmp_path / "x.parquet", 0.0, 1e12)
    assert (tmp_path / "x.parquet").read_text() == "mine"
