from math import nan
from typing import Any

import numpy as np
import pytest
from canonical import canonical
from numpy.typing import NDArray
from small_clusters import NOW, after, make_job, make_node, make_partition, make_snapshot
from task_vectors import task_vector

from slurm_energy.domain.cluster import ClusterSnapshot, GpuLink, GpuReading, NodeGpus, SwitchState
from slurm_energy.domain.ids import JobId, NodeName, PartitionName
from slurm_energy.errors import ValueRangeError
from slurm_energy.graph import job_table
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.job_table import MAX_PENDING
from slurm_energy.graph.node_table import MAX_DEVICES
from slurm_energy.graph.partitions import Changes
from slurm_energy.graph.schema import GPU, PARTITION, RUNS, SWITCH, TASK, column

PARTITIONS = (make_partition("p"), make_partition("q"))


def graph_of(snapshot: ClusterSnapshot) -> ClusterGraph:
    graph = ClusterGraph()
    graph.update(snapshot)
    return graph


def assert_as_fresh(graph: ClusterGraph, snapshot: ClusterSnapshot) -> None:
    fresh = canonical(graph_of(snapshot))
    for name, array in canonical(graph).items():
        np.testing.assert_array_equal(array, fresh[name], err_msg=name)


def slots(graph: ClusterGraph, *names: str) -> frozenset[int]:
    return frozenset(graph.node_index[NodeName(name)] for name in names)


def of(features: tuple[Any, ...], name: str, rows: NDArray[np.float32]) -> list[float]:
    entries: list[float] = rows[:, column(features, name)].tolist()
    return entries


def test_links_are_the_same_arrays_while_none_of_them_changes_and_right_once_one_does() -> None:
    first, second = make_node("n1", gpu_link=GpuLink(kind="nvlink")), make_node("n2", count=2, partition="q")
    graph = graph_of(make_snapshot((first, second), (), PARTITIONS))
    before = graph.device_block(graph.node_slots)
    busy = make_snapshot((first, second), (make_job(1, running_on="n1", gpus=2),), PARTITIONS)
    graph.update(busy)
    after_start = graph.device_block(graph.node_slots)
    assert after_start.link_index is before.link_index and after_start.link_x is before.link_x
    assert of(GPU, "is_allocated", after_start.gpu_x) != of(GPU, "is_allocated", before.gpu_x)
    changed = make_snapshot((first, make_node("n2", count=3, partition="q")), (), PARTITIONS)
    graph.update(changed)
    assert_as_fresh(graph, changed)
    alone = graph.device_block(graph.node_slots[:1])
    assert alone.link_index.shape == (2, 12) and len(alone.gpu_node) == 4


def test_a_small_cluster_becomes_blocks_that_fit_together() -> None:
    nodes = (make_node("n1", gpu_link=GpuLink(kind="nvlink")), make_node("n2", count=2, partition="q"))
    jobs = (make_job(1, running_on="n1", gpus=2), make_job(2), make_job(3, dependencies=after(1)))
    graph = graph_of(make_snapshot(nodes, jobs, PARTITIONS))
    devices = graph.device_block(graph.node_slots)
    assert devices.node_x.shape[0] == 2
    assert devices.gpu_node.tolist() == [0, 0, 0, 0, 1, 1]
    assert devices.link_index.shape == (2, 12 + 2)
    assert devices.gpu_node[devices.link_index[0]].tolist() == devices.gpu_node[devices.link_index[1]].tolist()
    assert devices.run_index.tolist() == [[0, 0], [0, 1]]
    assert of(GPU, "is_allocated", devices.gpu_x) == [1, 1, 0, 0, 0, 0]
    assert of(RUNS, "share_of_job", devices.run_x) == [0.5, 0.5]
    fabric = graph.fabric_block(graph.group_slots)
    assert fabric.node_group.tolist() == [0, 1]
    assert fabric.member_partition.tolist() == [0, 1]
    queue = graph.queue_block(graph.queue_slots)
    assert len(queue.task_x) == 3
    assert queue.depends_index.tolist() == [[0], [2]]
    assert queue.wait_partition.tolist() == [0, 0]
    top = graph.top_block()
    assert len(top.partition_x) == 2
    assert top.group_cluster.tolist() == [0, 0]


