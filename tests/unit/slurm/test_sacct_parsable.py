from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.cluster import JobState
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.sacct_parsable import convert_parsable

HEADER = (
    "JobID|JobName|User|Account|Partition|State|Submit|Start|End|Elapsed|Timelimit|AllocTRES|ReqTRES|NNodes|ExitCode"
)
GOOD = {
    "jobid": "42",
    "jobname": "train",
    "user": "alice",
    "account": "lab",
    "partition": "gpu",
    "state": "COMPLETED",
    "submit": "2026-03-01T10:00:00",
    "start": "2026-03-01T10:05:00",
    "end": "2026-03-02T11:05:10",
    "elapsed": "1-01:00:10",
    "timelimit": "2-00:00:00",
    "alloctres": "billing=16,cpu=16,gres/gpu:a100=4,gres/gpu=4,mem=187.50G,node=2",
    "reqtres": "cpu=8,gres/gpu=2,mem=1T",
    "nnodes": "2",
    "exitcode": "0:0",
}


def row(**cells: str) -> str:
    assert set(cells) <= set(GOOD)
    return "|".join({**GOOD, **cells}.values())


def table(*rows: str) -> str:
    return "\n".join([HEADER, *rows]) + "\n"


def one(**cells: str) -> JobState:
    (job,) = convert_parsable(table(row(**cells))).items
    return job


def test_all_columns_of_a_job_are_read() -> None:
    job = one()
    assert (job.job_id, job.name, job.user_name, job.account, job.partitions) == (42, "train", "alice", "lab", ("gpu",))
    assert (job.state, job.gpu_count, job.cpus, job.node_count, job.exit_code) == ("COMPLETED", 4, 16, 2, 0)
    assert job.submitted_at_seconds == 1772359200.0
    assert (job.started_at_seconds, job.ended_at_seconds) == (1772359500.0, 1772359500.0 + 90_010.0)
    assert job.time_limit_minutes == 2880.0
    assert job.user_id == -1


def test_steps_are_left_aside() -> None:
    steps = [row(jobid=f"42.{step}", user="", partition="") for step in ("batch", "extern", "0", "interactive")]
    found = convert_parsable(table(row(), *steps, row(jobid="43_5.batch"), row(jobid="44+1.0")))
    assert [job.job_id for job in found.items] == [42]
    assert found.skipped == {}


def test_array_tasks_and_components_are_jobs() -> None:
    found = convert_parsable(table(row(jobid="50_7"), row(jobid="50_[8-20%4]", state="PENDING"), row(jobid="60+1")))
    assert [(job.job_id, job.array_job_id, job.array_task, job.het_job_id) for job in found.items] == [
        (50, 50, "7", None),
        (50, 50, "8-20%4", None),
        (61, None, None, 60),
    ]


def test_raw_number_tells_tasks_apart() -> None:
    text = "JobIDRaw|JobID|State|Submit|Start|ElapsedRaw\n57|50_7|COMPLETED|100|200|9\n58|50_8|COMPLETED|100|200|9\n"
    assert [(job.job_id, job.array_task) for job in convert_parsable(text).items] == [(57, "7"), (58, "8")]


@pytest.mark.parametrize(
    ("cell", "state"),
    [
        ("CANCELLED by 1000", "CANCELLED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY"),
        ("TIMEOUT", "TIMEOUT"),
        ("REQUEUED", "REQUEUED"),
        ("REVOKED", "REVOKED"),
        ("RUNNING", "RUNNING"),
    ],
)
def test_states_lose_what_follows_them(cell: str, state: str) -> None:
    assert one(state=cell).state == state


@pytest.mark.parametrize("word", ["Unknown", "None", "", "N/A"])
def test_job_without_a_start_never_ran(word: str) -> None:
    job = one(state="CANCELLED by 5", start=word, end=word, elapsed="00:00:00", alloctres="")
    assert (job.started_at_seconds, job.ended_at_seconds, job.gpu_count) == (None, None, 2)


