"""A cluster and its jobs from what sacct printed."""

import json
from pathlib import Path

import pytest

from slurm_energy.errors import WorkloadError
from slurm_energy.evaluation.replay import accounting_states, replay_workload, world_of_accounting
from slurm_energy.twin.world.file import shipped_world

HEADER = "JobID|Submit|Start|End|State|Partition|AllocTRES|Timelimit|User|Account|JobName|NNodes|NodeList"


def row(job: int, start: int, end: int, gpus: int, nodes: str, partition: str = "gpu") -> str:
    count = 1 if "," not in nodes else 2
    clock = [f"2026-03-01T12:{minute:02d}:00" for minute in (start, start, end)]
    tres = f"billing=1,cpu=8,gres/gpu={gpus},node={count}"
    return "|".join(
        [str(job), *clock, "COMPLETED", partition, tres, "02:00:00", "ann", "acc", "train", str(count), nodes]
    )


def sacct_file(folder: Path, *rows: str) -> Path:
    path = folder / "week.txt"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_pools_are_as_wide_as_what_ran_at_once(tmp_path: Path) -> None:
    path = sacct_file(
        tmp_path, row(1, 0, 10, 4, "a"), row(2, 5, 20, 4, "a"), row(3, 10, 20, 4, "b"), row(4, 0, 5, 2, "b")
    )
    world = world_of_accounting(path, skip_bad=False).world
    (pool,) = world.pools
    assert (pool.nodes, pool.gpus_per_node, [partition.name for partition in world.partitions]) == (2, 4, ["gpu"])


def test_partitions_that_share_a_node_share_a_pool(tmp_path: Path) -> None:
    path = sacct_file(
        tmp_path,
        row(1, 0, 10, 4, "a", "day"),
        row(2, 10, 20, 4, "a", "night"),
        row(3, 0, 10, 2, "z", "other"),
    )
    world = world_of_accounting(path, skip_bad=False).world
    assert {partition.name: partition.pools for partition in world.partitions} == {
        "day": ("day",),
        "night": ("day",),
        "other": ("other",),
    }


def test_a_job_over_two_nodes_has_half_its_gpus_on_each(tmp_path: Path) -> None:
    (pool,) = world_of_accounting(sacct_file(tmp_path, row(1, 0, 10, 8, "a,b")), skip_bad=False).world.pools
    assert (pool.nodes, pool.gpus_per_node) == (2, 4)


def test_what_the_accounting_does_not_say_is_told(tmp_path: Path) -> None:
    found = world_of_accounting(sacct_file(tmp_path, row(1, 0, 10, 4, "a")), skip_bad=False)
    assert any("every GPU is taken for a100" in text for text in found.assumptions)
    assert any("1 nodes with 4 GPUs" in text for text in found.assumptions)


def test_a_replayed_job_takes_as_long_at_the_default_clock_as_it_did(tmp_path: Path) -> None:
    path = sacct_file(tmp_path, row(1, 0, 10, 4, "a"), row(2, 5, 20, 4, "a"))
    world = world_of_accounting(path, skip_bad=False).world
    jobs = replay_workload(path, world, skip_bad=False).jobs
    load = world.devices["a100"].loads[jobs[0].kind]
    assert [job.submitted_seconds for job in jobs] == [0.0, 300.0]
    assert jobs[0].true_units * load.scaling.seconds(load.seconds_per_unit[-1], 4) == pytest.approx(600.0)
    assert jobs[0].partitions == ("gpu",)


def test_bad_rows_are_named_or_counted(tmp_path: Path) -> None:
    path = sacct_file(
        tmp_path, row(1, 0, 10, 4, "a"), row(2, 5, 20, 4, "a").replace("2026-03-01T12:05:00", "tomorrow", 1)
    )
    with pytest.raises(WorkloadError, match=r"line 3, column Submit, value 'tomorrow'.*--skip-bad"):
        world_of_accounting(path, skip_bad=False)
    world = world_of_accounting(path, skip_bad=True).world
    assert replay_workload(path, world, skip_bad=True).bad_rows == 1


