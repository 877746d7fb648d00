"""Make a database of millions of energy rows, and measure what people and the daemon ask of it.

The rows are multiplied inside the database from one that the store's own functions wrote, over a year: 200 users in 20
accounts, 2,000 job names, 4 partitions, 3 QOS, 256 nodes, one to four GPUs a job.

    python -m research.benchmarks.volume make sqlite:////tmp/volume.sqlite --gpu-rows 10000000
    python -m research.benchmarks.volume measure sqlite:////tmp/volume.sqlite
    python -m research.benchmarks.volume burst sqlite:////tmp/volume.sqlite
"""

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import median

from sqlalchemy import text

from slurm_energy.config import StoreConfig
from slurm_energy.domain.cluster import JobState, NodeSize
from slurm_energy.domain.decision import ClockChoice, EnergyDecision, Reason, RuntimeEstimate
from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, HostEnergy, JobKey, NodeReport
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.energy_model.facility import Facility
from slurm_energy.store.decisions import record_decisions
from slurm_energy.store.energy import record_report, record_reports
from slurm_energy.store.explain import explain
from slurm_energy.store.job_rows import Arrival
from slurm_energy.store.jobs import get_job, upsert_jobs
from slurm_energy.store.nodes import record_node_sizes
from slurm_energy.store.reports import report_groups, report_jobs
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import Engine, Session, open_engine, run_in_transaction, store_session
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.upkeep import optimize

CLUSTER = ClusterName("volume")
END_SECONDS = 1_790_000_000.0
SPAN_SECONDS = 365 * 86_400.0
BATCH_LINES = 200
"""As many as the recorder stores in one transaction."""
GPUS_PER_REPORT = 2.5
"""Mean of one to four."""
ROWS_AT_ONCE = 500_000
FIRST_JOB = 1_000
_A100 = GpuTypeName("a100-sxm4-80gb")
_RANDOM_INDEXES = (
    "ix_job_cluster_user_id_name",
    "ix_decision_cluster_user_id_decided_at_seconds",
    "ix_node_energy_cluster_job_account_counted_at_seconds",
    "ix_node_energy_cluster_job_user_id_counted_at_seconds",
)
"""In whose order rows do not come: made again at the end, which is quicker."""


def record_template(engine: Engine) -> None:
    """Store one job with its decision and its report of four GPUs, as the daemon would."""
    submitted = END_SECONDS - SPAN_SECONDS
    decision_id = DecisionId("d0000000")
    choice = ClockChoice(
        gpu_type=_A100,
        sm_clock_mhz=1275,
        default_clock_mhz=1410,
        predicted_slowdown=0.03,
        predicted_energy_change=-0.1,
        power_limit_watts=400.0,
    )
    decision = EnergyDecision(
        decision_id=decision_id,
        policy="oracle",
        policy_version="1",
        mode=EnergyMode.BALANCED,
        decided_at_seconds=submitted,
        partitions=(PartitionName("p0"),),
        clocks=(choice,),
        prefer=None,
        reasons=(Reason.POLICY,),
        notes=(),
        estimate=RuntimeEstimate(seconds=600.0, upper_seconds=900.0, source="history", gpu_type=_A100),
        snapshot_age_seconds=1.0,
        message="a100 at 1275 of 1410 MHz",
    )
    request = JobRequest(
        user_id=1000,
        user_name="u0",
        name="n0",
        partitions=(PartitionName("p0"),),
        time_limit_minutes=60.0,
        gpus=(GpuDemand(count=1, slurm_type="a100"),),
        options=EnergyOptions(mode=EnergyMode.BALANCED, max_slowdown=0.05),
        submitted_at_seconds=submitted,
    )
    state = JobState(
        job_id=JobId(FIRST_JOB),
        user_name="u0",
        user_id=1000,
        name="n0",
        state="COMPLETED",
        partitions=(PartitionName("p0"),),
        submitted_at_seconds=submitted,
        started_at_seconds=submitted + 50.0,
        ended_at_seconds=submitted + 650.0,
        account="a0",
        qos="q0",
        time_limit_minutes=60.0,
        nodes="node000",
        node_count=1,
        gpu_count=4,
        cpus=8,
        priority=1,
        exit_code=0,
        admin_comment=f"energy:{decision_id}",
    )
    with store_session(engine) as session:
        record_decisions(session, [(decision, request)], CLUSTER, {})
        upsert_jobs(session, CLUSTER, (state,))
        sizes = [NodeSize(name=NodeName(f"node{number:03d}"), cpus=64, gpus=4) for number in range(256)]
        record_node_sizes(session, CLUSTER, sizes, submitted)
        report = burst_report(FIRST_JOB, submitted + 50.0, submitted + 650.0, "node000", 4)
        key = JobKey(cluster=CLUSTER, job_id=JobId(FIRST_JOB), submitted_at_seconds=submitted, restart_count=0)
        record_report(session, report, key)