def test_running_job_has_no_end() -> None:
    job = one(state="RUNNING", end="Unknown", exitcode="0:0")
    assert (job.ended_at_seconds, job.exit_code) == (None, None)
    assert job.started_at_seconds is not None


@pytest.mark.parametrize(
    ("cell", "minutes"),
    [
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
        ("1-00:00:00", 1440.0),
        ("00:30:00", 30.0),
        ("90", 90.0),
    ],
)
def test_time_limits(cell: str, minutes: float | None) -> None:
    assert one(timelimit=cell).time_limit_minutes == minutes


@pytest.mark.parametrize(
    ("elapsed", "seconds"), [("00:00:00", 0.0), ("00:00:07", 7.0), ("02:03", 123.0), ("10-00:00:01.250", 864_001.0)]
)
def test_elapsed_time_gives_the_end(elapsed: str, seconds: float) -> None:
    job = one(elapsed=elapsed)
    assert job.ended_at_seconds is not None
    assert job.started_at_seconds is not None
    assert job.ended_at_seconds - job.started_at_seconds == seconds


@pytest.mark.parametrize(
    ("tres", "gpus", "cpus"),
    [
        ("cpu=4,gres/gpu:a100=2,gres/gpu=2", 2, 4),
        ("cpu=4,gres/gpu:a100=2", 2, 4),
        ("cpu=4,gres/gpu:a100=2,gres/gpu:h100=1,gres/gpu=3", 3, 4),
        ("cpu=1K,mem=4G", 0, 1024),
        ("gres/gpu:1g.10gb=3", 3, None),
    ],
)
def test_gpus_and_processors_come_from_the_allocation(tres: str, gpus: int, cpus: int | None) -> None:
    job = one(alloctres=tres)
    assert (job.gpu_count, job.cpus) == (gpus, cpus)


def test_what_was_asked_for_stands_in_for_no_allocation() -> None:
    assert (one(alloctres="").gpu_count, one(alloctres="", reqtres="").gpu_count) == (2, None)


def test_times_are_local_and_elapsed_time_survives_a_change_of_the_clock() -> None:
    text = table(row(start="2026-03-29T01:30:00", end="2026-03-29T03:30:00", elapsed="01:00:00"))
    (job,) = convert_parsable(text, zone=ZoneInfo("Europe/Berlin")).items
    assert job.submitted_at_seconds == 1772359200.0 - 3600.0
    assert job.started_at_seconds is not None
    assert job.ended_at_seconds == job.started_at_seconds + 3600.0


def test_times_with_an_offset_and_unix_seconds_need_no_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for submit in ("2026-03-01T11:00:00+0100", "2026-03-01T10:00:00+00:00", "1772359200"):
        (job,) = convert_parsable(table(row(submit=submit)), zone=berlin).items
        assert job.submitted_at_seconds == 1772359200.0


def test_suspended_time_is_added_to_the_end() -> None:
    text = "JobID|State|Submit|Start|Elapsed|Suspended\n1|COMPLETED|100|200|00:10:00|00:05:00\n"
    (job,) = convert_parsable(text).items
    assert (job.ended_at_seconds, job.suspended_seconds) == (200.0 + 900.0, 300.0)


@pytest.mark.parametrize(
    ("column", "cell", "joules"),
    [
        ("ConsumedEnergyRaw", "18446744073709551614", None),
        ("ConsumedEnergyRaw", "4294967294", None),
        ("ConsumedEnergyRaw", "0", None),
        ("ConsumedEnergyRaw", "", None),
        ("ConsumedEnergyRaw", "1234", 1234.0),
        ("ConsumedEnergy", "4.19G", 4.19e9),
        ("ConsumedEnergy", "418.52M", 418.52e6),
    ],
)
def test_energy_that_is_no_energy_is_unknown(column: str, cell: str, joules: float | None) -> None:
    (job,) = convert_parsable(f"JobID|State|Submit|Start|End|{column}\n1|COMPLETED|100|200|300|{cell}\n").items
    assert job.energy_joules == joules


