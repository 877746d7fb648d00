from dataclasses import replace

from policy_parts import NODE, PARTITION, complete

from slurm_energy.daemon.ipc.frames import MAX_ITEMS, SnapshotBegins, SnapshotComplete, SnapshotPart
from slurm_energy.daemon.snapshot.feed import SnapshotCopy
from slurm_energy.domain.cluster import ClusterState, JobState, SwitchState
from slurm_energy.domain.ids import ClusterName, JobId, PartitionName

SITE = ClusterName("site")


def job(number: int, state: str = "PENDING") -> JobState:
    return JobState(
        job_id=JobId(number),
        user_name="alice",
        user_id=1000,
        name="train",
        state=state,
        partitions=(PartitionName("a40"),),
        submitted_at_seconds=1.0,
    )


def full() -> SnapshotCopy:
    copy = SnapshotCopy()
    copy.take(SnapshotBegins())
    copy.take(SnapshotPart(partitions=(PARTITION,), nodes=(NODE,), switches=(SwitchState(name="s1"),)))
    copy.take(SnapshotPart(jobs=tuple(job(number) for number in range(1, 2 * MAX_ITEMS))))
    copy.take(SnapshotPart(clusters=(ClusterState(name=SITE),), more_switches=(SwitchState(name="s2"),)))
    copy.take(complete())
    return copy


def test_another_copy_becomes_like_this_one_through_its_frames() -> None:
    frames = list(full().frames())
    other = SnapshotCopy()
    for frame in frames:
        other.take(frame)
    assert other.snapshot(SITE, 5.0) == full().snapshot(SITE, 5.0)
    assert (frames[0], frames[-1]) == (SnapshotBegins(), complete())
    assert max(len(frame.jobs) for frame in frames if isinstance(frame, SnapshotPart)) == MAX_ITEMS


def test_a_reading_that_is_under_way_has_no_end_in_the_frames() -> None:
    copy = full()
    copy.take(SnapshotPart(jobs_gone=(1,)))
    assert not [frame for frame in copy.frames() if isinstance(frame, SnapshotComplete)]
    copy.take(complete(9.0))
    assert list(copy.frames())[-1] == complete(9.0)


def test_frames_are_those_of_the_moment_when_they_were_asked_for() -> None:
    copy = full()
    frames = copy.frames()
    copy.take(SnapshotPart(jobs=(job(1, "RUNNING"),), nodes=(replace(NODE, available=False),)))
    other = SnapshotCopy()
    for frame in frames:
        other.take(frame)
    assert other.snapshot(SITE, 5.0) == full().snapshot(SITE, 5.0)


def test_a_new_child_begins_with_nothing() -> None:
    copy = full()
    copy.take(SnapshotBegins())
    assert copy.snapshot(SITE, 1.0) == SnapshotCopy().snapshot(SITE, 1.0)
    assert list(copy.frames()) == [SnapshotBegins(), SnapshotPart(partitions=())]
