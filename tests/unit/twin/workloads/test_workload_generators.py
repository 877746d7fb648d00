import time
from math import log, pi, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processor_speed import slowness

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Job, Workload, check_job
from slurm_energy.twin.workloads.generating import Setting
from slurm_energy.twin.workloads.matrix import MATRIX_SIDES
from slurm_energy.twin.workloads.registry import create_workload, workload_names, workload_settings

SHORT: dict[str, dict[str, Setting]] = {
    "poisson": {"hours": 6},
    "daily": {"hours": 6},
    "inference": {"hours": 0.02},
    "matrix": {"hours": 2},
    "graphs": {"hours": 5},
    "deadlines": {"hours": 6},
    "mixed": {"hours": 6},
}


def made(name: str, seed: int = 1, **given: Setting) -> Workload:
    return create_workload(name, {**SHORT[name], **given}, seed)


def as_rows(workload: Workload) -> list[Any]:
    return [(job.job_id, job.submitted_seconds, job.true_units, job.kind, job.gpu_counts) for job in workload.jobs]


@pytest.mark.parametrize("name", workload_names())
def test_seed_decides_everything(name: str) -> None:
    assert as_rows(made(name)) == as_rows(made(name))
    assert as_rows(made(name)) != as_rows(made(name, seed=2))


@pytest.mark.parametrize("name", workload_names())
def test_jobs_are_good_unique_and_in_the_order_of_submission(name: str) -> None:
    jobs = made(name).jobs
    assert len(jobs) > 20
    for job in jobs:
        check_job(job)
    assert [job.job_id for job in jobs] == list(range(1, len(jobs) + 1))
    times = [job.submitted_seconds for job in jobs]
    assert times == sorted(times)
    hours = float(SHORT[name]["hours"])
    assert 0.0 < times[0] <= times[-1] <= hours * 3600.0


@pytest.mark.parametrize("name", ["poisson", "daily", "inference", "matrix"])
def test_sizes_do_not_move_with_the_rate(name: str) -> None:
    rate = float(workload_settings(name)["rate_per_second"])
    few, many = made(name), made(name, rate_per_second=2.0 * rate)
    assert len(many.jobs) > 1.5 * len(few.jobs)
    assert [job.true_units for job in few.jobs] == [job.true_units for job in many.jobs[: len(few.jobs)]]


def test_one_ingress_does_not_move_the_others() -> None:
    both = made("poisson", ingresses=2, rates_per_second="0.02,0.01")
    other = made("poisson", ingresses=2, rates_per_second="0.02,0.05")
    first = [[job.submitted_seconds for job in workload.jobs if job.ingress == 0] for workload in (both, other)]
    assert first[0] == first[1]
    assert sum(job.ingress == 1 for job in other.jobs) > 3 * sum(job.ingress == 1 for job in both.jobs)


def test_poisson_defaults_are_those_of_the_published_world() -> None:
    jobs = create_workload("poisson", {}, 123).jobs
    assert abs(len(jobs) - 96_768) < 4 * sqrt(96_768)
    logs = np.log([job.true_units for job in jobs])
    assert logs.mean() == pytest.approx(log(50_000), abs=4 * 0.4 / sqrt(len(jobs)))
    assert logs.std() == pytest.approx(0.4, rel=0.01)
    assert np.bincount([job.ingress for job in jobs]) == pytest.approx(np.full(8, 12_096), abs=4 * sqrt(12_096))
    assert {(job.kind, job.gpu_counts) for job in jobs} == {("training", (1, 2, 3, 4, 5, 6, 7, 8))}


def test_a_week_of_the_published_world_is_made_quickly() -> None:
    best = min(_cpu_seconds() for _ in range(3))
    assert best < 0.6 * slowness()


def _cpu_seconds() -> float:
    begun = time.process_time()
    create_workload("poisson", {}, 5)
    return time.process_time() - begun


