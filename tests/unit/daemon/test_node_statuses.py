"""What the daemon keeps of its nodes: the latest of each, bounded, across restarts."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.daemon.doors import reports
from slurm_energy.daemon.doors.reports import NodeStatuses, nodes_summary
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState
from slurm_energy.domain.ids import ClusterName, NodeName
from slurm_energy.domain.node_status import SILENT_SECONDS, NodeStatus, ReceivedStatus, SpoolStatus
from slurm_energy.errors import SpoolError
from slurm_energy.wire.node_status import decode_received

NOW = 1_800_000_000.0


def told(node: str, at: float = NOW, **changes: Any) -> ReceivedStatus:
    status = NodeStatus(
        cluster=ClusterName("north"),
        node=NodeName(node),
        sent_at_seconds=at,
        boot_id="b",
        hook_version="1",
        interpreter="/p",
        spool=SpoolStatus(path="/s"),
    )
    return ReceivedStatus(received_at_seconds=at, status=replace(status, **changes))


def node(name: str, gpus: int = 4) -> NodeState:
    return NodeState(
        name=NodeName(name),
        partitions=(),
        states=("IDLE",),
        available=True,
        cpus=8,
        cpus_allocated=0,
        memory_mib=1000.0,
        memory_allocated_mib=0.0,
        gpus=(NodeGpus(slurm_type="a100", count=gpus, allocated=0),) if gpus else (),
        features=(),
    )


def cluster(*nodes: NodeState) -> ClusterSnapshot:
    return ClusterSnapshot(cluster=ClusterName("north"), taken_at_seconds=NOW, partitions=(), nodes=nodes, jobs=())


def test_the_latest_status_of_a_node_replaces_the_one_before(tmp_path: Path) -> None:
    statuses = NodeStatuses(tmp_path)
    for problem in ("old", "new"):
        statuses.take(told("n1", problems=(problem,)))
    (file,) = (tmp_path / "nodes").iterdir()
    assert decode_received(file.read_bytes()).status.problems == ("new",)


def age(directory: Path, name: str, seconds: float) -> None:
    """Let a node have told its status so long before NOW."""
    os.utime(directory / "nodes" / f"{name}.json", (NOW - seconds, NOW - seconds))


def test_nodes_that_stopped_or_never_told_are_named_and_those_without_gpus_are_not_missed(tmp_path: Path) -> None:
    snapshot = cluster(node("n1"), node("n2"), node("n3"), node("cpu", gpus=0))
    for name, seconds in (("n2", SILENT_SECONDS + 1), ("n1", 1.0)):
        NodeStatuses(tmp_path).take(told(name))
        age(tmp_path, name, seconds)
    assert nodes_summary(tmp_path, snapshot, NOW) == {
        "with_gpus": 3,
        "reporting": 1,
        "stopped_reporting": ["n2"],
        "never_reported": ["n3"],
    }
    assert nodes_summary(tmp_path, None, NOW)["with_gpus"] == 0
    assert nodes_summary(tmp_path / "none", snapshot, NOW)["never_reported"] == ["n1", "n2", "n3"]


def test_more_nodes_than_are_kept_push_out_the_one_heard_of_longest_ago_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MAX_NODES", 3)
    statuses = NodeStatuses(tmp_path)
    for name in ("a", "b", "c", "a", "d"):
        statuses.take(told(name))
    assert sorted(path.stem for path in (tmp_path / "nodes").iterdir()) == ["a", "c", "d"]
    for seconds, name in enumerate(("d", "c", "a")):
        age(tmp_path, name, 100.0 * seconds)
    NodeStatuses(tmp_path).take(told("e"))
    assert sorted(path.stem for path in (tmp_path / "nodes").iterdir()) == ["c", "d", "e"]


def test_a_disk_that_takes_nothing_is_an_error_that_the_node_hears_of(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("no folder")
    with pytest.raises(SpoolError, match="cannot be written"):
        NodeStatuses(tmp_path).take(told("n1"))


def turned_away(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "turned-away.json").read_text())
    return found


def test_who_was_turned_away_is_named_until_he_is_let_in_and_strangers_fill_nothing(tmp_path: Path) -> None:
    statuses = NodeStatuses(tmp_path)
    for number in range(1_000):
        statuses.turn_away(f"10.0.{number // 256}.{number % 256}", "bad credential" * 100, NOW + number)
    found = turned_away(tmp_path)
    assert len(found) == reports.MAX_TURNED_AWAY
    assert found["10.0.3.227"]["at_seconds"] == NOW + 995
    statuses.let_in("10.0.3.227", NOW + 1_000)
    assert "10.0.3.227" not in turned_away(tmp_path)
