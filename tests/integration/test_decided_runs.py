"""What jobs measured of the clocks that they ran at, apart from what was predicted of them."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from store_samples import (
    A100,
    CLUSTER,
    DECISION,
    SUBMITTED,
    make_decision,
    make_gpu,
    make_key,
    make_report,
    make_request,
    make_state,
    record_decision,
)

from slurm_energy.domain.energy import GpuEnergy, QualityFlag
from slurm_energy.domain.job import EnergyMode
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.estimation.decided_runs import DecidedRun
from slurm_energy.estimation.job_history import ended_run
from slurm_energy.estimation.limit_habits import LimitHabits
from slurm_energy.store.decided_runs import decided_runs
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.past_runs import all_recent_runtimes
from slurm_energy.store.session import store_session

pytest_plugins = ["database_fixtures"]


def fill(engine: Engine, *gpus: GpuEnergy, trials: tuple[ClockTrial, ...] = (), **changes: Any) -> None:
    decided = {"mode": changes.pop("mode")} if "mode" in changes else {}
    with store_session(engine) as session:
        record_decision(session, make_decision(**decided), make_request(), CLUSTER)
        upsert_jobs(session, CLUSTER, [make_state(77, admin_comment=f"energy:{DECISION}", **changes)])
        report = make_report(*gpus, job_id=77, decision_id=DECISION, trials=trials)
        record_report(session, report, make_key(77))


def read(engine: Engine) -> list[DecidedRun]:
    with store_session(engine, read_only=True) as session:
        return list(decided_runs(session, CLUSTER, SUBMITTED))


def trial(clock_mhz: int, slowdown: float, **changes: Any) -> ClockTrial:
    made = ClockTrial(
        gpu_type=A100, sm_clock_mhz=clock_mhz, default_clock_mhz=1410, at_seconds=60.0, watts=200.0,
        default_watts=250.0, slowdown=slowdown, error=0.01, kept=True, source="power",
    )  # fmt: skip
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("applied_mhz", "trials", "slowdown", "is_measured"),
    [
        (1275, (), 0.05, False),
        (1275, (trial(1275, 0.09),), 0.09, True),
        (1275, (trial(1275, 0.09, reason="before the job changed"),), 0.05, False),
        (1200, (trial(1275, 0.03), trial(1200, 0.12)), 0.12, True),
        (None, (trial(1275, 0.09, kept=False),), 0.0, False),
    ],
)
def test_a_job_that_measured_its_own_clock_counts_by_that_also_where_it_kept_another_than_was_decided(
    engine: Engine, applied_mhz: int | None, trials: tuple[ClockTrial, ...], slowdown: float, *, is_measured: bool
) -> None:
    fill(engine, make_gpu(applied_clock_mhz=applied_mhz), trials=trials)
    (run,) = read(engine)
    assert run.slowdown == pytest.approx(slowdown)
    assert (run.is_measured, run.is_slowed) == (is_measured, applied_mhz is not None)
    assert run.gpu_seconds == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("gpu", "changes"),
    [
        ({"applied_clock_mhz": 1200}, {}),
        ({"flags": frozenset({QualityFlag.RESCUED})}, {}),
        ({}, {"mode": EnergyMode.OBSERVE}),
        ({}, {"state": "FAILED"}),
    ],
)
def test_a_run_whose_clock_is_not_known_or_was_not_decided_here_says_nothing(
    engine: Engine, gpu: dict[str, Any], changes: dict[str, Any]
) -> None:
    fill(engine, make_gpu(**gpu), **changes)
    assert read(engine) == []


@pytest.mark.parametrize(
    ("applied_mhz", "trials", "slowdown"), [(1275, (), 0.05), (1200, (trial(1200, 0.12),), 0.12), (None, (), 0.0)]
)
def test_a_run_that_its_limit_cut_off_is_known_with_the_clock_that_it_had(
    engine: Engine, applied_mhz: int | None, trials: tuple[ClockTrial, ...], slowdown: float
) -> None:
    fill(
        engine,
        make_gpu(applied_clock_mhz=applied_mhz),
        trials=trials,
        state="TIMEOUT",
        time_limit_minutes=100.0 / 60.0,
    )
    with store_session(engine, read_only=True) as session:
        (sample,) = all_recent_runtimes(session, CLUSTER, SUBMITTED)
    run = ended_run(sample)
    assert run.slowdown == pytest.approx(slowdown) and run.real_seconds == pytest.approx(100.0)
    habits = LimitHabits.of([run])
    assert list(habits.highest.values()) == [1.0]
    assert all(part / 1000 == pytest.approx(1.0 / (1.0 + slowdown), abs=0.001) for part in habits.counts)
