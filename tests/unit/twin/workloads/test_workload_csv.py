import logging
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads.csv_file import COLUMNS, read_csv, write_csv

HEADER = "job_id,submitted_seconds,true_units,after_ok,gpu_counts,name"


def fields_of(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in COLUMNS}


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(WorkloadError) as caught:
        read_csv(path)
    return str(caught.value)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.lists(
    st.text("abcXYZ0189_.-é |;", min_size=1, max_size=8).filter(lambda text: text == text.strip()), max_size=3
)
seconds = st.floats(0.0, 1e12)
units = st.floats(0.0, 1e18)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    low = draw(st.integers(1, 64))
    return Job(
        job_id=0,
        submitted_seconds=draw(seconds),
        true_units=draw(units),
        kind=draw(texts.filter(bool)),
        gpu_counts=draw(
            st.one_of(
                st.integers(low, low + 20).map(lambda high: tuple(range(low, high + 1))),
                st.sets(st.integers(1, 1_000_000), min_size=1, max_size=5).map(lambda found: tuple(sorted(found))),
            )
        ),
        estimated_units=draw(units),
        time_limit_seconds=draw(st.one_of(st.just(inf), st.floats(0.0, 1e12, exclude_min=True))),
        deadline_seconds=draw(st.one_of(st.just(inf), seconds)),
        max_slowdown=draw(st.one_of(st.just(inf), st.floats(0.0, 1e6))),
        priority=draw(st.floats(-1e15, 1e15)),
        partitions=tuple(draw(names)),
        devices=tuple(draw(names)),
        cpus=draw(st.integers(0, 10**9)),
        memory_gib=draw(st.floats(0.0, 1e12)),
        exclusive=draw(st.booleans()),
        spread=draw(st.booleans()),
        shareable=draw(st.booleans()),
        input_gigabytes=draw(st.floats(0.0, 1e12)),
        array_id=draw(st.one_of(st.none(), st.integers(0, 2**63 - 1))),
        array_limit=draw(st.integers(0, 10**9)),
        requeue=draw(st.booleans()),
        fails_after_units=draw(st.one_of(st.just(inf), units)),
        checkpoint_units=draw(st.one_of(st.just(inf), st.floats(0.0, 1e18, exclude_min=True))),
        user=draw(texts),
        account=draw(texts),
        name=draw(texts),
        ingress=draw(st.integers(0, 10_000)),
    )


@given(drawn=st.lists(jobs(), max_size=4), first_id=st.integers(0, 2**62))
def test_what_was_written_is_read_back_exactly(tmp_path: Path, drawn: list[Job], first_id: int) -> None:
    for position, job in enumerate(drawn):
        job.job_id = first_id + position
        job.after_ok = tuple(range(first_id, job.job_id))
        job.after_any = job.after_ok[:1]
    drawn.sort(key=lambda job: job.submitted_seconds)
    path = tmp_path / "w.csv"
    write_csv(Workload(name="w", jobs=tuple(drawn)), path)
    assert [fields_of(job) for job in read_csv(path).jobs] == [fields_of(job) for job in drawn]


def test_columns_that_say_nothing_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    write_csv(
        Workload(name="w", jobs=(Job(job_id=5, submitted_seconds=1.5, true_units=2.0, gpu_counts=(2, 3, 4)),)), path
    )
    assert path.read_text() == "job_id,submitted_seconds,true_units,kind,gpu_counts\n5,1.5,2.0,training,2-4\n"


@pytest.mark.parametrize(
    "job",
    [
        Job(job_id=1, submitted_seconds=0.0, true_units=1.0, name="\ud800"),
        Job(job_id=1, submitted_seconds=0.0, true_units=1.0, kind=""),
        Job(job_id=1, submitted_seconds=0.0, true_units=1.0, partitions=("a,b",)),
        Job(job_id=1, submitted_seconds=0.0, true_units=float("nan")),
        Job(job_id=-1, submitted_seconds=0.0, true_units=1.0),
        Job(job_id=1, submitted_seconds=0.0, true_units=1.0, gpu_counts=()),
    ],
)
def test_job_that_the_file_cannot_hold_is_refused(tmp_path: Path, job: Job) -> None:
    with pytest.raises(WorkloadError, match=rf"job {job.job_id} cannot be written"):
        write_csv(Workload(name="w", jobs=(job,)), tmp_path / "w.csv")
    assert not (tmp_path / "w.csv").exists()


