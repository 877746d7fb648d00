"""Limits drawn for one device type are made long enough for the slowest one."""

from dataclasses import replace
from math import inf

from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads.deadlines import with_limits_for_asked_partitions, with_limits_for_every_device
from slurm_energy.twin.world import Partition, Pool, World
from slurm_energy.twin.world.device_model import DeviceModel, Load, Scaling


def device(name: str, **seconds: float) -> DeviceModel:
    return DeviceModel(
        name=name,
        relative_clocks=(1.0,),
        loads={kind: Load(watts=(100.0,), seconds_per_unit=(value,)) for kind, value in seconds.items()},
        free_watts=10.0,
        context_watts=10.0,
    )


def limits(jobs: list[Job]) -> list[float]:
    fast, slow = device("fast", a=1.0, b=1.0), device("slow", a=3.0)
    pools = (
        Pool(name="f", device="fast", nodes=1, gpus_per_node=1),
        Pool(name="s", device="slow", nodes=1, gpus_per_node=1),
    )
    world = World(
        name="two",
        devices={"fast": fast, "slow": slow},
        pools=pools,
        partitions=(Partition(name="all", pools=("f", "s")),),
    )
    workload = with_limits_for_every_device(Workload(name="w", jobs=tuple(jobs)), world, fast)
    return [job.time_limit_seconds for job in workload.jobs]


def test_a_limit_is_that_of_the_slowest_device_and_stays_round() -> None:
    job = Job(job_id=1, submitted_seconds=0.0, true_units=800.0, kind="a", time_limit_seconds=900.0)
    assert limits([job]) == [3600.0]
    assert job.true_units * 3.0 < job.time_limit_seconds


def test_kinds_that_no_slower_device_runs_and_jobs_without_a_limit_keep_what_they_have() -> None:
    job = Job(job_id=1, submitted_seconds=0.0, true_units=800.0, kind="b", time_limit_seconds=900.0)
    assert limits([job, replace(job, job_id=2, kind="a", time_limit_seconds=inf)]) == [900.0, inf]


def test_limits_for_asked_partitions_leave_room_for_what_work_loses_on_several_devices() -> None:
    one = device("one", a=1.0)
    scaled = replace(one, loads={"a": replace(one.loads["a"], scaling=Scaling(efficiency_by_count={8: 0.25}))})
    world = World(
        name="wide",
        devices={"one": scaled},
        pools=(Pool(name="p", device="one", nodes=1, gpus_per_node=8),),
        partitions=(Partition(name="all", pools=("p",)),),
    )
    single = Job(job_id=1, submitted_seconds=0.0, true_units=800.0, kind="a", time_limit_seconds=3600.0)
    jobs = (
        single,
        replace(single, job_id=2, gpu_counts=(8,)),
        replace(single, job_id=3, gpu_counts=(1, 8), asked_gpus=8),
    )
    with_limits_for_asked_partitions(Workload(name="w", jobs=jobs), world, scaled)
    assert [job.time_limit_seconds for job in jobs] == [3600.0, 4 * 3600.0, 4 * 3600.0]
