"""Sums by hour and day are those of the rows at every moment, in whatever order and how late reports come."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy import event as engine_event
from store_samples import (
    CLUSTER,
    DECISION,
    SUBMITTED,
    make_decision,
    make_gpu,
    make_report,
    make_request,
    make_state,
    unknown_gpu,
)

from slurm_energy.config import ClusterConfig, Config, DaemonConfig, StoreConfig
from slurm_energy.daemon.recorder.process import RecorderLoop
from slurm_energy.daemon.recorder.recorder import ChangedJobs, Condition
from slurm_energy.domain.cluster import JobState, NodeSize
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.energy import HostEnergy, JobKey, NodeReport
from slurm_energy.domain.ids import DecisionId, JobId, NodeName, PartitionName
from slurm_energy.domain.plain import to_plain
from slurm_energy.domain.report import EnergyReport, ReportKind
from slurm_energy.energy_model.facility import Facility, StepSeries
from slurm_energy.store import reports, rollups
from slurm_energy.store.decisions import record_decisions
from slurm_energy.store.energy import record_report
from slurm_energy.store.job_rows import Arrival, submit_time_of
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.nodes import record_node_sizes
from slurm_energy.store.reports import report_groups, report_jobs
from slurm_energy.store.rollup_rows import DAY_SECONDS, HOUR_SECONDS, EnergyRollupRow, RollupPeriodRow
from slurm_energy.store.rollups import forget_rollups, roll_up_some, roll_up_waiting
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import open_engine, run_in_transaction, store_session
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.tables import IN_NO_HOUR, JobRow, NodeEnergyRow
from slurm_energy.store.upkeep import prune

pytest_plugins = ["database_fixtures"]
EVERYTHING = JobFilter(cluster=CLUSTER)
DAY_START = SUBMITTED - SUBMITTED % DAY_SECONDS + DAY_SECONDS
MUCH_LATER = DAY_START + 10 * DAY_SECONDS
SPAN = 2.2 * DAY_SECONDS
ONE_PRICE = Facility(pue=1.3, price=StepSeries((0.0,), (0.2,), MUCH_LATER), currency="EUR")
Event = JobState | NodeReport | EnergyDecision | NodeSize


def events_of(seed: int, jobs: int) -> list[Event]:
    """Return what happens to jobs of all kinds within days, some at the edge of an hour, and to one node's size."""
    draw = random.Random(seed)  # cases, not secrets
    events: list[Event] = [NodeSize(name=NodeName("n1"), cpus=32, gpus=4)]
    for job_id in range(1, jobs + 1):
        begin = DAY_START + draw.choice([draw.uniform(0.0, SPAN), draw.randrange(20) * 3600.0 - 151.0])
        decision = DecisionId(f"d{seed:03d}{job_id:04d}")
        nodes, gpus = draw.choice([1, 1, 2]), draw.choice([0, 1, 3])
        user = draw.randrange(3)
        state = make_state(
            job_id,
            submitted_at_seconds=begin,
            user_id=1000 + user,
            user_name="" if user == 2 else f"user{user}",
            account=draw.choice(["physics", "history", None]),
            qos=draw.choice(["normal", "high"]),
            name=f"job{job_id % 4}",
            nodes="n[1-2]" if nodes == 2 else "n1",
            node_count=nodes,
            gpu_count=nodes * gpus,
            admin_comment=f"energy:{decision}",
        )
        if draw.random() < 0.7:
            events.append(make_decision(decision, decided_at_seconds=begin))
        for attempt in range(draw.choice([1, 1, 1, 2])):
            partition = PartitionName(draw.choice(["a100", "a40"]))
            started, ended = begin + 50.0 + 4000.0 * attempt, begin + 150.0 + 4000.0 * attempt
            for node in range(1, nodes + 1):
                if draw.random() < 0.1:
                    continue  # a report that never comes
                readings = tuple(
                    draw.choice([make_gpu(number, joules=draw.uniform(0.0, 4e4)), unknown_gpu(number)])
                    for number in range(10 * node, 10 * node + gpus)
                )
                host = draw.choice([None, HostEnergy(joules=5.0, reason=None, coverage_seconds=99.0, node_joules=50.0)])
                report = make_report(
                    job_id=job_id,
                    node=f"n{node}",
                    restart_count=attempt,
                    partition=partition,
                    decision_id=decision,
                    user_id=state.user_id,
                    started_at_seconds=started,
                    ended_at_seconds=ended + draw.choice([0.0, 1.0]),
                    host=host,
                )
                events.append(replace(report, gpus=readings))
            events.append(
                replace(
                    state,
                    restart_count=attempt,
                    partitions=(partition,),
                    started_at_seconds=started,
                    ended_at_seconds=ended,
                )
            )
    return events


