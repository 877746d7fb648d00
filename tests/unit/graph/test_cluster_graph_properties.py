"""A graph that was updated through any snapshots is the graph of the last one; it is bounded and knows no date."""

from typing import Any

import numpy as np
import pytest
from canonical import canonical
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_clusters import NOW, later, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import (
    ClusterSnapshot,
    ClusterState,
    GpuLink,
    GpuReading,
    JobDependency,
    JobState,
    NodeGpus,
    NodeState,
    PartitionState,
    SwitchState,
)
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName
from slurm_energy.graph import groups, job_table
from slurm_energy.graph.cluster_graph import TIME_STEP_SECONDS, ClusterGraph
from slurm_energy.graph.partitions import Changes
from slurm_energy.graph.schema import LARGEST

NODES = tuple(f"n{number}" for number in range(1, 7))
PARTITIONS = ("p", "q", "cpu")
SHIFTS = tuple(TIME_STEP_SECONDS * steps for steps in (166_667, 1_666_667, 30_000_000))
"""10⁷ s, 10⁸ s, and what is between a simulated cluster and a real one's Unix time, in whole steps."""
SWITCHES = ("leaf1", "leaf2", "leaf3")
figures = st.one_of(st.none(), st.sampled_from([0.0, 0.4, 50.0, -1e30, 1e30, float("nan"), float("inf")]))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeState:
    kinds = draw(st.lists(st.sampled_from([None, "a100", "v100", "strange"]), max_size=2))
    gpus = tuple(
        NodeGpus(slurm_type=kind, count=draw(st.integers(0, 3)), allocated=draw(st.integers(0, 4))) for kind in kinds
    )
    readings = tuple(
        GpuReading(index=draw(st.integers(0, 4)), utilisation=draw(figures), power_watts=draw(figures))
        for _ in range(draw(st.integers(0, 2)))
    )
    return make_node(
        name,
        partitions=tuple(PartitionName(one) for one in draw(st.lists(st.sampled_from((*PARTITIONS, "gone"))))),
        available=draw(st.booleans()),
        states=draw(st.sampled_from([("IDLE",), ("IDLE", "POWERED_DOWN"), ("IDLE", "POWERING_UP")])),
        cpus_allocated=draw(st.sampled_from([0, 32, 64])),
        gpus=gpus,
        gpu_readings=readings,
        gpu_link=draw(st.sampled_from([None, GpuLink(kind="nvlink", island_gpus=2), GpuLink(kind="pcie")])),
        switch=draw(st.sampled_from([None, "leaf1", "leaf2"])),
        power_watts=draw(figures),
    )