def burst_report(job_id: int, started: float, ended: float, node: str, gpus: int) -> NodeReport:
    """Return a report as a node's epilog makes it."""
    readings = tuple(
        GpuEnergy(
            gpu_uuid=GpuUuid(f"GPU-00000000-0000-0000-0000-{node}{number:05d}"),
            gpu_name="NVIDIA A100-SXM4-80GB",
            gpu_type=_A100,
            joules=250.0 * (ended - started),
            reason=None,
            source=EnergySource.COUNTER,
            scope=EnergyScope.GPU,
            coverage_seconds=ended - started,
            counter_joules=250.0 * (ended - started),
            polled_joules=249.0 * (ended - started),
            asked_clock_mhz=1275,
            applied_clock_mhz=1275,
            observed_clock_mhz=1270.0,
            default_clock_mhz=1410,
            utilisation=0.8,
        )
        for number in range(gpus)
    )
    host = HostEnergy(joules=50.0 * (ended - started), reason=None, coverage_seconds=ended - started, node_joules=3e5)
    return NodeReport(
        cluster=CLUSTER,
        job_id=JobId(job_id),
        restart_count=0,
        node=NodeName(node),
        user_id=1000,
        partition=PartitionName("p0"),
        decision_id=None,
        started_at_seconds=started,
        ended_at_seconds=ended,
        time_scale=1.0,
        gpus=readings,
        host=host,
        exit_code=0,
        events=(),
    )


def make(engine: Engine, gpu_rows: int) -> None:
    """Fill an empty database."""
    upgrade(engine)
    record_template(engine)
    jobs = int(gpu_rows / GPUS_PER_REPORT)
    step = SPAN_SECONDS / jobs
    is_sqlite = engine.url.get_backend_name() == "sqlite"
    with engine.connect() as connection:
        indexes: list[str] = []
        if is_sqlite:
            names = "', '".join(_RANDOM_INDEXES)
            found = f"SELECT sql FROM sqlite_master WHERE name IN ('{names}')"
            indexes = list(connection.execute(text(found)).scalars())
            connection.rollback()
            for name in _RANDOM_INDEXES:
                connection.execute(text(f"DROP INDEX IF EXISTS {name}"))
            connection.commit()
        for begin in range(1, jobs, ROWS_AT_ONCE):
            end = min(begin + ROWS_AT_ONCE, jobs)
            for statement in _statements(connection, begin, end, step):
                connection.execute(text(statement))
            connection.commit()
            print(f"{end} of {jobs} jobs", flush=True)
        for table in () if is_sqlite else ("job", "node_energy", "gpu_energy"):  # rows came with their numbers
            of_table = f"pg_get_serial_sequence('{table}', 'row_id')"
            connection.execute(text(f"SELECT setval({of_table}, (SELECT max(row_id) FROM {table}))"))
        for statement in indexes:
            connection.execute(text(statement))
        connection.commit()
    optimize(engine)


