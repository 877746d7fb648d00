"""What a network sees in worlds of the package: finite, bounded, with the columns of the schema, and without a date."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from small_clusters import later
from small_networks import small_network

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DecisionBlock, Floats
from slurm_energy.graph.cluster_graph import TIME_STEP_SECONDS, ClusterGraph
from slurm_energy.graph.options import RunOption, decision_block
from slurm_energy.graph.partitions import ClusterFacts
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.policy.placement import ClusterView
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.episode import JobSource
from slurm_energy.twin.world.file import shipped_world

HOURS = {
    "lab": 3.0,
    "lab-open": 2.0,
    "tum128": 0.25,
    "tum128-failures": 0.25,
    "philly-a100": 6.0,
    "chsac-deadlines": 0.1,
}
LONG = {"tum128-failures", "philly-a100", "chsac-deadlines"}
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in HOURS]
LOOKED_AT = 4
SHIFTS = tuple(TIME_STEP_SECONDS * steps for steps in (166_667, 1_666_667, 30_000_000))
"""10⁷ s, 10⁸ s, and what is between a simulated cluster and a real one's Unix time, in whole steps."""
WIDTHS = {
    "node_x": schema.NODE,
    "gpu_x": schema.GPU,
    "link_x": schema.LINK,
    "task_x": schema.TASK,
    "job_x": schema.TASK,
    "run_x": schema.RUNS,
    "uplink_x": schema.UPLINK,
    "trunk_x": schema.UPLINK,
    "switch_x": schema.SWITCH,
    "spine_x": schema.SWITCH,
    "depends_x": schema.DEPENDS,
    "wait_x": schema.OPTION,
    "option_x": schema.OPTION,
    "clock_x": schema.CLOCK,
    "partition_x": schema.PARTITION,
    "cluster_x": schema.CLUSTER,
    "constraint_x": schema.CONSTRAINT,
}


class Seen(NamedTuple):
    """What a network was shown at one start."""

    snapshot: ClusterSnapshot
    decision: DecisionBlock


class First(NamedTuple):
    """The first option at its first clock."""

    option: int = 0
    clock: int | None = 0


@dataclass
class Watcher:
    """Follows a cluster, starts every job in the first way and remembers what it was shown."""

    graph: ClusterGraph = field(default_factory=ClusterGraph)
    seen: list[Seen] = field(default_factory=list)
    snapshot: ClusterSnapshot | None = None

    @property
    def cluster_facts(self) -> ClusterFacts:
        return ClusterFacts(
            self.graph.partition_index, self.graph.facts, self.graph.members.sums(self.graph.nodes.store)
        )

    def follow_at_once(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.graph.update(snapshot)

    def choose(self, job_x: Floats, options: Sequence[RunOption]) -> First | None:
        assert self.snapshot is not None
        self.seen.append(Seen(self.snapshot, decision_block(job_x, options)))
        return First() if options else None


class WatchedPolicy(GnnPolicy):
    """The policy with a watcher in the place of its network."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(small_network(1), ClusterGraph(), version="1", clocks="learned")
        self._watcher = watcher

    def begin(self, view: ClusterView, random: Random) -> None:
        super().begin(view, random)
        self._chooser = self._watcher  # type: ignore[assignment]  # it only looks


def jobs_of(name: str) -> tuple[Workload, float]:
    source = JobSource(world=shipped_world(name), horizon_seconds=HOURS[name] * 3600.0)
    return source.make(11), HOURS[name] * 3600.0


def starts(name: str, workload: Workload, until_seconds: float) -> list[Seen]:
    watcher = Watcher()
    rule = WatchedPolicy(watcher)
    run(shipped_world(name), workload, rule, seed=11, horizon_seconds=until_seconds)
    return watcher.seen


@cache
def looks(name: str) -> tuple[Seen, ...]:
    """Return some starts of a run, spread evenly over it."""
    seen = starts(name, *jobs_of(name))
    assert len(seen) >= LOOKED_AT
    return tuple(seen[index] for index in np.linspace(0, len(seen) - 1, LOOKED_AT).astype(int))


@cache
def states(name: str) -> tuple[dict[str, Any], ...]:
    """Return what a network is shown of the cluster at these starts."""
    return tuple(state_of(seen.snapshot) for seen in looks(name))


def arrays(*blocks: object) -> Iterator[tuple[str, Any]]:
    for block in blocks:
        for item in fields(block):  # type: ignore[arg-type]  # blocks are dataclasses
            array = getattr(block, item.name)
            if array is not None:
                yield f"{type(block).__name__}.{item.name}", array


def state_of(snapshot: ClusterSnapshot) -> dict[str, Any]:
    graph = ClusterGraph()
    graph.update(snapshot)
    return dict(arrays(*whole_blocks(graph)))


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Hold that features are the same but for the rounding of large times, and all else exactly."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_every_feature_of_a_real_run_is_finite_and_inside_the_bound(name: str) -> None:
    for seen, state in zip(looks(name), states(name), strict=True):
        for field_name, array in (*state.items(), *arrays(seen.decision)):
            if array.dtype.kind != "f":
                continue
            assert np.isfinite(array).all() and (np.abs(array) <= schema.LARGEST).all(), field_name
            assert array.dtype == np.float32 and array.shape[1] == len(WIDTHS[field_name.split(".")[1]]), field_name
        assert len(state["DeviceBlock.gpu_x"]) > 0 and len(seen.decision.option_x) > 0


@pytest.mark.parametrize("seconds", SHIFTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_real_run_at_another_date_has_the_same_state(name: str, seconds: float) -> None:
    for seen, state in zip(looks(name), states(name), strict=True):
        assert_alike(state_of(later(seen.snapshot, seconds)), state)


@pytest.mark.parametrize("seconds", SHIFTS[:2])
def test_a_whole_run_at_another_date_asks_the_same_questions(seconds: float) -> None:
    """The job that is asked about and its options, too, are the same."""
    workload, until = jobs_of("lab")
    moved = replace(
        workload,
        jobs=tuple(replace(job, submitted_seconds=job.submitted_seconds + seconds) for job in workload.jobs),
    )
    first, second = starts("lab", workload, until), starts("lab", moved, until + seconds)
    assert len(first) == len(second) > LOOKED_AT
    for one, other in zip(first, second, strict=True):
        assert_alike(dict(arrays(other.decision)), dict(arrays(one.decision)))
    for index in (0, len(first) // 2, -1):
        assert_alike(state_of(second[index].snapshot), state_of(first[index].snapshot))
