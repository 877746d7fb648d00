import os
from pathlib import Path

import pytest

from slurm_energy.daemon.recorder.journal import (
    JournalReader,
    JournalWriter,
    Position,
    journal_bytes,
    journal_id,
    segment_numbers,
    waiting_bytes,
)
from slurm_energy.errors import SpoolError


def texts(reader: JournalReader, max_lines: int = 100) -> list[bytes]:
    return [line.text for line in reader.read(max_lines)]


def test_lines_come_out_in_order_and_once(tmp_path: Path) -> None:
    writer, reader = JournalWriter(tmp_path, "daemon"), JournalReader(tmp_path, "daemon")
    writer.append([b"1", b"2"], durable=False)
    assert texts(reader) == [b"1", b"2"]
    assert texts(reader) == []
    writer.append([b"3"], durable=True)
    assert texts(reader) == [b"3"]


def test_a_reader_that_did_not_commit_reads_again(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "daemon").append([b"1", b"2"], durable=True)
    assert texts(JournalReader(tmp_path, "daemon")) == [b"1", b"2"]
    first = JournalReader(tmp_path, "daemon")
    line = first.read(1)[0]
    first.commit(line.end)
    assert texts(JournalReader(tmp_path, "daemon")) == [b"2"]


def five_segments(directory: Path, keep_seconds: float) -> JournalReader:
    writer = JournalWriter(directory, "daemon", segment_bytes=1)
    reader = JournalReader(directory, "daemon", keep_seconds)
    for number in range(1, 6):
        writer.append([b"line %d" % number], durable=False)
    return reader


def test_segments_rotate_and_finished_ones_are_removed(tmp_path: Path) -> None:
    reader = five_segments(tmp_path, keep_seconds=0.0)
    assert segment_numbers(tmp_path, "daemon") == [1, 2, 3, 4, 5]
    lines = reader.read(100)
    assert [line.text for line in lines] == [b"line %d" % number for number in range(1, 6)]
    reader.commit(lines[-1].end)
    assert segment_numbers(tmp_path, "daemon") == [5]
    assert segment_numbers(tmp_path / "stored", "daemon") == []


def test_what_is_stored_is_kept_for_a_while_and_read_again_for_a_database_that_lacks_it(tmp_path: Path) -> None:
    reader = five_segments(tmp_path, keep_seconds=3600.0)
    lines = reader.read(100)
    reader.commit(lines[-1].end)
    assert segment_numbers(tmp_path / "stored", "daemon") == [1, 2, 3, 4]
    assert waiting_bytes(tmp_path, ["daemon"]) == 0
    assert reader.rewind(lines[1].end) == lines[1].end
    assert texts(reader) == [b"line 3", b"line 4", b"line 5"]
    old = tmp_path / "stored" / "daemon-000000000001.jsonl"
    os.utime(old, (0, 0))
    again = five_segments(tmp_path, keep_seconds=3600.0)
    again.commit(again.read(100)[-1].end)
    assert not old.exists()
    assert again.rewind(Position(segment=0)) == Position(segment=2)
    assert again.committed == Position(segment=0)


def test_what_waits_for_the_database_is_counted_from_the_position_on(tmp_path: Path) -> None:
    reader = five_segments(tmp_path, keep_seconds=3600.0)
    assert waiting_bytes(tmp_path, ["daemon", "jobs"]) == 5 * len(b"line 1\n")
    reader.commit(reader.read(2)[-1].end)
    assert waiting_bytes(tmp_path, ["daemon", "jobs"]) == 3 * len(b"line 1\n")


def test_a_journal_has_one_name_also_after_a_power_cut(tmp_path: Path) -> None:
    name = journal_id(tmp_path)
    assert journal_id(tmp_path) == name
    (tmp_path / "id").write_text("")
    assert len(journal_id(tmp_path)) == 32


def test_a_new_writer_never_takes_a_number_again(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "daemon").append([b"1"], durable=True)
    reader = JournalReader(tmp_path, "daemon")
    reader.commit(reader.read(10)[-1].end)
    (tmp_path / "daemon-000000000001.jsonl").unlink()
    JournalWriter(tmp_path, "daemon").append([b"2"], durable=True)
    assert segment_numbers(tmp_path, "daemon") == [2]
    assert texts(JournalReader(tmp_path, "daemon")) == [b"2"]


def test_a_torn_last_line_of_a_crash_is_passed_over(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "daemon").append([b"whole"], durable=True)
    with (tmp_path / "daemon-000000000001.jsonl").open("ab") as file:
        file.write(b'{"torn": ')
    reader = JournalReader(tmp_path, "daemon")
    assert texts(reader) == [b"whole"]
    JournalWriter(tmp_path, "daemon").append([b"next"], durable=True)
    assert texts(reader) == [b"next"]


def test_a_line_that_is_still_being_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "daemon-000000000001.jsonl"
    path.write_bytes(b"ha")
    reader = JournalReader(tmp_path, "daemon")
    assert texts(reader) == []
    path.write_bytes(b"half\n")
    assert texts(reader) == [b"half"]


def test_a_batch_is_bounded_by_lines_and_by_bytes(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "daemon").append([b"x" * 99] * 10, durable=True)
    reader = JournalReader(tmp_path, "daemon")
    assert len(reader.read(3)) == 3
    assert len(reader.read(100, max_bytes=250)) == 3
    assert len(reader.read(100)) == 4


def test_streams_in_one_folder_do_not_mix(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "daemon").append([b"d"], durable=True)
    JournalWriter(tmp_path, "jobs").append([b"j"], durable=True)
    assert texts(JournalReader(tmp_path, "jobs")) == [b"j"]
    assert journal_bytes(tmp_path) == 4


def test_a_damaged_position_means_reading_from_the_beginning(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "daemon").append([b"1"], durable=True)
    (tmp_path / "daemon.position").write_text("garbage")
    reader = JournalReader(tmp_path, "daemon")
    assert reader.position == Position(segment=0)
    assert texts(reader) == [b"1"]


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path, "daemon")
    writer.append([b"before"], durable=True)
    real_write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 3:
            return real_write(descriptor, data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpoolError, match="No space left"):
        writer.append([b"lost?"], durable=True)
    monkeypatch.undo()
    writer.append([b"after"], durable=True)
    assert texts(JournalReader(tmp_path, "daemon")) == [b"before", b"after"]


def test_the_journal_is_for_its_owner_only(tmp_path: Path) -> None:
    JournalWriter(tmp_path / "journal", "daemon").append([b"1"], durable=True)
    assert (tmp_path / "journal").stat().st_mode & 0o077 == 0
    assert (tmp_path / "journal" / "daemon-000000000001.jsonl").stat().st_mode & 0o077 == 0


def test_what_is_not_in_the_database_is_counted_without_lines_that_a_crash_tore(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "daemon").append([b"1", b"22"], durable=True)
    JournalWriter(tmp_path, "daemon").append([b"x" * 100_000], durable=True)
    JournalWriter(tmp_path, "jobs").append([b"333"], durable=True)
    assert waiting_bytes(tmp_path, ("daemon", "jobs")) == 5 + 100_001 + 4
    reader = JournalReader(tmp_path, "daemon")
    reader.commit(reader.read(1)[0].end)
    assert waiting_bytes(tmp_path, ("daemon",)) == 3 + 100_001
    reader.commit(reader.read(10)[-1].end)
    with (tmp_path / "daemon-000000000002.jsonl").open("ab") as file:
        file.write(b'{"torn": ')
    assert waiting_bytes(tmp_path, ("daemon",)) == 0
    assert waiting_bytes(tmp_path / "none", ("daemon",)) == 0