def test_the_columns_of_a_job_are_those_of_the_pure_function() -> None:
    jobs = (
        make_job(1, running_on="n1", gpus=2, user_id=5),
        make_job(2, priority=70),
        make_job(3, dependencies=after(2)),
    )
    graph = graph_of(make_snapshot((make_node(),), jobs))
    facts = graph.facts
    assert facts.user_shares == {5: 0.5, 1001: 0.5}
    rows = graph.queue_block(graph.task_slots).task_x
    from_graph = dict(zip(graph.jobs.store["job"][graph.task_slots].tolist(), rows, strict=True))
    alone = {column(TASK, name) for name in ("critical_path_seconds", "dependents")}
    same = [index for index in range(len(TASK)) if index not in alone]
    for job in jobs:
        np.testing.assert_allclose(
            from_graph[job.job_id][same], task_vector(job, graph.now_seconds, facts)[same], rtol=1e-6
        )


def test_nothing_changes_when_nothing_does() -> None:
    nodes, jobs = (make_node(), make_node("n2")), (make_job(1), make_job(2, running_on="n1"))
    graph = graph_of(make_snapshot(nodes, jobs))
    same = make_snapshot(
        (make_node(), make_node("n2")), (make_job(1), make_job(2, running_on="n1")), taken_at_seconds=NOW + 30.0
    )
    changes = graph.update(same)
    assert changes == Changes()
    assert not changes


def test_one_changed_node_changes_itself_its_group_and_the_top() -> None:
    nodes = tuple(make_node(f"n{number}") for number in range(100))
    graph = graph_of(make_snapshot(nodes))
    changes = graph.update(make_snapshot((make_node("n0", cpus_allocated=3), *nodes[1:])))
    assert changes.nodes == slots(graph, "n0")
    assert changes.groups == graph.groups_of(changes.nodes)
    assert len(changes.groups) == 1
    assert changes.top
    assert changes.tasks == frozenset()
    assert not changes.rebuilt


def test_one_changed_job_changes_its_own_chain_only() -> None:
    jobs = (make_job(1), make_job(2, dependencies=after(1)), make_job(3), *(make_job(n, gpus=400) for n in range(4, 9)))
    graph = graph_of(make_snapshot((make_node(),), jobs))
    changes = graph.update(
        make_snapshot((make_node(),), (make_job(1), make_job(2, dependencies=after(1), cpus=9), *jobs[2:]))
    )
    assert {int(graph.jobs.store["job"][slot]) for slot in changes.tasks} == {1, 2}
    assert changes.nodes == frozenset()


def test_a_job_that_starts_leaves_the_queue_for_a_node() -> None:
    graph = graph_of(make_snapshot((make_node(),), (make_job(1),)))
    slot = int(graph.queue_slots[0])
    changes = graph.update(make_snapshot((make_node(),), (make_job(1, running_on="n1"),)))
    assert changes.gone_tasks == {slot}
    assert changes.nodes == slots(graph, "n1")
    assert graph.queue_slots.tolist() == []
    assert graph.task_slots.tolist() == [slot]


def test_times_move_in_steps() -> None:
    nodes, jobs = (make_node(), make_node("n2")), (make_job(1, running_on="n1"), make_job(2))
    graph = graph_of(make_snapshot(nodes, jobs))
    assert not graph.update(make_snapshot(nodes, jobs, taken_at_seconds=NOW + 39.0))
    changes = graph.update(make_snapshot(nodes, jobs, taken_at_seconds=NOW + 40.0 + 20.0))
    assert changes.nodes == slots(graph, "n1")
    assert len(changes.tasks) == 1
    with pytest.raises(ValueRangeError, match="time step"):
        ClusterGraph(time_step_seconds=0.0)


