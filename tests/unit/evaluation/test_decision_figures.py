import json
from dataclasses import asdict
from typing import Any

import pytest

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.decision_speed.figures import (
    DecisionBench,
    DurationSpread,
    InProcess,
    MeasuredHost,
    ProcessMemory,
    ThroughDaemon,
    goals_of,
    growth,
    spread_of,
)
from slurm_energy.evaluation.decision_speed.in_process import asked_jobs
from slurm_energy.wire.messages import parse_submitted_job


def make_spread(median: float, p99: float = 4.5) -> DurationSpread:
    return DurationSpread(runs=100, median=median, p99=p99, largest=99.0)


def make_in_process(nodes: int = 16, both: float = 4.0, **changes: Any) -> InProcess:
    settings: dict[str, Any] = {name: make_spread(2.0) for name in ("decision", "change", "peer")}
    settings |= dict.fromkeys(("changes_per_second", "reading_seconds", "rebuild_seconds", "minute_seconds"), 1.0)
    settings |= {"nodes": nodes, "gpus": 6 * nodes, "jobs": 9, "threads": 1, "network_share": 1.0}
    return InProcess(**{**settings, "together": make_spread(both), **changes})


def make_through_daemon(nodes: int = 256, **changes: Any) -> ThroughDaemon:
    memory = (
        ProcessMemory(name="daemon", peak_megabytes=40.0, proportional_megabytes=30.0),
        ProcessMemory(name="policy", peak_megabytes=410.0, proportional_megabytes=400.0),
    )
    settings: dict[str, Any] = {"nodes": nodes, "gpus": 6 * nodes, "jobs": 9, "policy": "gnn", "threads": 1}
    settings |= {"exchange": make_spread(2.0), "learned_share": 1.0, "network_share": 1.0, "snapshots": 3}
    settings |= {"first_answer_seconds": 0.5, "first_decision_seconds": 6.0, "memory": memory}
    return ThroughDaemon(**{**settings, **changes})


def make_bench(in_process: tuple[InProcess, ...] = (), daemon: tuple[ThroughDaemon, ...] = ()) -> DecisionBench:
    return DecisionBench(
        created_at_seconds=0.0,
        machine=MeasuredHost(cpu_cores=2, processor="p", load=0.5, versions={}),
        changes_per_second=32.0,
        pending=200,
        queue=10_000,
        interval_seconds=2.0,
        in_process=in_process,
        through_daemon=daemon,
    )


def test_the_99th_percentile_is_the_value_that_99_of_100_do_not_pass() -> None:
    hundred = [number / 1000.0 for number in range(100, 0, -1)]
    found = spread_of(hundred)
    assert (found.runs, found.p99, found.largest) == (100, 99.0, 100.0)
    assert found.median == pytest.approx(50.5)
    assert spread_of([*hundred, 0.101]).p99 == 100.0
    assert spread_of([0.003]) == DurationSpread(runs=1, median=3.0, p99=3.0, largest=3.0)


def test_nothing_measured_is_an_error_and_no_zero() -> None:
    with pytest.raises(EvaluationError, match="nothing was measured"):
        spread_of([])


def test_growth_is_against_the_base_size_with_as_many_threads() -> None:
    rows = (
        make_in_process(16, 4.0),
        make_in_process(256, 6.0),
        make_in_process(16, 2.0, threads=2),
        make_in_process(256, 5.0, threads=2),
        make_in_process(256, 5.0, threads=3),
    )
    assert [growth(rows, row) for row in rows] == [1.0, 1.5, 1.0, 2.5, None]


def test_a_worker_s_figures_come_back_from_json() -> None:
    for row in (make_in_process(), make_in_process(peer=None)):
        assert InProcess.parse(json.loads(json.dumps(asdict(row)))) == row


def test_goals_are_met_at_their_bound_and_missed_beyond() -> None:
    rows = (make_in_process(16, 4.0), make_in_process(256, 6.0), make_in_process(4096, 12.1, rebuild_seconds=2.5))
    daemons = (
        make_through_daemon(256),
        make_through_daemon(4096, first_decision_seconds=10.5, exchange=make_spread(9.0, 80.0)),
    )
    found = {goal.what: goal.met for goal in goals_of(make_bench(rows, daemons))}
    assert found == {
        "change and decision at 256 nodes over 16 nodes, 1 thread": True,
        "change and decision at 4,096 nodes over 16 nodes, 1 thread": False,
        "state from nothing at 4,096 nodes, 1 thread": False,
        "99 of 100 decisions over the socket at 256 nodes": True,
        "peak memory of all processes at 256 nodes": True,
        "start to the first answer of the policy at 256 nodes": True,
        "peak memory of all processes at 4,096 nodes": True,
        "start to the first answer of the policy at 4,096 nodes": False,
    }


def test_memory_is_the_sum_of_all_processes_and_unknown_where_one_is() -> None:
    whole = make_through_daemon()
    assert (whole.peak_megabytes, whole.proportional_megabytes) == (450.0, 430.0)
    part = make_through_daemon(memory=(*whole.memory, ProcessMemory(name="recorder", peak_megabytes=70.0)))
    assert (part.peak_megabytes, part.proportional_megabytes) == (520.0, None)
    document = make_bench(daemon=(whole, part)).document()
    assert [row["peak_megabytes"] for row in document["through_daemon"]] == [450.0, 520.0]


def test_the_daemon_and_the_policy_alone_are_asked_the_same() -> None:
    for job in asked_jobs():
        submitted, request = parse_submitted_job(job.fields()), job.request()
        assert submitted.complaints == ()
        assert submitted.user_id == request.user_id
        assert submitted.name == request.name
        assert submitted.time_limit_minutes == request.time_limit_minutes
        assert submitted.tres_per_node == f"gres:gpu:{request.gpu_count}"
        assert submitted.mode == request.options.mode
        assert submitted.max_slowdown == pytest.approx(request.options.max_slowdown)
