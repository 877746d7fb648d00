"""What must hold of any jobs: sums are never negative, add up, and do not depend on the order in which things come."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine
from store_samples import (
    CLUSTER,
    SUBMITTED,
    make_decision,
    make_gpu,
    make_report,
    make_request,
    make_state,
    unknown_gpu,
)

from slurm_energy.config import StoreConfig
from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.energy import HostEnergy, JobKey, NodeReport
from slurm_energy.domain.ids import DecisionId, JobId, PartitionName
from slurm_energy.domain.report import REPORT_KINDS, EnergyReport
from slurm_energy.energy_model.facility import Facility, StepSeries
from slurm_energy.store.decisions import record_decisions
from slurm_energy.store.energy import record_report
from slurm_energy.store.job_rows import Arrival, submit_time_of
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.reports import report_groups, report_jobs
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import open_engine, store_session
from slurm_energy.store.summaries import JobFilter

Event = JobState | NodeReport | EnergyDecision
EVERYTHING = JobFilter(cluster=CLUSTER)
FACILITY = Facility(
    pue=1.3,
    price=StepSeries((0.0, SUBMITTED + 900.0, SUBMITTED + 2500.0), (0.1, 0.3, 0.2), SUBMITTED + 1e9),
    currency="EUR",
)
JOBS = 12


def a_site(seed: int) -> list[Event]:
    """Return decisions, states and reports of jobs of all kinds, in the order in which they happen."""
    draw = random.Random(seed)  # cases, not secrets
    events: list[Event] = []
    for job_id in range(1, JOBS + 1):
        begin = SUBMITTED + 300.0 * job_id
        decision = DecisionId(f"d{job_id:07d}")
        nodes, gpus = draw.choice([1, 1, 2]), draw.choice([0, 1, 3])
        state = make_state(
            job_id,
            submitted_at_seconds=begin,
            user_id=1000 + job_id % 3,
            user_name=f"user{job_id % 3}",
            account=draw.choice(["physics", "history", None]),
            qos=draw.choice(["normal", "high"]),
            name=f"job{job_id % 4}",
            nodes="n[1-2]" if nodes == 2 else "n1",
            node_count=nodes,
            gpu_count=nodes * gpus,
            admin_comment=f"energy:{decision}",
        )
        events.append(make_decision(decision, decided_at_seconds=begin))
        for attempt in range(draw.choice([1, 1, 2])):
            partition = PartitionName(draw.choice(["a100", "a40"]))
            started, ended = begin + 50.0 + 200.0 * attempt, begin + 150.0 + 200.0 * attempt
            for node in range(1, nodes + 1):
                readings = [
                    draw.choice(
                        [
                            make_gpu(
                                number, joules=draw.uniform(0.0, 4e4), utilisation=draw.choice([None, 0.0, 0.5, 1.0])
                            ),
                            unknown_gpu(number),
                        ]
                    )
                    for number in range(10 * node, 10 * node + gpus)
                ]
                host = draw.choice([None, HostEnergy(joules=5.0, reason=None, coverage_seconds=99.0, node_joules=50.0)])
                report = make_report(
                    job_id=job_id,
                    node=f"n{node}",
                    restart_count=attempt,
                    partition=partition,
                    decision_id=decision,
                    user_id=state.user_id,
                    started_at_seconds=started,
                    ended_at_seconds=ended,
                    host=host,
                )
                events.append(replace(report, gpus=tuple(readings)))
            final = replace(
                state,
                restart_count=attempt,
                partitions=(partition,),
                started_at_seconds=started,
                ended_at_seconds=ended,
            )
            events.append(final)
    return events


def store(engine: Engine, events: list[Event]) -> None:
    """Store events one by one, as the recorder does."""
    for event in events:
        with store_session(engine) as session:
            if isinstance(event, JobState):
                upsert_jobs(session, CLUSTER, [event])
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


def reports(engine: Engine) -> dict[str, EnergyReport]:
    with store_session(engine, read_only=True) as session:
        found = {
            kind: report_groups(session, EVERYTHING, kind, facility=FACILITY) for kind in REPORT_KINDS if kind != "job"
        }
        return {**found, "job": report_jobs(session, EVERYTHING, facility=FACILITY)}


@pytest.fixture
def fresh(tmp_path: Path) -> "list[Engine]":
    engines = []
    for number in range(2):
        url = f"sqlite:///{tmp_path}/{number}.sqlite"
        upgrade(url)
        engines.append(open_engine(StoreConfig(url=url)))
    return engines


@pytest.mark.parametrize("seed", range(4))
def test_any_order_and_repetition_gives_the_same_reports(fresh: list[Engine], seed: int) -> None:
    events = a_site(seed)
    store(fresh[0], events)
    shuffled = [*events, *events]
    random.Random(seed).shuffle(shuffled)  # cases, not secrets
    # What Slurm says of an earlier attempt comes before what it says of a later one: it is one stream.
    shuffled = [event for event in shuffled if not isinstance(event, JobState)]
    for state in (event for event in events if isinstance(event, JobState)):
        shuffled.insert(random.Random(state.job_id + seed).randrange(len(shuffled) + 1), state)  # as above
    order = {id(event): at for at, event in enumerate(shuffled)}
    states = sorted(
        (event for event in events if isinstance(event, JobState)),
        key=lambda state: (state.job_id, state.restart_count),
    )
    places = sorted(order[id(state)] for state in states)
    for place, state in zip(places, states, strict=True):
        shuffled[place] = state
    store(fresh[1], shuffled)
    one, other = reports(fresh[0]), reports(fresh[1])
    for kind in REPORT_KINDS:
        assert as_compared(one[kind]) == as_compared(other[kind]), kind


def as_compared(report: EnergyReport) -> object:
    rows = report.jobs or report.groups
    return [
        (
            getattr(row, "job_id", None) or getattr(row, "group", None),
            row.gpu.readings,
            row.gpu.unknown_readings,
            pytest.approx(row.gpu.joules),
            pytest.approx(row.host.joules),
            pytest.approx(row.saving_joules),
            pytest.approx(row.use.cost),
        )
        for row in (*rows, report.total)
    ]


@pytest.mark.parametrize("seed", range(4, 8))
def test_parts_add_up_to_the_whole_in_every_dimension_and_nothing_is_negative(fresh: list[Engine], seed: int) -> None:
    events = a_site(seed)
    store(fresh[0], events)
    measured = sum(
        gpu.joules for event in events if isinstance(event, NodeReport) for gpu in event.gpus if gpu.joules is not None
    )
    for kind, report in reports(fresh[0]).items():
        rows = report.jobs or report.groups
        assert report.total.gpu.joules == pytest.approx(measured)
        for name in ("gpu", "host"):
            sums = [getattr(row, name) for row in rows]
            total = getattr(report.total, name)
            assert sum(one.joules or 0.0 for one in sums) == pytest.approx(total.joules or 0.0), kind
            assert sum(one.readings for one in sums) == total.readings
            assert sum(one.unknown_readings for one in sums) == total.unknown_readings
            assert all(one.joules is None or one.joules >= 0.0 for one in sums)
            assert all(one.coverage_share is None or 0.0 <= one.coverage_share <= 1.0 for one in sums)
        assert sum(row.use.cost or 0.0 for row in rows) == pytest.approx(report.total.use.cost)
        assert sum(row.saving_joules or 0.0 for row in rows) == pytest.approx(report.total.saving_joules or 0.0)
        for row in rows:
            idle = row.use.idle_gpu_joules
            assert idle is None or 0.0 <= idle <= (row.gpu.joules or 0.0) + 1e-6
            assert row.saving_joules is None or row.saving_joules <= (row.gpu.joules or 0.0)
