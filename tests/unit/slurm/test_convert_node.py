import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import convert_nodes

from slurm_energy.domain.cluster import NodeGpus, NodeState
from slurm_energy.domain.ids import NodeName, PartitionName
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.convert_cluster import node_gpus

DATA = Path(__file__).parents[2] / "data" / "slurm"


def node_row(**fields: Any) -> dict[str, Any]:
    row = {
        "name": "n1",
        "partitions": ["a100", "all"],
        "state": "mixed",
        "state_flags": [],
        "cpus": 8,
        "alloc_cpus": 3,
        "real_memory": 4000,
        "alloc_memory": 0,
        "gres": "gpu:a100:4",
        "gres_used": "gpu:a100:3(IDX:0-2)",
        "features": "ib,fast",
        "active_features": "fast",
    }
    return {**row, **fields}


def converted(**fields: Any) -> NodeState:
    (node,) = convert_nodes({"nodes": [node_row(**fields)]}).items
    return node


def test_a_node_is_read_whole() -> None:
    assert converted() == NodeState(
        name=NodeName("n1"),
        partitions=(PartitionName("a100"), PartitionName("all")),
        states=("MIXED",),
        available=True,
        cpus=8,
        cpus_allocated=3,
        memory_mib=4000.0,
        memory_allocated_mib=0.0,
        gpus=(NodeGpus(slurm_type="a100", count=4, allocated=3),),
        features=("fast",),
    )


@pytest.mark.parametrize(
    ("state", "flags", "available"),
    [
        ("idle", [], True),
        ("mixed", ["PLANNED"], True),
        ("allocated", ["COMPLETING"], True),
        ("idle", ["DRAIN"], False),
        (["IDLE", "DRAIN"], None, False),
        (["DOWN", "NOT_RESPONDING"], None, False),
        ("down*", [], False),
        ("MIXED+MAINTENANCE", [], False),
        ("idle", ["REBOOT_REQUESTED"], False),
        (["IDLE", "POWERED_DOWN"], None, True),  # a cloud node that Slurm would start
        (["FUTURE"], None, False),
        ("unknown", [], False),
    ],
)
def test_only_nodes_where_slurm_would_start_something_are_available(state: Any, flags: Any, available: bool) -> None:
    assert converted(state=state, state_flags=flags).available is available


@pytest.mark.parametrize(
    ("gres", "used", "gpus"),
    [
        ("gpu:a100:4(S:0-1)", "gpu:a100:0(IDX:N/A)", (NodeGpus(slurm_type="a100", count=4),)),
        ("gpu:4", "gpu:2(IDX:0,3)", (NodeGpus(slurm_type=None, count=4, allocated=2),)),
        ("gpu:4", "gpu:(null):1(IDX:0)", (NodeGpus(slurm_type=None, count=4, allocated=1),)),
        (
            "gpu:h100:2(S:0),gpu:h200:4(S:1)",
            "gpu:h100:1(IDX:0),gpu:h200:0(IDX:N/A)",
            (NodeGpus(slurm_type="h100", count=2, allocated=1), NodeGpus(slurm_type="h200", count=4)),
        ),
        ("", "", ()),
        ("(null)", "gpu:0", ()),
        (None, None, ()),
        ("craynetwork:4", "", ()),
        ("gpu:a100:2,gpu:a100:2", "gpu:a100:3", (NodeGpus(slurm_type="a100", count=4, allocated=3),)),
        (["gpu:a100:4"], ["gpu:a100:1"], (NodeGpus(slurm_type="a100", count=4, allocated=1),)),
    ],
)
def test_gpus_of_a_node_are_read_typed_and_untyped(gres: object, used: object, gpus: Any) -> None:
    assert node_gpus(gres, used) == gpus


@pytest.mark.parametrize(
    ("energy", "watts"),
    [
        ({"current_watts": 350}, 350.0),
        ({"current_watts": {"set": True, "infinite": False, "number": 350}}, 350.0),
        ({"current_watts": 4294967294}, None),
        ({"current_watts": {"set": True, "infinite": False, "number": 4294967294}}, None),
        ({"current_watts": 4294967295}, None),
        ({"current_watts": 0, "last_collected": 0}, None),
        ({"current_watts": -5}, None),
        ({"current_watts": 2_000_000}, None),
        ({"current_watts": "n/a"}, None),
        ({}, None),
        (None, None),
        ([350], None),
    ],
)
def test_power_that_nobody_measures_is_unknown(energy: object, watts: float | None) -> None:
    assert converted(energy=energy).power_watts == watts


@pytest.mark.parametrize(
    ("state", "suspended", "waking"),
    [
        (["IDLE", "POWERED_DOWN"], True, False),
        (["IDLE", "POWERING_DOWN"], True, False),
        (["IDLE", "POWERING_UP"], False, True),
        (["MIXED", "POWERED_DOWN", "POWER_UP"], False, True),
        ("idle~", False, False),
        (["ALLOCATED", "POWER_DOWN"], False, False),
        (["IDLE"], False, False),
    ],
)
def test_a_node_that_sleeps_or_wakes_says_so(state: object, suspended: bool, waking: bool) -> None:
    node = converted(state=state)
    assert (node.is_suspended, node.is_waking) == (suspended, waking)


def test_a_bad_row_is_counted_with_its_reason() -> None:
    rows = [node_row(), node_row(name=""), node_row(state=None), node_row(gres="gpu:a100:many"), 5]
    result = convert_nodes({"nodes": rows})
    assert [node.name for node in result.items] == ["n1"]
    assert result.skipped == {"no node name": 1, "no node state": 1, "unreadable GRES": 1, "not an object": 1}


def test_the_grouped_answer_of_newer_sinfo_is_refused_with_what_it_has() -> None:
    with pytest.raises(SlurmError, match="no list 'nodes'; it has sinfo"):
        convert_nodes({"sinfo": []})


@pytest.mark.parametrize("name", ["sinfo-21.08", "sinfo-22.05", "nodes-24.11", "nodes-25.11"])
def test_real_answers_are_read_without_a_lost_row(name: str) -> None:
    document = json.loads((DATA / f"{name}.json").read_text())
    result = convert_nodes(document)
    assert result.skipped == {}
    assert len(result.items) == len(document["nodes"]) > 0
    assert all(node.cpus > 0 and node.memory_mib and node.partitions for node in result.items)


@given(
    st.dictionaries(
        st.sampled_from([*node_row(), "energy"]), st.none() | st.integers() | st.text(max_size=20) | st.lists(st.text())
    )
)
def test_no_value_of_any_field_is_more_than_a_skipped_row(fields: dict[str, Any]) -> None:
    result = convert_nodes({"nodes": [node_row(**fields)]})
    assert len(result.items) + result.skipped_rows == 1


def test_nodes_with_gpu_types_of_digits_and_without_consumption_are_seen() -> None:
    assert node_gpus("gpu:3090:4(S:0-1)", "gpu:3090:1(IDX:0)") == (NodeGpus(slurm_type="3090", count=4, allocated=1),)
    assert node_gpus("gpu:tesla:no_consume:2(S:0)", "gpu:tesla:0") == (NodeGpus(slurm_type="tesla", count=2),)
    assert node_gpus("gpu:(null):2(S:0),shard:8", "gpu:(null):2(IDX:0-1),shard:0") == (
        NodeGpus(slurm_type=None, count=2, allocated=2),
    )
