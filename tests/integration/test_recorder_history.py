"""What is known of ended runs is kept up by reading only the jobs that ended."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from store_samples import CLUSTER, SUBMITTED, make_gpu, make_key, make_report, make_state

from slurm_energy.config import Config
from slurm_energy.daemon.recorder.history import HistoryLoop, NewestRuns, RunMemory
from slurm_energy.daemon.recorder.recorder import ChangedJobs
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.past_runs import HISTORY_DAYS, RuntimeSample, all_recent_runtimes, failed_runs, measured_runs
from slurm_energy.store.session import store_session

pytest_plugins = ["database_fixtures"]
NOW = SUBMITTED + 1000.0
SINCE = NOW - HISTORY_DAYS * 86_400.0


def end(engine: Engine, *job_ids: int, state: str = "COMPLETED", joules: float = 20_000.0) -> None:
    with store_session(engine) as session:
        for job_id in job_ids:
            ended = SUBMITTED + 150.0 + job_id
            states = [make_state(job_id, state=state, name=f"job{job_id % 3}", ended_at_seconds=ended)]
            upsert_jobs(session, CLUSTER, states)
            gpu = make_gpu(joules=joules, coverage_seconds=100.0 + job_id, applied_clock_mhz=None)
            record_report(session, make_report(gpu, job_id=job_id, decision_id=None), make_key(job_id))


def known(memory: RunMemory) -> tuple[list[RuntimeSample], list[MeasuredRun], list[FailedRuns]]:
    return (
        sorted(memory.timed(), key=lambda run: run.ended_at_seconds),
        sorted(memory.measured(), key=lambda run: run.ended_at_seconds),
        memory.failed(),
    )


def stored(engine: Engine) -> tuple[list[RuntimeSample], list[MeasuredRun], list[FailedRuns]]:
    with store_session(engine, read_only=True) as session:
        return (
            sorted(all_recent_runtimes(session, CLUSTER, SINCE), key=lambda run: run.ended_at_seconds),
            sorted(measured_runs(session, CLUSTER, SINCE), key=lambda run: run.ended_at_seconds),
            list(failed_runs(session, CLUSTER, SINCE)),
        )


def test_reading_jobs_as_they_end_knows_the_same_as_reading_everything(engine: Engine) -> None:
    end(engine, 1, 2, 3)
    memory = RunMemory(CLUSTER, 20)
    with store_session(engine, read_only=True) as session:
        memory.load(session, NOW)
    end(engine, *range(4, 70))
    end(engine, 70, 71, state="FAILED")
    with store_session(engine, read_only=True) as session:
        memory.read_again(session, range(4, 72), NOW)
        memory.read_again(session, [70, 5, 5], NOW)  # a job that is read again is one run
    assert known(memory) == stored(engine)
    assert len(memory.timed()) == 60 and memory.failed()[0].runs == 1


def test_a_report_that_comes_later_makes_its_run_a_measured_one(engine: Engine) -> None:
    memory = RunMemory(CLUSTER, 20)
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, [make_state(1)])
        memory.load(session, NOW)
    assert len(memory.timed()) == 1 and memory.measured() == []
    end(engine, 1)
    with store_session(engine, read_only=True) as session:
        memory.read_again(session, [1], NOW)
    assert known(memory) == stored(engine) and len(memory.measured()) == 1


def test_what_is_older_than_the_history_is_forgotten(engine: Engine) -> None:
    end(engine, 1, 2)
    memory = RunMemory(CLUSTER, 20)
    with store_session(engine, read_only=True) as session:
        memory.load(session, NOW)
    memory.forget_old(NOW + HISTORY_DAYS * 86_400.0)
    assert known(memory) == ([], [], [])


def test_a_cycle_reads_only_jobs_that_changed(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_energy.daemon.recorder.history.time.time", lambda: NOW)
    end(engine, 1, 2, 3)
    changed, frames = ChangedJobs(), list[object]()
    config = Config(cluster=replace(Config().cluster, name=CLUSTER))
    loop = HistoryLoop(config, frames.append, changed)
    loop.step(engine)
    queries: list[object] = []

    @event.listens_for(engine, "after_cursor_execute")
    def note(_connection: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        if "job_attempt" in statement:
            queries.append(values)

    monkeypatch.setattr(loop._history_due, "due", lambda *_: True)
    loop.step(engine)
    assert queries == []
    changed.add([2])
    loop.step(engine)
    event.remove(engine, "after_cursor_execute", note)
    assert queries and all(2 in (list(v.values()) if isinstance(v, dict) else list(v)) for v in queries)  # type: ignore[call-overload]  # by driver


def test_too_many_changes_are_all_of_them() -> None:
    changed = ChangedJobs()
    assert changed.take() is None
    assert changed.take() == set()
    changed.add([1, 2])
    assert changed.take() == {1, 2}
    changed.add(range(200_000))
    assert changed.take() is None


def test_the_newest_runs_of_a_key_stay_in_whatever_order_they_come() -> None:
    runs = [
        RuntimeSample(
            user_id=1,
            name="a",
            ended_at_seconds=float(number),
            run_seconds=1.0,
            default_clock_seconds=1.0,
            gpu_count=1,
            gpu_type=None,
            submitted_at_seconds=0.0,
            limit_seconds=None,
            cut_off=False,
        )
        for number in (5, 1, 4, 2, 3)
    ]
    newest = NewestRuns[RuntimeSample](3)
    for run in (*runs, *runs):
        newest.put(int(run.ended_at_seconds), (1, "a"), ("a",), run)
    assert sorted(run.ended_at_seconds for run in newest) == [3.0, 4.0, 5.0]
    assert sorted(run.ended_at_seconds for run in newest.of([(1, "a"), (1, "b")])) == [3.0, 4.0, 5.0]
    newest.forget_before(6.0)
    assert list(newest) == list(newest.of([(1, "a")])) == []