def test_gaps_of_poisson_arrivals_are_exponential() -> None:
    times = np.array(
        [job.submitted_seconds for job in create_workload("poisson", {"ingresses": 1, "hours": 300}, 3).jobs]
    )
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(50.0, rel=0.03)
    assert gaps.std() == pytest.approx(50.0, rel=0.04)
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(0.0, abs=0.04)


def test_daily_rate_follows_its_sine_and_keeps_its_mean() -> None:
    jobs = create_workload("daily", {"ingresses": 1, "rate_per_second": 0.2, "amplitude": 0.8, "hours": 240}, 4).jobs
    times = np.array([job.submitted_seconds for job in jobs])
    assert len(times) == pytest.approx(0.2 * 240 * 3600, rel=0.01)
    phases = 2.0 * pi * times / 86_400.0
    assert 2.0 * np.sin(phases).mean() == pytest.approx(0.8, abs=0.02)
    assert 2.0 * np.cos(phases).mean() == pytest.approx(0.0, abs=0.02)


def test_ingresses_of_later_zones_peak_later() -> None:
    jobs = create_workload("daily", {"ingresses": 2, "amplitude": 0.9, "hours": 240, "shift_hours": 6.0}, 4).jobs
    phases = [2.0 * pi * np.array([job.submitted_seconds for job in jobs if job.ingress == i]) / 86_400 for i in (0, 1)]
    angles = [np.angle(np.exp(1j * phase).sum()) for phase in phases]
    assert (angles[1] - angles[0]) * 24.0 / (2.0 * pi) % 24.0 == pytest.approx(6.0, abs=0.3)


def test_amplitude_above_one_leaves_a_part_of_the_period_without_jobs() -> None:
    jobs = create_workload("daily", {"ingresses": 1, "amplitude": 5.0, "hours": 96}, 1).jobs
    assert max(np.diff([job.submitted_seconds for job in jobs])) > 0.35 * 86_400.0


def test_inference_sizes_have_a_pareto_tail() -> None:
    sizes = np.array([job.true_units for job in create_workload("inference", {"hours": 0.5}, 9).jobs])
    assert sizes.min() >= 1.0
    for edge in (2.0, 5.0, 20.0):
        assert (sizes > edge).mean() == pytest.approx(edge**-1.8, rel=0.1)


def test_matrix_workload_has_every_kind_in_its_share() -> None:
    jobs = create_workload("matrix", {"hours": 48}, 2).jobs
    shares = {kind: sum(job.kind == kind for job in jobs) / len(jobs) for kind in {job.kind for job in jobs}}
    assert set(shares) == {*(f"matrix-{side}" for side in range(200, 2000, 200)), "training", "scientific", "analytics"}
    assert shares["training"] == pytest.approx(0.2, abs=0.02)
    assert [shares[f"matrix-{side}"] for side in MATRIX_SIDES] == pytest.approx([0.5 / 9] * 9, abs=0.01)
    assert {job.gpu_counts for job in jobs if job.kind == "scientific"} == {(1,), (2,), (4,)}
    assert {job.gpu_counts for job in jobs if job.kind == "training"} == {(1, 2, 3, 4)}


def test_matrix_jobs_do_the_same_operations_whatever_their_size() -> None:
    jobs = create_workload(
        "matrix", {"hours": 4, "size_sigma": 0.0, "matrix_share": 1.0, "training_share": 0.0}, 2
    ).jobs
    operations = {job.kind: job.true_units * 2.0 * int(job.kind[7:]) ** 3 for job in jobs if "matrix" in job.kind}
    assert list(operations.values()) == pytest.approx([300e12] * 9)


def graph_of(shape: str, **given: Setting) -> list[Job]:
    given = {"hours": 5, "shapes": shape, "size_sigma": 0.0, "kinds": "training", **given}
    jobs = create_workload("graphs", given, 1).jobs
    return [job for job in jobs if job.name == f"{shape}-1"]