def test_only_submission_and_work_are_needed(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, "true_units,submitted_seconds\n7,20\n8,10\n"))
    assert [(job.job_id, job.submitted_seconds, job.true_units, job.gpu_counts) for job in found.jobs] == [
        (2, 10.0, 8.0, (1,)),
        (1, 20.0, 7.0, (1,)),
    ]
    assert found.name == "jobs"


BAD_ROWS = {
    "nan": ("1,nan,5,,1,a", "column submitted_seconds: 'nan' is not a finite number"),
    "inf": ("1,0,inf,,1,a", "column true_units: 'inf' is not a finite number"),
    "overflow": ("1,0,1e999,,1,a", "column true_units: '1e999' is not a finite number"),
    "huge": ("1,1e13,5,,1,a", "column submitted_seconds: '1e13' is out of its bound: from 0 to 1e+12"),
    "negative": ("1,-1,5,,1,a", "column submitted_seconds: '-1' is out of its bound: from 0 to 1e+12"),
    "words": ("1,soon,5,,1,a", "column submitted_seconds: 'soon' is not a finite number"),
    "underscores": ("1,1_0,5,,1,a", "column submitted_seconds: '1_0' is not a finite number"),
    "other digits": ("1,\u0661,5,,1,a", "column submitted_seconds: '\u0661' is not a finite number"),
    "hexadecimal": ("0x1,0,5,,1,a", "column job_id: '0x1' is not a whole number"),
    "missing": ("1,,5,,1,a", "column submitted_seconds: '' is needed"),
    "reversed range": ("1,0,5,,8-2,a", "column gpu_counts: '8-2' is a range from high to low"),
    "endless range": ("1,0,5,,1-9999999,a", "column gpu_counts: '1-9999999' is a range over more than 4096 counts"),
    "descending": ('1,0,5,,"4,2",a', "column gpu_counts: '4,2' is not ascending counts"),
    "no device": ("1,0,5,,0,a", "column gpu_counts: '0' is out of its bound: 1 to 1000000 devices"),
    "unknown dependency": ("1,0,5,9,1,a", "column after_ok, after_any: '9' job 9 is unknown"),
    "self": ("1,0,5,1,1,a", "column after_ok, after_any: '1' is part of a cycle"),
    "too few": ("1,0,5", "column job_id: '1' begins 3 cells under 6 columns"),
    "too many": ("1,0,5,,1,a,b", "column job_id: '1' begins 7 cells under 6 columns"),
    "stray quote": ('1,0,5,,1,"a"b', "column (all): '' cannot be read as CSV"),
    "open quote": ('1,0,5,,1,"a', "column (all): '' cannot be read as CSV"),
    "long name": ("1,0,5,,1," + "a" * 1025, "has 1025 characters, more than 1024"),
}


