"""Planning: free GPUs by type, one partition or several, predictions and their doubt, and files that are damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from part_cases import parts_file, small_graph

from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.ids import ClusterName, NodeName, PartitionName
from slurm_energy.errors import ConfigError, DataFileError
from slurm_energy.hyperscale.part_files import PartSizes, read_sizes
from slurm_energy.hyperscale.plan import (
    CATALOGUE_DOUBT,
    MEASURED_DOUBT,
    PLAN_FILE,
    RESULT_FILE,
    FreeGpu,
    TrainPlan,
    choose_devices,
    free_gpus,
    limit_minutes,
    make_plan,
    read_measured,
    read_plan,
    write_plan,
)
from slurm_energy.hyperscale.training import TrainSettings
from slurm_energy.reporting.templates import render

SETTINGS = TrainSettings(epochs=10)
FAST = FreeGpu(
    partition="fast", slurm_type="a100", speed_edges_per_second=4e6, memory_bytes=1 << 34, watts=250.0, source="given"
)
SLOW = replace(FAST, partition="slow", slurm_type="v100", speed_edges_per_second=2e6)


def node(name: str, partitions: tuple[str, ...], slurm_type: str | None, count: int, **more: Any) -> NodeState:
    gpus = (NodeGpus(slurm_type=slurm_type, count=count, allocated=more.pop("allocated", 0)),)
    names = tuple(PartitionName(one) for one in partitions)
    state: dict[str, Any] = {"states": ("IDLE",), "available": True, "cpus": 8, "cpus_allocated": 0, **more}
    return NodeState(name=NodeName(name), partitions=names, gpus=gpus, **state)


def cluster(*nodes: NodeState, **closed: dict[str, Any]) -> ClusterSnapshot:
    names = dict.fromkeys(name for one in nodes for name in one.partitions)
    partitions = tuple(
        PartitionState(name=name, is_default=False, **{"up": True, **closed.get(name, {})}) for name in names
    )
    return ClusterSnapshot(cluster=ClusterName("c"), taken_at_seconds=0.0, partitions=partitions, nodes=nodes)


def counts(gpus: tuple[FreeGpu, ...]) -> dict[tuple[str, str], int]:
    return {place: sum(one.place == place for one in gpus) for place in dict.fromkeys(one.place for one in gpus)}


def test_free_gpus_count_once_and_the_fastest_come_first() -> None:
    snapshot = cluster(
        node("n1", ("v", "all"), "v100", 4, allocated=1),
        node("n2", ("a", "all"), "a100", 2),
        node("n3", ("a",), "a100", 8, available=False),
        node("n4", ("a",), "a100", 8, states=("IDLE", "POWERED_DOWN")),
        node("n5", ("closed",), "h100", 8),
        closed={"root_only": True},
    )
    found = free_gpus(snapshot)
    assert list(counts(found).items()) == [(("a", "a100"), 2), (("v", "v100"), 3)]
    assert {one.source for one in found} == {"catalogue"}
    assert counts(free_gpus(snapshot, ["all"])) == {("all", "a100"): 2, ("all", "v100"): 3}


def test_measured_speeds_go_before_the_catalogue() -> None:
    found = free_gpus(cluster(node("n1", ("a",), "a100", 1)), given={"a100": 123.0})
    assert [(one.speed_edges_per_second, one.source) for one in found] == [(123.0, "given")]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["nowhere"], "partition 'nowhere' does not exist: there are a, b"),
        (["b"], "no free GPU in b; the speed of martian is not known: give it with --speed"),
        (["a"], "no free GPU in a"),
    ],
)
def test_without_a_usable_gpu_the_reason_is_stated(asked: list[str], words: str) -> None:
    snapshot = cluster(node("n1", ("a",), "a100", 1, allocated=1), node("n2", ("b",), "martian", 1))
    with pytest.raises(ConfigError, match=words):
        free_gpus(snapshot, asked)


def sizes_of(folder: Path) -> PartSizes:
    return read_sizes(parts_file(folder, small_graph(600), 4))


def plan_of(folder: Path, gpus: tuple[FreeGpu, ...], **more: Any) -> TrainPlan:
    return make_plan(sizes_of(folder), SETTINGS, choose_devices(gpus, 2), **more)


def test_a_job_across_partitions_only_where_that_saves_a_tenth(tmp_path: Path) -> None:
    both = plan_of(tmp_path, (FAST, SLOW), link_bytes_per_second=1e12)
    assert [gpu.partition for gpu, _ in both.components()] == ["fast", "slow"]
    crawling = replace(SLOW, speed_edges_per_second=2e4)
    alone = plan_of(tmp_path, (FAST, crawling), link_bytes_per_second=1e12)
    assert [(gpu.partition, count) for gpu, count in alone.components()] == [("fast", 1)]
    costly = plan_of(tmp_path, (FAST, SLOW), link_bytes_per_second=1e3)
    assert len(costly.components()) == 1, "halo rows over a slow link cost more than a second GPU saves"


def test_the_faster_gpu_computes_more(tmp_path: Path) -> None:
    made = plan_of(tmp_path, (FAST, replace(SLOW, speed_edges_per_second=1.3e6)), link_bytes_per_second=1e12)
    assert made.rank_of_part.count(0) == 3


def test_predictions_follow_from_speeds_and_say_their_doubt(tmp_path: Path) -> None:
    made = plan_of(tmp_path, (FAST,), start_seconds=5.0)
    assert made.prediction.epoch_seconds == pytest.approx(sum(made.work) / FAST.speed_edges_per_second)
    assert made.prediction.seconds == pytest.approx(5.0 + 10 * made.prediction.epoch_seconds)
    assert made.prediction.joules == pytest.approx(250.0 * made.prediction.seconds)
    assert made.prediction.doubt == CATALOGUE_DOUBT
    assert plan_of(tmp_path, (FAST,), is_measured=True).prediction.doubt == MEASURED_DOUBT
    long = replace(made.prediction, seconds=3600.0)
    assert limit_minutes(long) == 225
    assert limit_minutes(made.prediction) == 10


def test_stale_halos_hide_what_is_received(tmp_path: Path) -> None:
    sizes, pair = sizes_of(tmp_path), [(FAST, replace(FAST, partition="other"))]
    exact = make_plan(sizes, SETTINGS, pair, link_bytes_per_second=1e9).prediction.epoch_seconds
    stale = make_plan(sizes, replace(SETTINGS, stale_halos=True), pair, link_bytes_per_second=1e9)
    assert stale.prediction.epoch_seconds < exact


def test_too_little_memory_is_said_with_figures(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parts need \d+ bytes together and \d+ at most, devices have 10 and 10"):
        plan_of(tmp_path, (replace(FAST, memory_bytes=10),))


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = plan_of(tmp_path, (FAST, SLOW))
    write_plan(tmp_path, made)
    assert read_plan(tmp_path) == made


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"settings": {"model": 3}}', "{" * 100_000, '{"settings": {}, "devices": []}']
)
def test_a_damaged_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PLAN_FILE).write_text(text)
    with pytest.raises((DataFileError, ConfigError)):
        read_plan(tmp_path)


@pytest.mark.parametrize("speeds", [{"a100": 0.0}, {"a100": "fast"}, [], {"a100": -1.0}])
def test_a_damaged_result_is_refused(tmp_path: Path, speeds: object) -> None:
    (tmp_path / RESULT_FILE).write_text(json.dumps({"speeds": speeds, "start_seconds": 3.0}))
    with pytest.raises(DataFileError, match="run the training again"):
        read_measured(tmp_path)


def test_the_script_asks_for_each_component_and_refuses_words_that_need_quotes() -> None:
    values = {"folder": "/shared/one", "components": ((FAST, 2), (SLOW, 1)), "cpus": 4, "minutes": 90}
    text = render("sbatch/hyperscale.sbatch.j2", values)
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert lines.index("#SBATCH --gpus-per-task=a100:1") < lines.index("#SBATCH hetjob")
    assert lines.index("#SBATCH hetjob") < lines.index("#SBATCH --gpus-per-task=v100:1")
    assert "srun --kill-on-bad-exit=0 --het-group=0-1 slurm-energy hyperscale train /shared/one" in text
    alone = render("sbatch/hyperscale.sbatch.j2", {**values, "components": ((replace(FAST, slurm_type=""), 2),)})
    assert "#SBATCH --gpus-per-task=1\n" in alone
    assert "--het-group" not in alone
    for bad in ("/shared/my graph", "/shared/$(reboot)", "/a\n#SBATCH --uid=0"):
        with pytest.raises(ConfigError, match="cannot stand in a batch script"):
            render("sbatch/hyperscale.sbatch.j2", {**values, "folder": bad})