def _statements(connection: object, begin: int, end: int, step: float) -> list[str]:
    is_sqlite = connection.dialect.name == "sqlite"  # type: ignore[attr-defined]  # SQLAlchemy's connection
    numbers = (
        f"WITH RECURSIVE n(i) AS (SELECT {begin} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {end})"
        if is_sqlite
        else f"WITH n AS (SELECT generate_series({begin}, {end - 1}) AS i)"
    )
    at = f"i * {step!r}"

    def text_of(prefix: str, modulus: int) -> str:
        return f"'{prefix}' || (i % {modulus})"

    node = "'node' || " + ("printf('%03d', i % 256)" if is_sqlite else "to_char(i % 256, 'FM000')")
    gpus = "1 + i % 4"

    def copied(table: str, changed: dict[str, str], source: str, extra: str = "") -> str:
        query = f"SELECT * FROM {table} LIMIT 0"
        names = list(connection.execute(text(query)).keys())  # type: ignore[attr-defined]  # the same
        columns = ", ".join(f'"{name}"' for name in names)
        values = ", ".join(changed.get(name, f't."{name}"') for name in names)
        return f"INSERT INTO {table} ({columns}) {numbers} SELECT {values} FROM n, {source}{extra}"

    submitted = f"t.submitted_at_seconds + {at}"
    job = {
        "row_id": "i + 1",
        "job_id": f"{FIRST_JOB} + i",
        "submitted_at_seconds": submitted,
        "user_id": "1000 + i % 200",
        "user_name": text_of("u", 200),
        "name": text_of("n", 2000),
        "account": text_of("a", 20),
        "qos": text_of("q", 3),
        "partition": text_of("p", 4),
        "started_at_seconds": f"t.started_at_seconds + {at}",
        "ended_at_seconds": f"t.ended_at_seconds + {at}",
        "nodes": node,
        "gpu_count": gpus,
        "decision_id": "'d' || i",
    }
    attempt = {
        "job_row_id": "i + 1",
        "submitted_at_seconds": submitted,
        "partition": text_of("p", 4),
        "nodes": node,
        "started_at_seconds": f"t.started_at_seconds + {at}",
        "ended_at_seconds": f"t.ended_at_seconds + {at}",
    }
    share = f"({gpus}) / 4.0"
    energy = {
        "row_id": "i + 1",
        "job_row_id": "i + 1",
        "node": node,
        "user_id": "1000 + i % 200",
        "partition": text_of("p", 4),
        "decision_id": "'d' || i",
        "started_at_seconds": f"t.started_at_seconds + {at}",
        "ended_at_seconds": f"t.ended_at_seconds + {at}",
        "counted_at_seconds": f"t.counted_at_seconds + {at}",
        "job_account": text_of("a", 20),
        "job_user_id": "1000 + i % 200",
        "gpu_readings": gpus,
    } | {
        name: f"t.{name} * {share}"
        for name in (
            "gpu_joules", "gpu_covered_seconds", "gpu_window_seconds", "gpu_timing_squares", "saving_joules",
            "saving_low_joules", "saving_high_joules", "idle_gpu_joules", "used_seconds", "watched_seconds",
        )
    }  # fmt: skip
    gpu = {"row_id": "4 * i + t.row_id", "node_energy_row_id": "i + 1", "gpu_uuid": f"t.gpu_uuid || ({node})"}
    decision = {
        "decision_id": "'d' || i",
        "decided_at_seconds": f"t.decided_at_seconds + {at}",
        "user_id": "1000 + i % 200",
        "user_name": text_of("u", 200),
        "job_name": text_of("n", 2000),
    }
    first = "(SELECT * FROM {} WHERE {} = {}) t"
    return [
        copied("job", job, first.format("job", "row_id", 1)),
        copied("job_attempt", attempt, first.format("job_attempt", "job_row_id", 1)),
        copied("node_energy", energy, first.format("node_energy", "row_id", 1)),
        copied("gpu_energy", gpu, first.format("gpu_energy", "node_energy_row_id", 1), f" WHERE t.row_id <= {gpus}"),
        copied("decision", decision, first.format("decision", "decision_id", "'d0000000'")),
        copied(
            "decision_clock",
            {"decision_id": "'d' || i"},
            first.format("decision_clock", "decision_id", "'d0000000'"),
        ),
    ]


def _of(**terms: object) -> JobFilter:
    return JobFilter(cluster=CLUSTER, **terms)  # type: ignore[arg-type]  # the names are its fields