def store(engine: Engine, event: Event) -> None:
    with store_session(engine) as session:
        if isinstance(event, JobState):
            upsert_jobs(session, CLUSTER, [event])
        elif isinstance(event, NodeSize):
            record_node_sizes(session, CLUSTER, [event], DAY_START)
        elif isinstance(event, NodeReport):
            arrival = Arrival(clock_offset_seconds=0.0, received_at_seconds=event.ended_at_seconds + 1.0)
            submitted = submit_time_of(session, event, arrival)
            key = JobKey(
                cluster=CLUSTER,
                job_id=JobId(event.job_id),
                submitted_at_seconds=submitted.seconds,
                restart_count=event.restart_count,
            )
            record_report(session, event, key, submit_time_known=submitted.known, arrival=arrival)
        else:
            record_decisions(session, [(event, make_request())], CLUSTER)


def roll_up(engine: Engine, now_seconds: float = MUCH_LATER, times: int = 1000) -> None:
    for _ in range(times):
        with store_session(engine) as session:
            if not roll_up_some(session, CLUSTER, now_seconds, limit=7):
                return


QUESTIONS: list[tuple[ReportKind, dict[str, Any], Sequence[ReportKind], int]] = [
    ("user", {}, (), 1),
    ("account", {}, ("qos", "partition"), 1),
    ("cluster", {"since_seconds": DAY_START, "until_seconds": DAY_START + 3 * DAY_SECONDS}, (), 6),
    ("partition", {"since_seconds": DAY_START + 1234.5, "until_seconds": DAY_START + 1.7 * DAY_SECONDS}, (), 3),
    ("user", {"user_id": 1001, "coordinated_accounts": ("history",), "since_seconds": DAY_START + 3600.0}, (), 1),
    ("qos", {"account": "physics", "until_seconds": DAY_START + 100_000.0}, ("user",), 1),
    ("account", {"partition": "a40", "user_name": "user1"}, (), 1),
    ("node", {}, (), 1),
]  # fmt: skip


def asked(engine: Engine) -> list[EnergyReport]:
    found = []
    with store_session(engine, read_only=True) as session:
        for kind, terms, also, parts in QUESTIONS:
            where = replace(EVERYTHING, **terms)
            periods: tuple[tuple[float, float], ...] = ()
            if parts > 1:
                step = (where.until_seconds - where.since_seconds) / parts  # type: ignore[operator]  # both are there
                cuts = [where.since_seconds + step * number for number in range(parts)]  # type: ignore[operator]
                periods = tuple(pairwise([*cuts, where.until_seconds]))  # type: ignore[list-item]
            found.append(report_groups(session, where, kind, also=also, periods=periods, facility=ONE_PRICE))
        found.append(replace(report_jobs(session, EVERYTHING, facility=ONE_PRICE), jobs=()))
    return found


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(one) for one in sorted(value, key=str) if one is not None]
    return pytest.approx(value, rel=1e-9, abs=1e-6) if isinstance(value, float) else value


def by_rows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[EnergyReport]:
    with monkeypatch.context() as patch:
        patch.setattr(reports, "MAX_BACKLOG", -1)
        patch.setattr(reports, "periods_with_rows", lambda _session, _cluster, periods: periods)
        return asked(engine)


def assert_equal_to_rows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for one, other in zip(asked(engine), by_rows(engine, monkeypatch), strict=True):
        groups = [
            sorted(report.groups, key=lambda row: (row.since_seconds or 0.0, row.group)) for report in (one, other)
        ]
        assert len(groups[0]) == len(groups[1])
        for row, expected in zip((*groups[0], one.total), (*groups[1], other.total), strict=True):
            assert to_plain(row) == comparable_record(to_plain(expected))