@pytest.mark.parametrize(("row", "message"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_bad_row_is_refused_with_file_line_column_value_and_reason(tmp_path: Path, row: str, message: str) -> None:
    path = written(tmp_path, f"{HEADER}\n2,0,5,,1,good\n{row}\n")
    found = refusal(path)
    assert f"{str(path)!r}, line 3, " in found
    assert message in found


@pytest.mark.parametrize("row", [row for row, _ in BAD_ROWS.values()], ids=BAD_ROWS.keys())
def test_bad_row_is_counted_when_asked(tmp_path: Path, row: str) -> None:
    found = read_csv(written(tmp_path, f"{HEADER}\n2,0,5,,1,good\n{row}\n"), skip_bad=True)
    assert [job.name for job in found.jobs] == ["good"]
    assert found.bad_rows == 1


def test_second_job_of_an_id_is_bad(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n3,0,5,,1,first\n3,1,5,,1,second\n")
    assert "line 3, column job_id: '3' is the job of line 2 too" in refusal(path)
    assert [job.name for job in read_csv(path, skip_bad=True).jobs] == ["first"]


def test_cycle_takes_out_its_jobs_and_those_that_wait_for_them(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n1,0,5,3,1,a\n2,0,5,1,1,b\n3,0,5,2,1,c\n4,0,5,3,1,waits\n5,0,5,,1,free\n")
    assert "is part of a cycle, or waits for a job that can never start" in refusal(path)
    found = read_csv(path, skip_bad=True)
    assert ([job.name for job in found.jobs], found.bad_rows) == (["free"], 4)


def test_job_that_waits_for_a_bad_row_is_bad_too(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, f"{HEADER}\n1,nan,5,,1,a\n2,0,5,1,1,b\n3,0,5,,1,c\n"), skip_bad=True)
    assert ([job.name for job in found.jobs], found.bad_rows) == (["c"], 2)


def test_job_may_wait_for_one_that_comes_later(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, f"{HEADER}\n1,0,5,2,1,a\n2,9,5,,1,b\n"))
    assert [job.after_ok for job in found.jobs] == [(2,), ()]


def test_line_ends_byte_order_mark_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    plain = f"{HEADER}\n1,0,5,,2,a\n\n2,1,5,,1,b\n"
    expected = [fields_of(job) for job in read_csv(written(tmp_path, plain)).jobs]
    for ends in ("\r\n", "\r"):
        path = written(tmp_path, b"\xef\xbb\xbf" + plain.replace("\n", ends).encode())
        assert [fields_of(job) for job in read_csv(path).jobs] == expected
    assert [fields_of(job) for job in read_csv(written(tmp_path, plain.rstrip("\n"))).jobs] == expected


def test_hostile_names_come_through_and_lines_are_counted_over_them(tmp_path: Path) -> None:
    evil = "x; rm -rf /\n=cmd|' /C calc'!A0\r\x1b[31m\x00\u202e'\",|"
    quoted = evil.replace('"', '""')
    path = written(tmp_path, f'{HEADER}\n1,0,5,,1,"{quoted}"\n2,0,nan,,1,b\n')
    assert read_csv(path, skip_bad=True).jobs[0].name == evil
    assert "line 5, column true_units" in refusal(path)


def test_message_shows_no_control_character_of_the_file(tmp_path: Path) -> None:
    found = refusal(written(tmp_path, f"{HEADER}\n1,\x1b[2J,5,,1,a\n"))
    assert "\x1b" not in found
    assert "\\x1b[2J" in found


def test_row_that_is_not_utf_8_is_bad(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER.encode() + b"\n1,0,5,,1,caf\xe9\n2,0,5,,1,caf\xc3\xa9\n")
    assert "line 2, column name: 'caf\\udce9' is not UTF-8" in refusal(path)
    assert [job.name for job in read_csv(path, skip_bad=True).jobs] == ["café"]


def test_empty_file_is_refused_and_a_header_alone_is_no_jobs(tmp_path: Path) -> None:
    assert "is empty: a header is needed" in refusal(written(tmp_path, ""))
    assert "is empty: a header is needed" in refusal(written(tmp_path, "\n\n"))
    assert read_csv(written(tmp_path, HEADER)).jobs == ()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("job_id,submitted_seconds,true_unit", "column 3, 'true_unit', is unknown; did you mean true_units?"),
        ("submitted_seconds,true_units,colour_\x1b", "column 3, 'colour_\\x1b', is unknown; there are"),
        ("submitted_seconds,true_units,name,name", "column 'name' is there twice"),
        ("job_id,true_units", "column 'submitted_seconds' is missing"),
    ],
)
def test_wrong_columns_are_refused_even_when_rows_are_skipped(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_csv(written(tmp_path, f"{header}\n1,2,3\n"), skip_bad=True)
    assert message in str(caught.value)


def test_file_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "none.csv")
    assert "is not a regular file" in refusal(tmp_path)


def test_first_bad_rows_are_logged_and_their_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = "".join(f"{number},nan,1,,1,a\n" for number in range(9))
    with caplog.at_level(logging.WARNING):
        assert read_csv(written(tmp_path, f"{HEADER}\n{rows}"), skip_bad=True).bad_rows == 9
    assert len(caplog.records) == 6
    assert "line 2, column submitted_seconds" in caplog.records[0].getMessage()
    assert caplog.records[-1].getMessage().endswith("rows=9")


@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
)
def test_no_content_breaks_the_reader(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, HEADER.encode() + b"\n1,0,5,,1,a\n" + content)
    found = read_csv(path, skip_bad=True)
    assert len(found.jobs) >= 1 or found.bad_rows >= 1


def test_folder_that_is_not_there_is_refused_when_writing(tmp_path: Path) -> None:
    job = Job(job_id=1, submitted_seconds=0.0, true_units=1.0)
    with pytest.raises(WorkloadError, match="cannot be written"):
        write_csv(Workload(name="w", jobs=(job,)), tmp_path / "absent" / "w.csv")