def test_job_name_may_hold_the_delimiter_and_other_line_ends() -> None:
    job = one(jobname="a|b||c\x0b\u2028'; DROP")
    assert (job.name, job.user_name) == ("a|b||c\x0b\u2028'; DROP", "alice")


def test_trailing_delimiters_line_ends_and_a_byte_order_mark_do_not_matter() -> None:
    text = "\ufeff" + table(row()).replace("\n", "|\r\n")
    assert convert_parsable(text).items == convert_parsable(table(row())).items


def test_other_delimiter() -> None:
    text = table(row()).replace("|", "^")
    assert convert_parsable(text, delimiter="^").items == convert_parsable(table(row())).items


@pytest.mark.parametrize(
    ("cells", "column", "reason"),
    [
        ({"jobid": "x"}, "JobID", "is not a job"),
        ({"jobid": "0"}, "JobID", "is no job number"),
        ({"jobid": "99999999999"}, "JobID", "is not a job"),
        ({"state": "HUNGRY"}, "State", "is no state"),
        ({"submit": "Unknown"}, "Submit", "is needed"),
        ({"submit": "yesterday"}, "Submit", "is not a time"),
        ({"submit": "0001-01-01T00:00:00"}, "Submit", "is out of its bound"),
        ({"start": "2026-13-01T00:00:00"}, "Start", "is not a time"),
        ({"elapsed": "long"}, "Elapsed", "is not a duration"),
        ({"timelimit": "soon"}, "Timelimit", "is not a time limit"),
        ({"alloctres": "gres/gpu:a100=many"}, "AllocTRES", "has a GPU count"),
    ],
)
def test_bad_row_costs_only_itself_and_is_told(cells: dict[str, str], column: str, reason: str) -> None:
    told: list[tuple[int, str, str, str]] = []
    found = convert_parsable(table(row(**cells), row(jobid="7")), on_bad=lambda *bad: told.append(bad))
    assert [job.job_id for job in found.items] == [7]
    assert found.skipped_rows == 1
    ((line, told_column, value, told_reason),) = told
    assert (line, told_column, value) == (2, column, next(iter(cells.values())))
    assert reason in told_reason


def test_row_of_another_length_is_bad() -> None:
    found = convert_parsable("JobID|State|Submit|Start|End\n1|COMPLETED|100|200\n2|COMPLETED|100|200|300|5\n")
    assert (found.items, found.skipped_rows) == ((), 2)


@pytest.mark.parametrize(
    "text", ["", "\n", "42|train|COMPLETED\n", "JobID|State|Submit|Start\n", "JobID|Submit|Start|End"]
)
def test_text_without_the_needed_header_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="has no column"):
        convert_parsable(text)


@given(st.lists(st.lists(st.text(max_size=20), min_size=14, max_size=16).map("|".join), max_size=5))
def test_no_row_breaks_the_reader(rows: list[str]) -> None:
    found = convert_parsable(table(row(), *rows))
    assert found.items[0].job_id == 42


@given(
    st.fixed_dictionaries(
        {},
        optional={name: st.text("0123456789-:./_[]%+TKMGUnknowEACOMPLTD |=", max_size=20) for name in GOOD},
    )
)
def test_no_cell_breaks_the_reader(cells: dict[str, str]) -> None:
    found = convert_parsable(table(row(**cells)))
    assert len(found.items) + found.skipped_rows <= 1


OLD = "JobID|JobName|State|Submit|Start|End|Elapsed|NNodes"


def old(columns: str, *cells: str) -> JobState:
    text = f"{OLD}|{columns}\n7|train|COMPLETED|100|200|300|00:01:40|2|{'|'.join(cells)}\n"
    (job,) = convert_parsable(text).items
    return job


