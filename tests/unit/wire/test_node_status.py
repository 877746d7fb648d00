"""A node's status on the wire: it comes back whole, and hostile content is an error and nothing else."""

import json
from dataclasses import replace
from typing import Any

import pytest

from slurm_energy.domain.ids import ClusterName, GpuTypeName, NodeName
from slurm_energy.domain.node_status import GpuStatus, NodeStatus, PluginStatus, ReceivedStatus, SpoolStatus
from slurm_energy.errors import WireError
from slurm_energy.wire.node_status import (
    MAX_LINES,
    MAX_PLUGINS,
    MAX_STATUS_BYTES,
    decode_delivery,
    decode_received,
    decode_status,
    encode_received,
    encode_status,
    encode_status_batch,
)
from slurm_energy.wire.report import batch_fields, decode_reports

STATUS = NodeStatus(
    cluster=ClusterName("north"),
    node=NodeName("n1"),
    sent_at_seconds=1_800_000_000.5,
    boot_id="boot-1",
    hook_version="1.2.3",
    interpreter="/opt/venv/bin/python",
    slurm_version="22.05.8",
    plugins=(PluginStatus(path="/usr/lib/slurm/spank_energy.so", version="22.05.8"),),
    spool=SpoolStatus(path="/var/spool/slurm-energy", owner_user_id=0, mode=0o700, free_bytes=10**12),
    problems=("one", "two"),
    gpus=(
        GpuStatus(uuid="GPU-1", index=0, minor_number=7, name="NVIDIA H200", gpu_type=GpuTypeName("h200-sxm5-141gb")),
    ),
    repaired_at_seconds=1_799_999_999.0,
    repair_clean=True,
)


def test_a_status_comes_back_as_it_was() -> None:
    delivery = decode_delivery(encode_status_batch(STATUS))
    assert (delivery.status, delivery.batch.reports) == (STATUS, ())
    received = ReceivedStatus(received_at_seconds=1_800_000_003.0, status=STATUS)
    assert decode_received(encode_received(received)) == received
    assert received.clock_skew_seconds == -2.5


def test_a_daemon_that_knows_no_status_takes_the_batch() -> None:
    assert decode_reports(batch_fields(encode_status_batch(STATUS))).reports == ()


def test_a_status_without_gpus_seen_is_not_one_without_gpus() -> None:
    document = encode_status(STATUS) | {"gpus": None}
    assert decode_status(document).gpus is None
    assert decode_status(document | {"gpus": []}).gpus == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "../../etc/passwd"},
        {"node": ".hidden"},
        {"node": "n" * 201},
        {"node": "a/b"},
        {"node": ""},
        {"sent_at_seconds": float("1e300")},
        {"sent_at_seconds": "now"},
        {"problems": ["x"] * (MAX_LINES + 1)},
        {"problems": [{}]},
        {"gpus": [{}]},
        {"gpus": 7},
        {"gpus": [{"uuid": "x", "index": -1}]},
        {"gpus": [{"uuid": "x", "index": True}]},
        {"spool": None},
        {"spool": {"path": "/x", "mode": 10**30, "waiting_reports": 0, "rejected_files": 0, "pending_jobs": 0}},
        {"repair_clean": "yes"},
        {"hook_version": None},
        {"interpreter": "\x00"},
        {"plugins": [{"path": "/x"}]},
    ],
)
def test_a_hostile_status_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_status(encode_status(STATUS) | changes)


def test_members_of_a_newer_node_are_left_out() -> None:
    assert decode_status(encode_status(STATUS) | {"colour": "blue"}) == STATUS


def test_the_largest_status_that_is_sent_is_taken() -> None:
    many = tuple(GpuStatus(uuid=f"GPU-{number}", index=number, name="x" * 255) for number in range(200))
    document = encode_status(NodeStatus(
        cluster=STATUS.cluster, node=STATUS.node, sent_at_seconds=0.0, boot_id="", hook_version="1",
        interpreter="/p", spool=STATUS.spool, gpus=many, problems=("é" * 5000,) * 100, repair_said=("y" * 5000,) * 100,
    ))  # fmt: skip
    assert len(json.dumps(document, ensure_ascii=False).encode()) < MAX_STATUS_BYTES * 2
    taken = decode_status(document)
    assert (len(taken.gpus or ()), len(taken.problems)) == (64, MAX_LINES)


def test_whatever_a_node_has_to_say_its_status_is_taken() -> None:
    status = replace(
        STATUS,
        interpreter="/p" * 5000,
        driver_problem="no\0driver" * 5000,
        problems=("a\0b", "/etc/\udcff.sh is not executable"),
        plugins=tuple(PluginStatus(path=f"/opt/{number}/spank_energy.so", version="22.05.8") for number in range(50)),
    )
    taken = decode_delivery(encode_status_batch(status)).status
    assert taken is not None
    assert taken.problems == ("a?b", "/etc/?.sh is not executable")
    assert (taken.driver_problem or "").startswith("no?driver")
    assert len(taken.plugins) == MAX_PLUGINS
