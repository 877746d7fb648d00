import asyncio
import copyreg
import socket
import threading
from dataclasses import FrozenInstanceError

import pytest

from slurm_energy.daemon.ipc.channel import MAX_FRAME_BYTES, FrameBuffer, pack, read_frame, receive, send
from slurm_energy.daemon.ipc.frames import SnapshotPart
from slurm_energy.domain.cluster import JobDependency, JobState, NodeGpus, NodeState
from slurm_energy.domain.ids import JobId, NodeName, PartitionName
from slurm_energy.errors import WireError


def test_frames_arrive_whole_and_in_order_on_both_kinds_of_end() -> None:
    async def reading(connection: socket.socket) -> list[object]:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        found = [await read_frame(reader) for _ in range(3)]
        writer.close()
        return found

    ours, theirs = socket.socketpair()
    frames: list[object] = [("a", 1), {"b": "x" * 300_000}, None]

    def send_all() -> None:
        for frame in frames:
            send(theirs, frame)

    sender = threading.Thread(target=send_all)
    sender.start()
    assert asyncio.run(reading(ours)) == frames
    sender.join()
    theirs.close()


def test_the_end_of_the_other_side_is_seen() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"\x00\x00")
        theirs.close()
        with pytest.raises(EOFError):
            receive(ours)


def test_a_frame_of_absurd_size_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(WireError, match="over"):
            receive(ours)


def test_a_buffer_gives_out_whole_frames_only_and_never_waits() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        buffer = FrameBuffer(ours)
        buffer.fill()
        assert not buffer.has_frame()
        data = pack("first") + pack("second")
        for byte in data[:-1]:
            theirs.sendall(bytes([byte]))
            buffer.fill()
        assert buffer.has_frame()
        assert buffer.take() == "first"
        assert not buffer.has_frame()
        theirs.sendall(data[-1:])
        buffer.fill()
        assert buffer.take() == "second"
        theirs.close()
        with pytest.raises(EOFError):
            buffer.fill()


def test_a_buffer_refuses_a_frame_of_absurd_size() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
        buffer = FrameBuffer(ours)
        buffer.fill()
        with pytest.raises(WireError, match="over"):
            buffer.has_frame()


@pytest.mark.parametrize(
    "value",
    [
        JobState(
            job_id=JobId(7),
            user_name="alice",
            user_id=1000,
            name="train",
            state="PENDING",
            partitions=(PartitionName("a100"),),
            submitted_at_seconds=1000.0,
            dependencies=(JobDependency(job_id=JobId(6), needs_success=True),),
        ),
        NodeState(
            name=NodeName("n1"),
            partitions=(PartitionName("a100"),),
            states=("IDLE",),
            available=True,
            cpus=32,
            cpus_allocated=0,
            gpus=(NodeGpus(slurm_type="a100", count=4),),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_snapshot_consists_of_travels_unchanged(value: object) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, SnapshotPart(jobs=(value,)))  # type: ignore[arg-type]  # either kind goes the same way
        (came,) = receive(ours).jobs
    assert came == value
    assert hash(came) == hash(value)
    with pytest.raises(FrozenInstanceError):
        came.name = "other"
    assert type(value) in copyreg.dispatch_table, "dataclass itself would look up the fields of each value"