def comparable_record(document: dict[str, Any]) -> dict[str, Any]:
    return {name: comparable(value) for name, value in document.items()}


def count(engine: Engine, *terms: Any) -> int:
    with store_session(engine, read_only=True) as session:
        return session.scalar(select(func.count()).where(*terms)) or 0


@pytest.fixture
def fresh(tmp_path: Path) -> Engine:
    url = f"sqlite:///{tmp_path}/rollups.sqlite"
    upgrade(url)
    return open_engine(StoreConfig(url=url))


@pytest.mark.parametrize("seed", range(2))
def test_sums_are_those_of_rows_whenever_and_in_whatever_order_they_come(
    fresh: Engine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = events_of(seed, jobs=20)
    shuffled = [*events, *random.Random(seed).sample(events, len(events) // 2)]  # cases, not secrets
    random.Random(seed).shuffle(shuffled)  # as above
    for number, event in enumerate(shuffled):
        store(fresh, event)
        if number % 9 == 0:
            roll_up(fresh, times=1 + number % 4)
        if number == len(shuffled) // 2:
            assert_equal_to_rows(fresh, monkeypatch)
    assert_equal_to_rows(fresh, monkeypatch)
    roll_up(fresh)
    assert count(fresh, JobRow.rollup_hour > 0) > 5
    assert count(fresh, EnergyRollupRow.period_seconds == DAY_SECONDS) > 0
    assert count(fresh, RollupPeriodRow.is_stale) == 0
    assert_equal_to_rows(fresh, monkeypatch)


def statements(engine: Engine, days: int) -> tuple[int, EnergyReport]:
    """Return how many statements a report by day takes, and what it says."""
    told: list[str] = []

    def tell(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        told.append(statement)

    cuts = [DAY_START + DAY_SECONDS * number for number in range(days + 1)]
    where = replace(EVERYTHING, since_seconds=cuts[0], until_seconds=cuts[-1])
    engine_event.listen(engine, "before_cursor_execute", tell)
    with store_session(engine, read_only=True) as session:
        found = report_groups(session, where, "user", periods=tuple(pairwise(cuts)))
    engine_event.remove(engine, "before_cursor_execute", tell)
    return len(told), found


def at_day(job_id: int, day: float, **changes: Any) -> JobState:
    begin = DAY_START + day * DAY_SECONDS
    times = {"submitted_at_seconds": begin, "started_at_seconds": begin + 50.0, "ended_at_seconds": begin + 150.0}
    return make_state(job_id, **{**times, "admin_comment": "", **changes})


@pytest.mark.parametrize("rolled_up", [False, True])
def test_an_empty_day_costs_no_statement(engine: Engine, *, rolled_up: bool) -> None:
    running = {"state": "RUNNING", "ended_at_seconds": None, "exit_code": None}
    waiting = {**running, "state": "PENDING", "started_at_seconds": None, "nodes": ""}
    days = {0: {}, 2.5: {}, 4.2: running, 6.9: waiting}
    for number, (day, changes) in enumerate(days.items(), start=1):
        store(engine, at_day(number, day, **changes))
    store(engine, at_day(9, 2.6))
    begin = DAY_START + 2.6 * DAY_SECONDS
    store(
        engine,
        make_report(job_id=9, decision_id=None, started_at_seconds=begin + 50.0, ended_at_seconds=begin + 150.0),
    )
    if rolled_up:
        roll_up(engine, DAY_START + 5 * DAY_SECONDS)
    few, short = statements(engine, 8)
    many, long = statements(engine, 400)
    assert few == many
    assert short.groups == long.groups
    assert [(group.since_seconds, group.jobs) for group in long.groups] == [
        (DAY_START + day * DAY_SECONDS, jobs) for day, jobs in ((0, 1), (2, 2), (4, 1), (6, 1))
    ]
    assert long.total.jobs == 5 and long.total.gpu.joules == 20_000.25


def test_a_report_is_in_its_day_whatever_day_its_job_ended_in(engine: Engine) -> None:
    store(engine, at_day(1, 0.9, admin_comment=f"energy:{DECISION}"))
    late = DAY_START + 3.5 * DAY_SECONDS
    store(engine, make_report(job_id=1, started_at_seconds=late - 100.0, ended_at_seconds=late))
    for cluster in (CLUSTER, None):  # as a row of an older release is until it is completed
        with store_session(engine) as session:
            session.execute(update(NodeEnergyRow).values(cluster=cluster))
        _, found = statements(engine, 30)
        assert [group.since_seconds for group in found.groups] == [DAY_START + 3 * DAY_SECONDS]


def test_a_late_report_takes_its_job_out_of_the_hour_until_that_is_made_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state(
        submitted_at_seconds=DAY_START, started_at_seconds=DAY_START + 50.0, ended_at_seconds=DAY_START + 150.0
    )
    times: dict[str, Any] = {"started_at_seconds": DAY_START + 50.0, "ended_at_seconds": DAY_START + 150.0}
    for job_id in (77, 78):
        store(engine, replace(state, job_id=JobId(job_id)))
    store(engine, make_report(make_gpu(0, joules=1000.0), job_id=77, host=None, **times))
    roll_up(engine)
    assert count(engine, JobRow.rollup_hour == DAY_START) == 2
    assert_equal_to_rows(engine, monkeypatch)
    store(engine, make_report(make_gpu(1, joules=500.0), job_id=78, host=None, **times))
    assert count(engine, JobRow.rollup_hour == DAY_START) == 1
    assert count(engine, EnergyRollupRow.row_id > 0) == 0
    assert asked(engine)[0].total.gpu.joules == 1500.0
    roll_up(engine)
    assert count(engine, JobRow.rollup_hour == DAY_START) == 2
    assert asked(engine)[0].total.gpu.joules == 1500.0
    assert_equal_to_rows(engine, monkeypatch)


def test_a_job_that_was_over_less_than_an_hour_ago_is_read_from_its_rows(engine: Engine) -> None:
    store(engine, make_state())
    roll_up(engine, SUBMITTED + 150.0 + 3599.0)
    assert count(engine, JobRow.rollup_hour != 0) == 0
    roll_up(engine, SUBMITTED + 150.0 + 3601.0)
    assert count(engine, JobRow.rollup_hour > 0) == 1


def test_the_recorder_keeps_the_sums_up_beside_what_it_stores(fresh: Engine, tmp_path: Path) -> None:
    for event in events_of(12, jobs=3):
        store(fresh, event)
    config = Config(
        cluster=ClusterConfig(name=CLUSTER),
        daemon=DaemonConfig(state_directory=str(tmp_path)),
        store=StoreConfig(url=f"sqlite:///{tmp_path}/rollups.sqlite"),
    )
    loop = RecorderLoop(config, ChangedJobs(), Condition())
    loop._side_tasks(fresh)
    assert count(fresh, JobRow.rollup_hour != 0) == 3


def test_pruned_jobs_leave_the_sums_too(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        begin = DAY_START + number * 600.0
        store(
            engine,
            make_state(number + 1, submitted_at_seconds=begin, started_at_seconds=begin, ended_at_seconds=begin + 9.0),
        )
        report = make_report(job_id=number + 1, started_at_seconds=begin, ended_at_seconds=begin + 9.0)
        store(engine, report)
    roll_up(engine)
    prune(engine, CLUSTER, DAY_START + 700.0)
    assert asked(engine)[0].total.jobs == 1
    assert_equal_to_rows(engine, monkeypatch)
    roll_up(engine)
    assert_equal_to_rows(engine, monkeypatch)
    assert count(engine, EnergyRollupRow.period_seconds == HOUR_SECONDS) == 1


def test_all_sums_are_made_again_with_their_progress(fresh: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for event in events_of(11, jobs=10):
        store(fresh, event)
    told: list[tuple[int, int]] = []
    assert roll_up_waiting(fresh, MUCH_LATER, lambda done, of: told.append((done, of))) == 10
    assert told[-1] == (10, 10)
    assert_equal_to_rows(fresh, monkeypatch)
    before = sums_of(fresh)
    assert roll_up_waiting(fresh, MUCH_LATER, lambda _done, _of: None) == 0
    told.clear()
    monkeypatch.setattr(rollups, "JOBS_AT_ONCE", 1)
    forget_rollups(fresh, lambda done, of: told.append((done, of)))
    assert told[-1][0] == told[-1][1] > 1
    assert count(fresh, JobRow.rollup_hour != 0) == count(fresh, EnergyRollupRow.row_id > 0) == 0
    assert count(fresh, RollupPeriodRow.period_seconds > 0) == 0
    roll_up_waiting(fresh, MUCH_LATER, lambda _done, _of: None)
    assert sums_of(fresh) == before


def sums_of(engine: Engine) -> list[str]:
    with store_session(engine, read_only=True) as session:
        return sorted(
            str([round(value, 6) if isinstance(value, float) else value for value in row])
            for row in session.execute(select(*EnergyRollupRow.__table__.columns[1:]))
        )


def test_a_large_hour_is_opened_by_and_by_and_counts_right_meanwhile(
    fresh: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        times: dict[str, Any] = {"started_at_seconds": DAY_START + 50.0, "ended_at_seconds": DAY_START + 150.0}
        store(fresh, make_state(number + 1, submitted_at_seconds=DAY_START, **times))
        store(fresh, make_report(make_gpu(0, joules=1000.0), job_id=number + 1, host=None, **times))
    roll_up(fresh)
    store(fresh, make_report(make_gpu(1, joules=500.0), job_id=3, host=None, **times))
    in_hour = []
    for _ in range(20):
        in_hour.append(count(fresh, JobRow.rollup_hour == DAY_START))
        assert asked(fresh)[0].total.gpu.joules == 5500.0
        with store_session(fresh) as session:
            if not roll_up_some(session, CLUSTER, MUCH_LATER, limit=3):
                break
    assert in_hour[:4] == [4, 1, 0, 3]
    assert in_hour[-1] == 5
    assert_equal_to_rows(fresh, monkeypatch)


def store_day(engine: Engine, jobs: int) -> None:
    """Store jobs with reports, each in an hour of its own of one day."""
    for number in range(jobs):
        begin = DAY_START + number * 3600.0
        times: dict[str, Any] = {"started_at_seconds": begin + 50.0, "ended_at_seconds": begin + 150.0}
        store(engine, make_state(number + 1, submitted_at_seconds=begin, **times))
        store(engine, make_report(make_gpu(0, joules=1000.0), job_id=number + 1, host=None, **times))


def beside_uncommitted(engine: Engine, first: Callable[[Any], Any], second: Callable[[], Any]) -> None:
    """Let a second process begin when the first has done its work and not committed yet."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            second()
        except BaseException as error:
            failed.append(error)

    other = threading.Thread(target=run)
    with store_session(engine) as session:
        first(session)
        other.start()
        time.sleep(0.5)
    other.join(240.0)
    assert not other.is_alive()
    assert not failed


def test_two_processes_that_make_one_day_make_it_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store_day(engine, jobs=3)
    for _ in range(2):
        run_in_transaction(engine, lambda session: roll_up_some(session, CLUSTER, DAY_START + 80_000.0))
    assert count(engine, EnergyRollupRow.period_seconds == DAY_SECONDS) == 0
    beside_uncommitted(
        engine,
        lambda session: roll_up_some(session, CLUSTER, MUCH_LATER),
        lambda: run_in_transaction(engine, lambda session: roll_up_some(session, CLUSTER, MUCH_LATER)),
    )
    assert count(engine, EnergyRollupRow.period_seconds == DAY_SECONDS) == 1
    assert asked(engine)[0].total.gpu.joules == 3000.0
    assert_equal_to_rows(engine, monkeypatch)


def test_all_sums_are_made_again_beside_a_process_that_makes_a_day(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_day(engine, jobs=3)
    for _ in range(2):
        run_in_transaction(engine, lambda session: roll_up_some(session, CLUSTER, DAY_START + 80_000.0))
    beside_uncommitted(
        engine,
        lambda session: roll_up_some(session, CLUSTER, MUCH_LATER),
        lambda: forget_rollups(engine, lambda _done, _of: None),
    )
    assert count(engine, EnergyRollupRow.row_id > 0) == 0
    assert_equal_to_rows(engine, monkeypatch)
    roll_up_waiting(engine, MUCH_LATER, lambda _done, _of: None)
    assert asked(engine)[0].total.gpu.joules == 3000.0


def test_a_job_of_an_hour_without_its_row_takes_the_others_out_too(engine: Engine) -> None:
    store_day(engine, jobs=1)
    with store_session(engine) as session:
        session.execute(update(JobRow).values(rollup_hour=DAY_START, counted_until_seconds=DAY_START + 150.0))
    store(engine, make_report(make_gpu(1, joules=500.0), job_id=1, host=None))
    assert count(engine, RollupPeriodRow.is_stale) == 1


def test_a_job_of_the_first_hour_of_1970_is_rolled_up_once(fresh: Engine) -> None:
    store(fresh, make_state(1, submitted_at_seconds=10.0, started_at_seconds=20.0, ended_at_seconds=30.0))
    roll_up(fresh)
    assert count(fresh, JobRow.rollup_hour == IN_NO_HOUR) == 1
    assert count(fresh, EnergyRollupRow.row_id > 0) == 0


def test_an_hour_has_one_row_of_a_group_however_often_jobs_are_added(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        begin = DAY_START + number * 300.0
        times: dict[str, Any] = {"started_at_seconds": begin + 50.0, "ended_at_seconds": begin + 150.0}
        account = f"a{number % 2}"
        store(engine, make_state(number + 1, submitted_at_seconds=begin, account=account, **times))
        store(engine, make_report(make_gpu(0, joules=1000.0), job_id=number + 1, host=None, **times))
        roll_up(engine, begin + 4000.0)
    assert count(engine, JobRow.rollup_hour == DAY_START) == 6
    assert count(engine, EnergyRollupRow.row_id > 0) == 2
    assert_equal_to_rows(engine, monkeypatch)


def test_jobs_that_never_end_are_put_aside_until_they_do(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for job_id, state in ((1, "RUNNING"), (2, "VANISHED"), (3, "PENDING")):
        started = {"started_at_seconds": None} if state == "PENDING" else {"started_at_seconds": DAY_START + 50.0}
        no_end: dict[str, Any] = {"ended_at_seconds": None, "state": state, **started}
        store(engine, make_state(job_id, submitted_at_seconds=DAY_START, **no_end))
    times: dict[str, Any] = {"started_at_seconds": DAY_START + 50.0, "ended_at_seconds": DAY_START + 7000.0}
    store(engine, make_report(make_gpu(0, joules=1000.0), job_id=2, host=None, decision_id=None, **times))
    roll_up(engine, DAY_START + 29 * DAY_SECONDS)
    assert count(engine, JobRow.rollup_hour != 0) == 0
    roll_up(engine, DAY_START + 31 * DAY_SECONDS)
    assert count(engine, JobRow.rollup_hour == IN_NO_HOUR) == 3
    assert asked(engine)[0].total.jobs == 3
    assert_equal_to_rows(engine, monkeypatch)
    late = DAY_START + 31.0 * DAY_SECONDS
    store(engine, make_state(1, submitted_at_seconds=DAY_START, started_at_seconds=late - 9.0, ended_at_seconds=late))
    assert count(engine, JobRow.rollup_hour == 0) == 1
    roll_up(engine, late + 3601.0)
    assert count(engine, JobRow.rollup_hour > 0) == 1
    assert_equal_to_rows(engine, monkeypatch)


def test_what_changes_nothing_leaves_the_hour_as_it_is(engine: Engine) -> None:
    store_day(engine, jobs=1)
    again = {"submitted_at_seconds": DAY_START + 0.5 * DAY_SECONDS, "state": "PENDING", "started_at_seconds": None}
    times: dict[str, Any] = {"started_at_seconds": DAY_START + 50.0, "ended_at_seconds": DAY_START + 150.0}
    roll_up(engine)
    store(engine, make_state(1, submitted_at_seconds=DAY_START, **times))
    store(engine, make_report(make_gpu(0, joules=1000.0), job_id=1, host=None, **times))
    store(engine, make_state(1, ended_at_seconds=None, **again))  # another job of the number
    assert count(engine, RollupPeriodRow.is_stale) == 0
    assert count(engine, JobRow.rollup_hour == DAY_START) == 1
    store(engine, make_state(1, submitted_at_seconds=DAY_START, exit_code=3, **times))
    assert count(engine, RollupPeriodRow.is_stale) == 1