def test_an_accounting_without_gpus_makes_no_cluster(tmp_path: Path) -> None:
    path = sacct_file(tmp_path, row(1, 0, 10, 4, "a").replace("gres/gpu=4,", ""))
    with pytest.raises(WorkloadError, match="no job that held GPUs"):
        world_of_accounting(path, skip_bad=False)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submitted_seconds,true_units\n0,10\n")
    with pytest.raises(WorkloadError, match="arena run --workload"):
        world_of_accounting(path, skip_bad=False)


def test_each_gpu_type_is_replayed_on_its_own_device(tmp_path: Path) -> None:
    def typed(text: str, name: str) -> str:
        return text.replace("gres/gpu=", f"gres/gpu:{name}=")

    path = sacct_file(
        tmp_path,
        typed(row(1, 0, 10, 4, "a"), "v100"),
        typed(row(2, 5, 20, 4, "b"), "a100"),
        typed(row(3, 5, 20, 2, "z", "gaming"), "3090"),
    )
    found = world_of_accounting(path, skip_bad=False)
    world = found.world
    assert {pool.name: (pool.device, pool.gpus_per_node) for pool in world.pools} == {
        "gpu-v100": ("v100", 4),
        "gpu-a100": ("a100", 4),
        "gaming": ("a100", 2),
    }
    assert {"GPUs of type v100 are taken for v100", "GPUs of type a100 are taken for a100"} <= set(found.assumptions)
    assert any("GPUs of type 3090 are taken for a100: no device" in text for text in found.assumptions)
    first, second, third = replay_workload(path, world, skip_bad=False).jobs
    assert [job.devices for job in (first, second, third)] == [("v100",), ("a100",), ()]
    load = world.devices["v100"].loads[first.kind]
    assert first.true_units * load.scaling.seconds(load.seconds_per_unit[-1], 4) == pytest.approx(600.0)


def test_a_job_asks_for_no_device_that_its_partition_lacks(tmp_path: Path) -> None:
    path = sacct_file(tmp_path, row(1, 0, 10, 4, "a", "a100").replace("gres/gpu=", "gres/gpu:v100="))
    jobs = replay_workload(path, shipped_world("philly-a100"), skip_bad=False).jobs
    assert [(job.partitions, job.devices) for job in jobs] == [(("a100",), ())]


def test_answers_of_sacct_json_behind_one_another_are_one_history(tmp_path: Path) -> None:
    def job(number: int, state: str) -> dict[str, object]:
        tres = [{"type": "gres", "name": "gpu", "count": 2}, {"type": "gres", "name": "gpu:3090", "count": 2}]
        return {
            "job_id": number,
            "user": "ann",
            "state": {"current": state},
            "partition": "gpu",
            "time": {"submission": 100, "start": 200, "end": 0 if state == "RUNNING" else 300},
            "tres": {"allocated": tres},
        }

    path = tmp_path / "week.json"
    answers = ([job(1, "COMPLETED"), job(2, "RUNNING")], [job(1, "COMPLETED"), job(2, "COMPLETED")])
    path.write_text("\n".join(json.dumps({"jobs": jobs}) for jobs in answers))
    states = accounting_states(path, skip_bad=False).items
    assert [(state.job_id, state.state, state.gpu_types) for state in states] == [
        (1, "COMPLETED", ("3090",)),
        (2, "COMPLETED", ("3090",)),
    ]


def test_an_export_that_names_no_gpus_says_which_column_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "week.txt"
    path.write_text("JobID|State|Submit|Start|Elapsed\n1|COMPLETED|100|200|00:01:00\n")
    with pytest.raises(WorkloadError, match="no column tells GPUs, add AllocTRES"):
        world_of_accounting(path, skip_bad=False)
