import grp

from slurm_energy.daemon.ipc.frames import UserGroups
from slurm_energy.daemon.snapshot.process import GroupCache, groups_of
from slurm_energy.domain.cluster import JobState, PartitionState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.slurm.json_client import ClusterReading

ROOT_GROUP = grp.getgrgid(0).gr_name


def reading(*allow_groups: str, user_id: int = 0) -> ClusterReading:
    job = JobState(
        job_id=JobId(1),
        user_name="root",
        user_id=user_id,
        name="train",
        state="PENDING",
        partitions=(PartitionName("a100"),),
        submitted_at_seconds=1.0,
    )
    partition = PartitionState(name=PartitionName("a100"), is_default=True, up=True, allow_groups=allow_groups)
    return ClusterReading(partitions=(partition,), nodes=(), jobs=(job,))


def test_groups_are_looked_up_only_where_a_partition_asks_for_them() -> None:
    assert GroupCache().frames(reading(), 0.0) == []
    (frame,) = GroupCache().frames(reading("hpc"), 0.0)
    assert isinstance(frame, UserGroups)
    ((user_id, groups),) = frame.groups
    assert user_id == 0
    assert ROOT_GROUP in groups


def test_a_user_is_looked_up_again_only_after_ten_minutes() -> None:
    cache = GroupCache()
    assert [len(cache.frames(reading("hpc"), at)) for at in (0.0, 599.0, 600.0)] == [1, 0, 1]


def test_a_user_nobody_knows_has_unknown_groups() -> None:
    assert groups_of(4_294_967_000) is None
    assert GroupCache().frames(reading("hpc", user_id=4_294_967_000), 0.0) == []
