"""Where a job may start, worked out for clusters of many partitions."""

import pytest
from policy_factory import NOW, make_config, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import PartitionState
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.candidates import at_site

MANY = 300


@pytest.mark.parametrize("asked", [(), ("p7", "p11", "p299")], ids=["routed anywhere", "a list"])
def test_partitions_are_never_compared_with_one_another(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [make_node(f"n{number}", f"p{number}", "a100") for number in range(MANY)]
    partitions = tuple(make_partition(f"p{number}", is_default=number == 0) for number in range(MANY))
    snapshot = make_snapshot(*nodes, partitions=partitions)
    case = Case(job=make_job(partitions=asked), snapshot=snapshot, now_seconds=NOW, user_groups=())
    compared: list[object] = []

    def compare(one: object, other: object) -> bool:
        compared.append(other)
        return one is other

    monkeypatch.setattr(PartitionState, "__eq__", compare)
    found = at_site(case, make_config(routing_open=True))
    assert len(found.candidates) == (len(asked) or MANY)
    assert all(candidate.may_be_named for candidate in found.candidates)
    assert sum(candidate.is_submitted_to for candidate in found.candidates) == (len(asked) or 1)
    assert not compared, "every pair would be 90,000"
