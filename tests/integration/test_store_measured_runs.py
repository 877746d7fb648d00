"""Runs whose energy is known without doubt, on every database."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from store_samples import (
    A100,
    CLUSTER,
    HOSTILE_NAME,
    SUBMITTED,
    make_decision,
    make_gpu,
    make_key,
    make_report,
    make_request,
    make_state,
    record_decision,
    unknown_gpu,
)

from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, QualityFlag
from slurm_energy.domain.ids import ClusterName, GpuTypeName, JobId
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.store.decisions import get_decision
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.past_runs import all_recent_runtimes, failed_runs, measured_runs
from slurm_energy.store.reports import job_energy
from slurm_energy.store.session import run_in_transaction, store_session

pytest_plugins = ["database_fixtures"]

A40 = GpuTypeName("a40")
ESTIMATE = RuntimeEstimate(seconds=95.0, upper_seconds=120.0, source="history", gpu_type=A100)
DEFAULT_CLOCK: dict[str, Any] = {"asked_clock_mhz": None, "applied_clock_mhz": None}


def store(engine: Engine, *gpus: GpuEnergy, job_id: int = 77, report: dict[str, Any] | None = None, **job: Any) -> None:
    """Store a job and one node's report of its last attempt."""
    state = make_state(job_id, **{"gpu_count": max(1, len(gpus)), **job})
    run_in_transaction(engine, lambda session: upsert_jobs(session, CLUSTER, (state,)))
    with store_session(engine) as session:
        message = make_report(*gpus, job_id=job_id, restart_count=state.restart_count, **(report or {}))
        key = make_key(job_id, SUBMITTED, state.restart_count)
        record_report(session, message, key, submit_time_known=True)


def decide(engine: Engine, **changes: Any) -> None:
    with store_session(engine) as session:
        record_decision(session, make_decision(**changes), make_request(), CLUSTER)


def found(engine: Engine, **bounds: Any) -> list[MeasuredRun]:
    with store_session(engine, read_only=True) as session:
        return list(measured_runs(session, CLUSTER, SUBMITTED, **bounds))


def test_a_run_at_the_decided_clock_is_brought_to_the_default_clock(engine: Engine) -> None:
    decide(engine)
    store(engine)
    (run,) = found(engine)
    assert (run.user, run.name, run.gpu_type, run.gpus) == (1000, "train", A100, 1)
    assert run.ended_at_seconds == SUBMITTED + 150.0
    assert run.slowed == 0.05  # at most, so that half of it is taken off
    assert run.seconds == pytest.approx(100.0 / 1.025)
    assert run.watts * run.seconds == pytest.approx(20_000.25 / 0.8)


def test_runs_carry_what_their_scripts_share(engine: Engine) -> None:
    scripts = {1: ScriptFeatures(model="bert"), 2: ScriptFeatures(model="resnet50"), 3: ScriptFeatures(), 4: None}
    for job_id, script in scripts.items():
        name, estimate = f"00000000000000a{job_id}", replace(ESTIMATE, runs=7)
        with store_session(engine) as session:
            record_decision(session, make_decision(name, estimate=estimate), make_request(script=script), CLUSTER)
            stored = get_decision(session, name)
        assert stored is not None and (stored.asked.script, stored.estimate) == (script, estimate)
        store(engine, make_gpu(job_id, **DEFAULT_CLOCK), job_id=job_id, admin_comment=f"energy:{name}")
        gpu = make_gpu(job_id, **DEFAULT_CLOCK)
        store(engine, gpu, job_id=100 + job_id, admin_comment=f"energy:{name}", state="FAILED")
    keys = sorted(script.key for script in scripts.values() if script is not None and script.key)
    assert sorted(run.script_key or "" for run in found(engine)) == ["", "", *keys]
    with store_session(engine, read_only=True) as session:
        samples = list(all_recent_runtimes(session, CLUSTER, SUBMITTED, 1))
        failures = list(failed_runs(session, CLUSTER, SUBMITTED))
    assert sorted(sample.script_key or "" for sample in samples) == ["", *keys]
    assert sorted((one.script_key or "", one.runs) for one in failures) == [("", 2), *((key, 1) for key in keys)]


