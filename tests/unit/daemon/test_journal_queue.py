import asyncio
import time
from pathlib import Path

import pytest

from slurm_energy.daemon.recorder.entries import JournalQueue
from slurm_energy.daemon.recorder.journal import JournalReader, JournalWriter
from slurm_energy.errors import SpoolError


class BrokenWriter(JournalWriter):
    """Fails until told otherwise."""

    broken = True

    def append(self, lines: list[bytes], durable: bool) -> None:
        if self.broken:
            raise SpoolError("disk full")
        super().append(lines, durable)


class SlowWriter(JournalWriter):
    """Needs so long for each batch that more has come by then."""

    def append(self, lines: list[bytes], durable: bool) -> None:
        time.sleep(0.02)
        super().append(lines, durable)


def written(directory: Path) -> list[bytes]:
    return [line.text for line in JournalReader(directory, "daemon").read(1000)]


def test_entries_are_written_in_order_at_the_latest_when_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        queue = JournalQueue(JournalWriter(tmp_path, "daemon"))
        for text in (b"1", b"2", b"3"):
            queue.append(lambda text=text: text)  # type: ignore[misc]  # a default argument binds the loop's value
        await queue.close()

    asyncio.run(scenario())
    assert written(tmp_path) == [b"1", b"2", b"3"]


def test_a_durable_entry_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    async def scenario() -> list[bytes]:
        queue = JournalQueue(JournalWriter(tmp_path, "daemon"))
        task = asyncio.create_task(queue.run())
        await queue.append_durably(lambda: b"report")
        found = written(tmp_path)
        task.cancel()
        await queue.close()
        return found

    assert asyncio.run(scenario()) == [b"report"]


def test_while_the_disk_is_full_decisions_wait_in_memory_and_reports_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        writer = BrokenWriter(tmp_path, "daemon")
        queue = JournalQueue(writer)
        queue.append(lambda: b"decision 1")
        durable = asyncio.create_task(queue.append_durably(lambda: b"report"))
        await asyncio.sleep(0)
        assert not await queue.flush()
        with pytest.raises(SpoolError, match="disk full"):
            await durable
        queue.append(lambda: b"decision 2")
        writer.broken = False
        assert await queue.flush()
        await queue.close()

    asyncio.run(scenario())
    assert written(tmp_path) == [b"decision 1", b"decision 2"]


def test_what_comes_while_a_batch_is_written_is_written_next_and_not_after_the_pause_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions keep coming on a busy cluster: that is no failure to be retried a second later."""

    monkeypatch.setattr("slurm_energy.daemon.recorder.entries.RETRY_SECONDS", 300.0)

    async def scenario() -> float:
        queue = JournalQueue(SlowWriter(tmp_path, "daemon"))
        task = asyncio.create_task(queue.run())
        began = time.monotonic()
        for number in range(40):
            queue.append(lambda number=number: b"%d" % number)  # type: ignore[misc]  # binds the loop's value
            await asyncio.sleep(0.01)
        while queue.waiting:
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - began
        task.cancel()
        await queue.close()
        return seconds

    seconds = asyncio.run(scenario())
    assert written(tmp_path) == [b"%d" % number for number in range(40)]
    assert seconds < 300.0


def test_memory_is_bounded_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int]:
        writer = BrokenWriter(tmp_path, "daemon")
        queue = JournalQueue(writer, max_waiting=3)
        for number in range(5):
            queue.append(lambda number=number: b"%d" % number)  # type: ignore[misc]  # binds the loop's value
        await queue.flush()
        waiting, dropped = queue.waiting, queue.dropped
        writer.broken = False
        await queue.close()
        return waiting, dropped

    assert asyncio.run(scenario()) == (3, 2)
    assert written(tmp_path) == [b"2", b"3", b"4"]
