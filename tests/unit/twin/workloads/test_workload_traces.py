from math import inf
from pathlib import Path

import numpy as np
import pytest
from measured_data import MEASURED, write_philly_jobs

from slurm_energy.errors import ConfigError, WorkloadError
from slurm_energy.twin.workloads.formats import Format, load_workload, recognised_format
from slurm_energy.twin.workloads.generating import ROUND_SECONDS, round_limit_seconds
from slurm_energy.twin.workloads.replay import LoadOptions, ReplayKind, kinds_of_device
from slurm_energy.twin.world.device_model import DeviceModel, Load, Scaling

PHILLY = "submit_time,duration_s,num_gpus,gpu_time_s,vc\n"
GAVEL = "trace,job_type,total_steps,scale_factor,priority_weight,slo,arrival_time_s\n"
ELASTICFLOW = "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,real_duration,duration,iteration\n"
POLLUX = "kind,workload,name,submit_time_s,application,num_replicas,batch_size\n"
ALIBABA = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def device() -> DeviceModel:
    return DeviceModel(
        name="a100",
        relative_clocks=(0.5, 1.0),
        loads={
            "train": Load(
                watts=(100.0, 200.0), seconds_per_unit=(4.0, 2.5), scaling=Scaling(efficiency_by_count={4: 0.8})
            ),
            "infer": Load(watts=(100.0, 200.0), seconds_per_unit=(1.0, 0.5)),
        },
        free_watts=10.0,
        context_watts=20.0,
    )


def test_replayed_work_takes_the_recorded_time_on_the_reference_device() -> None:
    (train,) = kinds_of_device(device(), ["train"])
    load = device().loads["train"]
    for gpus in (1, 3, 4, 16):
        assert train.units(1000.0, gpus) * load.scaling.seconds(2.5, gpus) == pytest.approx(1000.0)
    assert ReplayKind().units(100.0, 8) == 800.0


def test_kinds_of_a_device_are_all_its_loads_or_those_named() -> None:
    assert [(kind.name, kind.seconds_per_unit) for kind in kinds_of_device(device())] == [
        ("infer", 0.5),
        ("train", 2.5),
    ]
    with pytest.raises(ConfigError, match="device a100 has no kind 'x'; it has infer, train"):
        kinds_of_device(device(), ["x"])


def test_philly_times_are_relative_and_kinds_and_limits_come_from_the_seed(tmp_path: Path) -> None:
    rows = "".join(f"2017-10-0{1 + day} 00:00:00,{600 + day},{1 + day},0,vc{day % 2}\n" for day in range(8))
    path = written(tmp_path, PHILLY + rows)
    options = LoadOptions(kinds=(ReplayKind(name="a"), ReplayKind(name="b", seconds_per_unit=2.0)), seed=3)
    jobs = load_workload(path, options=options).jobs
    assert [job.submitted_seconds for job in jobs] == [86_400.0 * day for day in range(8)]
    assert [job.true_units for job in jobs] == [
        (600 + day) * (1 + day) / (2.0 if jobs[day].kind == "b" else 1.0) for day in range(8)
    ]
    assert {job.kind for job in jobs} == {"a", "b"}
    assert all(job.time_limit_seconds in ROUND_SECONDS for job in jobs)
    assert all(900.0 <= job.time_limit_seconds <= 5 * 3600.0 for job in jobs)
    assert [job.account for job in jobs[:2]] == ["vc0", "vc1"]
    again = load_workload(path, options=options).jobs
    other = load_workload(path, options=LoadOptions(kinds=options.kinds, seed=4)).jobs
    assert [(job.kind, job.time_limit_seconds) for job in again] == [(job.kind, job.time_limit_seconds) for job in jobs]
    assert [(job.kind, job.time_limit_seconds) for job in other] != [(job.kind, job.time_limit_seconds) for job in jobs]


def test_philly_keeps_users_and_names_where_the_file_has_them(tmp_path: Path) -> None:
    head = "submit_time,duration_s,num_gpus,vc,user,name\n"
    path = written(tmp_path, head + "2017-10-01 00:00:00,60,1,a,u7,train\n2017-10-02 00:00:00,60,1,a,,\n")
    assert [(job.user, job.name) for job in load_workload(path).jobs] == [("u7", "train"), ("", "")]