def test_what_an_assumed_curve_predicts_is_no_saving(engine: Engine) -> None:
    for job_id, is_assumed in ((1, False), (2, True)):
        name, (clock,) = f"00000000000000b{job_id}", make_decision().clocks
        decide(engine, decision_id=name, clocks=(replace(clock, is_assumed=is_assumed),))
        store(engine, make_gpu(job_id), job_id=job_id, admin_comment=f"energy:{name}")
        with store_session(engine, read_only=True) as session:
            stored = get_decision(session, name)
            (record,) = job_energy(session, CLUSTER, JobId(job_id))
        assert stored is not None and stored.clocks[0].is_assumed is is_assumed
        assert (record.saving_joules is None) is is_assumed


def test_a_run_at_the_default_clock_counts_as_it_is(engine: Engine) -> None:
    store(engine, make_gpu(**DEFAULT_CLOCK), job_id=1)
    store(engine, make_gpu(1, asked_clock_mhz=1410, applied_clock_mhz=1410), job_id=2)
    assert [(run.seconds, run.watts) for run in found(engine)] == [(100.0, 200.0025), (100.0, 200.0025)]


def test_power_is_that_of_one_gpu_of_all_nodes(engine: Engine) -> None:
    state = make_state(gpu_count=4, node_count=2)
    run_in_transaction(engine, lambda session: upsert_jobs(session, CLUSTER, (state,)))
    for node, joules in (("gpu001", 10_000.0), ("gpu002", 30_000.0)):
        gpus = [make_gpu(number, joules=joules, **DEFAULT_CLOCK) for number in range(2)]
        with store_session(engine) as session:
            record_report(session, make_report(*gpus, node=node), make_key(), submit_time_known=True)
    (run,) = found(engine)
    assert (run.gpus, run.seconds) == (4, 100.0)
    assert run.watts == pytest.approx(200.0)


def test_power_is_the_devices_own_in_a_laboratory_that_runs_faster(engine: Engine) -> None:
    store(engine, make_gpu(coverage_seconds=1000.0, joules=200_000.0, **DEFAULT_CLOCK), report={"time_scale": 10.0})
    (run,) = found(engine)
    assert (run.seconds, run.watts) == (100.0, 200.0)


@pytest.mark.parametrize("flag", sorted(QualityFlag))
def test_only_flags_that_leave_the_energy_of_the_run_sound_are_let_through(engine: Engine, flag: QualityFlag) -> None:
    store(engine, make_gpu(flags=(flag,), **DEFAULT_CLOCK))
    harmless = {
        QualityFlag.COUNTER_UNSUPPORTED,
        QualityFlag.CLOCK_REFUSED,
        QualityFlag.CLOCK_UNVERIFIED,
        QualityFlag.CLOCK_IGNORED,  # such a row has no applied clock, and the clock that was seen is compared
        QualityFlag.RESTORE_FAILED,
        QualityFlag.NO_PERMISSION,
        QualityFlag.RAPL_WRAP_UNOBSERVED,
        QualityFlag.NODE_SHARED,
        QualityFlag.SUBMIT_TIME_UNKNOWN,
    }
    assert len(found(engine)) == (flag in harmless)


@pytest.mark.parametrize(
    "gpus",
    [
        (unknown_gpu(),),
        (make_gpu(**DEFAULT_CLOCK), unknown_gpu(1)),
        (make_gpu(**DEFAULT_CLOCK), make_gpu(1, gpu_type=A40, **DEFAULT_CLOCK)),
        (make_gpu(**DEFAULT_CLOCK), make_gpu(1, gpu_type=None, **DEFAULT_CLOCK)),
        (make_gpu(source=EnergySource.MODEL, **DEFAULT_CLOCK),),
        (make_gpu(scope=EnergyScope.MIG_ESTIMATE, **DEFAULT_CLOCK),),
        (make_gpu(scope=EnergyScope.SHARED_ESTIMATE, **DEFAULT_CLOCK),),
        (make_gpu(coverage_seconds=80.0, **DEFAULT_CLOCK),),
        (make_gpu(joules=0.0, **DEFAULT_CLOCK),),
        (make_gpu(applied_clock_mhz=900),),
    ],
    ids=["unknown", "one unknown", "two types", "a type without name", "modelled", "slice", "shared", "not covered",
         "nothing drawn", "a clock that nobody decided"],
)  # fmt: skip
def test_a_run_that_is_not_wholly_known_is_left_out(engine: Engine, gpus: tuple[GpuEnergy, ...]) -> None:
    store(engine, *gpus)
    assert found(engine) == []