@st.composite
def jobs(draw: st.DrawFn) -> JobState:
    number = draw(st.integers(1, 9))
    state = draw(st.sampled_from(["PENDING", "PENDING", "RUNNING", "SUSPENDED", "COMPLETED"]))
    running = state in {"RUNNING", "SUSPENDED"}
    needs = draw(st.lists(st.integers(1, 10), max_size=3))
    return make_job(
        number,
        state=state,
        gpus=draw(st.sampled_from([None, 0, 1, 3, 8])),
        user_id=draw(st.integers(1, 3)),
        partitions=tuple(PartitionName(one) for one in draw(st.lists(st.sampled_from(PARTITIONS), max_size=2))),
        nodes=draw(st.sampled_from(["", "n1", "n[1-3]", "n[2,9]", "x[", "n5,n6"])) if running else "",
        started_at_seconds=draw(st.sampled_from([None, NOW - 100.0, NOW + 50.0])) if running else None,
        priority=draw(st.sampled_from([None, 1, 100, 101, 5000, 2**32 - 1])),
        submitted_at_seconds=draw(st.sampled_from([NOW - 5000.0, NOW - 5.0, NOW])),
        gpu_positions=draw(st.sampled_from([(), ((NodeName("n2"), (0, 1, 7)),)])),
        gpu_types=draw(st.sampled_from([(), ("a100",), ("strange",)])),
        array_task=draw(st.sampled_from([None, "4", "1-20%2"])),
        dependencies=tuple(JobDependency(job_id=JobId(one), needs_success=bool(one % 2)) for one in needs),
        deadline_seconds=draw(st.sampled_from([None, NOW + 500.0, NOW - 500.0])),
        estimated_seconds=draw(st.sampled_from([None, 0.0, 120.0, 1e5, 1e300, float("inf")])),
        time_limit_minutes=draw(st.sampled_from([None, 10.0])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    names = draw(st.lists(st.sampled_from(NODES), unique=True))
    partitions: list[PartitionState] = [
        make_partition(name, up=draw(st.booleans()), cluster=draw(st.sampled_from([None, ClusterName("d")])))
        for name in draw(st.sampled_from([PARTITIONS, PARTITIONS, ("p", "q"), ("q", "p"), ()]))
    ]
    switches = [
        SwitchState(
            name=name,
            parent=draw(st.sampled_from([None, "root", "leaf1"])),
            capacity_gb_per_second=draw(figures),
            congestion=draw(figures),
        )
        for name in draw(st.lists(st.sampled_from((*SWITCHES, "root")), unique=True))
    ]
    return make_snapshot(
        nodes=tuple(draw(nodes(name)) for name in names),
        jobs=tuple(draw(st.lists(jobs(), max_size=9))),
        partitions=tuple(partitions),
        switches=tuple(switches),
        clusters=draw(
            st.sampled_from([(), (ClusterState(name=ClusterName("c"), power_watts=5.0, power_budget_watts=0.0),)])
        ),
        taken_at_seconds=NOW + draw(st.sampled_from([0.0, 30.0, 61.0, 7200.0])),
    )


@st.composite
def changed(draw: st.DrawFn, before: ClusterSnapshot) -> ClusterSnapshot:
    """Another snapshot of which most is as it was."""
    other = draw(snapshots())
    kept_nodes = {node.name: node for node in before.nodes}
    kept_nodes.update((node.name, node) for node in other.nodes[:1])
    kept_jobs = {job.job_id: job for job in before.jobs}
    kept_jobs.update((job.job_id, job) for job in other.jobs[:2])
    if draw(st.booleans()) and kept_nodes:
        kept_nodes.pop(draw(st.sampled_from(sorted(kept_nodes))))
    if draw(st.booleans()) and kept_jobs:
        kept_jobs.pop(draw(st.sampled_from(sorted(kept_jobs))))
    return make_snapshot(
        nodes=tuple(kept_nodes.values()),
        jobs=tuple(kept_jobs.values()),
        partitions=draw(st.sampled_from([before.partitions, before.partitions, other.partitions])),
        switches=draw(st.sampled_from([before.switches, other.switches])),
        clusters=before.clusters,
        taken_at_seconds=draw(st.sampled_from([before.taken_at_seconds, other.taken_at_seconds])),
    )


def fresh(snapshot: ClusterSnapshot) -> ClusterGraph:
    graph = ClusterGraph({"strange": "a40"})
    graph.update(snapshot)
    return graph


def assert_same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that six nodes and nine jobs reach."""
    monkeypatch.setattr(groups, "GROUP_NODES", 2)
    monkeypatch.setattr(job_table, "MAX_PENDING", 4)


@given(st.data())
def test_an_updated_graph_equals_a_fresh_one(data: st.DataObject) -> None:
    snapshot = data.draw(snapshots())
    graph = fresh(snapshot)
    for _ in range(data.draw(st.integers(1, 3))):
        snapshot = data.draw(changed(snapshot))
        graph.update(snapshot)
        assert_same(canonical(graph), canonical(fresh(snapshot)))


class Cache:
    """What the network keeps by slot, kept up to date from `Changes` alone."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[bytes, ...]] = {}
        self.groups: dict[int, tuple[bytes, ...]] = {}
        self.tasks: dict[int, tuple[bytes, ...]] = {}

    def follow(self, graph: ClusterGraph, changes: Changes) -> None:
        if changes.rebuilt:
            self.__init__()  # type: ignore[misc]  # starts anew
        for kept, gone in (
            (self.nodes, changes.gone_nodes),
            (self.groups, changes.gone_groups),
            (self.tasks, changes.gone_tasks),
        ):
            for slot in gone:
                kept.pop(slot, None)
        self.nodes.update((slot, node_inside(graph, slot)) for slot in changes.nodes)
        self.groups.update((slot, group_inside(graph, slot)) for slot in changes.groups)
        self.tasks.update((slot, task_inside(graph, slot)) for slot in changes.tasks)


def as_bytes(block: Any) -> tuple[bytes, ...]:
    arrays = (getattr(block, name) for name in block.__slots__)
    return tuple(array.tobytes() for array in arrays if array is not None)


def node_inside(graph: ClusterGraph, slot: int) -> tuple[bytes, ...]:
    return as_bytes(graph.device_block([slot]))


def group_inside(graph: ClusterGraph, slot: int) -> tuple[bytes, ...]:
    return (*as_bytes(graph.fabric_block([slot])), graph.nodes_of_groups([slot]).tobytes())


def task_inside(graph: ClusterGraph, slot: int) -> tuple[bytes, ...]:
    return as_bytes(graph.queue_block(graph.component_of([slot])))


@pytest.mark.slow
@given(st.data())
def test_what_is_not_reported_as_changed_is_as_it_was(data: st.DataObject) -> None:
    graph, cache = ClusterGraph({"strange": "a40"}), Cache()
    snapshot = data.draw(snapshots())
    for _ in range(3):
        top = as_bytes(graph.top_block())
        changes = graph.update(snapshot)
        cache.follow(graph, changes)
        assert cache.nodes == {int(slot): node_inside(graph, int(slot)) for slot in graph.node_slots}
        assert cache.groups == {int(slot): group_inside(graph, int(slot)) for slot in graph.group_slots}
        assert cache.tasks == {int(slot): task_inside(graph, int(slot)) for slot in graph.queue_slots}
        assert changes.top or as_bytes(graph.top_block()) == top
        snapshot = data.draw(changed(snapshot))


@given(snapshots())
def test_every_feature_is_finite_and_inside_the_bound(snapshot: ClusterSnapshot) -> None:
    for name, array in canonical(fresh(snapshot)).items():
        if array.dtype.kind == "f":
            assert np.isfinite(array).all() and (np.abs(array) <= LARGEST).all(), name


@given(snapshots(), st.sampled_from(SHIFTS))
def test_the_same_cluster_at_another_date_is_the_same_graph(snapshot: ClusterSnapshot, seconds: float) -> None:
    assert_same(canonical(fresh(later(snapshot, seconds))), canonical(fresh(snapshot)))
