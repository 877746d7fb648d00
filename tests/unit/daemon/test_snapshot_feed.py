from types import SimpleNamespace
from typing import Any

from slurm_energy.daemon.ipc.frames import SnapshotBegins, SnapshotComplete, SnapshotPart
from slurm_energy.daemon.snapshot.changes import SnapshotDifference
from slurm_energy.daemon.snapshot.feed import SnapshotFeed
from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, SwitchState
from slurm_energy.domain.ids import ClusterName
from slurm_energy.slurm.json_client import ClusterReading

COMPLETE = SnapshotComplete(taken_at_seconds=1.0, read_seconds=0.1)


def state() -> Any:
    """Return what the feed needs of the daemon's state."""
    return SimpleNamespace(
        config=SimpleNamespace(cluster=SimpleNamespace(name="site")),
        snapshot=None,
        decider=SimpleNamespace(rehearse=lambda snapshot: iter(())),
        counters={"snapshots": 0},
        user_names={},
        reader_note="",
    )


def shown(feed: SnapshotFeed, daemon: Any, *frames: object) -> ClusterSnapshot:
    for frame in (*frames, COMPLETE):
        for _ in feed.receive(frame):
            pass
    snapshot: ClusterSnapshot = daemon.snapshot
    return snapshot


def test_switches_and_clusters_of_a_reading_reach_the_snapshot_whole() -> None:
    daemon = state()
    feed = SnapshotFeed(daemon)
    switches = tuple(SwitchState(name=f"s{number}", parent="root") for number in range(600))
    clusters = (ClusterState(name=ClusterName("site"), carbon_grams_per_kwh=400.0),)
    difference = SnapshotDifference()
    reading = ClusterReading(partitions=(), nodes=(), jobs=(), switches=switches, clusters=clusters)
    snapshot = shown(feed, daemon, *difference.parts(reading))
    assert (snapshot.switches, snapshot.clusters) == (switches, clusters)
    snapshot = shown(feed, daemon, *difference.parts(reading))
    assert (snapshot.switches, snapshot.clusters) == (switches, clusters)


def test_a_changed_topology_replaces_the_old_one_and_a_new_child_begins_with_none() -> None:
    daemon = state()
    feed = SnapshotFeed(daemon)
    shown(feed, daemon, SnapshotPart(switches=(SwitchState(name="a"),)), SnapshotPart(clusters=()))
    new = (SwitchState(name="b"),)
    assert shown(feed, daemon, SnapshotPart(switches=new)).switches == new
    assert shown(feed, daemon, SnapshotBegins()).switches == ()


def test_the_state_holds_what_the_latest_reading_could_not_read_and_no_more() -> None:
    daemon = state()
    feed = SnapshotFeed(daemon)
    bad = {"node: unreadable GRES": 2}
    for skipped, expected in ((bad, bad), ({}, {})):
        for _ in feed.receive(SnapshotComplete(taken_at_seconds=1.0, read_seconds=0.1, skipped=skipped)):
            pass
        assert daemon.skipped_rows == expected