def test_single_changes_add_up_to_an_update() -> None:
    snapshot = make_snapshot((make_node(), make_node("n2")), (make_job(1), make_job(2, running_on="n2")))
    graph = graph_of(make_snapshot((make_node(count=8), make_node("old")), (make_job(2), make_job(9))))
    graph.set_node(make_node())
    graph.set_node(make_node("n2"))
    graph.remove_node(NodeName("old"))
    graph.set_job(make_job(1))
    graph.set_job(make_job(2, running_on="n2"))
    graph.remove_job(JobId(9))
    graph.remove_job(JobId(77))
    graph.remove_node(NodeName("unheard-of"))
    graph.refresh(snapshot.taken_at_seconds)
    assert_as_fresh(graph, snapshot)


def test_a_node_without_gpus_has_one_cpu() -> None:
    graph = graph_of(make_snapshot((make_node(count=0),), (make_job(1, running_on="n1", gpus=0),)))
    block = graph.device_block(graph.node_slots)
    assert of(GPU, "is_cpu", block.gpu_x) == of(GPU, "is_allocated", block.gpu_x) == [1]
    assert of(RUNS, "share_of_job", block.run_x) == [1]


def test_a_node_of_an_unknown_type_has_devices_without_figures() -> None:
    graph = graph_of(make_snapshot((make_node(slurm_type="strange", count=2), make_node("n2", slurm_type=None))))
    block = graph.device_block(graph.node_slots)
    assert len(block.gpu_x) == 6
    assert not block.gpu_x.any()


def test_a_reading_of_nan_watts_leaves_finite_columns() -> None:
    readings = (GpuReading(index=0, power_watts=nan, utilisation=nan), GpuReading(index=99, utilisation=1.0))
    graph = graph_of(make_snapshot((make_node(power_watts=nan, gpu_readings=readings, uplink_congestion=nan),)))
    for array in canonical(graph).values():
        assert array.dtype.kind == "U" or np.isfinite(array).all()


def test_a_partition_without_nodes_is_there() -> None:
    graph = graph_of(make_snapshot((make_node(),), (make_job(1, partitions=(PartitionName("q"),)),), PARTITIONS))
    assert of(PARTITION, "nodes", graph.top_block().partition_x)[1] == 0.0
    assert graph.queue_block(graph.queue_slots).wait_partition.tolist() == [1]


def test_of_several_with_one_name_the_last_counts() -> None:
    snapshot = make_snapshot(
        (make_node(count=1), make_node(count=3)), (make_job(1, gpus=1), make_job(1, running_on="n1", gpus=2))
    )
    graph = graph_of(snapshot)
    assert_as_fresh(graph, make_snapshot((make_node(count=3),), (make_job(1, running_on="n1", gpus=2),)))


def test_a_job_on_unknown_nodes_holds_nothing_until_they_appear() -> None:
    jobs = (make_job(1, running_on="n[1-2]", gpus=4),)
    graph = graph_of(make_snapshot((), jobs))
    assert len(graph.task_slots) == 1
    changes = graph.update(make_snapshot((make_node("n2"),), jobs))
    block = graph.device_block(graph.node_slots)
    assert changes.nodes == slots(graph, "n2")
    assert block.run_index.tolist() == [[0, 0], [0, 1]]
    assert of(RUNS, "share_of_job", block.run_x) == [0.25, 0.25]


def test_a_node_that_goes_leaves_its_job_on_the_others() -> None:
    jobs = (make_job(1, running_on="n[1-2]", gpus=4),)
    graph = graph_of(make_snapshot((make_node("n1"), make_node("n2")), jobs))
    gone = graph.node_index[NodeName("n1")]
    after_it = make_snapshot((make_node("n2"),), jobs)
    changes = graph.update(after_it)
    assert changes.gone_nodes == {gone}
    assert_as_fresh(graph, after_it)
    with pytest.raises(ValueRangeError, match=f"slot {gone} "):
        graph.device_block([gone])


