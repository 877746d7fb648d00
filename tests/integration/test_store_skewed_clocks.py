"""Whatever the clocks of the nodes, the order of arrival and the reuse of numbers: one row for each job."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import CLUSTER, SUBMITTED, make_gpu, make_key, make_report, make_state, pending

from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import DecisionId, JobId
from slurm_energy.store.energy import record_report
from slurm_energy.store.job_rows import Arrival, submit_time_of
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.reports import job_energy
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import Session, open_engine, store_session

NUMBER = JobId(77)
SKEWS = st.one_of(st.floats(-400.0, 400.0), st.floats(-1e6, 1e6), st.just(-SUBMITTED))
JOBS = st.lists(
    st.tuples(SKEWS, SKEWS, st.sampled_from(["decision", "age", "both"]), st.booleans()), min_size=1, max_size=3
)
"""Of each job with the same number: the skews of its two nodes, what its reports know, whether Slurm's word is last."""
SPACING_SECONDS = 100_000.0


def deliver(session: Session, number: int, node: int, skew: float, knows: str) -> None:
    """Store the report of one node, twice, as the recorder does."""
    started = SUBMITTED + number * SPACING_SECONDS + 50.0
    report = make_report(
        make_gpu(node, joules=1000.0 * (number + 1), counter_joules=None, polled_joules=None),
        node=f"gpu00{node}",
        decision_id=None if knows == "age" else DecisionId(f"d000000{number}"),
        started_at_seconds=max(0.0, started + skew),
        ended_at_seconds=max(0.0, started + skew) + 100.0,
    )
    offset = None if knows == "decision" else started - report.started_at_seconds
    arrival = Arrival(clock_offset_seconds=offset, received_at_seconds=started + 110.0)
    for _ in range(2):
        when = submit_time_of(session, report, arrival)
        key = make_key(NUMBER, when.seconds)
        record_report(session, report, key, submit_time_known=when.known, arrival=arrival)


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("skew") / "empty.sqlite"
    upgrade(f"sqlite:///{path}")
    return path


@given(jobs=JOBS)
def test_every_job_has_one_row_with_the_energy_of_its_nodes(
    empty_database: Path, jobs: list[tuple[float, float, str, bool]]
) -> None:
    path = Path(shutil.copy(empty_database, empty_database.with_name("e.sqlite")))
    engine = open_engine(StoreConfig(url=f"sqlite:///{path}"))
    with store_session(engine) as session:
        for number, (*skews, knows, slurm_is_last) in enumerate(jobs):
            submitted = SUBMITTED + number * SPACING_SECONDS
            state = make_state(
                NUMBER,
                submitted_at_seconds=submitted,
                started_at_seconds=submitted + 50.0,
                ended_at_seconds=submitted + 150.0,
                nodes="gpu00[1-2]",
                node_count=2,
                admin_comment="" if knows == "age" else f"energy:d000000{number}",
            )
            if not slurm_is_last:
                upsert_jobs(session, CLUSTER, [pending(state)])
                upsert_jobs(session, CLUSTER, [replace(state, state="RUNNING", ended_at_seconds=None)])
            for node, skew in enumerate(skews, start=1):
                deliver(session, number, node, skew, knows)
            upsert_jobs(session, CLUSTER, [state])
        found = {job.submitted_at_seconds: job for job in job_energy(session, CLUSTER, NUMBER)}
    engine.dispose()
    assert sorted(found) == [SUBMITTED + number * SPACING_SECONDS for number in range(len(jobs))]
    for number in range(len(jobs)):
        job = found[SUBMITTED + number * SPACING_SECONDS]
        assert (job.submit_time_known, job.gpu.joules) == (True, 2000.0 * (number + 1))
        assert (job.wait_seconds, job.run_seconds) == (50.0, 100.0)
