"""Slowdown against where Slurm would have started jobs, and what named partitions cost: by user, and never a guess."""

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy import text as sql
from store_samples import (
    A100,
    CLUSTER,
    DECISION,
    make_decision,
    make_gpu,
    make_key,
    make_report,
    make_request,
    make_state,
    record_decision,
    unknown_gpu,
)

from slurm_energy.domain.bounds_report import OpenReport, SlowdownReport
from slurm_energy.domain.decision import OpenOffer, SlowdownBasis
from slurm_energy.domain.energy import GpuEnergy, QualityFlag
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.domain.report import decode_record, encode_record
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.store.bounds import report_open, report_slowdown
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.session import store_session
from slurm_energy.store.summaries import JobFilter

pytest_plugins = ["database_fixtures"]
EVERYTHING = JobFilter(cluster=CLUSTER)
HOME = SlowdownBasis(bound=0.05, type_bound=0.05, type_slowdowns={A100: 0.0})
OFFER = OpenOffer(partition=PartitionName("a40"), energy_change=-0.25, source="runs of this name")


def fill(
    engine: Engine,
    *gpus: GpuEnergy,
    job_id: int = 77,
    user: str = "ada",
    partition: str = "a100",
    trials: tuple[ClockTrial, ...] = (),
    **decided: Any,
) -> None:
    decision_id = f"{DECISION}{job_id}"
    with store_session(engine) as session:
        record_decision(session, make_decision(decision_id, **decided), make_request(user_name=user), CLUSTER)
        state = make_state(
            job_id, user_name=user, partitions=(PartitionName(partition),), admin_comment=f"energy:{decision_id}"
        )
        upsert_jobs(session, CLUSTER, [state])
        report = make_report(*gpus, job_id=job_id, decision_id=decision_id, trials=trials)
        record_report(session, report, make_key(job_id))


def slowdown(engine: Engine, where: JobFilter = EVERYTHING) -> SlowdownReport:
    with store_session(engine, read_only=True) as session:
        return report_slowdown(session, where)


def left_open(engine: Engine) -> OpenReport:
    with store_session(engine, read_only=True) as session:
        return report_open(session, EVERYTHING)


def trial(slowdown: float, *, kept: bool = True) -> ClockTrial:
    return ClockTrial(
        gpu_type=A100, sm_clock_mhz=1275, default_clock_mhz=1410, at_seconds=60.0, watts=200.0, default_watts=250.0,
        slowdown=slowdown, error=0.01, kept=kept, source="power",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("basis", "mean", "beyond"),
    [
        (HOME, 0.05, 0),
        (SlowdownBasis(bound=0.04, type_bound=0.05, type_slowdowns={A100: 0.0}), 0.05, 1),
        (SlowdownBasis(bound=0.05, type_bound=0.05, type_slowdowns={A100: 0.2}), 0.26, 1),
        (SlowdownBasis(bound=0.3, type_slowdowns={A100: 0.2}), 0.26, 0),
        (SlowdownBasis(bound=0.2, type_slowdowns={A100: 0.2}), 0.26, 1),
    ],
    ids=["kept", "clock beyond", "type beyond", "both inside one bound", "both beyond one bound"],
)
def test_each_job_is_held_against_its_own_bounds_from_where_slurm_would_have_started_it(
    engine: Engine, basis: SlowdownBasis, mean: float, beyond: int
) -> None:
    fill(engine, slowdown=basis)
    total = slowdown(engine).total
    assert (total.jobs, total.known_jobs, total.measured_jobs, total.beyond_jobs) == (1, 1, 0, beyond)
    assert total.mean_slowdown == pytest.approx(mean)


SLOWER = SlowdownBasis(bound=0.05, type_bound=0.05, type_slowdowns={A100: 1.0})


@pytest.mark.parametrize(
    ("changes", "partition", "beyond", "by_slurm", "mean"),
    [
        ({"mode": EnergyMode.OBSERVE, "partitions": None, "prefer": None, "clocks": ()}, "a100", 0, 1, 0.0),
        ({"partitions": None, "prefer": None, "clocks": ()}, "a100", 0, 1, 0.0),
        ({"partitions": (PartitionName("h100"),), "prefer": None, "clocks": ()}, "a100", 0, 1, 0.0),
        ({"partitions": (PartitionName("a100"),), "prefer": None, "clocks": ()}, "a100", 1, 0, 1.0),
        ({"partitions": None, "clocks": ()}, "a100", 1, 0, 1.0),
    ],
    ids=["observed", "nothing named", "another one named", "named", "preferred nodes"],
)
def test_what_slurm_did_by_itself_is_not_laid_to_the_decision(
    engine: Engine, changes: dict[str, Any], partition: str, beyond: int, by_slurm: int, mean: float
) -> None:
    fill(engine, make_gpu(applied_clock_mhz=None), partition=partition, slowdown=SLOWER, **changes)
    total = slowdown(engine).total
    assert (total.known_jobs, total.beyond_jobs, total.moved_jobs) == (1, beyond, by_slurm)
    assert total.mean_slowdown == pytest.approx(mean)