def test_a_node_may_change_its_number_of_gpus() -> None:
    jobs = (make_job(1, running_on="n1", gpus=4),)
    graph = graph_of(make_snapshot((make_node(count=8),), jobs))
    for count in (2, 0, 5):
        snapshot = make_snapshot((make_node(count=count),), jobs)
        assert graph.update(snapshot).nodes == slots(graph, "n1")
        assert_as_fresh(graph, snapshot)


def test_other_partitions_mean_other_numbers() -> None:
    nodes, jobs = (make_node(),), (make_job(1),)
    graph = graph_of(make_snapshot(nodes, jobs, PARTITIONS))
    snapshot = make_snapshot(nodes, jobs, PARTITIONS[::-1])
    changes = graph.update(snapshot)
    assert changes.rebuilt
    assert changes.nodes == frozenset(graph.node_slots.tolist())
    assert graph.partition_index == {"q": 0, "p": 1}
    assert_as_fresh(graph, snapshot)


def test_a_partition_that_goes_down_changes_the_top_and_those_that_wait_there() -> None:
    nodes, jobs = (make_node(),), (make_job(1), make_job(2, partitions=(PartitionName("q"),)))
    graph = graph_of(make_snapshot(nodes, jobs, PARTITIONS))
    changes = graph.update(make_snapshot(nodes, jobs, (make_partition("p", up=False), PARTITIONS[1])))
    assert changes.top
    assert not changes.rebuilt
    assert changes.nodes == frozenset()
    assert [int(graph.jobs.store["job"][slot]) for slot in changes.tasks] == [1]


def test_a_switch_that_fills_up_changes_its_groups() -> None:
    nodes = (make_node("n1", switch="a"), make_node("n2", switch="b"))
    switches = (SwitchState(name="a"), SwitchState(name="b"))
    graph = graph_of(make_snapshot(nodes, switches=switches))
    changes = graph.update(make_snapshot(nodes, switches=(SwitchState(name="a", congestion=0.9), switches[1])))
    assert changes.groups == graph.groups_of(slots(graph, "n1"))
    assert changes.nodes == frozenset()


def test_dependencies_on_the_unknown_and_in_circles_end() -> None:
    jobs = (
        make_job(1, dependencies=after(3, 77)),
        make_job(2, dependencies=after(1)),
        make_job(3, dependencies=after(2, 3)),
    )
    graph = graph_of(make_snapshot((make_node(),), jobs))
    block = graph.queue_block(graph.queue_slots)
    assert sorted(map(tuple, block.depends_index.T.tolist())) == [(0, 1), (1, 2), (2, 0)]
    assert graph.component_of(graph.queue_slots[:1]).tolist() == graph.queue_slots.tolist()


def test_a_long_queue_is_bounded_but_counted() -> None:
    jobs = tuple(make_job(number, priority=number, gpus=1) for number in range(1, 10_001))
    graph = graph_of(make_snapshot((make_node(),), jobs))
    assert len(graph.task_slots) == MAX_PENDING
    assert min(graph.jobs.store["job"][graph.task_slots]) == 10_001 - MAX_PENDING
    assert graph.num_pending == 10_000
    waiting = PARTITION[column(PARTITION, "waiting_jobs")].scaled(10_000.0)
    assert of(PARTITION, "waiting_jobs", graph.top_block().partition_x) == [pytest.approx(waiting)]
    changes = graph.update(make_snapshot((make_node(),), jobs[:-1]))
    assert len(graph.task_slots) == MAX_PENDING
    assert min(graph.jobs.store["job"][graph.task_slots]) == 10_000 - MAX_PENDING
    assert len(changes.tasks) < MAX_PENDING / 2


def test_the_devices_of_a_node_are_bounded() -> None:
    graph = graph_of(make_snapshot((make_node(gpus=(NodeGpus(slurm_type="a100", count=10**9),)),)))
    assert len(graph.device_block(graph.node_slots).gpu_x) == MAX_DEVICES


