"""Energy rows: a repeat changes nothing, a better report replaces a worse one, unknown stays unknown."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from sqlalchemy import Engine, text
from store_samples import (
    CLUSTER,
    DECISION,
    SUBMITTED,
    make_gpu,
    make_key,
    make_report,
    truncated_gpu,
    unknown_gpu,
)

from slurm_energy.config import StoreConfig
from slurm_energy.domain.energy import GpuEnergy, HostEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import GpuUuid, JobId, NodeName
from slurm_energy.errors import ValueRangeError
from slurm_energy.store.energy import ReportOutcome, record_report, stored_reports
from slurm_energy.store.session import open_engine, run_in_transaction, store_session

pytest_plugins = ["database_fixtures"]


def store(engine: Engine, report: NodeReport) -> ReportOutcome:
    key = make_key(report.job_id, restart_count=report.restart_count)
    return run_in_transaction(engine, lambda session: record_report(session, report, key))


def stored(engine: Engine, job_id: int = 77) -> tuple[NodeReport, ...]:
    with store_session(engine, read_only=True) as session:
        return stored_reports(session, CLUSTER, JobId(job_id))


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def at_once(number: int, work: Callable[[int], object]) -> list[object]:
    """Return what `number` threads returned or raised, all let go at one moment."""
    barrier, results = threading.Barrier(number), [None] * number

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = work(index)  # type: ignore[call-overload]  # object slots
        except BaseException as error:
            results[index] = error  # type: ignore[call-overload]  # object slots

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results  # type: ignore[return-value]  # None is an object


def test_report_comes_back_exactly_with_microseconds_and_joules(engine: Engine) -> None:
    report = make_report(make_gpu(0, joules=0.1 + 0.2), unknown_gpu(1), make_gpu(2, flags=tuple(QualityFlag)))
    assert store(engine, report) is ReportOutcome.STORED
    assert stored(engine) == (report,)


def test_report_without_host_or_gpus_comes_back_as_it_was(engine: Engine) -> None:
    report = replace(make_report(), gpus=(), host=None, exit_code=None, user_id=None, partition=None, decision_id=None)
    store(engine, report)
    assert stored(engine) == (report,)


def test_unknown_energy_is_null_with_its_reason_and_never_zero(engine: Engine) -> None:
    host = HostEnergy(joules=None, reason="no RAPL", coverage_seconds=0.0)
    store(engine, make_report(unknown_gpu(0), host=host))
    with engine.connect() as connection:
        gpu = connection.execute(text("SELECT joules, reason FROM gpu_energy")).one()
        node = connection.execute(text("SELECT host_joules, host_reason FROM node_energy")).one()
    assert tuple(gpu) == (None, "energy counter not supported")
    assert tuple(node) == (None, "no RAPL")


def test_sending_twice_changes_nothing(engine: Engine) -> None:
    report = make_report(make_gpu(0), unknown_gpu(1))
    assert store(engine, report) is ReportOutcome.STORED
    other = replace(report, gpus=(make_gpu(0, joules=1.0), unknown_gpu(1)), exit_code=9, events=("again",))
    assert store(engine, report) is ReportOutcome.UNCHANGED
    assert store(engine, other) is ReportOutcome.UNCHANGED
    assert stored(engine) == (report,)


def test_same_report_sent_by_many_at_once_makes_one_row(engine: Engine) -> None:
    report = make_report(*(make_gpu(number) for number in range(4)))
    results = at_once(12, lambda _: store(engine, report))
    assert sorted(map(str, results)) == ["stored"] + ["unchanged"] * 11
    assert (count(engine, "job"), count(engine, "node_energy"), count(engine, "gpu_energy")) == (1, 1, 4)


def test_fifty_writers_at_once_all_succeed(engine: Engine) -> None:
    """Fifty epilogs of an array, five nodes of each tenth job among them."""
    reports = [make_report(make_gpu(number), job_id=1 + number // 5, node=f"gpu{number:03d}") for number in range(50)]
    url = engine.url.render_as_string(hide_password=False)

    def write(index: int) -> ReportOutcome:
        own = open_engine(StoreConfig(url=url))
        try:
            return store(own, reports[index])
        finally:
            own.dispose()

    assert at_once(50, write) == [ReportOutcome.STORED] * 50
    assert (count(engine, "job"), count(engine, "node_energy"), count(engine, "gpu_energy")) == (10, 50, 50)


def test_whole_report_replaces_a_truncated_one(engine: Engine) -> None:
    store(engine, make_report(truncated_gpu(0), truncated_gpu(1), events=("closed from the last heartbeat",)))
    whole = make_report(make_gpu(0), make_gpu(1))
    assert store(engine, whole) is ReportOutcome.REPLACED
    assert stored(engine) == (whole,)


@pytest.mark.parametrize("worse", [truncated_gpu(0), truncated_gpu(0, 9999.0), unknown_gpu(0)])
def test_worse_report_never_replaces_a_whole_one(engine: Engine, worse: GpuEnergy) -> None:
    whole = make_report(make_gpu(0))
    store(engine, whole)
    assert store(engine, replace(whole, gpus=(worse,), events=("worse",))) is ReportOutcome.UNCHANGED
    assert stored(engine) == (whole,)


def test_truncated_report_that_covers_more_time_replaces_one_that_covers_less(engine: Engine) -> None:
    early = make_report(truncated_gpu(0, 40.0), ended_at_seconds=SUBMITTED + 90.0)
    late = make_report(truncated_gpu(0, 60.0), ended_at_seconds=SUBMITTED + 110.0)
    store(engine, early)
    assert store(engine, late) is ReportOutcome.REPLACED
    assert store(engine, early) is ReportOutcome.UNCHANGED
    assert stored(engine) == (late,)


def test_order_of_arrival_does_not_matter(engine: Engine) -> None:
    reports = [
        make_report(unknown_gpu(0)),
        make_report(truncated_gpu(0, 40.0), ended_at_seconds=SUBMITTED + 90.0),
        make_report(truncated_gpu(0, 60.0), ended_at_seconds=SUBMITTED + 110.0),
        make_report(make_gpu(0)),
    ]
    for job_id, order in enumerate(permutations(reports), start=1):
        for report in order:
            store(engine, replace(report, job_id=JobId(job_id)))
        assert stored(engine, job_id) == (replace(reports[-1], job_id=JobId(job_id)),)


def test_truncated_and_whole_sent_at_once_leave_the_whole_one(engine: Engine) -> None:
    whole, cut = make_report(make_gpu(0)), make_report(truncated_gpu(0))
    results = at_once(10, lambda index: store(engine, whole if index % 2 else cut))
    assert not [result for result in results if isinstance(result, BaseException)]
    assert stored(engine) == (whole,)


def test_one_gpu_of_a_report_improves_without_the_others(engine: Engine) -> None:
    store(engine, make_report(make_gpu(0), truncated_gpu(1)))
    assert store(engine, make_report(truncated_gpu(0, 90.0), make_gpu(1))) is ReportOutcome.REPLACED
    assert [report.gpus for report in stored(engine)] == [(make_gpu(0), make_gpu(1))]


def test_gpu_that_an_earlier_report_did_not_name_is_added(engine: Engine) -> None:
    store(engine, make_report(make_gpu(0)))
    assert store(engine, make_report(make_gpu(0), make_gpu(1))) is ReportOutcome.REPLACED
    assert [gpu.gpu_uuid for gpu in stored(engine)[0].gpus] == ["GPU-00000000", "GPU-00000001"]


def test_attempts_nodes_and_reused_job_ids_keep_apart(engine: Engine) -> None:
    store(engine, make_report())
    store(engine, make_report(restart_count=1))
    store(engine, make_report(node="gpu002"))
    reused = make_report(started_at_seconds=SUBMITTED + 9e6, ended_at_seconds=SUBMITTED + 9e6 + 10)
    run_in_transaction(engine, lambda session: record_report(session, reused, make_key(submitted=SUBMITTED + 9e6)))
    assert (count(engine, "job"), count(engine, "node_energy"), count(engine, "gpu_energy")) == (2, 4, 4)


def test_keys_differ_by_case_and_trailing_blank(engine: Engine) -> None:
    for node in ("gpu001", "GPU001", "gpu001 "):
        store(engine, make_report(make_gpu(), make_gpu(gpu_uuid=GpuUuid("gpu-00000000")), node=node))
    assert (count(engine, "node_energy"), count(engine, "gpu_energy")) == (3, 6)


def test_report_of_another_job_than_its_key_is_refused(engine: Engine) -> None:
    with (
        pytest.raises(ValueRangeError, match=r"report of job 78 restart 0 .* key of job 77"),
        store_session(engine) as session,
    ):
        record_report(session, make_report(job_id=78), make_key(77))
    assert count(engine, "job") == 0


def test_report_that_names_a_gpu_twice_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueRangeError, match="names a GPU twice"), store_session(engine) as session:
        record_report(session, make_report(make_gpu(0), make_gpu(0)), make_key())
    assert count(engine, "job") == 0


def test_hostile_and_long_texts_are_kept_visible_and_bounded(engine: Engine) -> None:
    nodes = [NodeName("n" * 5000 + letter) for letter in "ab"]
    for node in nodes:
        events = ("NUL \x00, \x1b[31m, \udcff, \U0001f525", "e" * 1_048_576)
        gpu = unknown_gpu(0, reason="r" * 5000)
        store(engine, make_report(gpu, node=node, events=events))
    first, second = stored(engine)
    assert first.node != second.node
    assert first.node.endswith("]") and "…[cut from 5001 characters, sha256 " in first.node
    assert first.events[0] == "NUL \x00, \x1b[31m, \udcff, \U0001f525"
    assert "…[cut from 1048576 characters, sha256 " in first.events[1]
    assert "…[cut from 5000 characters, sha256 " in str(first.gpus[0].reason)


def test_decision_and_owner_come_from_the_report_until_slurm_says_more(engine: Engine) -> None:
    store(engine, make_report())
    with engine.connect() as connection:
        row = connection.execute(text('SELECT user_id, "partition", decision_id FROM job'.replace('"', _quote(engine))))
        assert tuple(row.one()) == (1000, "a100", DECISION)


def _quote(engine: Engine) -> str:
    return "`" if engine.dialect.name == "mariadb" else '"'


def test_report_that_comes_after_its_job_was_closed_without_takes_its_place(engine: Engine) -> None:
    closed = HostEnergy(joules=None, reason="no report came", coverage_seconds=0.0, flags=(QualityFlag.TRUNCATED,))
    store(engine, replace(make_report(), gpus=(), host=closed, user_id=None))
    late = make_report(unknown_gpu(0))
    assert store(engine, late) is ReportOutcome.REPLACED
    assert stored(engine) == (late,)
    assert store(engine, replace(late, gpus=(), host=closed)) is ReportOutcome.UNCHANGED