def test_batch_parallel_splits_works_and_gathers() -> None:
    split, *parts, gather = graph_of("batch-parallel", width=3, input_gigabytes=6.0, edge_gigabytes=0.5)
    assert (split.after_ok, split.input_gigabytes) == ((), 6.0)
    assert [(part.after_ok, part.input_gigabytes) for part in parts] == [((split.job_id,), 2.0)] * 3
    assert [part.true_units for part in parts] == pytest.approx([300.0] * 3)
    assert gather.after_ok == tuple(part.job_id for part in parts)
    assert gather.input_gigabytes == 1.5


def test_pipeline_is_a_chain() -> None:
    tasks = graph_of("pipeline", stages=4)
    assert [task.after_ok for task in tasks] == [(), *((task.job_id,) for task in tasks[:-1])]
    assert [task.input_gigabytes for task in tasks] == [4.0, 1.0, 1.0, 1.0]


def test_data_parallel_reduces_between_its_rounds() -> None:
    tasks = graph_of("data-parallel", width=2, rounds=2, input_gigabytes=4.0, edge_gigabytes=0.25)
    first = tasks[0].job_id
    after = [tuple(job_id - first for job_id in task.after_ok) for task in tasks]
    assert after == [(), (), (0, 1), (2,), (2,), (3, 4)]
    assert [task.input_gigabytes for task in tasks] == [2.0, 2.0, 0.5, 0.25, 0.25, 0.5]
    assert {task.submitted_seconds for task in tasks} == {tasks[0].submitted_seconds}


def test_kinds_and_counts_are_drawn_apart_from_sizes() -> None:
    plain = made("poisson")
    mixed = made("poisson", kinds="a,b,b", gpu_mix="1:0.9,8:0.1")
    assert [(job.submitted_seconds, job.true_units) for job in plain.jobs] == [
        (job.submitted_seconds, job.true_units) for job in mixed.jobs
    ]
    assert {job.kind for job in mixed.jobs} == {"a", "b"}
    assert sum(job.kind == "b" for job in mixed.jobs) == pytest.approx(len(mixed.jobs) * 2 / 3, rel=0.1)
    assert sum(job.gpu_counts == (1,) for job in mixed.jobs) == pytest.approx(len(mixed.jobs) * 0.9, rel=0.05)


def test_rate_of_zero_or_no_hours_is_no_jobs() -> None:
    assert create_workload("poisson", {"rate_per_second": 0}, 1).jobs == ()
    assert create_workload("graphs", {"hours": 0}, 1).jobs == ()
    assert create_workload("inference", {"hours": 0.0}, 1).jobs == ()


def test_texts_of_numbers_are_numbers() -> None:
    assert as_rows(made("poisson", ingresses="2", hours="3")) == as_rows(made("poisson", ingresses=2, hours=3.0))