def test_a_clock_beyond_its_bound_counts_also_where_slurm_chose_the_place(engine: Engine) -> None:
    basis = SlowdownBasis(bound=0.02, type_bound=0.05, type_slowdowns={A100: 1.0})
    fill(engine, slowdown=basis, partitions=None, prefer=None)
    assert (slowdown(engine).total.beyond_jobs, slowdown(engine).total.moved_jobs) == (1, 0)


@pytest.mark.parametrize("text", ['{"bound":"wide"}', '"?"', '{"partition":7}', '{"bound":'])
def test_a_damaged_row_is_counted_as_not_known_and_ends_no_report(engine: Engine, text: str) -> None:
    fill(engine, slowdown=HOME, offer=OFFER)
    fill(engine, job_id=78, slowdown=HOME, offer=OFFER)
    with store_session(engine) as session:
        session.execute(
            sql("UPDATE decision SET slowdown = :text, open_offer = :text WHERE decision_id = :id"),
            {"text": text, "id": f"{DECISION}78"},
        )
    total = slowdown(engine).total
    assert (total.jobs, total.known_jobs) == (2, 1)
    offers = left_open(engine).total
    assert (offers.named_jobs, offers.unknown_jobs) == (2, 1)


def test_what_the_job_itself_measured_stands_before_what_was_predicted(engine: Engine) -> None:
    fill(engine, slowdown=HOME, trials=(trial(0.12),))
    total = slowdown(engine).total
    assert (total.measured_jobs, total.beyond_jobs) == (1, 1)
    assert total.mean_slowdown == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("gpu", "basis"),
    [
        (make_gpu(), None),
        (make_gpu(gpu_type=None), HOME),
        (make_gpu(), SlowdownBasis(bound=0.05, type_slowdowns={})),
        (make_gpu(applied_clock_mhz=900), HOME),
        (make_gpu(flags=(QualityFlag.RESCUED,)), HOME),
    ],
    ids=["older decision", "unknown type", "types that do not compare", "another clock", "clock given back"],
)
def test_a_slowdown_that_is_not_known_is_counted_and_not_taken_for_none(
    engine: Engine, gpu: GpuEnergy, basis: SlowdownBasis | None
) -> None:
    fill(engine, gpu, slowdown=basis)
    total = slowdown(engine).total
    assert (total.jobs, total.known_jobs, total.beyond_share, total.mean_slowdown) == (1, 0, None, None)


def test_the_default_clock_slows_nothing_down(engine: Engine) -> None:
    fill(engine, make_gpu(applied_clock_mhz=None), slowdown=HOME)
    assert slowdown(engine).total.mean_slowdown == 0.0


def test_users_have_rows_of_their_own_and_see_no_others(engine: Engine) -> None:
    fill(engine, slowdown=HOME)
    fill(engine, job_id=78, user="bob", slowdown=HOME)
    assert [group.user for group in slowdown(engine).groups] == ["ada", "bob"]
    only = slowdown(engine, JobFilter(cluster=CLUSTER, user_name="bob"))
    assert ([group.user for group in only.groups], only.total.jobs) == (["bob"], 1)
    assert decode_record(SlowdownReport, encode_record(only)) == only


def test_what_a_named_partition_cost_is_its_measured_energy_times_the_predicted_share(engine: Engine) -> None:
    fill(engine, make_gpu(joules=8000.0), offer=OFFER)
    fill(engine, make_gpu(joules=4000.0), job_id=78, offer=OFFER)
    fill(engine, make_gpu(joules=4000.0), job_id=79, opens=True)
    fill(engine, make_gpu(joules=4000.0), job_id=80)
    found = left_open(engine)
    assert (found.total.named_jobs, found.total.opened_jobs, found.total.left_joules) == (2, 1, 3000.0)
    assert decode_record(OpenReport, encode_record(found)) == found


def test_energy_that_is_not_known_as_a_whole_is_counted_and_not_summed(engine: Engine) -> None:
    fill(engine, make_gpu(joules=8000.0), unknown_gpu(1), offer=OFFER)
    total = left_open(engine).total
    assert (total.named_jobs, total.unknown_jobs, total.left_joules) == (1, 1, 0.0)


def test_an_offer_of_free_gpus_that_saves_nothing_is_no_energy(engine: Engine) -> None:
    offer = OpenOffer(partition=PartitionName("a40"), energy_change=0.0, source="data sheets", named_has_room=False)
    fill(engine, offer=offer)
    total = left_open(engine).total
    assert (total.named_jobs, total.free_elsewhere_jobs, total.left_joules) == (1, 1, 0.0)