def questions() -> dict[str, Callable[[Session], object]]:
    """Return what is asked, by name."""
    month = {"since_seconds": END_SECONDS - 61 * 86_400.0, "until_seconds": END_SECONDS - 31 * 86_400.0}
    bounds = tuple(pairwise(END_SECONDS - day * 86_400.0 for day in range(61, 30, -1)))
    priced = Facility(pue=1.3)
    job = JobId(FIRST_JOB + 1_234)
    return {
        "month of one account": lambda session: report_groups(
            session, _of(account="a7", **month), "user", facility=priced
        ),
        "month of one account by day": lambda session: report_groups(
            session, _of(account="a7", **month), "account", periods=bounds
        ),
        "month of all accounts": lambda session: report_groups(session, _of(**month), "account"),
        "month of the cluster by day": lambda session: report_groups(session, _of(**month), "cluster", periods=bounds),
        "one user's own month": lambda session: report_groups(session, _of(user_id=1007, **month), "user"),
        "month of one user by name": lambda session: report_groups(session, _of(user_name="u7", **month), "user"),
        "one job": lambda session: report_jobs(session, _of(job_id=job)),
        "explain": lambda session: explain(session, CLUSTER, job),
    }


def measure(engine: Engine, repeats: int) -> None:
    """Print how long each question takes."""
    for name, question in questions().items():
        times = []
        for _ in range(repeats):
            with store_session(engine, read_only=True) as session:
                began, cpu = time.perf_counter(), time.process_time()
                question(session)
                times.append((time.perf_counter() - began, time.process_time() - cpu))
        wall, processor = ([pair[part] for pair in times] for part in (0, 1))
        print(
            f"{name:32s} median {1e3 * median(wall):9.1f} ms, longest {1e3 * max(wall):9.1f} ms, "
            f"CPU of this process {1e3 * median(processor):9.1f} ms"
        )


def burst(engine: Engine, jobs: int, readers: int) -> None:
    """Store the ends and reports of so many jobs as the recorder does, while others ask for a month of all accounts."""
    over = threading.Event()
    answered = [0] * readers

    def read(number: int) -> None:
        question = questions()["month of one account"]
        while not over.is_set():
            with store_session(engine, read_only=True) as session:
                question(session)
            answered[number] += 1

    threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    with store_session(engine, read_only=True) as session:
        state = get_job(session, CLUSTER, JobId(FIRST_JOB))
    assert state is not None
    first = 1_000_000_000 + int(time.time()) % 1_000_000 * 1_000
    began, thread_cpu, longest = time.perf_counter(), time.thread_time(), 0.0
    for begin in range(0, jobs, BATCH_LINES):
        at = time.perf_counter()
        numbers = range(first + begin, first + min(begin + BATCH_LINES, jobs))

        def work(session: Session, numbers: range = numbers) -> None:
            states = [
                replace(
                    state,
                    job_id=JobId(number),
                    submitted_at_seconds=END_SECONDS,
                    started_at_seconds=END_SECONDS + 50.0,
                    ended_at_seconds=END_SECONDS + 650.0,
                )
                for number in numbers
            ]
            upsert_jobs(session, CLUSTER, states)
            arrival = Arrival(clock_offset_seconds=0.0, received_at_seconds=END_SECONDS + 651.0)
            reports = [
                burst_report(number, END_SECONDS + 50.0, END_SECONDS + 650.0, "node000", 2) for number in numbers
            ]
            record_reports(session, [(report, arrival) for report in reports])

        run_in_transaction(engine, work)
        longest = max(longest, time.perf_counter() - at)
    wall, cpu = time.perf_counter() - began, time.thread_time() - thread_cpu
    over.set()
    for thread in threads:
        thread.join()
    print(
        f"{jobs} ends with {readers} readers: {wall:.1f} s, {1e3 * cpu / jobs:.1f} ms CPU of the writing thread a job, "
        f"longest transaction {longest:.2f} s, {sum(answered)} reports answered in that time"
    )


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("make", "measure", "burst"))
    parser.add_argument("url")
    parser.add_argument("--gpu-rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--readers", type=int, default=5)
    arguments = parser.parse_args()
    engine = open_engine(StoreConfig(url=arguments.url))
    if arguments.command == "make":
        make(engine, arguments.gpu_rows)
    elif arguments.command == "burst":
        burst(engine, arguments.jobs, arguments.readers)
    else:
        measure(engine, arguments.repeats)


if __name__ == "__main__":
    main()