@pytest.mark.parametrize(
    ("name", "given_settings", "message"),
    [
        ("poison", {}, "no workload generator 'poison'; did you mean poisson?"),
        ("x\x1b", {}, "no workload generator 'x\\x1b'; there are poisson"),
        ("poisson", {"rate_per_sec": 1}, "has no 'rate_per_sec'; did you mean rate_per_second?"),
        ("poisson", {"qqq": 1}, "workload poisson has no 'qqq'; there are rate_per_second"),
        ("poisson", {"hours": "long"}, "poisson.hours is 'long', it must be a number"),
        ("poisson", {"hours": float("nan")}, "hours=nan is out of its bound: 0 or more"),
        ("poisson", {"ingresses": 1.5}, "poisson.ingresses is 1.5, it must be a whole number"),
        ("poisson", {"ingresses": "inf"}, "poisson.ingresses is inf, it must be a whole number"),
        ("poisson", {"hours": True}, "poisson.hours is 'True', it must be a number"),
        ("poisson", {"hours": "inf"}, "hours=inf is out of its bound: 0 or more"),
        ("poisson", {"rate_per_second": -1}, "rate_per_second=-1 is out of its bound: 0 or more"),
        ("poisson", {"median_units": 0}, "median_units=0 is out of its bound: above 0"),
        ("poisson", {"min_gpus": 4, "max_gpus": 2}, "max_gpus=2 is out of its bound: between 4 and 100000"),
        ("poisson", {"rate_per_second": 1e9}, "more than 10000000: lower one of them"),
        ("poisson", {"rates_per_second": "1,2"}, "has 2 rates for 8 ingresses"),
        ("poisson", {"rates_per_second": "1,x"}, "is not numbers with commas"),
        ("poisson", {"kinds": "a,,b"}, "kinds='a,,b' has an empty item"),
        ("poisson", {"gpu_mix": "1-2"}, "gpu_mix has '1-2', not COUNT:WEIGHT"),
        ("poisson", {"gpu_mix": "1:-2"}, "gpu_mix=-2 is out of its bound: above 0"),
        ("daily", {"period_seconds": 0}, "period_seconds=0 is out of its bound: above 0"),
        ("inference", {"shape": 0}, "shape=0 is out of its bound: between 0.01 and 1000"),
        ("matrix", {"matrix_share": 0, "training_share": 0, "scientific_share": 0, "analytics_share": 0}, "are all 0"),
        (
            "graphs",
            {"shapes": "ring"},
            "there is no graph shape 'ring'; there are batch-parallel, pipeline, data-parallel",
        ),
        ("graphs", {"width": 0}, "width=0 is out of its bound: between 1 and 10000"),
    ],
)
def test_wrong_name_or_setting_is_named(name: str, given_settings: dict[str, Setting], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_workload(name, given_settings, 0)
    assert message in str(caught.value)


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="workload seed -1 is not 0 or more"):
        create_workload("poisson", {}, -1)


@given(seed=st.integers(0, 2**64), rate=st.floats(0.0, 0.05), hours=st.floats(0.0, 3.0), width=st.integers(1, 6))
def test_graphs_never_wait_for_what_comes_later(seed: int, rate: float, hours: float, width: int) -> None:
    jobs = create_workload("graphs", {"rate_per_second": rate, "hours": hours, "width": width}, seed).jobs
    assert all(other < job.job_id for job in jobs for other in job.after_ok)
    assert all(jobs[other - 1].name == job.name for job in jobs for other in job.after_ok)


def test_names_go_by_kind_and_size_and_leave_the_jobs_as_they_are() -> None:
    settings: dict[str, Setting] = {"hours": 12.0, "kinds": "training,inference", "size_sigma": 1.5}
    plain = create_workload("daily", settings, 3).jobs
    named = create_workload("daily", {**settings, "names_per_kind": 4, "name_spread": 0.2}, 3).jobs
    facts = [(job.submitted_seconds, job.true_units, job.kind, job.gpu_counts, job.is_plain) for job in plain]
    assert [(job.submitted_seconds, job.true_units, job.kind, job.gpu_counts, job.is_plain) for job in named] == facts
    assert {job.name for job in plain} == {""}
    sizes: dict[str, list[float]] = {}
    for job in named:
        kind, _, number = job.name.rpartition("-")
        assert kind == job.kind
        sizes.setdefault(number, []).append(job.true_units)
    medians = [sorted(sizes[number])[len(sizes[number]) // 2] for number in "0123"]
    assert medians == sorted(medians)
    assert max(map(len, sizes.values())) - min(map(len, sizes.values())) <= 1


def test_names_of_one_seed_are_the_same_and_do_not_depend_on_deadlines() -> None:
    settings = {"hours": 6.0, "names_per_kind": 5}
    one, again, other = (create_workload("deadlines", settings, seed).jobs for seed in (1, 1, 2))
    assert [job.name for job in one] == [job.name for job in again]
    assert [job.name for job in one] != [job.name for job in other][: len(one)]
    assert [job.name for job in one] == [job.name for job in create_workload("daily", settings, 1).jobs]