@pytest.mark.parametrize(
    ("columns", "cells", "count", "types"),
    [
        ("AllocGRES", ("gpu:4",), 4, ()),
        ("AllocGRES", ("gpu:tesla:4",), 4, ("tesla",)),
        ("AllocGRES", ("7696487:2",), 2, ()),
        ("AllocGRES", ("",), 0, ()),
        ("AllocTRES|AllocGRES", ("billing=1,cpu=8", "gpu:3090:2"), 2, ("3090",)),  # gres/gpu is no accounted TRES
        ("AllocTRES|AllocGRES", ("cpu=8,gres/gpu=2,gres/gpu:v100=2", "gpu:2"), 2, ("v100",)),
        ("ReqGRES", ("gpu:2",), 4, ()),  # asked for on each of two nodes
        ("ReqTRES", ("cpu=1,gres/gpu:a100=3",), 3, ("a100",)),
        ("AllocCPUS", ("8",), None, ()),
    ],
)
def test_gpus_are_found_in_whatever_column_names_them(
    columns: str, cells: tuple[str, ...], count: int | None, types: tuple[str, ...]
) -> None:
    job = old(columns, *cells)
    assert (job.gpu_count, job.gpu_types) == (count, types)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_exports_with_another_delimiter_are_read_by_their_header(mark: str) -> None:
    text = table(row(alloctres="billing=16,gres/gpu:a100=4,gres/gpu=4", reqtres="billing=8,gres/gpu=2"))
    found = convert_parsable(text.replace("|", mark))
    assert found.skipped == {}
    (job,) = found.items
    assert (job.job_id, job.gpu_count, job.gpu_types, job.node_count) == (42, 4, ("a100",), 2)


def test_a_csv_with_quotes_is_read_as_csv() -> None:
    head = ",".join(f'"{name}"' for name in HEADER.split("|"))
    cells = {**GOOD, "jobname": 'a "b", c\nd'}
    body = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells.values())
    (job,) = convert_parsable(f"\ufeff{head}\r\n{body}\r\n").items
    assert (job.name, job.gpu_count) == ('a "b", c\nd', 4)


def test_two_exports_in_one_file_are_read_by_their_own_headers_and_overlap() -> None:
    running = row(jobid="43", state="RUNNING", end="Unknown", elapsed="00:10:00")
    second = "JobID|State|Submit|Start|Elapsed|AllocTRES"
    later = f"43|COMPLETED|{GOOD['submit']}|{GOOD['start']}|01:00:00|gres/gpu=1"
    again = f"42|COMPLETED|{GOOD['submit']}|{GOOD['start']}|1-01:00:10|gres/gpu:a100=4"
    found = convert_parsable(table(row(), running) + "\n" + f"{second}\n{again}\n{later}\n")
    assert found.skipped == {}
    assert sorted((job.job_id, job.state, job.gpu_count) for job in found.items) == [
        (42, "COMPLETED", 4),
        (43, "COMPLETED", 1),
    ]


@pytest.mark.parametrize("name", ["two\nlines", "\n", "a\n\nb", "99|not a row\nb", "x\r\ny"])
def test_a_line_break_in_a_job_name_costs_no_row(name: str) -> None:
    told: list[int] = []
    found = convert_parsable(
        table(row(jobid="41"), row(jobname=name), row(jobid="43")), on_bad=lambda line, *_: told.append(line)
    )
    assert (told, [job.job_id for job in found.items]) == ([], [41, 42, 43])


def test_a_row_that_was_cut_off_costs_only_itself() -> None:
    found = convert_parsable(table(row(jobid="41")) + "42|train|alice\n" + row(jobid="43") + "\n")
    assert [job.job_id for job in found.items] == [41, 43]
    assert sum(found.skipped.values()) == 1


def test_a_csv_whose_cells_cannot_be_told_apart_is_told_with_what_helps() -> None:
    told: list[str] = []
    head = "JobID,State,Submit,Start,Elapsed,NodeList\n"
    convert_parsable(head + "1,COMPLETED,100,200,9,n[1,3]\n", on_bad=lambda *bad: told.append(bad[3]))
    assert "quotes, or sacct -P without --delimiter" in told[0]