def test_philly_without_limits_and_of_one_cluster(tmp_path: Path) -> None:
    path = written(tmp_path, PHILLY + "2017-10-01 00:00:00,60,1,60,a\n2017-10-02 00:00:00,70,1,70,b\n")
    (job,) = load_workload(path, options=LoadOptions(part="b", time_limits=False)).jobs
    assert (job.submitted_seconds, job.true_units, job.time_limit_seconds) == (0.0, 70.0, inf)
    with pytest.raises(WorkloadError, match="no job of the virtual cluster 'c'"):
        load_workload(path, options=LoadOptions(part="c"))


def test_limits_are_round_and_never_below_the_run() -> None:
    for seconds in (0.0, 1.0, 300.0, 301.0, 86_400.0, 40 * 86_400.0):
        for draw in (0.0, 0.5, 0.999):
            limit = round_limit_seconds(seconds, draw)
            assert limit >= 1.1 * seconds
            assert limit in ROUND_SECONDS or limit % ROUND_SECONDS[-1] == 0.0
            assert limit <= max(900.0, 5 * 3 * seconds)


def test_gavel_jobs_keep_their_steps_and_types(tmp_path: Path) -> None:
    path = written(tmp_path, GAVEL + "t,A3C,50,2,1.0,-1.0,10.0\nt,LM,60,1.0,2.5,30,12.0\nother,LM,70,1,1,-1,0\n")
    found = load_workload(path)
    assert found.name == "trace:t"
    assert [(job.kind, job.true_units, job.gpu_counts, job.priority, job.deadline_seconds) for job in found.jobs] == [
        ("A3C", 50.0, (2,), 1.0, inf),
        ("LM", 60.0, (1,), 2.5, 42.0),
    ]
    assert [job.true_units for job in load_workload(path, options=LoadOptions(part="other")).jobs] == [70.0]
    with pytest.raises(WorkloadError, match="has no part 'x'; it has t, other"):
        load_workload(path, options=LoadOptions(part="x"))


def test_elasticflow_jobs_have_deadlines(tmp_path: Path) -> None:
    path = written(tmp_path, ELASTICFLOW + "4,100,9,vgg16,900,256,2,50,60,9\n")
    (job,) = load_workload(path).jobs
    assert (job.job_id, job.kind, job.true_units, job.gpu_counts) == (4, "vgg16", 120.0, (2,))
    assert (job.submitted_seconds, job.deadline_seconds, job.name) == (100.0, 900.0, "vgg16-256")
    options = LoadOptions(kinds=(ReplayKind(name="train", seconds_per_unit=2.0),), kind_by_label={"vgg16": "train"})
    (job,) = load_workload(path, options=options).jobs
    assert (job.kind, job.true_units) == ("train", 60.0)


def test_pollux_work_is_that_of_its_application(tmp_path: Path) -> None:
    rows = "synthetic,1,ncf-0,5,ncf,4,1\nrealistic,2,imagenet-0,6,imagenet,8,1\n"
    path = written(tmp_path, POLLUX + rows)
    (job,) = load_workload(path).jobs
    assert (job.kind, job.true_units, job.gpu_counts, job.name) == ("ncf", 1080.0, (4,), "ncf-0")
    (job,) = load_workload(path, options=LoadOptions(part="realistic-2")).jobs
    assert job.true_units == 1_080_000.0


def test_alibaba_pods_become_jobs_and_the_rest_is_counted(tmp_path: Path) -> None:
    rows = (
        "p0,12000,16384,1,460,T4|P100|T4,LS,Running,0,100,10.0\n"
        "p1,6001,1024,8,1000,,BE,Failed,5,25,5.0\n"
        "p2,1000,1024,1,1000,,BE,Pending,5,25,\n"
        "p3,1000,1024,0,0,,BE,Succeeded,5,25,6\n"
    )
    found = load_workload(written(tmp_path, ALIBABA + rows))
    first, second = found.jobs
    assert (first.true_units, first.devices, first.cpus, first.memory_gib, first.shareable) == (
        90.0,
        ("T4", "P100"),
        12,
        16.0,
        True,
    )
    assert (second.fails_after_units, second.gpu_counts, second.cpus, second.shareable) == (160.0, (8,), 7, False)
    assert second.true_units > second.fails_after_units
    assert "1 never ran, 1 without GPU" in found.source
    assert found.bad_rows == 0