@pytest.mark.parametrize("snapshot", [make_snapshot(), make_snapshot(partitions=()), make_snapshot((), (make_job(1),))])
def test_an_empty_cluster_has_empty_blocks(snapshot: ClusterSnapshot) -> None:
    graph = graph_of(snapshot)
    devices, fabric = graph.device_block([]), graph.fabric_block([])
    assert devices.gpu_x.shape == (0, len(GPU))
    assert devices.link_index.shape == devices.run_index.shape == (2, 0)
    assert len(fabric.node_group) == len(fabric.member_node) == 0
    assert graph.queue_block([]).depends_index.shape == (2, 0)
    assert len(graph.top_block().group_cluster) == 0


def test_a_moment_that_is_no_number_counts_as_the_beginning() -> None:
    graph = graph_of(make_snapshot((make_node(),), (make_job(1),), taken_at_seconds=nan))
    assert graph.now_seconds == 0.0


def test_a_node_that_fails_changes_what_its_group_has() -> None:
    graph = graph_of(make_snapshot((make_node("n1"), make_node("n2"))))
    snapshot = make_snapshot((make_node("n1", available=False), make_node("n2")))
    graph.update(snapshot)
    assert of(SWITCH, "nodes_available", graph.fabric_block(graph.group_slots).switch_x) == [0.5]
    assert_as_fresh(graph, snapshot)


def test_a_dependency_ends_where_the_queue_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_PENDING", 2)
    jobs = (make_job(1, priority=5), make_job(2, priority=4, dependencies=after(1)))
    graph = graph_of(make_snapshot((make_node(),), jobs, PARTITIONS))
    kept, cut = (graph.jobs.entries[JobId(number)].slot for number in (1, 2))
    elsewhere = make_job(3, priority=5, gpus=0, submitted_at_seconds=0.0, partitions=(PartitionName("q"),))
    changes = graph.update(make_snapshot((make_node(),), (*jobs, elsewhere), PARTITIONS))
    assert graph.queue_block(graph.queue_slots).depends_index.shape == (2, 0)
    assert kept in changes.tasks
    assert graph.jobs.entries[JobId(3)].slot == cut


def test_devices_go_to_the_jobs_in_the_order_of_their_numbers() -> None:
    jobs = (make_job(8, running_on="n1", gpus=1), make_job(1, running_on="n1", gpus=2))
    graph = graph_of(make_snapshot((make_node(),), jobs))
    arrays = canonical(graph)
    assert arrays["run_job"].tolist() == [1, 1, 8]
    assert arrays["run_device"].tolist() == [0, 1, 2]


def test_a_job_ahead_changes_what_those_behind_it_wait() -> None:
    graph = graph_of(make_snapshot((make_node(),), (make_job(1),)))
    changes = graph.update(make_snapshot((make_node(),), (make_job(1), make_job(2, gpus=4, submitted_at_seconds=0.0))))
    assert len(changes.tasks) == 2
    changes = graph.update(make_snapshot((make_node(),), (make_job(1),)))
    assert changes.tasks == frozenset(graph.queue_slots.tolist())


def test_another_type_of_gpu_changes_what_it_costs_there() -> None:
    jobs = (make_job(1, partitions=tuple(map(PartitionName, "pq"))),)
    graph = graph_of(
        make_snapshot((make_node("n1"), make_node("n2", slurm_type="a40", partition="q")), jobs, PARTITIONS)
    )
    before = canonical(graph)["wait_x"]
    snapshot = make_snapshot((make_node("n1"), make_node("n2", partition="q")), jobs, PARTITIONS)
    changes = graph.update(snapshot)
    assert changes.tasks == frozenset(graph.queue_slots.tolist())
    assert (canonical(graph)["wait_x"] != before).any()
    assert_as_fresh(graph, snapshot)