@pytest.mark.parametrize(
    "job",
    [
        {"state": "FAILED"},
        {"state": "TIMEOUT"},
        {"suspended_seconds": 10.0},
        {"gpu_count": 2},
        {"gpu_count": None},
        {"ended_at_seconds": SUBMITTED + 50.0},
        {"submitted_at_seconds": SUBMITTED - 1e6, "ended_at_seconds": SUBMITTED - 1.0},
    ],
    ids=str,
)
def test_a_job_that_did_not_run_through_is_left_out(engine: Engine, job: dict[str, Any]) -> None:
    store(engine, make_gpu(**DEFAULT_CLOCK), **job)
    assert found(engine) == []


def test_a_clock_of_the_users_own_says_nothing(engine: Engine) -> None:
    decide(engine, clocks=(), reasons=(Reason.POLICY, Reason.USER_CLOCK))
    store(engine, make_gpu(**DEFAULT_CLOCK))
    assert found(engine) == []


def test_the_newest_runs_of_each_type_are_kept_and_other_clusters_are_not_ours(engine: Engine) -> None:
    for number in range(5):
        gpu_type = A40 if number == 0 else A100
        ended = SUBMITTED + 150.0 + number / 10
        store(engine, make_gpu(gpu_type=gpu_type, **DEFAULT_CLOCK), job_id=number + 1, ended_at_seconds=ended)
    assert [(run.gpu_type, round(run.ended_at_seconds - SUBMITTED, 1)) for run in found(engine, limit_per_type=2)] == [
        (A100, 150.4),
        (A100, 150.3),
        (A40, 150.0),
    ]
    with store_session(engine, read_only=True) as session:
        assert list(measured_runs(session, ClusterName("other"), SUBMITTED)) == []


def test_of_a_requeued_job_the_last_attempt_counts(engine: Engine) -> None:
    store(engine, make_gpu(**DEFAULT_CLOCK), state="NODE_FAIL")
    store(
        engine,
        make_gpu(joules=30_000.0, **DEFAULT_CLOCK),
        restart_count=1,
        started_at_seconds=SUBMITTED + 200.0,
        ended_at_seconds=SUBMITTED + 300.0,
        report={"started_at_seconds": SUBMITTED + 200.0, "ended_at_seconds": SUBMITTED + 300.0},
    )
    (run,) = found(engine)
    assert (run.seconds, run.watts) == (100.0, 300.0)


def test_a_hostile_name_is_a_name(engine: Engine) -> None:
    store(engine, make_gpu(**DEFAULT_CLOCK), name=HOSTILE_NAME)
    assert [run.name for run in found(engine)] == [HOSTILE_NAME.replace("\x00", "\\x00").replace("\udcff", "\\xff")]


def test_a_gpu_seen_far_below_its_default_clock_was_set_by_somebody(engine: Engine) -> None:
    store(engine, make_gpu(observed_clock_mhz=1290.0, **DEFAULT_CLOCK), job_id=1)
    store(engine, make_gpu(1, observed_clock_mhz=900.0, **DEFAULT_CLOCK), job_id=2)
    store(engine, make_gpu(2, observed_clock_mhz=None, **DEFAULT_CLOCK), job_id=3)
    assert len(found(engine)) == 2


@pytest.mark.parametrize(
    ("state", "counts"),
    [("FAILED", 1), ("OUT_OF_MEMORY", 1), ("TIMEOUT", 1), ("COMPLETED", 0), ("CANCELLED", 0), ("NODE_FAIL", 0)],
)
def test_failures_are_counted_by_name_and_type(engine: Engine, state: str, counts: int) -> None:
    store(engine, make_gpu(**DEFAULT_CLOCK), job_id=1, state=state)
    store(engine, make_gpu(1, gpu_type=A40), make_gpu(2, **DEFAULT_CLOCK), job_id=2, state=state)
    store(engine, make_gpu(3, gpu_type=None), job_id=3, state=state)
    with store_session(engine, read_only=True) as session:
        rows = list(failed_runs(session, CLUSTER, SUBMITTED))
        before = list(failed_runs(session, CLUSTER, SUBMITTED + 1e6))
    assert rows == [FailedRuns(user=1000, name="train", gpu_type=A100, runs=1)] * counts
    assert before == []
