"""Figures of measurements for tests."""

from typing import Any

from slurm_energy.evaluation.decision_speed.figures import (
    DecisionBench,
    DurationSpread,
    InProcess,
    MeasuredHost,
    ProcessMemory,
    ThroughDaemon,
)


def make_spread(median: float = 2.0, p99: float = 4.0) -> DurationSpread:
    return DurationSpread(runs=100, median=median, p99=p99, largest=9.0)


def make_in_process(nodes: int = 16, both: float = 4.0, **changes: Any) -> InProcess:
    settings: dict[str, Any] = {
        "nodes": nodes,
        "gpus": 6 * nodes,
        "jobs": 250,
        "threads": 1,
        "decision": make_spread(),
        "change": make_spread(),
        "together": make_spread(both),
        "changes_per_second": 32.0,
        "reading_seconds": 0.01,
        "rebuild_seconds": 0.5,
        "minute_seconds": 0.2,
        "network_share": 1.0,
        "peer": make_spread(60.0),
        "peer_vertices": 100,
        "peer_edges": 1000,
    }
    return InProcess(**{**settings, **changes})


def make_through_daemon(nodes: int = 256, **changes: Any) -> ThroughDaemon:
    settings: dict[str, Any] = {
        "nodes": nodes,
        "gpus": 6 * nodes,
        "jobs": 10_000,
        "policy": "gnn",
        "threads": 1,
        "exchange": make_spread(2.0, 4.5),
        "learned_share": 0.995,
        "network_share": 1.0,
        "snapshots": 12,
        "first_answer_seconds": 0.4,
        "first_decision_seconds": 6.0,
        "memory": (
            ProcessMemory(name="daemon", peak_megabytes=40.0, proportional_megabytes=30.0),
            ProcessMemory(name="policy", peak_megabytes=410.0, proportional_megabytes=400.0),
        ),
    }
    return ThroughDaemon(**{**settings, **changes})


def make_bench(in_process: tuple[InProcess, ...] = (), daemon: tuple[ThroughDaemon, ...] = ()) -> DecisionBench:
    return DecisionBench(
        created_at_seconds=1_800_000_000.0,
        machine=MeasuredHost(cpu_cores=2, processor="A processor", load=0.5, versions={"Python": "3.11.2"}),
        changes_per_second=32.0,
        pending=200,
        queue=10_000,
        interval_seconds=2.0,
        in_process=in_process,
        through_daemon=daemon,
    )