BAD = {
    "philly time": (PHILLY + "yesterday,60,1,60,a\n", "column submit_time: 'yesterday' is not a time"),
    "philly huge year": (PHILLY + "99999-01-01 00:00:00,60,1,60,a\n", "column submit_time"),
    "philly duration": (PHILLY + "2017-10-01 00:00:00,-60,1,60,a\n", "column duration_s: '-60' is out of its bound"),
    "philly gpus": (PHILLY + "2017-10-01 00:00:00,60,0,60,a\n", "column num_gpus: '0' is out of its bound"),
    "gavel type": (GAVEL + "t,,50,2,1.0,-1.0,10.0\n", "column job_type: '' is needed"),
    "gavel steps": (GAVEL + "t,A3C,nan,2,1.0,-1.0,10.0\n", "column total_steps: 'nan' is not a finite number"),
    "gavel scale": (GAVEL + "t,A3C,5,1.5,1.0,-1.0,10.0\n", "column scale_factor: '1.5' is not a whole number"),
    "elasticflow deadline": (ELASTICFLOW + "4,100,9,vgg16,90,1,2,5,6,9\n", "column ddl: '90' is before the submission"),
    "elasticflow model": (ELASTICFLOW + "4,100,9,,900,1,2,5,6,9\n", "column model_name: '' is needed"),
    "pollux application": (POLLUX + "synthetic,1,x-0,5,x,4,1\n", "column application: 'x' has no known length"),
    "alibaba end": (ALIBABA + "p,1,1,1,1,,B,R,0,5,10\n", "column deletion_time: '5' is before the start at 10 s"),
    "alibaba start": (ALIBABA + "p,1,1,1,1,,B,R,10,50,5\n", "column scheduled_time: '5' is out of its bound"),
    "alibaba share": (ALIBABA + "p,1,1,1,2000,,B,R,0,50,5\n", "column gpu_milli: '2000' is out of its bound"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_bad_row_of_a_trace_is_refused_or_counted(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(WorkloadError) as caught:
        load_workload(path)
    assert f"{str(path)!r}, line 2, {message}" in str(caught.value)
    found = load_workload(path, skip_bad=True)
    assert (found.jobs, found.bad_rows) == ((), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ()}, "at least one kind"),
        ({"seed": -1}, "seed -1"),
        ({"processors_per_device": -1}, "processors per device -1"),
        ({"kind_by_label": {"a": "b"}}, "kind 'b', which is not among the kinds"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadOptions(**options)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("seconds", [0.0, -1.0, inf])
def test_kind_without_a_time_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="seconds above 0"):
        ReplayKind(seconds_per_unit=seconds)


@pytest.mark.parametrize(
    ("file", "format_name", "jobs"),
    [
        ("gavel_traces/philly_arrivals.csv", "gavel", 9_756),
        ("gavel_traces/physical_cluster.csv", "gavel", 15),
        ("alibaba_openb/pods_first_two_thirds.csv", "alibaba", 4_191),
        ("pollux_scaling/workloads.csv", "pollux", 160),
        ("elasticflow_scaling/trace_philly_103959.csv", "elasticflow", 876),
    ],
)
def test_published_trace_is_recognised_and_loads_whole(file: str, format_name: Format, jobs: int) -> None:
    assert recognised_format(MEASURED / file) == format_name
    found = load_workload(MEASURED / file)
    assert (len(found.jobs), found.bad_rows) == (jobs, 0)


@pytest.mark.slow
def test_philly_trace_is_recognised_loads_whole_and_has_its_known_figures(tmp_path: Path) -> None:
    path = write_philly_jobs(tmp_path)
    assert recognised_format(path) == "philly"
    found = load_workload(path)
    jobs = found.jobs
    assert (len(jobs), found.bad_rows) == (57_585, 0)
    assert float(np.median([job.true_units / job.gpu_counts[0] for job in jobs])) / 60.0 == pytest.approx(30.0, abs=1.5)
    assert max(job.true_units / job.gpu_counts[0] for job in jobs) / 86_400.0 == pytest.approx(38.0, abs=1.0)
    assert sum(job.gpu_counts == (1,) for job in jobs) / len(jobs) == pytest.approx(0.95, abs=0.01)
    assert sum(job.true_units for job in jobs) / 3600.0 == pytest.approx(578_604, rel=0.001)
